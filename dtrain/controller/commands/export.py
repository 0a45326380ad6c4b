"""``python -m dtrain export RUN to=FORMAT,...``: write a model down, and compare what it computes.

Exit codes: 0 all formats are exported, 1 one could not be written or differs from Keras and is not
kept, 2 wrong usage.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config import section
from dtrain.config.overrides import key_of, parse
from dtrain.config.schema import Precision
from dtrain.config.settle import settle
from dtrain.controller import cli, folders, resume
from dtrain.controller.commands import failures, of_run
from dtrain.controller.launchers.export_steps import Steps
from dtrain.controller.task_environment import task_environment
from dtrain.controller.terminal import exports as terminal
from dtrain.controller.terminal.activity import Activity
from dtrain.errors import CheckpointError, DtrainError, UsageError, printable
from dtrain.files import reading, writing
from dtrain.host.versions import version
from dtrain.run import checkpoint, exports
from dtrain.run.checkpoint.format import read_manifest
from dtrain.run.cluster import Cluster, Task
from dtrain.run.exports import FORMATS, Exported, Record, Version
from dtrain.run.folder import short

#: What the command takes beside overrides of the dataset, with what it means where it is left out.
WORDS = {"to": "savedmodel", "checkpoint": None, "weights": "raw", "name": None, "folder": None}
_WEIGHTS = ("raw", "ema")
#: What converts and runs a model, or is a part of it.
_VERSIONS = ("tensorflow", "keras")


class Export(cli.Command):
    """Exports a model of a run.

    Args:
        run: a run folder, or one of its checkpoints.
    """

    def __init__(self, run: str):
        self._run = run
        self._rundir, self._chosen = resume.origin(run)
        self._words: dict[str, str | None] = dict(WORDS)
        self._formats: list[str] = []
        self._trained = Precision.float32
        self._activity = Activity()

    def arguments(self, given: list[str]) -> list[str]:
        """Return the overrides of the run, and those that were typed; keep the command's own words.

        Raises:
            UsageError: there is no such run, a word is wrong, or a key means nothing here.
        """
        own = [override for override in given if not self._is_word(override)]
        for override in own:
            if not override.startswith("-") and key_of(override).partition(".")[0] != "dataset":
                raise UsageError(
                    key_of(override), parse(override).value or "", "says nothing of an export",
                    f"{', '.join(f'{word}=' for word in WORDS)} and overrides of dataset",
                    f"the command without {override}",
                )  # fmt: skip
        self._formats = _formats(self._words["to"] or "")
        if self._words["weights"] not in _WEIGHTS:
            raise UsageError(
                "weights", self._words["weights"], "are no weights of a run", " or ".join(_WEIGHTS),
                "weights=raw",
            )  # fmt: skip
        if self._chosen is not None and self._words["checkpoint"] is not None:
            raise UsageError(
                "RUN", self._run, "names a checkpoint, and so does checkpoint=", "one of them",
                f"python -m dtrain export {short(self._rundir.path)}",
            )  # fmt: skip
        if not self._rundir.path.is_dir():
            raise UsageError(
                "RUN", self._run, "is not a folder", "a folder that a run printed as its run "
                "folder, or RUN/checkpoints/STEP", "python -m dtrain export outputs/DATE/TIME_NAME",
            )  # fmt: skip
        known = {key_of(override) for override in own}
        replaced = {*known, "resume", "fork", "output_dir", "tracking", "sidecar", "sweep", "hydra"}
        return resume.of_run("RUN", self._run, self._rundir, [*own, "tracking=none"], replaced)

    def _is_word(self, override: str) -> bool:
        """Take one of the command's own words; say whether it was one."""
        found = parse(override)
        if override.startswith("-") or found.sign or found.name not in WORDS:
            return False
        self._words[found.name] = (found.value or "").strip("'\"")
        return True

    def job(self, node: Any) -> int:
        """Export each checkpoint that is meant, and return the exit code."""
        config = settle(node)
        folder = Path(self._words["folder"] or self._rundir.path / "exports").absolute()
        place = folder / self._name()
        word = self._words["checkpoint"] if self._chosen is None else self._chosen.name
        mode = config.objective_mode.name

        def choose() -> list[Path]:
            return checkpoint.choose(self._rundir.checkpoints, word, mode)

        choose()  # refused before anything is made
        self._trained = config.hardware.precision
        plain = dataclasses.replace(config.hardware, precision=Precision.float32, remat=[])
        config = dataclasses.replace(config, hardware=plain)
        cluster = Cluster((Task("chief", 0, 1),), "cpu", 1, task_environment())
        activity = self._activity
        steps = Steps(section.plain(config), cluster, activity.begin, activity.continues)
        descriptor = _lock(place)
        work = writing.aside(place / "work")
        try:
            held = checkpoint.hold(choose, work)
            return max(self._export(steps, path, place) for path in held)
        finally:
            activity.end()
            writing.remove(work)
            exports.unlock(place, descriptor)

    def sweep(self, loader: Any, master: Any, source: Any) -> None:
        """Refuse a sweep."""
        raise UsageError(
            "hydra.mode", "MULTIRUN", "export has one configuration",
            "overrides with one value each", "a command for each value",
        )  # fmt: skip

    def _name(self) -> str:
        """Return the name of the model: that of the run, where none was given."""
        given = self._words["name"]
        if given is None:
            found = str(reading.read_plain(self._rundir.config).get("name"))
            given = found if self._words["weights"] == "raw" else f"{found}-ema"
        return folders.check_name(given)

    def _export(self, steps: Steps, path: Path, place: Path) -> int:
        """Export one checkpoint, held at ``path``, and return the exit code."""
        manifest, weights = read_manifest(path), str(self._words["weights"])
        version = Version(place / str(manifest["step"]))
        version.check(manifest.get("digest"), weights)
        if weights == "ema" and not checkpoint.has_averages(path):
            raise UsageError(
                "weights", "ema", f"checkpoint {path.name} has no averages of its weights",
                "raw, or a run with optimizer.use_ema=true", "weights=raw",
            )  # fmt: skip
        there = version.record["formats"] if version.record is not None else {}
        names = [name for name in self._formats if name not in there]
        for name in self._formats:
            if name in there:
                print(f"{name} is there already: {short(version.path)}")
        if not names:
            return errors.OK
        if self._trained is not Precision.float32:
            print(f"trained in {self._trained.name}, exported in float32")
        writing.make_folder(version.aside)
        try:
            self._activity.begin("importing TensorFlow, which takes 3 to 15 s")
            try:
                written = steps.write(
                    folder=str(version.aside), work=str(path), path=str(path),
                    averaged=weights == "ema", names=names,
                )  # fmt: skip
            except DtrainError as error:  # of the checkpoint, which the user knows by its own name
                own = self._rundir.checkpoints / path.name
                error.args = (str(error).replace(str(path), str(own)),)
                raise
            kept, refused = self._compared(steps, version, path, names, written)
            self._activity.end()
            record: Record = {
                "step": manifest["step"],
                "digest": manifest.get("digest"),
                "weights": weights,
                "run": str(self._rundir.path),
                "signature": written["signature"],
                "examples": written["examples"],
                "formats": kept,
            }
            if kept:
                version.publish(record)
        finally:
            writing.remove(version.aside)
        examples, signature = record["examples"], record["signature"]
        lines = [*terminal.lines(record["step"], weights, examples, signature, kept)]
        lines += [f"exported: {short(version.path)}"] if kept else []
        print(*map(printable, lines), sep="\n", flush=True)
        for name, problem in refused.items():
            print(printable(f"error: {name} is not kept: {problem}"), file=sys.stderr)
        return errors.FAILED if refused else errors.OK

    def _compared(
        self, steps: Steps, version: Version, work: Path, names: Sequence[str],
        written: dict[str, Any],
    ) -> tuple[dict[str, Exported], dict[str, str]]:  # fmt: skip
        """Return the formats that are what Keras computes, and what is wrong with the others.

        The files of those are removed.
        """
        aside, refused = version.aside, dict(written["refused"])
        kept: dict[str, Exported] = {}
        outputs = [each["name"] for each in written["signature"]["outputs"]]
        saved = aside if "savedmodel" in names else work
        for name in names:
            if name in refused:
                continue
            try:
                found = steps.check(
                    folder=str(aside), saved=str(saved), work=str(work), name=name,
                    structure=written["structure"], outputs=outputs, classes=written["classes"],
                )  # fmt: skip
            except DtrainError as error:
                refused[name] = str(error)
            else:
                kept[name] = _exported(aside, name, found)
        exports.remove(aside, list(refused))
        return kept, refused


def _lock(place: Path) -> int:
    try:
        return exports.lock(place)
    except OSError as error:
        raise folders.unwritable("folder", place, "nothing can be exported there", error) from None


def _exported(folder: Path, name: str, found: dict[str, Any]) -> Exported:
    files = exports.files(folder, name)
    packages = (*_VERSIONS, *FORMATS[name].packages)
    made: Exported = {
        "bytes": sum(file["bytes"] for file in files.values()),
        "files": files,
        "deviation": found["deviation"],
        "limit": exports.LIMIT,
        "versions": {package: version(package) for package in packages},
    }
    if "latency_ms" in found:
        made["latency_ms"] = found["latency_ms"]
    return made


def _formats(text: str) -> list[str]:
    """Return the formats of ``to=``, each once.

    Raises:
        UsageError: one is not known, or what it needs is not installed.
    """
    names = list(dict.fromkeys(part.strip() for part in text.strip("[]").split(",")))
    for name in names:
        if name not in FORMATS:
            raise UsageError(
                "to", name, "is no format", f"{', '.join(FORMATS)}, several with commas between",
                "to=savedmodel",
            )  # fmt: skip
        for package in FORMATS[name].packages:
            if version(package) is None:
                raise UsageError(
                    "to", name, f"{package} is not installed, which converts or runs it",
                    "formats whose packages are installed", 'pip install "dtrain[export]"',
                )  # fmt: skip
    return names


_PARSER = of_run.parser(
    "export",
    "Write the model of a run down for others to run, and compare what it computes with Keras on "
    "examples of the run's data. What differs is not kept.",
    f"to={','.join(FORMATS)} (savedmodel), checkpoint=best|latest|all|STEP (the best), "
    "weights=raw|ema (raw), name=NAME of the model (that of the run), folder=FOLDER "
    "(RUN/exports); and overrides of the dataset, where it has moved.",
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: in place of those of the process.
    """
    run, given = of_run.parsed(_PARSER, arguments)
    try:
        return cli.composed(given, Export(run))
    except (UsageError, CheckpointError) as error:
        return failures.report(error, "")
    except OSError as error:
        return failures.report(error, f"{error.filename or run}: {error.strerror}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return errors.FAILED
