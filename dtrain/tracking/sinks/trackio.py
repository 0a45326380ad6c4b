"""Trackio, in its files on this machine, which ``trackio show`` shows."""

from __future__ import annotations

import csv
import shlex
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

from dtrain.config.tree import Config
from dtrain.files import writing
from dtrain.tracking.sink import Kind, Sink, need


class Trackio(Sink):
    """One run folder, as one run of Trackio.

    Its storage is written as Trackio's own importers do: at once, with the time of each point, and
    with errors that are raised. A point has a name of its own, and is there once.

    Args:
        config: of the run.
        project: None: that of ``tracking.experiment``.
    """

    label = "Trackio"

    def __init__(self, config: Config, project: str | None = None):
        need("trackio", self.label, "tracking")
        self._project: str = project or config.tracking.experiment
        self._name = self._id = ""
        self._config: dict[str, Any] = {}
        self._results: dict[str, float] = {}
        self._step = 0

    def open(
        self, name: str, group: str | None, tags: Mapping[str, str], resume: str | None,
        folder: Path,
    ) -> str:  # fmt: skip
        """Begin a run, or go on with one."""
        from trackio.sqlite_storage import SQLiteStorage

        self._name, self._id = name.replace("/", "_"), resume or uuid.uuid4().hex
        if resume is not None:
            past = SQLiteStorage.get_run_config(self._project, self._name, run_id=resume)
            self._config.update(past or {})
        self._config.update(tags, _Group=group, _Created=datetime.now(UTC).isoformat())
        return self._id

    def _log(self, values: Mapping[str, Any], step: int, time: float, key: str) -> None:
        """Write a row, with the configuration of now; one of the same key is there already."""
        from trackio.sqlite_storage import SQLiteStorage

        SQLiteStorage.bulk_log(
            self._project, self._name, [dict(values)], steps=[step],
            timestamps=[datetime.fromtimestamp(time, UTC).isoformat()], config=self._config,
            log_ids=[uuid.uuid5(uuid.UUID(self._id), key).hex], run_id=self._id,
        )  # fmt: skip
        self._step = max(self._step, step)

    def params(self, values: Mapping[str, str]) -> None:
        """Set the configuration of the run."""
        self._config.update(values)

    def log(self, points: Mapping[str, float], step: int, time: float) -> None:
        """Write a row."""
        self._log(points, step, time, f"{step} {sorted(points)}")

    def file(self, path: Path, name: str, kind: Kind, step: int) -> None:
        """Write an image or a table as a value of a row; copy any other file."""
        import trackio
        from trackio.media import get_project_media_path

        shown: Any = None
        if kind == "image":
            shown = trackio.Image(str(path))
            shown._save(self._project, self._name, step)  # as the log of a run of Trackio's does
            self._log({name: shown._to_dict()}, step, path.stat().st_mtime, f"{step} {name}")
        elif kind == "table":
            with path.open(newline="", encoding="utf-8") as file:
                head, *rows = csv.reader(file)
            shown = trackio.Table(columns=head, data=rows)
            written = shown._to_dict(project=self._project, run=self._name, step=step)
            self._log({name: written}, step, path.stat().st_mtime, f"{step} {name}")
        else:
            place = Path(self._id, name)
            folder = get_project_media_path(self._project, relative_path=place.parent)
            writing.remove(target := folder / place.name)
            writing.copy(path, target)

    def note(self, values: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Set tags beside the parameters; results, of which it knows none, are a last row."""
        self._config.update(tags)
        self._results.update({f"final/{name}": value for name, value in values.items()})

    def close(self, status: str) -> None:
        """Write the last row."""
        results = self._results or {"final/step": float(self._step)}
        self._log(results, self._step, time(), f"{self._step} final {status}")

    def address(self) -> str:
        """Return what shows the project."""
        if not self._id:
            return f"Trackio {self._project}"
        return f"trackio show --project {shlex.quote(self._project)}"
