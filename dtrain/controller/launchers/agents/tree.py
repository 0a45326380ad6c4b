"""The working tree: packed here, sent along, unpacked where an agent is."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from dtrain.controller.launchers.agents.stream import packed
from dtrain.errors import DtrainError, UsageError

#: Bytes of all files, packed: code, and no data.
MOST = 64 << 20
#: Bytes of a piece of it.
_PIECE = 1 << 20
#: Folders that are no part of a tree without git.
_NOT = {"outputs", "mlruns", "node_modules", "__pycache__"}


def files(folder: Path) -> list[Path]:
    """Return the files of a working tree, relative to it.

    Of a checkout of git those that it knows or does not ignore; else all but outputs, virtual
    environments, and what begins with a dot.
    """
    asked = ["git", "-C", str(folder), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        done = subprocess.run(asked, capture_output=True, check=False)
    except OSError:  # no git
        done = None
    if done is not None and done.returncode == 0:
        names = [Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name]
        return sorted({name for name in names if (folder / name).is_file()})
    found: list[Path] = []
    for above, folders, held in os.walk(folder):
        folders[:] = [
            name for name in folders
            if name not in _NOT and not name.startswith(".")
            and not os.path.exists(os.path.join(above, name, "pyvenv.cfg"))
        ]  # fmt: skip
        found += [Path(above, name) for name in held if not name.startswith(".")]
    return sorted(path.relative_to(folder) for path in found if path.is_file())


def archive(folder: Path) -> bytes:
    """Return the files of a working tree, as one archive.

    Raises:
        UsageError: they are too much.
    """
    import tarfile  # takes as long as all launchers together, and every command has this module

    held = io.BytesIO()
    sizes: dict[Path, int] = {}
    with tarfile.open(fileobj=held, mode="w:gz", compresslevel=1) as tar:
        for name in files(folder):
            sizes[name] = (folder / name).stat().st_size
            tar.add(folder / name, str(name), recursive=False)
            if held.tell() > MOST or sum(sizes.values()) > 4 * MOST:
                largest = max(sizes, key=lambda each: sizes[each])
                raise UsageError(
                    "launcher.sync", "true", f"the files of {folder} are more than {MOST >> 20} "
                    f"MiB, packed; the largest is {largest}", "code, without data",
                    "the file in .gitignore, or launcher.sync=false",
                )  # fmt: skip
    return held.getvalue()


def messages(data: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield an archive as messages."""
    for begin in range(0, len(data), _PIECE):
        piece = data[begin : begin + _PIECE]
        yield packed("tree", piece, last=begin + _PIECE >= len(data))


class Incoming:
    """An archive that comes in pieces.

    Args:
        folder: to unpack it into; empty.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._held = io.BytesIO()

    def take(self, data: bytes, last: bool) -> bool:
        """Take a piece in; True when all is unpacked.

        Raises:
            DtrainError: it is too large, or no archive.
        """
        self._held.write(data)
        if self._held.tell() > MOST + _PIECE:
            raise DtrainError("a working tree came that is too large")
        if not last:
            return False
        self._held.seek(0)
        import tarfile

        try:
            with tarfile.open(fileobj=self._held, mode="r:gz") as tar:
                tar.extractall(self.folder, filter="data")
        except tarfile.TarError as error:
            raise DtrainError(f"the working tree cannot be unpacked: {error}") from None
        return True
