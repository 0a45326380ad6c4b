"""CSV files: a line a point, a parameter and a tag."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from dtrain.files import writing
from dtrain.tracking.sink import Kind, Sink


class CSV(Sink):
    """Appends to ``points.csv`` and ``facts.csv``; of each name the last line counts.

    Args:
        folder: of the files of all runs, each in one of its own; None: the run folder.
    """

    label = "CSV"

    def __init__(self, folder: str | None = None):
        self._above = None if folder is None else Path(folder).absolute()
        self._folder: Path  # after open

    def open(
        self, name: str, group: str | None, tags: Mapping[str, str], resume: str | None,
        folder: Path,
    ) -> str:  # fmt: skip
        """Make the folder."""
        made = resume or f"{folder.name}-{uuid.uuid4().hex[:8]}"
        self._folder = folder / "csv" if self._above is None else self._above / made
        self._folder.mkdir(parents=True, exist_ok=True)
        if resume is None:
            self._append("facts.csv", [("name", name), ("group", group or ""), *tags.items()])
        return made

    def _append(self, name: str, rows: Iterable[tuple[object, ...]]) -> None:
        descriptor = writing.open_append(self._folder / name)
        try:
            writing.write_all(descriptor, writing.csv_text(rows).encode())
        finally:
            os.close(descriptor)

    def params(self, values: Mapping[str, str]) -> None:
        """Append them."""
        self._append("facts.csv", values.items())

    def log(self, points: Mapping[str, float], step: int, time: float) -> None:
        """Append a line each."""
        self._append("points.csv", [(step, f"{time:.3f}", *each) for each in points.items()])

    def file(self, path: Path, name: str, kind: Kind, step: int) -> None:
        """Append where it is."""
        self._append("facts.csv", [(f"{kind}/{name}/{step}", path)])

    def note(self, values: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Append them."""
        self._append("facts.csv", [*values.items(), *tags.items()])

    def close(self, status: str) -> None:
        """All is written already."""

    def address(self) -> str:
        """Return the folder."""
        return str(getattr(self, "_folder", None) or self._above or "csv/ of the run folder")
