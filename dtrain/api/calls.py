"""The functions of the Python API: each is a command of the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dtrain.api import command, keywords, objects, tables, training
from dtrain.api.command import Line
from dtrain.api.run import Comparison, Run, Sweep
from dtrain.api.training import OBJECTS, Call
from dtrain.errors import refuse
from dtrain.files import reading, writing
from dtrain.files.fields import Json, Values
from dtrain.host.python_path import FOLDER
from dtrain.run.folder import RunDir
from dtrain.run.predictions import loaded

__all__ = [
    "Comparison", "Run", "Sweep", "compare", "evaluate", "export", "predict", "sweep", "train",
]  # fmt: skip

#: What can be compared.
Comparable = Run | Sweep | str | os.PathLike[str]


def train(
    model: object = None, data: object = None, *, validation: object = None, loss: object = None,
    metrics: object = None, callbacks: object = None, overrides: Iterable[str] | str = (),
    show: bool = True, **more: object,
) -> Run:  # fmt: skip
    """Train, and return the run.

    Args:
        model: a function or class that makes a ``keras.Model``, a ``functools.partial`` of one, or
            an option of the group ``model`` (``"cnn"``).
        data: ``(x, y)`` or ``(x, y, weight)`` of arrays ``[n, ...]`` or dicts and tuples of them; a
            DataFrame, the path of a table's file, or a dataset of Hugging Face's, whose last column
            is the target unless ``target`` names one; a function that returns a dataset; or an
            option of the group ``dataset``.
        validation: as ``data``, to evaluate on; None: a part of ``data`` is split off.
        loss, metrics, callbacks: functions, classes, partials, lists of them; also names of a loss
            or a metric.
        overrides: any other keys, as on the command line.
        show: print what is reported.
        more: keywords of :data:`dtrain.api.keywords.TABLE`, such as ``epochs`` and ``strategy``.

    Returns:
        The run. One that was stopped from here (Ctrl-C, "Interrupt kernel") has the status KILLED.

    Raises:
        UsageError: a keyword, or the configuration, is wrong; nothing is left behind.
        TrainingError: training failed; its attribute ``folder`` is the run folder.
        Interrupted: it was stopped before there was a run.
    """
    objects = dict(zip(OBJECTS, (model, data, validation, loss, metrics, callbacks), strict=True))
    return Run(training.train(objects, more, overrides, show))


def sweep(
    model: object = None, data: object = None, *, validation: object = None, loss: object = None,
    metrics: object = None, callbacks: object = None, overrides: Iterable[str] | str = (),
    show: bool = True, **more: object,
) -> Sweep:  # fmt: skip
    """Train all combinations of keywords that are lists: ``sweep(learning_rate=[1e-3, 1e-2])``.

    Args:
        model, data, validation, loss, metrics, callbacks: of :func:`train`; a list of models is
            swept over.
        overrides: as on the command line of a sweep.
        show: print what is reported.
        more: as of :func:`train`, and lists of values.

    Raises:
        UsageError: a keyword, or the configuration, is wrong; nothing is left behind.
        TrainingError: a job failed; its attribute ``folder`` is the sweep's.
        Interrupted: it was stopped before there was a sweep.
    """
    objects = dict(zip(OBJECTS, (model, data, validation, loss, metrics, callbacks), strict=True))
    return Sweep(training.sweep(objects, more, overrides, show))


def evaluate(
    run: Run | str | os.PathLike[str], data: object = None, *, checkpoint: str | int | None = None,
    weights: str | None = None, by: str | None = None, prefix: str | None = None,
    overrides: Iterable[str] | str = (), show: bool = True, **more: object,
) -> dict[Any, Any]:  # fmt: skip
    """Evaluate checkpoints of a run, on its validation examples or on ``data``.

    Args:
        run: whose, or its folder.
        data: as of :func:`train`; None: the run's own.
        checkpoint: ``best`` (the default), ``latest``, ``all`` or a step.
        weights: ``raw`` or ``ema``.
        by: ``label`` or a column, for metrics of slices.
        prefix: what the points are called in the run; ``test`` by default, and the digest of arrays
            that are given.
        overrides, show, more: as of :func:`train`.

    Returns:
        The metrics by name; of ``all`` a mapping of steps to these.

    Raises:
        DtrainError: as of :func:`train`.
    """
    options = {"checkpoint": checkpoint, "weights": weights, "by": by, "prefix": prefix}
    result = _derived("evaluate", run, data, options, overrides, show, more)
    metrics = {each["step"]: each["metrics"] for each in result.get("evaluations", [])}
    return metrics if checkpoint == "all" else next(iter(metrics.values()), {})


def predict(
    run: Run | str | os.PathLike[str], data: object = None, *, checkpoint: str | int | None = None,
    weights: str | None = None, workers: int | None = None, overrides: Iterable[str] | str = (),
    show: bool = True, **more: object,
) -> Any:  # fmt: skip
    """Predict rows with a checkpoint of a run, of its validation examples or of ``data``.

    Args:
        run: whose, or its folder.
        data: ``x``: an array ``[n, ...]`` or a dict of arrays, or ``((a, b),)`` where ``x`` is a
            tuple of them; None: the run's own.
        checkpoint, weights: as of :func:`evaluate`.
        workers: processes that predict.
        overrides, show, more: as of :func:`train`.

    Returns:
        An array ``[n, ...]``; of several outputs a dict of them.

    Raises:
        DtrainError: as of :func:`train`.
    """
    options = {"checkpoint": checkpoint, "weights": weights, "workers": workers}
    options["format"] = "npy"
    result = _derived("predict", run, data, options, overrides, show, more)
    return loaded(Path(result["predictions"]))


def export(
    run: Run | str | os.PathLike[str], format: str | Sequence[str] = "savedmodel", *,
    checkpoint: str | int | None = None, weights: str | None = None, name: str | None = None,
    to: str | os.PathLike[str] | None = None, show: bool = True,
) -> Path:  # fmt: skip
    """Write the model of a run down, and compare what it computes with Keras.

    Args:
        run: whose, or its folder.
        format: ``savedmodel``, ``onnx``, ``litert``, ``keras`` or ``weights``, or several of them.
        checkpoint, weights: as of :func:`evaluate`; one checkpoint.
        name: of the model.
        to: folder in which the model gets one of its own; None: ``exports`` of the run folder.
        show: print what is reported.

    Returns:
        The folder that the formats are in.

    Raises:
        DtrainError: one could not be written, or computes something else, and is not kept.
    """
    formats = format if isinstance(format, str) else ",".join(format)
    words = command.words({
        "format": formats, "checkpoint": checkpoint, "weights": weights, "name": name, "to": to
    })  # fmt: skip
    run = _run(run)
    arguments = ["export", str(run.path), *words]
    done = command.call(arguments, Line(show), training.trust_of(run.path))
    if done.code or "exported" not in done.left:
        raise done.error()
    return Path(done.left["exported"])


def compare(
    runs: Iterable[Comparable] | Comparable = (), *, baseline: object = None,
    metric: str | None = None, output: str | os.PathLike[str] = "outputs/comparison",
    show: bool = False,
) -> Comparison:  # fmt: skip
    """Put runs side by side.

    Args:
        runs: runs, sweeps, or their folders.
        baseline: the run from which differences are taken.
        metric: of curves and differences; ``loss`` by default.
        output: folder for the page and the CSV files.
        show: print what is reported.

    Raises:
        UsageError: there is no run, or no such baseline or metric.
    """
    folders = _compared(runs)
    options = {"baseline": getattr(baseline, "path", baseline), "metric": metric}
    target = Path(output)
    target.mkdir(parents=True, exist_ok=True)
    done = command.call(["compare", *folders, f"to={target}", *command.words(options)], Line(show))
    if done.code:
        writing.remove_empty(target)
        raise done.error()
    return Comparison(target.absolute(), done.left["table"])


def _compared(runs: object) -> list[str]:
    """Return the folders of runs, or their names in MLflow.

    Raises:
        UsageError: there is none, or one is something else, or not there.
    """
    from dtrain.job import latest  # which reads configurations

    one = isinstance(runs, Run | Sweep | str | os.PathLike)
    runs = list(runs) if isinstance(runs, Iterable) and not one else [runs]
    accepted = "runs, sweeps and their folders, or ids of runs in MLflow"
    if not runs:
        refuse("runs", "has no run", "[]", accepted=accepted, hint="dtrain.compare([one, other])")
    for each in runs:
        if not isinstance(each, Run | Sweep | str | os.PathLike) or not str(each):
            shown = f"{type(each).__name__} {keywords.shortened(each)}"
            refuse("runs", "is no run", shown, accepted=accepted,
                   hint="dtrain.compare([one, other])")  # fmt: skip
        is_path = isinstance(each, os.PathLike) or (isinstance(each, str) and "/" in each)
        is_there = os.path.exists(str(each)) or latest.is_latest(str(each))
        if is_path and not is_there:  # else it may be an id
            refuse("runs", "is not there", str(each), accepted=accepted,
                   hint="dtrain.compare('outputs')")  # fmt: skip
    return [str(getattr(each, "path", each)) for each in runs]


def _run(given: Run | Sweep | str | os.PathLike[str]) -> Run:
    """Return a run, perhaps of its folder.

    Raises:
        UsageError: it is none.
    """
    if isinstance(given, Run):
        return given
    if isinstance(given, str | os.PathLike):
        return Run(given)
    refuse("run", "is no run", type(given).__name__,
           hint="run=sweep.best" if isinstance(given, Sweep) else "dtrain.Run(FOLDER)")  # fmt: skip


def _derived(
    name: str, run: Run | str | os.PathLike[str], data: object, options: Values,
    overrides: Iterable[str] | str, show: bool, more: Values,
) -> Json:  # fmt: skip
    """Run a command on what a run has left, and return its ``result.json``."""
    own = [*keywords.words_of(more, name), *keywords.check(overrides)]
    run = _run(run)
    call = Call(run.path / FOLDER, show, run.path)
    is_table = tables.is_table(data)
    if is_table and (tables.is_path(data) or RunDir(run.path).columns.is_file()):
        own = [*tables.evaluation_overrides(run.path / FOLDER, data), *own]
    elif isinstance(data, str):
        own = [f"dataset={data}", *own]
    elif callable(data):
        own = ["dataset=custom", f"dataset._target_={call.objects.target(data, 'data')}", *own]
    elif data is not None:
        words, label = objects.evaluation_overrides(run.path / FOLDER, data)
        own = [*words, *own]
        if options.get("prefix", "") is None:
            options = {**options, "prefix": label}
    done = call.run([name, str(run.path), *command.words(options), *own])
    if done.code or "folder" not in done.left:
        raise done.error()
    return reading.read_json(RunDir(done.left["folder"]).result) or {}
