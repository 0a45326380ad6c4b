"""What is a secret: by the name of its key, or by its place in an address.

No file of a run, nothing in MLflow and no message holds one. How a configuration is written
without them is in :mod:`dtrain.config.private`.
"""

from __future__ import annotations

import os
import re
from itertools import pairwise
from typing import Any

HIDDEN = "***"

_WORDS = {
    "password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials",
    "apikey", "authorization",
}  # fmt: skip
_PAIRS = {
    ("api", "key"), ("access", "key"), ("private", "key"), ("account", "key"), ("auth", "key"),
    ("cluster", "key"),
    ("connection", "string"),
}  # fmt: skip
#: Tokens of a vocabulary and counts of them, which are no secrets: ``mask_token``, ``num_token``.
_VOCABULARY = {
    "pad", "padding", "bos", "eos", "unk", "unknown", "mask", "cls", "class", "sep", "separator",
    "start", "end", "begin", "stop", "oov", "blank", "newline", "special", "first", "last", "next",
    "num", "n", "number", "count", "per", "each", "max", "min",
}  # fmt: skip
#: Shorter values of the environment are not looked for in texts: they would be found in words.
_SHORTEST = 6

_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_PASSWORD = re.compile(r"(://[^/\s:@]*:|https?://(?=[^/\s:]*@))([^/\s]+)(?=@)")
_QUERY = re.compile(r"([?&;]([\w-]+)=)([^&;\s]+)")


def named(key: str) -> bool:
    """Say whether ``key`` (``a.b_c``, or a variable's name) is named like a secret.

    Numbers of tokens, embeddings of them and tokens of a vocabulary are not.
    """
    return any(_named(_PART.findall(part)) for part in key.split("."))


def _named(parts: list[str]) -> bool:
    words = [part.lower() for part in parts]
    if _WORDS.intersection(words) or _PAIRS.intersection(pairwise(words)):
        return True
    return _ends_in_token(words) and not _VOCABULARY.intersection(words[-2:-1])


def _ends_in_token(words: list[str]) -> bool:
    return words[-1:] == ["token"]


def passwords(text: str) -> list[tuple[int, int]]:
    """Return where passwords stand in the addresses of ``text``: ``(begin, end)`` of each."""
    found = [match.span(2) for match in _PASSWORD.finditer(text)]
    found += [
        match.span(3)
        for match in _QUERY.finditer(text)
        # An address that is signed is a key to what it names, and has no other.
        if named(match[2]) or match[2].lower().endswith(("sig", "signature"))
    ]
    return sorted(found)


def mask(text: str) -> str:
    """Return ``text`` without passwords of addresses and secrets of this process's environment."""
    for begin, end in reversed(passwords(text)):
        text = text[:begin] + HIDDEN + text[end:]
    # Another thread may take a variable away meanwhile.
    secret = (os.environ.get(name, "") for name in list(os.environ) if named(name))
    values = {value for value in secret if len(value) >= _SHORTEST}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def hide(node: object, key: str = "") -> Any:
    """Return plain mappings, lists and scalars with what is named like a secret hidden."""
    if isinstance(node, dict):
        return {n: hide(value, f"{key}.{n}" if key else str(n)) for n, value in node.items()}
    if isinstance(node, list):
        return [hide(value, key) for value in node]
    return HIDDEN if is_secret(node, key) else node


def is_secret(value: object, key: str) -> bool:
    """Say whether a scalar is a secret, standing at ``key``.

    A number at ``token`` is one of a vocabulary, or how many there are.
    """
    if not named(key) or isinstance(value, bool):
        return False
    return isinstance(value, str) or (isinstance(value, (int, float)) and not _counts(key))


def _counts(key: str) -> bool:
    last = [part.lower() for part in _PART.findall(key.rpartition(".")[2])]
    others = named(key.rpartition(".")[0]) or _WORDS.intersection(last)
    return _ends_in_token(last) and not others
