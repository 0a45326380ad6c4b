"""``python -m dtrain tune``: which settings make this model fast on this machine, as measured.

Exit codes: 0 done, 1 the default setting does not train, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config import targets
from dtrain.config.overrides import key_of, parse
from dtrain.config.schema import Config
from dtrain.config.settle import settle
from dtrain.controller import cli, tuned
from dtrain.controller.commands import failures
from dtrain.controller.commands.parsing import Parser
from dtrain.controller.launchers import Local
from dtrain.controller.plan import Plan
from dtrain.controller.resources.devices import Machine, machine
from dtrain.controller.terminal.activity import Activity
from dtrain.controller.tuning import coordinates, settings
from dtrain.controller.tuning.search import TOLERANCE, Found, Row, Search, Setting
from dtrain.controller.tuning.table import line, table
from dtrain.controller.tuning.trials import Trials
from dtrain.controller.validate import check, check_address
from dtrain.errors import TrainingError, UsageError
from dtrain.host import memory
from dtrain.run.folder import short

#: Steps whose losses are compared.
STEPS = 50
#: Seconds that a trial may take, with its start: XLA compiles a large model for minutes.
LIMIT = 90.0
#: Seconds for other combinations than those of one setting after the other.
COMBINE = 60.0
#: Keys of a run, which trials are none of.
_OF_A_RUN = (
    "resume", "fork", "output_dir", "tracking", "action", "debug", "sweep",
)  # fmt: skip
#: Of the memory that is free, so much is left to the rest of the machine.
_RESERVE = 0.1


def _parser() -> Parser:
    parser = Parser(
        prog="python -m dtrain tune", allow_abbrev=False,
        description="Measure, in about two minutes of short runs, which threads, replicas, "
        "kernels, precision and readers make a model fast on this machine, and store the fastest "
        "for hardware=tuned. A setting that changes the results is shown, but not stored.",
        epilog="Use the overrides of a training. "
        "Exit codes: 0 done, 1 the default setting does not train, 2 wrong usage.",
    )  # fmt: skip
    parser.add_argument(
        "overrides", nargs="*", metavar="GROUP=OPTION | KEY=VALUE", help="those of a training"
    )
    parser.add_argument(
        "--tolerance", type=_number(0, math.inf), default=TOLERANCE, metavar="D",
        help="largest accepted difference of losses from the default setting, in the first "
        f"{STEPS} steps; {TOLERANCE:g}",
    )  # fmt: skip
    parser.add_argument(
        "--seconds",
        type=_number(0.1, 600),
        default=2.0,
        metavar="S",
        help="seconds that each trial is timed; 2",
    )
    parser.add_argument(
        "--combine", type=_number(0, math.inf), default=COMBINE, metavar="S",
        help=f"seconds for trying combinations of settings; {COMBINE:g}, 0 for none",
    )  # fmt: skip
    parser.add_argument("--config-dir", "-cd", metavar="FOLDER", help="presets of your own")
    return parser


def _number(least: float, most: float) -> Callable[[str], float]:
    """Return what reads an option: a number from ``least`` to ``most``."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least:g} to {most:g}")
        return value

    return number


class Tune(cli.OneConfiguration):
    """Measures the settings of one configuration.

    Args:
        given: the options of the command.
    """

    name = "tune"

    def __init__(self, given: argparse.Namespace):
        self._given = given
        self._activity = Activity()
        self._said = 0.0  # when the activity was shown last

    def arguments(self, given: list[str]) -> list[str]:
        """Return the overrides of the configuration that is tuned.

        Raises:
            UsageError: one is of a run, or of what was measured before.
        """
        for override in given:
            key, value = key_of(override), parse(override).value or ""
            if not override.startswith("-") and key.partition(".")[0] in _OF_A_RUN:
                raise UsageError(
                    key, value, "is of a run, and tune keeps none",
                    "overrides of model, dataset, strategy, optimizer, trainer, hardware",
                    f"the command without {override}",
                )  # fmt: skip
            if key == "hardware" and value == tuned.OPTION:
                raise UsageError(
                    key, value, "is what tune measures", "auto, cpu, gpu", "hardware=auto"
                )
        return super().arguments([*given, "tracking=none"])

    def job(self, node: Any) -> int:
        """Measure, print the table, and keep the best setting."""
        config = settle(node)
        check_address(config)
        here = machine()
        planned = self._check(config)
        if config.dry_run:
            self._plan(config, planned, here)
            return errors.OK
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="dtrain-tune-") as folder:
                search = self._search(config, planned, here, Path(folder))
        finally:
            self._activity.end()
        self._print(config, search, time.monotonic() - began)
        return errors.OK

    def _check(self, config: Config) -> Plan:
        """Check the configuration as that of a training on this machine."""
        launcher: Any = targets.instantiate(config.launcher, "launcher")
        if not isinstance(launcher, Local):  # ORDER: before others ask their hosts
            raise UsageError(
                "launcher._target_", config.launcher["_target_"],
                "starts tasks elsewhere, and tune measures this machine", "launcher=local",
                "launcher=local",
            )  # fmt: skip
        return check(config, prepare=not config.dry_run).planned

    def _plan(self, config: Config, planned: Plan, here: Machine) -> None:
        """Print what would be tried (``dry_run=true``)."""
        print("trials:\n  plain")
        for setting in first_settings(config, planned, here):
            print(f"  {settings.named(setting)}")
        print(f"the fastest would be kept in {tuned.path_of(config)}")
        print("dry_run=true: nothing was started")

    def _search(self, config: Config, planned: Plan, here: Machine, folder: Path) -> Search:
        seconds = self._given.seconds
        trials = Trials(config, folder, STEPS, seconds, LIMIT, self._waits)
        count = 0

        def measure(setting: Setting) -> Any:
            nonlocal count
            count += 1
            self._activity.begin(f"trial {count}: {settings.named(setting)}")
            return trials.measure(setting)

        search = Search(measure, self._given.tolerance, self._row)
        plain = search.begin()
        if plain.speed is None:
            raise TrainingError(f"the plain setting does not train: {plain.problem}")
        found = coordinates.of(config, planned, here, plain)
        search.walk(found)
        deadline = time.monotonic() + self._given.combine
        search.combine(found, lambda: time.monotonic() >= deadline)
        search.compare_last()
        search.batches(config.trainer.batch_size, _has_room)
        return search

    def _waits(self) -> None:
        now = time.monotonic()
        if now - self._said >= 1.0:
            self._said = now
            self._activity.continues()

    def _row(self, row: Row) -> None:
        self._activity.end()
        print(line(row), file=sys.stderr, flush=True)

    def _print(self, config: Config, search: Search, seconds: float) -> None:
        best = search.best
        print(table(search.rows, best))
        print(f"{len(search.rows)} trials in {seconds:.0f} s")
        if not best.setting:
            print("kept: plain, no other setting is faster within the tolerance")
        else:
            print(f"kept: {settings.named(best.setting)}")
        path = tuned.write(config, best.setting)
        print(f"use it: hardware={tuned.OPTION} beside the same overrides ({short(path)})")


def first_settings(config: Config, planned: Plan, here: Machine) -> list[Setting]:
    """Return the settings that would be tried from the plain one, without readers."""
    found = coordinates.of(config, planned, here, Found())
    return [setting for each in found if each.fits({}) for setting in each.settings]


def _has_room(needed: int) -> bool:
    """Say whether there is memory for a task that takes so many bytes."""
    return needed < (1 - _RESERVE) * memory.available()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: in place of those of the process.
    """
    given = _parser().parse_intermixed_args(arguments)
    words = [] if given.config_dir is None else ["--config-dir", given.config_dir]
    try:
        return cli.composed([*words, *given.overrides], Tune(given))
    except OSError as error:
        return failures.report(error, f"{error.filename or 'the cache'}: {error.strerror}")
    except KeyboardInterrupt:
        print("stopped: nothing is kept", file=sys.stderr)
        return errors.FAILED
