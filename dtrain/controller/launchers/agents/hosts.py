"""Names of hosts, and how many tasks each has room for: in a list, or in a file."""

from __future__ import annotations

import re
from pathlib import Path

from dtrain.errors import UsageError

#: A host as OpenSSH takes it, with the tasks that it has room for behind it.
_HOST = re.compile(
    r"(?P<user>[\w.+-]+@)?(?:\[(?P<six>[0-9a-fA-F:.]+(?:%\w+)?)\]|(?P<name>\w[\w.-]*))"
    r"(?::(?P<slots>[0-9]{1,4}))?"
)
_ACCEPTED = "[user@]host, or host:2 for two tasks, an IPv6 address in brackets"
#: Options of a line of a file: Open MPI's and DeepSpeed's, of which the number of tasks counts.
_SLOTS = re.compile(r"slots\s*=\s*([0-9]{1,4})")
_OPTION = re.compile(r"(slots|max[-_]slots)\s*=\s*[0-9]{1,4}")
#: Lines of a file.
_MOST = 100_000


def listed(hosts: list[str]) -> list[tuple[str, int]]:
    """Return the names of ``launcher.hosts``, and how many tasks each has room for.

    Raises:
        UsageError: one is no host, or is given twice.
    """
    found = [_parsed("launcher.hosts", text) for text in hosts]
    return _once("launcher.hosts", found)


def in_file(path: str) -> list[tuple[str, int]]:
    """Return those of a file of hosts: ``host slots=N`` a line, ``#`` before a comment.

    Open MPI's and DeepSpeed's files are of this form, and so is a plain list of hosts. A host that
    stands there again has room for more.

    Raises:
        UsageError: there is no such file, or a line is none of these.
    """
    key = "launcher.hostfile"
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no text"
        raise UsageError(
            key, path, f"cannot be read ({why})", "a file with a line for each host: host slots=N",
            f"{key}=FILE",
        ) from None  # fmt: skip
    slots: dict[str, int] = {}
    for number, line in enumerate(lines[:_MOST], 1):
        name, _, options = line.partition("#")[0].strip().partition(" ")
        if not name:
            continue
        if _OPTION.sub("", options).strip():
            raise UsageError(
                key, path, f"line {number} is {line.strip()!r}", "host slots=N in each line",
                f"{name} slots=1",
            )  # fmt: skip
        host, room = _parsed(key, name)
        given = _SLOTS.findall(re.sub(r"max[-_]slots\s*=\s*[0-9]+", "", options))
        slots[host] = slots.get(host, 0) + (int(given[0]) if given else room)
    return [(host, room) for host, room in slots.items() if room]


def _parsed(key: str, text: str) -> tuple[str, int]:
    found = _HOST.fullmatch(str(text).strip())
    if found is None or int(found["slots"] or 1) == 0:
        raise UsageError(key, text, "is no host", _ACCEPTED, "'launcher.hosts=[a,b:2]'")
    return (found["user"] or "") + (found["six"] or found["name"]), int(found["slots"] or 1)


def _once(key: str, found: list[tuple[str, int]]) -> list[tuple[str, int]]:
    for place, (name, slots) in enumerate(found):
        if name in [other for other, _ in found[:place]]:
            more = slots + next(room for other, room in found if other == name)
            raise UsageError(
                key, name, "is given twice", "each host once, with the number of its tasks",
                f"{name}:{more}",
            )  # fmt: skip
    return found
