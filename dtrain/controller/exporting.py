"""Exports of a run's model: each format written, run by its own runtime, compared, and kept or not.

It is what ``python -m dtrain export`` does, and what is done before a model is logged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dtrain.config import section
from dtrain.config.schema import Config, Precision
from dtrain.controller import folders
from dtrain.controller.launchers.export_steps import Steps
from dtrain.controller.task_environment import task_environment
from dtrain.errors import DtrainError, UsageError
from dtrain.files import reading, writing
from dtrain.host.versions import version
from dtrain.run import checkpoint, exports
from dtrain.run.checkpoint.format import read_manifest
from dtrain.run.cluster import Cluster, Task
from dtrain.run.exports import FORMATS, Exported, Record, Version
from dtrain.run.folder import RunDir

#: What converts and runs a model, or is a part of it.
_VERSIONS = ("tensorflow", "keras")


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


class Exporter:
    """Exports checkpoints of one run.

    Args:
        config: of the run, settled.
        rundir: of the run.
        formats: names of what is to be there in the end.
        weights: ``raw`` or ``ema``.
        hear: called with each clause about what is being done.
        waiting: called once a second while none comes; what it raises ends the export.
        gives_way: others have the cores first.
    """

    def __init__(
        self,
        config: Config,
        rundir: RunDir,
        formats: Sequence[str],
        weights: str,
        hear: Callable[[str], None],
        waiting: Callable[[], None],
        gives_way: bool = False,
    ):
        plain = dataclasses.replace(config.hardware, precision=Precision.float32, remat=[])
        config = dataclasses.replace(config, hardware=plain)
        cluster = Cluster((Task("chief", 0, 1),), "cpu", 1, task_environment())
        self._steps = Steps(section.plain(config), cluster, hear, waiting, gives_way)
        self._rundir = rundir
        self._formats = formats
        self._weights = weights
        self._hear = hear

    def export(self, choose: Callable[[], list[Path]], place: Path) -> Iterator[Made]:
        """Export checkpoints, and yield what came of each.

        Args:
            choose: returns their folders.
            place: ``FOLDER/NAME``, in which each gets a folder.

        Raises:
            UsageError: another command exports there, or what is there is of another model.
            DtrainError: the model cannot be made.
            OSError: it cannot be written.
        """
        try:
            descriptor = exports.lock(place)
        except OSError as error:
            raise folders.unwritable(
                "folder", place, "nothing can be exported there", error
            ) from None
        work = writing.aside(place / "work")
        try:
            for path in checkpoint.hold(choose, work):
                yield self._one(path, place)
        finally:
            writing.remove(work)
            exports.unlock(place, descriptor)

    def _one(self, path: Path, place: Path) -> Made:
        """Export one checkpoint, held at ``path``."""
        manifest, weights = read_manifest(path), self._weights
        made = Version(place / str(manifest["step"]))
        made.check(manifest.get("digest"), weights)
        if weights == "ema" and not checkpoint.has_averages(path):
            raise UsageError(
                "weights", "ema", f"checkpoint {path.name} has no averages of its weights",
                "raw, or a run with optimizer.use_ema=true", "weights=raw",
            )  # fmt: skip
        there = made.record["formats"] if made.record is not None else {}
        already = tuple(name for name in self._formats if name in there)
        names = [name for name in self._formats if name not in there]
        if not names:
            return Made(made.path, already, None, {})
        writing.make_folder(made.aside)
        try:
            self._hear("importing TensorFlow, which takes 3 to 15 s")
            try:
                written = self._steps.write(
                    folder=str(made.aside), work=str(path), path=str(path),
                    averaged=weights == "ema", names=names,
                )  # fmt: skip
            except DtrainError as error:  # of the checkpoint, which the user knows by its own name
                own = self._rundir.checkpoints / path.name
                error.args = (str(error).replace(str(path), str(own)),)
                raise
            kept, refused = self._compared(made, path, names, written)
            record: Record = {
                "step": manifest["step"],
                "digest": manifest.get("digest"),
                "weights": weights,
                "run": str(self._rundir.path),
                "data": manifest["meta"].get("evaluated", ""),
                "signature": written["signature"],
                "classes": written["names"],
                "examples": written["examples"],
                "formats": kept,
            }
            if kept:
                made.publish(record)
        finally:
            writing.remove(made.aside)
        return Made(made.path, already, record, refused)

    def _compared(
        self, made: Version, work: Path, names: Sequence[str], written: dict[str, Any]
    ) -> tuple[dict[str, Exported], dict[str, str]]:
        """Return the formats that are what Keras computes, and what is wrong with the others.

        The files of those are removed.
        """
        aside, refused = made.aside, dict(written["refused"])
        kept: dict[str, Exported] = {}
        outputs = [each["name"] for each in written["signature"]["outputs"]]
        saved = aside if "savedmodel" in names else work
        for name in names:
            if name in refused:
                continue
            try:
                found = self._steps.check(
                    folder=str(aside), saved=str(saved), work=str(work), name=name,
                    structure=written["structure"], outputs=outputs, classes=written["classes"],
                )  # fmt: skip
            except DtrainError as error:
                refused[name] = str(error)
            else:
                kept[name] = _exported(aside, name, found)
        exports.remove(aside, list(refused))
        return kept, refused


def _exported(folder: Path, name: str, found: dict[str, Any]) -> Exported:
    files = exports.files(folder, name)
    packages = (*_VERSIONS, *FORMATS[name].packages)
    made: Exported = {
        "bytes": sum(file["bytes"] for file in files.values()),
        "files": files,
        "deviation": found["deviation"],
        "limit": FORMATS[name].limit,
        "versions": {package: version(package) for package in packages},
    }
    if "latency_ms" in found:
        made["latency_ms"] = found["latency_ms"]
    return made
