"""A copy of a run folder in an object store, by fsspec.

Objects are replaced as a whole, and cannot be renamed. So a checkpoint is there when its manifest
is, which comes last and goes first. One that is saved again under the same step is kept as
``.old-<step>`` until the new one is there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from dtrain.data import servers
from dtrain.files import addresses
from dtrain.run.checkpoint.format import MANIFEST, STATE
from dtrain.run.checkpoint.store import ASIDE
from dtrain.run.mirror.changes import ChangedFile, Removed, checkpoint_of, problem_of

#: Who copies to a folder; not a file of the run.
OWNER = "owner.json"
#: Bytes of a part of a large file, of which s3fs has ten in memory; S3 takes 10,000 parts.
_CHUNK, _CHUNKS = 16 << 20, 9_000
_OF_CHECKPOINT = re.compile(
    rf"((?:.*/)?checkpoints/)({re.escape(ASIDE)})?(\d+)"
    rf"/({STATE}|{MANIFEST})"
)


class Bucket:
    """The folder at an address; its methods raise whatever its server does.

    Args:
        address: of a run, a sweep, or an ``output_dir``.
        key: that names it, for messages.

    Raises:
        UsageError: a package is not installed.
    """

    def __init__(self, address: str, key: str):
        self.address = address
        self._server = servers.filesystem(address, key, addresses.SCHEMES, hurries=True)
        self._at = address.partition("://")[2].rstrip("/")

    def read(self, path: str) -> bytes | None:
        """Return the contents of a file; None where there is none."""
        self._server.invalidate_cache()
        try:
            return bytes(self._server.cat_file(f"{self._at}/{path}"))
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Write a file, whole or not at all."""
        self._server.pipe_file(f"{self._at}/{path}", data)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._server.rm_file(f"{self._at}/{path}")

    def paths(self, pattern: str = "") -> list[str]:
        """Return the paths of all files below the folder, or of those that a pattern finds."""
        self._server.invalidate_cache()
        found = (
            self._server.glob(f"{self._at}/{pattern}") if pattern else self._server.find(self._at)
        )
        return [str(each).lstrip("/").removeprefix(f"{self._at}/") for each in found]

    # --- from a run folder

    def apply(self, change: ChangedFile | Removed) -> None:
        """Do what :class:`~dtrain.run.mirror.Changes` has found; at any moment it is sound."""
        folder = checkpoint_of(change.path)
        if isinstance(change, Removed):
            names = (MANIFEST, STATE) if folder else ()  # ORDER: first it is none any more
            for path in [f"{folder}/{name}" for name in names] or [change.path]:
                self.remove(path)
            return
        above, _, step = (folder or "").rpartition("/")
        aside = f"{above}/{ASIDE}{step}"
        if folder and change.path.endswith(STATE) and self._exists(f"{folder}/{MANIFEST}"):
            for name in (STATE, MANIFEST):
                self._server.cp_file(f"{self._at}/{folder}/{name}", f"{self._at}/{aside}/{name}")
            self.remove(f"{folder}/{MANIFEST}")  # ORDER: from here on the one aside counts
        # The open file, whatever has its name by now; it is there when all of it is.
        self._server.put_file(
            f"/dev/fd/{change.descriptor}", f"{self._at}/{change.path}",
            chunksize=max(_CHUNK, change.size // _CHUNKS),
        )  # fmt: skip
        if folder and change.path.endswith(MANIFEST) and self._exists(f"{aside}/{MANIFEST}"):
            for name in (MANIFEST, STATE):
                self.remove(f"{aside}/{name}")

    def _exists(self, path: str) -> bool:
        self._server.invalidate_cache()
        return bool(self._server.exists(f"{self._at}/{path}"))

    # --- to a run folder

    def fetch(self, folder: Path) -> None:
        """Fetch all that is sound of a run, or of a sweep, into a folder that is empty."""
        # ORDER: checkpoints first: what is fetched later is at least as new as they are.
        found = _wanted(self.paths())
        wanted = sorted(found, key=lambda each: _OF_CHECKPOINT.fullmatch(each[0]) is None)
        places = [f"{self._at}/{place}" for _, place in wanted]
        self._server.get(places, [str(folder / path) for path, _ in wanted])


def _wanted(there: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the files to be had of those that are there: their paths, and where each is."""
    found = set(there)
    for path in there:
        match = _OF_CHECKPOINT.fullmatch(path)
        if match is None:
            if problem_of(path) is None and path.rpartition("/")[2] != OWNER:
                yield path, path
            continue
        above, aside, step, name = match.groups()
        whole = {f"{above}{step}/{each}" for each in (STATE, MANIFEST)} <= found
        kept = {f"{above}{ASIDE}{step}/{each}" for each in (STATE, MANIFEST)} <= found
        if (whole and not aside) or (kept and aside and not whole):
            yield f"{above}{step}/{name}", path
