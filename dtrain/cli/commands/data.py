"""``python -m dtrain data KEY=VALUE ...``: show a dataset: structure, classes, examples, speed.

Nothing is trained: it shows the number of examples, their order and structure, classes, the first
examples, the reading speed. Exit codes: 0 done, 1 the dataset's own code or a disk failed, 2 wrong
usage, or data that cannot be read.

    python -m dtrain data dataset=csv dataset.path=FILE.csv dataset.target=COLUMN examples=5
    python -m dtrain data resume=RUN images=FILE.png
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from dtrain import errors
from dtrain.cli import app
from dtrain.cli.registry import command
from dtrain.config import targets
from dtrain.config.check import settle
from dtrain.config.fields import Options, within
from dtrain.config.fields import Path as PathText
from dtrain.config.node import to_plain
from dtrain.errors import printable, refuse
from dtrain.files import writing
from dtrain.files.fields import Json
from dtrain.host import frameworks
from dtrain.host.forkserver import warm
from dtrain.job.checks import check_address
from dtrain.job.plan import check_framework, plan, sizes
from dtrain.launchers import Launcher
from dtrain.launchers.questions import ask
from dtrain.run.devices import machine
from dtrain.terminal.progress import Activity


class DataOptions(Options):
    """Options of ``data``."""

    examples: Annotated[int, within(0, 1000)] = 3
    """So many of the first examples are shown."""
    images: PathText | None = None
    """PNG file to write: the first 64 images, with their classes, and after augmentation."""
    speed: bool = True
    """Measure the reading speed, which takes up to 5 s."""
    check: bool = False
    """Read all examples; without, for up to 10 s."""
    layers: bool = False
    """Show what each layer of the model takes and gives."""


class Data(app.OneConfiguration):
    """Shows the data of a configuration.

    Args:
        given: the options of the command.
    """

    name = "data"

    def __init__(self, given: DataOptions):
        self._given = given
        self._activity = Activity()
        self._pictures: Json | None = None
        self._printed = False  # a part of the report

    def job(self, node: Any) -> int:
        """Read the data of one configuration in a process of its own, and print what it is."""
        config, given, activity = settle(node), self._given, self._activity
        check_address(config)
        launcher: Launcher = targets.instantiate(config.launcher, "launcher")
        here = launcher.assumed(machine())  # files are read here, whoever would train
        if config.hardware.kind == "gpu" and not launcher.shares_machine:
            here = dataclasses.replace(here, gpus=config.hardware.devices or max(1, here.gpus))
        asked = {
            "examples": given.examples,
            "images": given.images and Path(given.images),
            "measure": given.speed,
            "check": given.check,
            "layers": given.layers,
        }
        with activity:
            activity.begin("looking at the data")
            cluster = plan(config, None, here).cluster
            check_framework(cluster)
            # ORDER: the framework is imported while the data is looked at.
            warm(environment := cluster.environment)
            cluster = plan(config, sizes(config), here).cluster
            activity.begin(frameworks.of(environment).importing)
            ask("data", to_plain(config), cluster, asked, self._hear, activity.continues)
            if self._pictures is not None:
                self._draw(Path(str(given.images)), self._pictures)
        return errors.OK

    def _hear(self, part: tuple[str, Any]) -> None:
        kind, value = part
        if kind == "doing":
            self._activity.begin(value)
            return
        self._activity.end()
        if kind == "pictures":
            self._pictures = value
        else:
            title, lines = value
            self._print(title, *(f"  {line}" for line in lines))

    def _print(self, *lines: str) -> None:
        """Print a part, with an empty line between two."""
        print(*([""] if self._printed else []), *map(printable, lines), sep="\n", flush=True)
        self._printed = True

    def _draw(self, path: Path, pictures: Json) -> None:
        self._activity.begin(f"drawing {path}")
        from dtrain.terminal.pictures import sheet

        writing.write_bytes(path, sheet(**pictures))
        self._activity.end()
        self._print(f"images: {path} ({len(pictures['images'])} of training)")


def _check(path: Path | None) -> None:
    """Refuse a file that images cannot be written to, before anything is read."""
    if path is None:
        return
    problem = None
    if path.suffix.lower() != ".png":
        problem = "is no name of a PNG file"
    elif path.is_dir():
        problem = "is a folder"
    elif not path.parent.is_dir():
        problem = f"there is no folder {path.parent}"
    if problem is not None:
        refuse("images", problem, path, accepted="a PNG file in a folder that is there",
               hint="images=FILE.png")  # fmt: skip


@command(None, DataOptions, overrides=())
def main(options: DataOptions, overrides: list[str]) -> int:
    """Show the data of a configuration, and return the exit code."""
    _check(None if options.images is None else Path(options.images))
    return app.composed(overrides, Data(options))
