"""The model of a run that has ended, exported to be logged (``tracking.model``)."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from dtrain import secrets
from dtrain.config.tree import Config
from dtrain.errors import CheckpointError, DtrainError, Interrupted, refuse
from dtrain.job import exporting
from dtrain.job.supervisor import Requests
from dtrain.run import exports, registry
from dtrain.run.folder import RunDir, short
from dtrain.run.registry import Model
from dtrain.terminal.progress import View
from dtrain.tracking.base import Tracker

#: What is exported to be logged.
FORMAT = "savedmodel"
#: Of ``tracking.model``: which checkpoint that is; None: the best where objectives are known.
_CHECKPOINTS = {"best": None, "final": "latest"}


def wanted(config: Config) -> str | None:
    """Return ``best`` or ``final`` where a model of the run is to be logged, else None."""
    tracking = config.tracking  # one of before, or of a user's own tracker, may not have the key
    found = tracking.model if "model" in tracking else None
    return found if found in _CHECKPOINTS else None


def registered(config: Config) -> str | None:
    """Return the name under which the run's model is to be a version; None for none."""
    tracking = config.tracking
    found: str | None = tracking.register if "register" in tracking else None
    return found


def check(config: Config, tracker: Tracker) -> None:
    """Refuse models that nothing would keep, and names of none.

    Raises:
        UsageError: naming the key.
    """
    which = wanted(config)
    if which is not None and not tracker.keeps_models:
        refuse("tracking.model", f"{tracker.label} keeps no models", which,
               accepted="none, or any with tracking=mlflow", typed="tracking=mlflow")  # fmt: skip


def exported(
    config: Config, rundir: RunDir, word: str | None, weights: str, names: list[str],
    hear: Callable[[str], None], waiting: Callable[[], None],
) -> Model:  # fmt: skip
    """Export a checkpoint, and write down that it is to be logged.

    Args:
        config: of the run, settled.
        rundir: of the run.
        word: of :func:`dtrain.run.checkpoint.choose`.
        weights: ``raw`` or ``ema``.
        names: under which it is to be a version.
        hear, waiting: of :func:`dtrain.job.exporting.export`.

    Raises:
        DtrainError: it cannot be exported, or is not what Keras computes.
        OSError: it cannot be written.
    """
    place = rundir.path / "exports" / exporting.name_of(rundir, weights)
    [made] = exporting.export(config, rundir, [FORMAT], weights, word, place, hear, waiting)
    if made.refused:
        raise DtrainError(f"it is not kept: {made.refused[FORMAT]}")
    model = _described(rundir, made.path, names)
    registry.add(rundir, model)
    return model


def of_the_end(
    config: Config, rundir: RunDir, hear: Callable[[str], None], waiting: Callable[[], None]
) -> Model:
    """Export the model that ``tracking.model`` asks for, as :func:`exported` does."""
    name = registered(config)
    word = _CHECKPOINTS[str(wanted(config))]
    return exported(config, rundir, word, "raw", [] if name is None else [name], hear, waiting)


def at_the_end(config: Config, rundir: RunDir, view: View, requests: Requests) -> None:
    """Export the model of a run that has ended well, whatever comes of it, where that is wanted.

    Args:
        config: of the run, settled.
        rundir: of the run.
        view: hears what is done, and what went wrong.
        requests: to stop: another one ends the export.
    """
    if wanted(config) is None:
        return
    before = requests.count

    def waiting() -> None:
        if requests.count > before:
            raise Interrupted("stopped")

    view.detail("exporting the model")
    try:
        model = of_the_end(config, rundir, lambda doing: None, waiting)
    except Exception as error:  # of the user's model, of a library, of a full disk
        command = f"python -m dtrain sync {shlex.quote(short(rundir.path))}"
        problem = secrets.mask(str(error) or type(error).__name__)
        view.message(f"the model is not logged: {problem}; to try again: {command}")
    else:
        view.detail(f"model: {short(rundir.path / model['path'])}")


def _described(rundir: RunDir, path: Path, names: list[str]) -> Model:
    record = exports.read(path)
    if record["digest"] is None:
        raise CheckpointError(f"step {record['step']} was saved by a dtrain that made no digests")
    return {
        "path": path.relative_to(rundir.path).as_posix(),
        "step": record["step"],
        "digest": record["digest"],
        "weights": record["weights"],
        "data": record.get("data", ""),
        "names": names,
    }
