"""Exports of a run's model: formats written, run by their own runtimes, compared, and kept or not.

It is what ``python -m dtrain export`` does, and what is done before a model is logged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dtrain import secrets
from dtrain.config.node import to_plain
from dtrain.config.tree import Config
from dtrain.errors import DtrainError, Interrupted, refuse
from dtrain.files import reading, writing
from dtrain.files.fields import Json
from dtrain.host import frameworks
from dtrain.host.packages import version
from dtrain.job import folders
from dtrain.job.early_import import task_environment
from dtrain.job.plan import check_framework
from dtrain.job.supervisor import Requests
from dtrain.launchers.questions import ask
from dtrain.run import checkpoint, exports, registry
from dtrain.run.checkpoint.format import read_manifest
from dtrain.run.cluster import Cluster, Task
from dtrain.run.exports import FORMATS, Exported, Record, Version
from dtrain.run.folder import RunDir, short
from dtrain.run.registry import Model
from dtrain.terminal.progress import View
from dtrain.tracking.base import Tracker


@dataclasses.dataclass(frozen=True)
class ExportResult:
    """What came of one checkpoint.

    Attributes:
        path: the folder of the version.
        already: formats that were there before.
        record: of what was made; None where all was there.
        refused: formats that are not kept, with what is wrong.
    """

    path: Path
    already: tuple[str, ...]
    record: Record | None
    refused: dict[str, str]


def name_of(rundir: RunDir, weights: str, name: str | None = None) -> str:
    """Return the name of the model: ``name``, or that of the run.

    Raises:
        UsageError: it is not one file name.
    """
    if name is None:
        name = str(reading.read_plain(rundir.config).get("name"))
        name = name if weights == "raw" else f"{name}-ema"
    return folders.check_name(name)


def backend_of(rundir: RunDir) -> str:
    """Return the backend that exports and serves the model of a run.

    Formats of Keras are written by TensorFlow, whatever has trained: weights have the same names. A
    plain module is PyTorch's.
    """
    return "torch" if checkpoint.of_module(rundir.checkpoints) else "tensorflow"


def export(
    config: Config, rundir: RunDir, formats: Sequence[str], weights: str, word: str | None,
    place: Path, hear: Callable[[str], None], waiting: Callable[[], None], gives_way: bool = False,
) -> Iterator[ExportResult]:  # fmt: skip
    """Export checkpoints of a run, and yield what came of each.

    Args:
        config: of the run, settled.
        rundir: of the run.
        formats: names of what is to be there in the end; none: what the model is exported to first.
        weights: ``raw`` or ``ema``.
        word: which checkpoints, of :func:`dtrain.run.checkpoint.choose`.
        place: ``FOLDER/NAME``, in which each gets a folder.
        hear: called with each clause about what is being done.
        waiting: called once a second while none comes; what it raises ends the export.
        gives_way: others have the cores first.

    Raises:
        UsageError: a format cannot be, or what is there is of another model.
        DtrainError: the model cannot be built.
        OSError: it cannot be written.
    """

    def choose() -> list[Path]:
        return checkpoint.choose(rundir.checkpoints, word, config.objective_mode)

    choose()  # refused before anything is made
    plain = config.hardware.replaced(precision="float32", remat=[])
    values = to_plain(config.replaced(hardware=plain))
    backend = backend_of(rundir)
    is_module = backend == "torch"
    cluster = Cluster((Task("chief", 0, 1),), "cpu", 1, task_environment(backend=backend))
    framework = frameworks.of(cluster.environment)
    always = ("tensorflow", "keras", *framework.packages)
    versions = {
        name: {each: version(each) for each in (*always, *_packages(name, is_module))}
        for name in formats or ["pt2" if is_module else "savedmodel"]
    }
    check_framework(cluster)

    def asked(**words: Any) -> Json:
        if words["do"] == "write":
            hear(framework.importing)
        answer: Json = ask("export", values, cluster, words, hear, waiting, gives_way)
        return answer

    try:
        with contextlib.suppress(FileExistsError):
            writing.make_folder(place)
    except OSError as error:
        raise folders.unwritable("to", place, "nothing can be exported there", error) from None
    work = writing.aside(place / "work")
    try:
        for path in checkpoint.hold(choose, work):
            yield _exported(path, rundir, versions, weights, place, asked)
    finally:
        writing.remove(work)
        if not any(place.iterdir()):  # nothing came of it
            with contextlib.suppress(ValueError):  # it was there before
                writing.discard(place)


def _exported(
    path: Path, rundir: RunDir, versions: dict[str, dict[str, str | None]], weights: str,
    place: Path, asked: Callable[..., Json],
) -> ExportResult:  # fmt: skip
    """Export one checkpoint, held at ``path``.

    Args:
        path, rundir, weights, place: as of :func:`export`.
        versions: by format, those of what converts and runs a model, or is a part of it.
        asked: asks the process that exports.
    """
    manifest = read_manifest(path)
    version = Version(place / str(manifest["step"]))
    version.check(manifest.get("digest"), weights)
    checkpoint.check_weights(path, weights)
    there = version.record["formats"] if version.record is not None else {}
    already = tuple(name for name in versions if name in there)
    names = [name for name in versions if name not in there]
    if not names:
        return ExportResult(version.path, already, None, {})
    writing.make_folder(version.aside)
    try:
        places = {"run": str(rundir.path), "folder": str(version.aside), "work": str(path)}
        try:
            written = asked(
                do="write", **places, path=str(path), averaged=weights == "ema", names=names
            )
        except DtrainError as error:  # of the checkpoint, which the user knows by its own name
            error.args = (str(error).replace(str(path), str(rundir.checkpoints / path.name)),)
            raise
        results: Json = dict(written["refused"])
        if rest := [name for name in names if name not in results]:
            results |= asked(do="check", **places, names=rest)
        kept: dict[str, Exported] = {}
        refused: dict[str, str] = {}
        for name in names:
            if isinstance(results[name], str):
                refused[name] = results[name]
                for part in FORMATS[name].files:
                    writing.remove(version.aside / part)
                continue
            files = exports.files(version.aside, name)
            kept[name] = {
                "bytes": sum(file["bytes"] for file in files.values()),
                "files": files,
                "deviation": results[name],
                "limit": FORMATS[name].limit,
                "versions": versions[name],
            }
        record: Record = {
            "step": manifest["step"],
            "digest": manifest.get("digest"),
            "weights": weights,
            "run": str(rundir.path),
            "data": manifest["meta"].get("evaluated", ""),
            "signature": written["signature"],
            "classes": written["classes"],
            "encoding": written["encoding"],
            "examples": written["examples"],
            "formats": kept,
        }
        if kept:
            version.publish(record)
    finally:
        writing.remove(version.aside)
    return ExportResult(version.path, already, record, refused)


def _packages(name: str, is_module: bool) -> tuple[str, ...]:
    """Return the distributions that a format needs.

    Raises:
        UsageError: one is not installed, or the format is of other models.
    """
    having = {n: f.of_modules if is_module else f.packages for n, f in FORMATS.items()}
    packages = having[name]
    if packages is None:
        kind = "plain modules of PyTorch's" if is_module else "models of Keras'"
        accepted = [each for each, of in having.items() if of is not None]
        refuse("format", f"is no format of {kind}", name, accepted=", ".join(accepted),
               typed=f"format={accepted[-2]}" if is_module else "format=savedmodel")  # fmt: skip
    for package in packages:
        if version(package) is None:
            wanted = package if is_module else '"dtrain[export]"'
            refuse("format", f"{package} is not installed, which converts or runs it", name,
                   typed=f"pip install {wanted}")  # fmt: skip
    return packages


# -- the model that is logged when a run has ended (``tracking.model``)

#: Of ``tracking.model``: which checkpoint that is; None: the best where objectives are known.
_CHECKPOINTS = {"best": None, "final": "latest"}


def model_to_log(config: Config) -> str | None:
    """Return ``best`` or ``final`` where a model of the run is to be logged, else None."""
    which: str | None = config.tracking.get("model")  # a user's own tracker may not have the key
    return which if which in _CHECKPOINTS else None


def registered_name(config: Config) -> str | None:
    """Return the name under which the run's model is to be a version; None for none."""
    name: str | None = config.tracking.get("register")
    return name


def check_logged(config: Config, tracker: Tracker) -> None:
    """Refuse models that nothing would keep, and names of none.

    Raises:
        UsageError: naming the key.
    """
    which = model_to_log(config)
    if which is not None and not tracker.keeps_models:
        refuse("tracking.model", f"{tracker.label} keeps no models", which,
               accepted="none, or any with tracking=mlflow", typed="tracking=mlflow")  # fmt: skip


def export_to_log(
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
        hear, waiting: of :func:`export`.

    Raises:
        DtrainError: it cannot be exported, or is not what the model computes.
        OSError: it cannot be written.
    """
    place = rundir.path / "exports" / name_of(rundir, weights)
    [exported] = export(config, rundir, (), weights, word, place, hear, waiting)
    if exported.refused:
        raise DtrainError(f"it is not kept: {next(iter(exported.refused.values()))}")
    record = exports.read(exported.path)
    model: Model = {
        "path": exported.path.relative_to(rundir.path).as_posix(),
        "step": record["step"],
        "digest": str(record["digest"]),
        "weights": record["weights"],
        "data": record.get("data", ""),
        "names": names,
    }
    registry.add(rundir, model)
    return model


def export_wanted(
    config: Config, rundir: RunDir, hear: Callable[[str], None], waiting: Callable[[], None]
) -> Model:
    """Export the model that ``tracking.model`` asks for, as :func:`export_to_log` does."""
    name = registered_name(config)
    word = _CHECKPOINTS[str(model_to_log(config))]
    return export_to_log(config, rundir, word, "raw", [] if name is None else [name], hear, waiting)


def export_at_end(config: Config, rundir: RunDir, view: View, requests: Requests) -> None:
    """Export the model of a run that has ended well, whatever comes of it, where that is wanted.

    Args:
        config: of the run, settled.
        rundir: of the run.
        view: hears what is done, and what went wrong.
        requests: to stop: another one ends the export.
    """
    if model_to_log(config) is None:
        return
    before = requests.count

    def waiting() -> None:
        if requests.count > before:
            raise Interrupted("stopped")

    view.detail("exporting the model")
    try:
        model = export_wanted(config, rundir, lambda doing: None, waiting)
    except Exception as error:  # of the user's model, of a library, of a full disk
        command = f"python -m dtrain sync {shlex.quote(short(rundir.path))}"
        problem = secrets.mask(str(error) or type(error).__name__)
        view.message(f"the model is not logged: {problem}; to try again: {command}")
    else:
        view.detail(f"model: {short(rundir.path / model['path'])}")
