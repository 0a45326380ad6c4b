"""``python -m dtrain export RUN format=FORMAT,...``: write the model of a run in other formats.

Each format is compared with the model on examples of the run's data; one that deviates is not kept.
Exit codes: 0 all formats are exported, 1 one could not be written or deviates, 2 wrong usage.

    python -m dtrain export latest
    python -m dtrain export RUN format=savedmodel,onnx checkpoint=latest to=FOLDER
    python -m dtrain export RUN follow=true
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from dtrain import errors
from dtrain.cli import app
from dtrain.cli.on_run import OfModel, wait_for_first
from dtrain.cli.registry import RUN, command
from dtrain.config.check import settle
from dtrain.config.fields import FileName, Form, Options, Plain
from dtrain.config.fields import Path as PathText
from dtrain.config.schema.running import Checkpoint
from dtrain.config.tree import Config
from dtrain.errors import UsageError, printable, refuse
from dtrain.host import answer
from dtrain.host.terminal import aligned
from dtrain.job import exporting
from dtrain.run import checkpoint
from dtrain.run.exports import FORMATS, Tensor
from dtrain.run.folder import short
from dtrain.run.follow import LOOK, Followed
from dtrain.terminal.progress import Activity


def _format(value: Plain) -> str | None:
    return None if value in FORMATS else "is no format"


_Format = Annotated[str, Form(", ".join(FORMATS), _format, "savedmodel")]


class ExportOptions(Options):
    """Options of ``export``."""

    format: list[_Format] | None = None
    """Formats, with commas between; null: savedmodel, of a plain module pt2."""
    checkpoint: Checkpoint | None = None
    """Best, latest, all or a step; null: the best, or the latest if none is known."""
    weights: Literal["raw", "ema"] = "raw"
    """raw: the trained weights; ema: the optimizer's moving averages."""
    name: FileName | None = None
    """Name of the model; null: that of the run."""
    to: PathText | None = None
    """Folder in which the model gets one of its own; null: RUN/exports."""
    follow: bool = False
    """Each checkpoint as it is saved, until the run ends."""


class Export(OfModel):
    """Exports a model of a run.

    Args:
        run: a run folder, or one of its checkpoints.
        options: of the command.
    """

    name = "export"

    def __init__(self, run: str, options: ExportOptions):
        super().__init__(run, options.checkpoint, options.weights)
        self._options = options

    def job(self, node: Any) -> int:
        """Export each checkpoint that is meant, and return the exit code."""
        config, options = settle(node), self._options
        folder = Path(options.to or self.rundir.path / "exports").absolute()
        place = folder / exporting.name_of(self.rundir, options.weights, options.name)
        activity, trained = Activity(), config.hardware.precision
        is_module = exporting.backend_of(self.rundir) == "torch"
        origin = "the module" if is_module else "Keras"
        code, follow = errors.OK, options.follow
        for word in self._follow(config) if follow else [self.checkpoint]:
            try:
                for made in exporting.export(
                    config, self.rundir, options.format or (), options.weights, word, place,
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

    def _follow(self, config: Config) -> Iterator[str]:
        """Yield the step of each checkpoint that is meant, as the run saves it, until it ends."""
        followed = Followed(self.rundir, self.checkpoint, config.objective_mode)
        with followed.alone(self.name):
            wait_for_first(followed)
            for path in followed.pending():
                if path is None:
                    time.sleep(LOOK)
                else:
                    yield str(checkpoint.step_of(path))


def _print(made: exporting.ExportResult, trained: str, origin: str) -> None:
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
    lines += [f"{role}: {_describe(record['signature'][role])}" for role in ("inputs", "outputs")]
    if kept := record["formats"]:
        rows = [["format", "bytes", "deviation", "limit"]]
        rows += [[n, f"{e['bytes']:,}", f"{e['deviation']:.2g}", f"{e['limit']:g}"]
                 for n, e in kept.items()]  # fmt: skip
        lines += ["", *aligned(rows, {1, 2, 3}), "", f"exported: {short(made.path)}"]
        answer.note(exported=str(made.path))
    print(*map(printable, lines), sep="\n", flush=True)
    for name, problem in made.refused.items():
        answer.error(printable(f"{name} is not kept: {problem}"))


def _describe(tensors: list[Tensor]) -> str:
    shapes = [", ".join("?" if n is None else str(n) for n in each["shape"]) for each in tensors]
    return ", ".join(
        f"{each['name']} {each['dtype']} [{shape}]"
        for each, shape in zip(tensors, shapes, strict=True)
    )


@command(RUN, ExportOptions, overrides=("dataset",), writes=True)
def main(run: str, options: ExportOptions, overrides: list[str]) -> int:
    """Export the model of a run, and return the exit code."""
    if options.to in FORMATS:
        refuse("to", "is a format, and to= names a folder", options.to,
               accepted=f"a folder, ./{options.to} of one that is called so",
               typed=f"format={options.to}")  # fmt: skip
    return app.composed(overrides, Export(run, options))
