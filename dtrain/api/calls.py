"""The functions of the Python API: each is a command of the command line."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.api import arrays, command, keywords, values
from dtrain.api.command import Done
from dtrain.api.line import Line
from dtrain.api.objects import Objects
from dtrain.api.run import Comparison, Run, Sweep
from dtrain.api.source import arguments_of
from dtrain.config.given import FOLDER
from dtrain.errors import TrainingError, UsageError
from dtrain.files import reading, writing
from dtrain.run.folder import RunDir

_OBJECTS = ("model", "data", "validation", "loss", "metrics", "callbacks")


class _Call:
    """One command, with what is given to it.

    Args:
        folder: ``given/`` of the run or the sweep.
        show: print what is reported.
    """

    def __init__(self, folder: Path, show: bool):
        self.folder = folder
        self.line = Line(show)
        self.objects = Objects(folder, self.line.message)

    def overrides(self, given: Mapping[str, Any], swept: bool = False) -> list[str]:
        """Return the overrides of the keywords that may be objects."""
        found = [*self._model(given["model"], swept)]
        found += self._data(given["data"], given["validation"])
        for name in ("loss", "metrics", "callbacks"):
            if given[name] is not None:
                node = self.objects.node(given[name], name)
                found.append(f"trainer.{name}={values.written(node, name)}")
        return found

    def _model(self, model: Any, swept: bool) -> Iterator[str]:
        several = model if swept and isinstance(model, list | tuple) else [model]
        if model is None:
            return
        if all(isinstance(each, str) and "." not in each for each in several):
            yield f"model={','.join(several)}"
            return
        made = [arguments_of(each) for each in several]
        targets = [self.objects.target(function, "model") for function, _ in made]
        yield "model=custom"
        yield f"model._target_={','.join(targets)}"
        if len(made) > 1 and any(arguments for _, arguments in made):
            raise UsageError(
                "model", "several partials", "have arguments of their own", "functions",
                "model=[FUNCTION, FUNCTION]",
            )  # fmt: skip
        for name, value in made[0][1].items():
            yield f"+model.{name}={values.written(value, name)}"

    def _data(self, data: Any, validation: Any) -> list[str]:
        if validation is not None and (data is None or isinstance(data, str) or callable(data)):
            raise UsageError(
                "validation", values.shortened(validation), "stands beside arrays alone",
                "data=(x, y), validation=(x, y)", "the validation examples of the dataset itself",
            )  # fmt: skip
        if data is None:
            return []
        if isinstance(data, str):
            return [f"dataset={data}"]
        function, arguments = arguments_of(data)
        if callable(function):
            target = self.objects.target(function, "data")
            more = [f"+dataset.{n}={values.written(v, n)}" for n, v in arguments.items()]
            return ["dataset=custom", f"dataset._target_={target}", *more]
        return arrays.overrides(self.folder, data, validation)

    def run(self, arguments: Sequence[str], **options: Any) -> Done:
        """Run the command."""
        return command.call(
            arguments, self.line, trusted=self.objects.trusted, paths=self.objects.paths,
            given=self.folder, **options,
        )  # fmt: skip


def train(
    *,
    model: Any = None,
    data: Any = None,
    validation: Any = None,
    loss: Any = None,
    metrics: Any = None,
    callbacks: Any = None,
    overrides: Iterable[str] | str = (),
    show: bool = True,
    _fork: Path | None = None,
    **more: Any,
) -> Run:
    """Train, and return the run.

    Args:
        model: a function or class that makes a ``keras.Model``, a ``functools.partial`` of one, or
            an option of the group ``model`` (``"cnn"``).
        data: ``(x, y)`` or ``(x, y, weight)`` of arrays ``[n, ...]`` or dicts and tuples of them; a
            function that returns a dataset; or an option of the group ``dataset``.
        validation: as ``data``, to evaluate on; None: a part of ``data`` is split off.
        loss, metrics, callbacks: of the key ``trainer``: names, functions, classes, lists of them.
        overrides: any other keys, as on the command line.
        show: print what is reported.
        more: keywords of :data:`dtrain.api.keywords.TABLE`, such as ``epochs`` and ``strategy``.

    Returns:
        The run. One that was stopped from here (Ctrl-C, "Interrupt kernel") has the status KILLED.

    Raises:
        UsageError: a keyword, or the configuration, is wrong; nothing is left behind.
        TrainingError: training failed; its attribute ``run`` is the run.
        Interrupted: it was stopped before there was a run.
    """
    own = keywords.checked(overrides)
    fixed = keywords.plain(more, "train", _OBJECTS)
    given = dict(zip(_OBJECTS, (model, data, validation, loss, metrics, callbacks), strict=True))
    start = [] if _fork is None else [f"fork={values.written(_fork, 'fork')}"]
    place = Path(keywords.place([*fixed, *own])) / time.strftime("%Y-%m-%d")
    with _reserved(place, _label(more, model)) as folder:
        call = _Call(folder / FOLDER, show)
        words = [*start, *call.overrides(given), *fixed, *own]
        done = call.run(words, reserved=folder, follow=folder)
        return _run_of(done, folder)


def sweep(
    *,
    model: Any = None,
    data: Any = None,
    validation: Any = None,
    loss: Any = None,
    metrics: Any = None,
    callbacks: Any = None,
    overrides: Iterable[str] | str = (),
    show: bool = True,
    **more: Any,
) -> Sweep:
    """Train all combinations of keywords that are lists: ``sweep(learning_rate=[1e-3, 1e-2])``.

    Args:
        model, data, validation, loss, metrics, callbacks: of :func:`train`; a list of models is
            swept over.
        overrides: as on the command line of a sweep.
        show: print what is reported.
        more: as of :func:`train`, and lists of values.

    Raises:
        UsageError: a keyword, or the configuration, is wrong; nothing is left behind.
        TrainingError: a job failed; its attribute ``sweep`` is the sweep.
        Interrupted: it was stopped before there was a sweep.
    """
    own = keywords.checked(overrides)
    fixed = keywords.plain(more, "sweep", _OBJECTS, swept=True)
    given = dict(zip(_OBJECTS, (model, data, validation, loss, metrics, callbacks), strict=True))
    place = Path(keywords.place([*fixed, *own])) / "multirun" / time.strftime("%Y-%m-%d")
    with _reserved(place, _label({**more, "strategy": None}, model)) as folder:
        call = _Call(folder / FOLDER, show)
        words = ["-m", *call.overrides(given, swept=True), *fixed, *own]
        return _sweep_of(call.run(words, reserved=folder), folder)


def resumed(run: Run, overrides: Any, given: Mapping[str, Any], show: bool) -> Run:
    """Resume a run (:meth:`dtrain.Run.resume`)."""
    own = [*keywords.plain(given, "Run.resume"), *keywords.checked(overrides)]
    words = [f"resume={values.written(run.path, 'resume')}", *own]
    return _run_of(command.call(words, Line(show), follow=run.path), run.path)


def resumed_sweep(found: Sweep, show: bool) -> Sweep:
    """Resume a sweep (:meth:`dtrain.Sweep.resume`)."""
    words = [f"sweep.resume={values.written(found.path, 'sweep.resume')}"]
    return _sweep_of(command.call(words, Line(show)), found.path)


def _run_of(done: Done, folder: Path) -> Run:
    """Return the run that a command has left, or raise what has become of it."""
    if done.code == errors.USAGE or not RunDir(folder).command.is_file():
        raise done.raised()
    run = Run(folder)
    if done.code in (errors.OK, errors.INTERRUPTED) or run.status == "KILLED":
        return run
    error = run.result.get("error")
    failure = TrainingError(error) if error else done.raised()
    failure.run = run  # type: ignore[attr-defined] # for who wants to look at it
    raise failure


def _sweep_of(done: Done, folder: Path) -> Sweep:
    if done.code == errors.USAGE or not (folder / "sweep.json").is_file():
        raise done.raised()
    found = Sweep(folder)
    if done.code in (errors.OK, errors.INTERRUPTED):
        return found
    failed = [f"{j['number']}: {j['error']}" for j in found.jobs if j["status"] == "FAILED"]
    failure = TrainingError("\n".join(failed)) if failed else done.raised()
    failure.sweep = found  # type: ignore[attr-defined]
    raise failure


@contextlib.contextmanager
def _reserved(place: Path, label: str) -> Iterator[Path]:
    """Make a folder for a run or a sweep; it is removed where nothing has come of it."""
    folder = RunDir.create(place.absolute() / f"{time.strftime('%H-%M-%S')}_{label}").path
    try:
        (folder / FOLDER).mkdir()
        yield folder
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(folder / FOLDER)  # where nothing was given
        if not {"command.json", "sweep.json"} & set(os.listdir(folder)):
            writing.discard(folder)


def _label(given: Mapping[str, Any], model: Any) -> str:
    """Return what a folder is called, besides its time."""
    if isinstance(name := given.get("name"), str) and name and "/" not in name:
        return name
    function, _ = arguments_of(model)
    parts = [function or "cnn", given.get("strategy") or "default"]
    texts = [each if isinstance(each, str) else getattr(each, "__name__", "") for each in parts]
    return "_".join(t.rpartition(".")[2] for t in texts if t.replace(".", "_").isidentifier())


def evaluate(
    run: Run,
    *,
    data: Any = None,
    checkpoint: str | int | None = None,
    weights: str | None = None,
    by: str | None = None,
    overrides: Iterable[str] | str = (),
    show: bool = True,
    **more: Any,
) -> dict[Any, Any]:
    """Evaluate checkpoints of a run, on its validation examples or on ``data``.

    Args:
        run: whose.
        data: as of :func:`train`; None: the run's own.
        checkpoint: ``best`` (the default), ``latest``, ``all`` or a step.
        weights: ``raw`` or ``ema``.
        by: ``label`` or a column, for metrics of slices.
        overrides, show, more: as of :func:`train`.

    Returns:
        The metrics by name; of ``all`` a mapping of steps to these.

    Raises:
        DtrainError: as of :func:`train`.
    """
    given = {"checkpoint": checkpoint, "weights": weights, "evaluate.by": by}
    result = _derived("evaluate", run, data, given, overrides, show, more)
    found = {each["step"]: each["metrics"] for each in result.get("evaluations", [])}
    return found if checkpoint == "all" else next(iter(found.values()), {})


def predict(
    run: Run,
    *,
    data: Any = None,
    checkpoint: str | int | None = None,
    weights: str | None = None,
    workers: int | None = None,
    overrides: Iterable[str] | str = (),
    show: bool = True,
    **more: Any,
) -> Any:
    """Predict rows with a checkpoint of a run, of its validation examples or of ``data``.

    Args:
        run: whose.
        data: ``x``: an array ``[n, ...]`` or a dict or tuple of arrays; None: the run's own.
        checkpoint, weights: as of :func:`evaluate`.
        workers: processes that predict.
        overrides, show, more: as of :func:`train`.

    Returns:
        An array ``[n, ...]``; of several outputs a dict of them.

    Raises:
        DtrainError: as of :func:`train`.
    """
    from dtrain.api import predictions

    given = {"checkpoint": checkpoint, "weights": weights, "workers": workers}
    given["predict.format"] = "npy"
    result = _derived("predict", run, data, given, overrides, show, more)
    return predictions.load(Path(result["predictions"]))


def export(
    run: Run,
    to: str | Sequence[str] = "savedmodel",
    *,
    checkpoint: str | int | None = None,
    weights: str | None = None,
    name: str | None = None,
    show: bool = True,
) -> Path:
    """Write the model of a run down, and compare what it computes with Keras.

    Args:
        run: whose.
        to: ``savedmodel``, ``onnx``, ``litert``, ``keras`` or ``weights``, or several of them.
        checkpoint, weights: as of :func:`evaluate`; one checkpoint.
        name: of the model.
        show: print what is reported.

    Returns:
        The folder that the formats are in.

    Raises:
        DtrainError: one could not be written, or computes something else, and is not kept.
    """
    formats = to if isinstance(to, str) else ",".join(to)
    words = command.words(
        {"to": formats, "checkpoint": checkpoint, "weights": weights, "name": name}
    )
    done = command.call(["export", str(run.path), *words], Line(show))
    found = done.after("exported: ")
    if found is None:
        there = [line for line in done.lines if " is there already: " in line]
        found = there[-1].partition(" is there already: ")[2] if there else None
    if done.code or found is None:
        raise done.raised()
    return Path(found).absolute()


def compare(
    runs: Iterable[Run | Sweep | str | os.PathLike[str]],
    *,
    baseline: Any = None,
    metric: str | None = None,
    output: str | os.PathLike[str] = "outputs/comparison",
    show: bool = False,
) -> Comparison:
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
    found = [runs] if isinstance(runs, Run | Sweep | str | os.PathLike) else list(runs)
    folders = [str(getattr(each, "path", each)) for each in found]
    options = {"baseline": getattr(baseline, "path", baseline), "metric": metric}
    flags = [w for k, v in options.items() if v is not None for w in (f"--{k}", str(v))]
    target = Path(output)
    target.mkdir(parents=True, exist_ok=True)
    done = command.call(["compare", *folders, "--output", str(target), *flags], Line(show))
    if done.code:
        raise done.raised()
    return Comparison(target.absolute(), "\n".join(done.lines[:-1]))


def _derived(
    name: str,
    run: Run,
    data: Any,
    given: Mapping[str, Any],
    overrides: Iterable[str] | str,
    show: bool,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Run a command on what a run has left, and return its ``result.json``."""
    own = [*keywords.plain(more, name), *keywords.checked(overrides)]
    call = _Call(run.path / FOLDER, show)
    if isinstance(data, str):
        own = [f"dataset={data}", *own]
    elif callable(data):
        own = ["dataset=custom", f"dataset._target_={call.objects.target(data, 'data')}", *own]
    elif data is not None:
        file = f"{name}-{time.strftime('%Y-%m-%d_%H-%M-%S')}-{time.time_ns() % 10**9}"
        own = [*arrays.evaluated(run.path / FOLDER, data, file), *own]
    done = call.run([name, str(run.path), *command.words(given), *own])
    folder = done.after("folder: ")
    if done.code or folder is None:
        raise done.raised()
    return reading.read_json(RunDir(folder).result) or {}
