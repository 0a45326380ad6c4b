"""``python -m dtrain export RUN to=FORMAT,...``: write a model down, and compare what it computes.

Exit codes: 0 all formats are exported, 1 one could not be written or differs from Keras and is not
kept, 2 wrong usage.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config import suggest
from dtrain.config.check import settle
from dtrain.config.tree import Config
from dtrain.controller import cli, exporting
from dtrain.controller.commands import boundary, of_run
from dtrain.controller.derived import OfModel
from dtrain.controller.terminal.progress import Activity
from dtrain.errors import UsageError, nearest, printable, refuse
from dtrain.host import answer
from dtrain.host.terminal import aligned
from dtrain.run import checkpoint
from dtrain.run.exports import FORMATS, Tensor
from dtrain.run.folder import short
from dtrain.run.follow import LOOK, Followed


class Export(OfModel):
    """Exports a model of a run."""

    name = "export"
    words = {"to": None, "checkpoint": None, "weights": "raw", "name": None, "folder": None,
             "follow": "false"}  # fmt: skip

    def check(self) -> None:
        """Check the formats, and whether the run is followed.

        Raises:
            UsageError: one is not known.
        """
        follow = self._words["follow"]
        if follow not in ("true", "false"):
            refuse("follow", "is neither", follow, accepted="true or false", typed="follow=true")
        to = self._words["to"]
        names = [] if to is None else [part.strip() for part in to.strip("[]").split(",")]
        self._formats = list(dict.fromkeys(names))
        if unknown := [name for name in names if name not in FORMATS]:
            name, near = unknown[0], nearest(unknown[0], FORMATS)
            advice: Mapping[str, str | None] = suggest.corrected("to", name) or {
                "typed": near and f"to={near}", "hint": "to=FORMAT"
            }  # fmt: skip
            refuse("to", "is no format", name,
                   accepted=f"{', '.join(FORMATS)}, with commas between", **advice)  # fmt: skip

    def job(self, node: Any) -> int:
        """Export each checkpoint that is meant, and return the exit code."""
        config, weights = settle(node), str(self._words["weights"])
        folder = Path(self._words["folder"] or self.rundir.path / "exports").absolute()
        place = folder / exporting.name_of(self.rundir, weights, self._words["name"])
        activity, trained = Activity(), config.hardware.precision
        is_module = exporting.backend_of(self.rundir) == "torch"
        origin = "the module" if is_module else "Keras"
        code, follow = errors.OK, self._words["follow"] == "true"
        for word in self._followed(config) if follow else [self.checkpoint]:
            try:
                for made in exporting.export(
                    config, self.rundir, self._formats, weights, word, place,
                    activity.begin, activity.continues, gives_way=follow,
                ):  # fmt: skip
                    activity.end()
                    _print(made, trained, origin)
                    code = errors.FAILED if made.refused else code
            except UsageError as error:
                # A run that went back saves a step again: what was exported of it stays.
                if follow and (place / str(word)).exists():
                    print(printable(f"error: {error}"), file=sys.stderr)
                    code = errors.FAILED
                elif not follow or (self.rundir.checkpoints / str(word)).exists():
                    raise
                else:
                    print(f"step {word} is not exported: the run has removed it", file=sys.stderr)
            finally:
                activity.end()
        return code

    def _followed(self, config: Config) -> Iterator[str]:
        """Yield the step of each checkpoint that is meant, as the run saves it, until it ends."""
        followed = Followed(self.rundir, self.checkpoint, config.objective_mode)
        with followed.alone(self.name):
            of_run.wait_for_first(followed)
            for path in followed.pending():
                if path is None:
                    time.sleep(LOOK)
                else:
                    yield str(checkpoint.step_of(path))


def _print(made: exporting.Made, trained: str, origin: str) -> None:
    """Print what came of one checkpoint.

    Args:
        made: of it.
        trained: precision that the run was trained in.
        origin: what it is compared with.
    """
    for name in made.already:
        print(f"{name} is there already: {short(made.path)}")
        answer.note(exported=str(made.path))
    if made.record is None:
        return
    if trained != "float32":
        print(f"trained in {trained}, exported in float32")
    record = made.record
    lines = [f"step {record['step']}, {record['weights']} weights, compared with {origin} on "
             f"{record['examples']} examples"]  # fmt: skip
    lines += [f"{role}: {_shown(record['signature'][role])}" for role in ("inputs", "outputs")]
    if kept := record["formats"]:
        rows = [["format", "bytes", "deviation", "limit"]]
        rows += [[n, f"{e['bytes']:,}", f"{e['deviation']:.2g}", f"{e['limit']:g}"]
                 for n, e in kept.items()]  # fmt: skip
        lines += ["", *aligned(rows, {1, 2, 3}), "", f"exported: {short(made.path)}"]
        answer.note(exported=str(made.path))
    print(*map(printable, lines), sep="\n", flush=True)
    for name, problem in made.refused.items():
        answer.error(printable(f"{name} is not kept: {problem}"))


def _shown(tensors: list[Tensor]) -> str:
    shapes = [", ".join("?" if n is None else str(n) for n in each["shape"]) for each in tensors]
    return ", ".join(
        f"{each['name']} {each['dtype']} [{shape}]"
        for each, shape in zip(tensors, shapes, strict=True)
    )


_PARSER = of_run.parser(
    "export",
    "Export the model of a run to other formats, and compare each with Keras on examples of the "
    "run's data. A format that deviates is not kept.",
    f"to={','.join(FORMATS)} (savedmodel; of a plain module pt2), "
    "checkpoint=best|latest|all|STEP (the best), weights=raw|ema (raw), name=NAME of the model "
    "(that of the run), folder=FOLDER (RUN/exports), follow=true for each new one until the run "
    "ends; and overrides of the dataset, if its files have moved.",
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: in place of those of the process.
    """
    run, given = of_run.parsed(_PARSER, arguments)
    return boundary.answered(lambda: cli.composed(given, Export(run)), run)
