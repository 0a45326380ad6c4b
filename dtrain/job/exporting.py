"""Exports of a run's model: formats written, run by their own runtimes, compared, and kept or not.

It is what ``python -m dtrain export`` does, and what is done before a model is logged.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dtrain.config.node import to_plain
from dtrain.config.tree import Config
from dtrain.errors import DtrainError, refuse
from dtrain.files import reading, writing
from dtrain.files.fields import Json
from dtrain.host import frameworks
from dtrain.host.packages import version
from dtrain.job import folders
from dtrain.job.backend import check_here
from dtrain.job.early_import import task_environment
from dtrain.launchers.questions import ask
from dtrain.run import checkpoint, exports
from dtrain.run.checkpoint.format import read_manifest
from dtrain.run.cluster import Cluster, Task
from dtrain.run.exports import FORMATS, Exported, Record, Version
from dtrain.run.folder import RunDir


@dataclasses.dataclass(frozen=True)
class Made:
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


def name_of(rundir: RunDir, weights: str, given: str | None = None) -> str:
    """Return the name of the model: that of the run, where none was given.

    Raises:
        UsageError: it is not one file name.
    """
    if given is None:
        found = str(reading.read_plain(rundir.config).get("name"))
        given = found if weights == "raw" else f"{found}-ema"
    return folders.check_name(given)


def backend_of(rundir: RunDir) -> str:
    """Return the backend that exports and serves the model of a run.

    Formats of Keras are written by TensorFlow, whatever has trained: weights have the same names. A
    plain module is PyTorch's.
    """
    return "torch" if checkpoint.of_module(rundir.checkpoints) else "tensorflow"


def export(
    config: Config, rundir: RunDir, formats: Sequence[str], weights: str, word: str | None,
    place: Path, hear: Callable[[str], None], waiting: Callable[[], None], gives_way: bool = False,
) -> Iterator[Made]:  # fmt: skip
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
        DtrainError: the model cannot be made.
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
    check_here(cluster)

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
) -> Made:  # fmt: skip
    """Export one checkpoint, held at ``path``.

    Args:
        path, rundir, weights, place: as of :func:`export`.
        versions: by format, those of what converts and runs a model, or is a part of it.
        asked: asks the process that exports.
    """
    manifest = read_manifest(path)
    made = Version(place / str(manifest["step"]))
    made.check(manifest.get("digest"), weights)
    checkpoint.check_weights(path, weights)
    there = made.record["formats"] if made.record is not None else {}
    already = tuple(name for name in versions if name in there)
    names = [name for name in versions if name not in there]
    if not names:
        return Made(made.path, already, None, {})
    writing.make_folder(made.aside)
    try:
        places = {"folder": str(made.aside), "work": str(path)}
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
                    writing.remove(made.aside / part)
                continue
            files = exports.files(made.aside, name)
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
            made.publish(record)
    finally:
        writing.remove(made.aside)
    return Made(made.path, already, record, refused)


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
