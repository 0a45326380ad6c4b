"""A run, and a sweep of runs, as their folders have them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dtrain.api import training
from dtrain.errors import refuse
from dtrain.files import reading
from dtrain.files.fields import Json
from dtrain.run import checkpoint as checkpoints
from dtrain.run import journal
from dtrain.run.folder import RunDir, check_format


class Run:
    """A run folder; everything is read from it when it is asked for.

    Args:
        path: the folder; ``latest``, or ``FOLDER/latest``: the newest one.

    Raises:
        UsageError: it is no run folder.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._rundir = RunDir(_folder(path, "Run"))
        if not self._rundir.command.is_file():
            refuse("Run", f"is not a run folder (it has no {self._rundir.command.name})", path,
                   hint="outputs/DATE/TIME_NAME, which a run printed")  # fmt: skip
        check_format(self._rundir.path, "Run")

    def __repr__(self) -> str:
        return f"<dtrain.Run {self.status} {self.path}>"

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._rundir.path

    @property
    def result(self) -> Json:
        """What ``result.json`` has; nothing while the run has not ended."""
        return reading.read_json(self._rundir.result) or {}

    @property
    def status(self) -> str:
        """``FINISHED``, ``FAILED``, or ``KILLED`` (it was stopped, and ``resume()`` goes on).

        ``RUNNING`` while a command works on it, ``UNFINISHED`` where one was killed.
        """
        if self._rundir.is_locked():
            return "RUNNING"
        return str(self.result.get("status", "UNFINISHED"))

    @property
    def metrics(self) -> dict[str, float | None]:
        """The last value of each metric, by name; without those of an unfinished run."""
        return dict(self.result.get("metrics", {}))

    @property
    def history(self) -> list[Json]:
        """Every point of the metrics: ``{"step": 24, "epoch": 2, "loss": 0.1, ...}``, by step."""
        points: dict[int, Json] = {}
        for event in journal.read(self._rundir.journal):
            if event["event"] == "metrics":
                point = points.setdefault(event["step"], {"step": event["step"]})
                point |= {"epoch": event["epoch"]} if "epoch" in event else {}
                point |= event["metrics"]
        return [points[step] for step in sorted(points)]

    def frame(self) -> Any:
        """Return :attr:`history` as a ``pandas.DataFrame``, a row for each step."""
        import pandas

        return pandas.DataFrame(self.history)

    def model(self, checkpoint: str | int = "best", weights: str = "raw") -> Any:
        """Return the model in this process, in float32, with the weights of a checkpoint.

        This imports its framework. A plain module of PyTorch's is returned as what it is.

        Args:
            checkpoint: ``best`` (the latest where no objective is known), ``latest`` or a step.
            weights: ``raw``, or ``ema`` for their averages.

        Raises:
            UsageError: there is no such checkpoint, or its code is not trusted.
            CheckpointError: it is damaged, or of another model.
        """
        from dtrain.api import local_model

        trust = training.trust_of(self.path)
        return local_model.load_model(self._rundir, checkpoint, weights, trust)

    def resume(
        self, *, overrides: Iterable[str] | str = (), show: bool = True, **keywords: object
    ) -> Run:
        """Resume the run in its folder: ``run.resume(epochs=6)``.

        Args:
            overrides: of the command line.
            show: print what is reported.
            keywords: of :func:`dtrain.train`, without those that are objects.

        Returns:
            The run; stopped from here (Ctrl-C) with the status KILLED.

        Raises:
            DtrainError: as of :func:`dtrain.train`.
        """
        self._check_epochs(keywords.get("epochs"))
        training.resume(self.path, overrides, keywords, show)
        return Run(self.path)

    def fork(
        self, *, checkpoint: int | None = None, overrides: Iterable[str] | str = (),
        show: bool = True, **keywords: object,
    ) -> Run:  # fmt: skip
        """Begin a new run with the weights of this one: ``run.fork(learning_rate=1e-4, epochs=6)``.

        It counts the epochs of this one, too: where all are done it takes more of them.

        Args:
            checkpoint: the step to begin at; None: the newest.
            overrides, show: as of :func:`dtrain.train`.
            keywords: of :func:`dtrain.train`.

        Raises:
            DtrainError: as of :func:`dtrain.train`.
        """
        at = self.path if checkpoint is None else self._checkpoint(checkpoint)
        given = {name: keywords.pop(name, None) for name in training.OBJECTS}
        return Run(training.train(given, keywords, overrides, show, at))

    def _check_epochs(self, epochs: object) -> None:
        """Refuse to resume with fewer epochs than there are.

        Raises:
            UsageError: naming how many are done.
        """
        saved = max(checkpoints.steps(self._rundir.checkpoints), default=0)
        points = [point for point in self.history if point["step"] <= saved]
        done = max((point["epoch"] for point in points if "epoch" in point), default=0)
        if isinstance(epochs, int) and 0 < epochs < done:
            refuse("epochs", f"is all epochs together, and the run is in epoch {done}", epochs,
                   hint=f"run.resume(epochs={done + epochs}) for {epochs} more")  # fmt: skip

    def _checkpoint(self, step: object) -> Path:
        """Return the folder of a checkpoint.

        Raises:
            UsageError: the run has none of this step.
        """
        steps = checkpoints.steps(self._rundir.checkpoints)
        if str(step) not in map(str, steps):
            refuse("checkpoint", "is no step that the run has a checkpoint of", step,
                   accepted=", ".join(map(str, steps)) or "none: the run has no checkpoint",
                   hint="run.fork(), from the newest")  # fmt: skip
        return self._rundir.checkpoints / str(step)


def _folder(path: str | os.PathLike[str], kind: str) -> Path:
    """Return the folder that is named, or that ``latest`` stands for."""
    from dtrain.job import latest  # which reads configurations

    if latest.is_latest(word := os.fspath(path)):
        return latest.newest(word, kind, sweep=kind == "Sweep").absolute()
    return Path(path).absolute()


class Sweep:
    """The folder of a sweep.

    Args:
        path: the folder; ``latest``, or ``FOLDER/latest``: the newest one.

    Raises:
        UsageError: it is none of a sweep.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = _folder(path, "Sweep")
        if not (self.path / "sweep.json").is_file():
            refuse("Sweep", "is not the folder of a sweep (it has no sweep.json)", path,
                   hint="outputs/multirun/DATE/TIME_NAME, which a sweep printed")  # fmt: skip
        check_format(self.path, "Sweep")

    def __repr__(self) -> str:
        return f"<dtrain.Sweep {self.status} {len(self.jobs)} jobs {self.path}>"

    @property
    def _data(self) -> Json:
        return reading.read_json(self.path / "sweep.json") or {}

    @property
    def jobs(self) -> list[Json]:
        """The jobs: ``number``, ``overrides``, ``status``, ``objective``, ..., in their order."""
        return list(self._data.get("jobs", []))

    @property
    def status(self) -> str:
        """``FINISHED``, ``FAILED``, ``KILLED`` or ``RUNNING``."""
        return str(self._data.get("status", "UNFINISHED"))

    @property
    def runs(self) -> list[Run]:
        """The runs of the jobs that have begun."""
        folders = [self.path / str(job["folder"]) for job in self.jobs]
        return [Run(folder) for folder in folders if RunDir(folder).command.is_file()]

    @property
    def best(self) -> Run | None:
        """The run with the best objective."""
        number = self._data.get("best")
        jobs = [job for job in self.jobs if job["number"] == number]
        return Run(self.path / str(jobs[0]["folder"])) if jobs else None

    def table(self) -> list[Json]:
        """Return a row for each run, as ``comparison.csv`` has them."""
        return reading.csv_rows(self.path / "comparison.csv")

    def frame(self) -> Any:
        """Return :meth:`table` as a ``pandas.DataFrame``."""
        import pandas

        return pandas.DataFrame(self.table())

    def resume(self, *, show: bool = True) -> Sweep:
        """Run the jobs that are not finished.

        Raises:
            DtrainError: as of :func:`dtrain.sweep`.
        """
        training.resume_sweep(self.path, show)
        return Sweep(self.path)


class Comparison:
    """Runs side by side.

    Args:
        folder: with the page, ``comparison.html``, and the CSV files.
        text: the table.

    Attributes:
        page: the page with plots.
    """

    def __init__(self, folder: Path, text: str):
        self.page, self._text = folder / "comparison.html", text
        self._rows = reading.csv_rows(folder / "comparison.csv")

    def __repr__(self) -> str:
        return self._text

    def table(self) -> list[Json]:
        """Return a row for each run."""
        return [dict(row) for row in self._rows]

    def frame(self) -> Any:
        """Return :meth:`table` as a ``pandas.DataFrame``."""
        import pandas

        return pandas.DataFrame(self._rows)
