"""The files of a comparison, which replace those of an earlier one and nothing else.

The last line of the page has the checksums of all three. A file that has none of them is not from
here, or was changed since: it stays.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from dtrain.errors import DamagedFile, UsageError
from dtrain.files import reading, writing

PAGE, RUNS, CURVES = "comparison.html", "comparison.csv", "curves.csv"
_LINE = "<!-- made by dtrain.compare:"
_SUM = re.compile(r"([\w.]+)=([0-9a-f]{64})")
_BYTES = 1 << 28  # of the largest page that is read


class Output:
    """The folder that the files of a comparison go to; it need not exist.

    Raises:
        UsageError: a file of another origin has the name of one of these.
        OSError: a file there cannot be read.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        known = _listed(folder / PAGE)
        self._old: dict[str, str] = {}
        for name in (PAGE, RUNS, CURVES):
            if not os.path.lexists(folder / name):
                continue
            found = _checksum(folder / name, name == PAGE)
            if found is None or (name, found) not in known:
                raise UsageError(
                    "--output", folder,
                    f"{folder / name} is not from an earlier comparison, or was changed since",
                    f"a folder without {PAGE}, {RUNS} and {CURVES} of another origin",
                    f"--output FOLDER, or give {name} another name",
                )  # fmt: skip
            self._old[name] = found

    def write(self, page: str, tables: dict[str, str]) -> None:
        """Write all files.

        Args:
            page: the HTML.
            tables: the others, by their names.

        Raises:
            OSError: one cannot be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        html = page.encode()
        data = {name: table.encode() for name, table in tables.items()}
        sums = {(PAGE, _sha(html)), *((name, _sha(each)) for name, each in data.items())}
        # The old ones, too: killed before the next line is done, they are still there.
        sums |= {(name, old) for name, old in self._old.items() if name != PAGE}
        line = " ".join(f"{name}={checksum}" for name, checksum in sorted(sums))
        writing.write_bytes(self._folder / PAGE, html + f"{_LINE} {line} -->\n".encode())
        for name, each in data.items():
            writing.write_bytes(self._folder / name, each)


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _listed(page: Path) -> set[tuple[str, str]]:
    """Return the names and checksums in the last line of a page."""
    try:
        last = reading.read_bytes(page, _BYTES).rpartition(_LINE.encode())[2]
    except (OSError, DamagedFile):
        return set()
    if not last.endswith(b" -->\n") or b"\n" in last[:-1]:
        return set()
    return {(name, checksum) for name, checksum in _SUM.findall(last.decode(errors="replace"))}


def _checksum(path: Path, is_page: bool) -> str | None:
    """Return the checksum of a file, of a page without its last line; None of no regular file."""
    try:
        if is_page:
            return _sha(reading.read_bytes(path, _BYTES).rpartition(_LINE.encode())[0])
        with os.fdopen(reading.open_read(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except DamagedFile:
        return None
