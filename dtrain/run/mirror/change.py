"""What goes from a run folder to its copy."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from dtrain.files import reading

#: Bytes of the largest piece of a file.
PIECE = 1 << 20
#: Bytes of the longest path, and how many folders deep it may be.
_PATH_BYTES, _DEPTH = 1000, 12
#: Folders that hold one checkpoint each: of the run, and of those that wait for the evaluator.
_CHECKPOINT = re.compile(r"(checkpoints|sidecar/queue|sidecar/work)/(0|[1-9][0-9]{0,17})")

APPEND, REPLACE, REMOVE = "append", "replace", "remove"


@dataclasses.dataclass(frozen=True)
class Change:
    """Bytes of a file, or its removal; the pieces of a file come one after the other.

    Attributes:
        path: below the run folder, with ``/``.
        kind: ``append`` to what the copy has, ``replace`` it once the last piece is there, or
            ``remove`` it: a file, or the folder of a checkpoint.
        offset: where the bytes belong.
        data: the bytes, at most :data:`PIECE`.
        last: whether no piece of this file follows.
    """

    path: str
    kind: str
    offset: int = 0
    data: bytes = b""
    last: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found = dataclasses.asdict(self)
        return {**found, "data": base64.b64encode(self.data).decode("ascii")}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Change:
        """Return what a peer has sent, as far as its form goes.

        Raises:
            ValueError: it is no change.
        """
        try:
            path, kind, offset, last = (found[n] for n in ("path", "kind", "offset", "last"))
            data = base64.b64decode(found["data"], validate=True)
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise ValueError(f"no change of a file: {error!r:.100}") from None
        sound = kind in (APPEND, REPLACE, REMOVE) and isinstance(path, str)
        if not sound or type(last) is not bool or type(offset) is not int or offset < 0:
            raise ValueError("no change of a file")
        if len(data) > PIECE:
            raise ValueError(f"a piece of {len(data):,} bytes: {PIECE:,} at most")
        return cls(path, kind, offset, data, last)


def parts(path: str) -> list[str]:
    """Return the names that a path below a run folder is made of.

    Raises:
        ValueError: it may lead elsewhere, or is none that a run has.
    """
    names = path.split("/")
    for name in names:
        problem = reading.component(name)
        if problem is None and name.startswith("."):
            problem = "begins with a dot"
        if problem is not None:
            raise ValueError(f"the path {path[:200]!r}: {name[:80]!r} {problem}")
    if len(names) > _DEPTH or len(path.encode(errors="surrogatepass")) > _PATH_BYTES:
        raise ValueError(f"the path {path[:80]!r}... is too long")
    return names


def checkpoint_of(path: str) -> str | None:
    """Return the folder of a checkpoint that a path is, or is in; None where it is in none."""
    match = _CHECKPOINT.match(path)
    if match is None or path[match.end() : match.end() + 1] not in ("", "/"):
        return None
    return match[0]
