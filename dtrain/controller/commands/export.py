"""``python -m dtrain export RUN to=FORMAT,...``: write a model down, and compare what it computes.

Exit codes: 0 all formats are exported, 1 one could not be written or differs from Keras and is not
kept, 2 wrong usage.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.overrides import key_of, parse
from dtrain.config.schema import Precision
from dtrain.config.settle import settle
from dtrain.controller import cli, exporting, resume
from dtrain.controller.commands import failures, of_run
from dtrain.controller.terminal import exports as terminal
from dtrain.controller.terminal.activity import Activity
from dtrain.errors import CheckpointError, UsageError, printable
from dtrain.host.versions import version
from dtrain.run import checkpoint
from dtrain.run.exports import FORMATS
from dtrain.run.folder import short

#: What the command takes beside overrides of the dataset, with what it means where it is left out.
WORDS = {"to": "savedmodel", "checkpoint": None, "weights": "raw", "name": None, "folder": None}
_WEIGHTS = ("raw", "ema")


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
        replaced = {*known, "resume", "fork", "output_dir", "tracking", "sweep", "hydra"}
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
        config, weights = settle(node), str(self._words["weights"])
        folder = Path(self._words["folder"] or self._rundir.path / "exports").absolute()
        place = folder / exporting.name_of(self._rundir, weights, self._words["name"])
        word = self._words["checkpoint"] if self._chosen is None else self._chosen.name
        mode = config.objective_mode.name

        def choose() -> list[Path]:
            return checkpoint.choose(self._rundir.checkpoints, word, mode)

        choose()  # refused before anything is made
        activity, trained = Activity(), config.hardware.precision
        exporter = exporting.Exporter(
            config, self._rundir, self._formats, weights, activity.begin, activity.continues
        )
        code = errors.OK
        try:
            for made in exporter.export(choose, place):
                activity.end()
                _print(made, trained)
                code = errors.FAILED if made.refused else code
        finally:
            activity.end()
        return code

    def sweep(self, loader: Any, master: Any, source: Any) -> None:
        """Refuse a sweep."""
        raise UsageError(
            "hydra.mode", "MULTIRUN", "export has one configuration",
            "overrides with one value each", "a command for each value",
        )  # fmt: skip


def _print(made: exporting.Made, trained: Precision) -> None:
    """Print what came of one checkpoint.

    Args:
        made: of it.
        trained: precision that the run was trained in.
    """
    for name in made.already:
        print(f"{name} is there already: {short(made.path)}")
    if made.record is None:
        return
    if trained is not Precision.float32:
        print(f"trained in {trained.name}, exported in float32")
    lines = [*terminal.lines(made.record)]
    lines += [f"exported: {short(made.path)}"] if made.record["formats"] else []
    print(*map(printable, lines), sep="\n", flush=True)
    for name, problem in made.refused.items():
        print(printable(f"error: {name} is not kept: {problem}"), file=sys.stderr)


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
