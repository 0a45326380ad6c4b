"""What a message says behind ``type:``, and the command that is typed then."""

from __future__ import annotations

import re
import shlex

from dtrain.__main__ import COMMANDS
from dtrain.config import help as key_help
from dtrain.config.overrides import key_of

KEYS = key_help.keys()


def hint(message: str) -> str | None:
    """Return what a message says can be typed as it stands; None where it says nothing."""
    found = re.search(r"; type: (.+?)(?=; accepted: |$)", message)
    return found[1] if found else None


def followed(words: list[str], message: str) -> list[str]:
    """Return a refused command with what its message says, in the place of what is wrong.

    Args:
        words: of the command, without ``dtrain``.
        message: the line that begins with ``error: ``.
    """
    text = hint(message)
    assert text is not None
    right = shlex.split(text)
    while re.fullmatch(r"[A-Z_]+=\S*", right[0]):
        del right[0]
    if right[:3] == ["python", "-m", "dtrain"]:
        return right[3:]
    wrong = message.removeprefix("error: ").partition("=")[0].partition(": ")[0]
    head, _, problem = message.removeprefix("error: ").partition(": ")
    keys, parts = {key_of(word) for word in right}, set()
    # Where the key is right and so is its value, something else is wrong with them.
    if key_of(wrong) not in KEYS or problem.startswith(("is ", "has ", "there is no ")):
        keys |= {key_of(wrong), wrong}
        parts = set(head.replace("=", " ").split())
    kept = [w for w in words if key_of(w) not in keys and w not in parts and w != "="]
    options = [word for word in right if word.startswith("-")]
    return [*kept, *options, *(word for word in right if word not in options)]


def is_command(words: list[str]) -> bool:
    """Say whether a command is one of those that do not train."""
    return bool(words) and (words[0] in COMMANDS or words[0].startswith("--"))
