"""Begins and resumes runs and sweeps; what comes of it is a folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.api import command, keywords, objects, tables
from dtrain.api.command import Done, Line
from dtrain.api.objects import Objects, Trust, arguments_of
from dtrain.errors import TrainingError, refuse
from dtrain.files import reading, writing
from dtrain.files.fields import Values
from dtrain.host.python_path import FOLDER
from dtrain.run import failure
from dtrain.run.folder import RunDir

#: Keywords that may be objects, and not only values.
OBJECTS = ("model", "data", "validation", "loss", "metrics", "callbacks")


#: What the caller has given to each run or sweep in this process, which is trusted for it.
_GIVEN: dict[Path, Trust] = {}


class Call:
    """One command, with what is given to it.

    Args:
        folder: ``given/`` of the run or the sweep.
        show: print what is reported.
        origin: a run whose code it needs, too.
    """

    def __init__(self, folder: Path, show: bool, origin: Path | None = None):
        self.folder = folder
        self._before = Trust() if origin is None else trust_of(origin)
        self.line = Line(show)
        self.objects = Objects(folder)

    def overrides(self, given: Values, others: Sequence[str], swept: bool = False) -> list[str]:
        """Return the overrides of the keywords that may be objects; others are typed beside."""
        words = [*self._model(given["model"], swept)]
        words += self._data(given["data"], given["validation"], others)
        for name in ("loss", "metrics", "callbacks"):
            if (value := given[name]) is not None:
                if name == "callbacks" and not isinstance(value, str | list | tuple):
                    value = [value]
                node = self.objects.node(value, name)
                words.append(f"trainer.{name}={keywords.write_value(node, name)}")
        return words

    def _model(self, model: object, swept: bool) -> Iterator[str]:
        several = model if swept and isinstance(model, list | tuple) else [model]
        if model is None:
            return
        if all(isinstance(each, str) and "." not in each for each in several):
            yield f"model={','.join(map(str, several))}"
            return
        made = [arguments_of(each) for each in several]
        targets = [self.objects.target(function, "model") for function, _ in made]
        yield "model=custom"
        yield f"model._target_={','.join(targets)}"
        if len(made) > 1 and any(arguments for _, arguments in made):
            refuse("model", "have arguments of their own", "several partials", accepted="functions",
                   hint="model=[FUNCTION, FUNCTION]")  # fmt: skip
        for name, value in made[0][1].items():
            yield f"+model.{name}={keywords.write_value(value, name)}"

    def _data(self, data: object, validation: object, others: Sequence[str]) -> list[str]:
        if tables.is_table(data):
            return tables.overrides(self.folder, data, validation, others)
        if validation is not None and (data is None or isinstance(data, str) or callable(data)):
            refuse("validation", "stands beside arrays alone", keywords.shortened(validation),
                   hint="data=(x, y), validation=(x, y); else the dataset has its own")  # fmt: skip
        if data is None:
            return []
        if isinstance(data, str):
            return [f"dataset={data}"]
        function, arguments = arguments_of(data)
        if callable(function):
            target = self.objects.target(function, "data")
            more = [f"+dataset.{n}={keywords.write_value(v, n)}" for n, v in arguments.items()]
            return ["dataset=custom", f"dataset._target_={target}", *more]
        return objects.array_overrides(self.folder, data, validation)

    def run(self, arguments: Sequence[str], **options: Any) -> Done:
        """Run the command."""
        trust = _GIVEN[self.folder.parent] = self._before + self.objects.trust
        return command.call(arguments, self.line, trust, **options)


def trust_of(folder: Path) -> Trust:
    """Return what a command on a run may call and load, as the caller has given it.

    Args:
        folder: of a run, perhaps of a sweep, or a checkpoint.
    """
    trusted = [_GIVEN[each] for each in (folder, *folder.parents[:2]) if each in _GIVEN]
    return trusted[0] if trusted else Trust()


def train(
    given: Values, more: Values, overrides: Iterable[str] | str, show: bool,
    fork: Path | None = None,
) -> Path:  # fmt: skip
    """Train, and return the run folder.

    Args:
        given: a value for each of :data:`OBJECTS`.
        more: other keywords.
        overrides: of the caller.
        show: print what is reported.
        fork: the run, or checkpoint, to begin at.

    Raises:
        DtrainError: as of :func:`dtrain.train`.
    """
    own = [*keywords.words_of(more, "train", OBJECTS), *keywords.check(overrides)]
    start = [] if fork is None else [f"fork={keywords.write_value(fork, 'fork')}"]
    label = _label(more, given["model"])
    if fork is not None:  # called as the run, unless it has a name
        run = fork.parent.parent if fork.parent.name == "checkpoints" else fork
        label = _label({"name": run.name.partition("_")[2], **more}, None)
    with _reserve_folder(Path(keywords.place(own)), label) as folder:
        call = Call(folder / FOLDER, show, fork)
        words = [*start, *call.overrides(given, own), *own]
        return _run_of(call.run(words, reserved=folder, follow=folder), folder)


def sweep(given: Values, more: Values, overrides: Iterable[str] | str, show: bool) -> Path:
    """Run a sweep, and return its folder; the arguments are those of :func:`train`.

    Raises:
        DtrainError: as of :func:`dtrain.sweep`.
    """
    own = [*keywords.words_of(more, "sweep", OBJECTS, swept=True), *keywords.check(overrides)]
    label = _label({**more, "strategy": "sweep"}, given["model"])
    with _reserve_folder(Path(keywords.place(own), "multirun"), label) as folder:
        call = Call(folder / FOLDER, show)
        words = ["-m", *call.overrides(given, own, swept=True), *own]
        return _sweep_of(call.run(words, reserved=folder), folder)


def resume(folder: Path, overrides: Iterable[str] | str, given: Values, show: bool) -> None:
    """Resume a run (:meth:`dtrain.Run.resume`)."""
    own = [*keywords.words_of(given, "Run.resume"), *keywords.check(overrides)]
    words = [f"resume={keywords.write_value(folder, 'resume')}", *own]
    _run_of(command.call(words, Line(show), trust_of(folder), follow=folder), folder)


def resume_sweep(folder: Path, show: bool) -> None:
    """Resume a sweep (:meth:`dtrain.Sweep.resume`)."""
    words = [f"sweep.resume={keywords.write_value(folder, 'sweep.resume')}"]
    _sweep_of(command.call(words, Line(show), trust_of(folder)), folder)


def _run_of(done: Done, folder: Path) -> Path:
    """Return the folder of the run that a command has left, or raise what has become of it."""
    rundir = RunDir(folder)
    if done.code == errors.USAGE or not rundir.command.is_file():
        raise done.error()
    result = reading.read_json(rundir.result) or {}
    if done.code in (errors.OK, errors.INTERRUPTED) or result.get("status") == "KILLED":
        return folder
    error = failure.sentence(result.get("failure"), folder)
    if not error:
        raise _with_folder(done.error(), folder)
    raise _with_folder(TrainingError(errors.printable(error)), folder)


def _sweep_of(done: Done, folder: Path) -> Path:
    if done.code == errors.USAGE or not (folder / "sweep.json").is_file():
        raise done.error()
    if done.code in (errors.OK, errors.INTERRUPTED):
        return folder
    jobs = (reading.read_json(folder / "sweep.json") or {}).get("jobs", [])
    failed = [f"{job['number']}: {failure.sentence(job['failure'], folder / job['folder'])}"
              for job in jobs if job["status"] == "FAILED"]  # fmt: skip
    text = errors.printable("\n".join(failed))
    raise _with_folder(TrainingError(text) if failed else done.error(), folder)


def _with_folder(error: Exception, folder: Path) -> Exception:
    """Return an exception that says which folder it is about."""
    error.folder = folder  # type: ignore[attr-defined] # for who wants to look at it
    return error


@contextlib.contextmanager
def _reserve_folder(place: Path, label: str) -> Iterator[Path]:
    """Make a folder for a run or a sweep; it is removed where nothing has come of it."""
    name = Path(time.strftime("%Y-%m-%d"), f"{time.strftime('%H-%M-%S')}_{label}")
    folder = RunDir.create(place.absolute() / name).path
    try:
        (folder / FOLDER).mkdir()
        yield folder
    finally:
        writing.remove_empty(folder / FOLDER)  # where nothing was given
        if not {"command.json", "sweep.json"} & set(os.listdir(folder)):
            writing.discard(folder)


def _label(given: Values, model: object) -> str:
    """Return what a folder is called, besides its time."""
    if isinstance(name := given.get("name"), str) and name and "/" not in name:
        return name
    function, _ = arguments_of(model)
    parts = [function or "cnn", given.get("strategy") or "default"]
    texts = [each if isinstance(each, str) else getattr(each, "__name__", "") for each in parts]
    return "_".join(t.rpartition(".")[2] for t in texts if t.replace(".", "_").isidentifier())
