"""``python -m dtrain replay RUN``: make a run again with its own code, and compare the numbers.

Exit codes: 0 same results, 1 others or a failure, 2 wrong usage, 75 stopped.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.compare import bits
from dtrain.config import load, section
from dtrain.config.overrides import key_of, parse
from dtrain.config.schema import Config
from dtrain.controller import folders, remote
from dtrain.controller.code import changes, rerun, tracked, verdict
from dtrain.controller.code import state as states
from dtrain.controller.code.checkout import Checkout, link_data
from dtrain.controller.code.state import State
from dtrain.controller.commands import boundary
from dtrain.controller.commands.boundary import Parser
from dtrain.data.files import is_address
from dtrain.errors import UsageError, printable
from dtrain.run import schemas
from dtrain.run.folder import RunDir, short, write_json

#: The comparison, in the folder of the replay.
FILE = "replay.json"


def _parser() -> Parser:
    parser = Parser(
        prog="python -m dtrain replay", allow_abbrev=False,
        description="Restore the code of a run from its commit, changes and untracked files, "
        "repeat the run in a new folder, and compare the results bit by bit.",
        epilog="Exit codes: 0 same results, 1 others or a failure, 2 wrong usage, 75 stopped.",
    )  # fmt: skip
    parser.add_argument("run", metavar="RUN|RUN_ID", help="a run folder, or a run's id in MLflow")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE",
        help="changes, such as trainer.epochs=1: values that both runs have are compared; "
        "dry_run=true shows what has changed since, and starts nothing",
    )  # fmt: skip
    parser.add_argument(
        "--strict", action="store_true",
        help="stop if packages or the machine differ, or the record lacks files",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", type=_tolerance, default=0.0, metavar="D",
        help="largest accepted difference of two values; 0: bit-identical",
    )  # fmt: skip
    parser.add_argument(
        "--keep", action="store_true", help="keep the checkout, and print its folder"
    )
    parser.add_argument(
        "--uri", help="tracking store of the id, instead of the embedded one in ./outputs"
    )
    return parser


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return value


class Replay:
    """Makes one run again.

    Args:
        state: of the run.
        given: the options of the command.
    """

    def __init__(self, state: State, given: argparse.Namespace):
        self._state, self._given = state, given
        self._config = load.read(state.rundir.config, hidden=True)
        self._changes = changes.since(state.record)
        self._notes = _notes(state)

    def check(self) -> None:
        """Refuse what cannot be made again.

        Raises:
            UsageError: naming why.
        """
        rerun.check(self._given.overrides)
        self._state.check_trust()
        states.check_complete(self._state)
        left = [each for tree in self._state.record["trees"] for each in tree["left_out"]]
        if self._given.strict and (self._changes or left):
            each = self._changes[0] if self._changes else None
            why = f"{each.name} was {each.then} and is {each.now}" if each is not None else (
                f"{left[0]['path']} is not in the record: it {left[0]['why']}"
            )  # fmt: skip
            more = len(self._changes) + len(left) - 1
            raise UsageError(
                "--strict", self._state.typed, why + (f", and {more} more" if more else ""),
                "the packages and the machine of the run, and a record that lacks nothing",
                "the command without --strict, which goes on with a notice",
            )  # fmt: skip

    def show(self) -> None:
        """Print what the run was made of, and what is another thing by now."""
        record = self._state.record
        for tree in record["trees"]:
            _say(
                f"code: {tree['path']} at {tree['commit'][:12]}, {tree['changed']:,} changed and "
                f"{tree['added']:,} untracked files"
            )
        if not record["trees"]:
            _say("code: what is installed; no working tree of git was there")
        if self._changes:
            _say("not as it was:")
            for line in changes.table(self._changes):
                _say(f"  {line}")
        else:
            _say("packages and machine: as they were")
        for each in changes.variables(record):
            _say(f"variable {each.name}: {each.then}, as in the run (here it is {each.now})")
        for note in self._notes:
            _say(f"note: {note}")

    def run(self) -> int:
        """Build the code, make the run again, compare, and return the exit code."""
        folder = self._folder()
        own = rerun.overrides(self._state, self._given.overrides, self._config.fork)
        if any(key_of(each) == "dry_run" for each in self._given.overrides):
            _say(f"would run: python -m dtrain {shlex.join(own)}")
            print("dry_run=true: nothing was built or started")
            return errors.OK
        checkout = Checkout(self._state, folder.with_name(f".{folder.name}.checkout"))
        try:
            checkout.build()
            code = self._rerun(checkout, own, folder)
        except OSError as error:
            raise folders.unwritable(
                "output_dir", folder.parent, "the code cannot be built there", error
            ) from None
        finally:
            if self._given.keep:
                _say(f"checkout: {short(folder.with_name(f'.{folder.name}.checkout'))}")
            else:
                checkout.remove()
        return self._end(RunDir(folder), code)

    def _rerun(self, checkout: Checkout, own: list[str], folder: Path) -> int:
        then = self._state.record["folder"]
        now = checkout.mapped(then)
        if str(now) == then and not now.is_dir():  # no tree of it: any folder does
            now = Path.cwd()
        now.mkdir(parents=True, exist_ok=True)
        self._notes += checkout.notes
        for note in checkout.notes:
            _say(f"note: {note}")
        if str(now) != then:
            for path in link_data(_texts(self._config), Path(then), now):
                _say(f"data: {path} is read from {then}")
        self._state.offer_given()
        given = rerun.words(self._state, checkout, own, folder)
        _say(f"replay: {short(folder)}")
        return rerun.run(given, now, rerun.environment(self._state, checkout))

    def _folder(self) -> Path:
        """Return the new run folder, which is not there yet."""
        chosen = {key_of(each): parse(each).value for each in self._given.overrides}
        if place := chosen.get("hydra.run.dir"):
            return folders.place(place.strip("'\""), "hydra.run.dir")
        output = (chosen.get("output_dir") or "").strip("'\"")
        if not output:
            own = self._state.own and not is_address(self._config.output_dir)
            output = self._config.output_dir if own else "outputs"
        name = folders.check_name(f"{time.strftime('%H-%M-%S')}_{self._config.name}_replay")
        base = folders.place(output, "output_dir") / time.strftime("%Y-%m-%d") / name
        found, count = base, 1
        while os.path.lexists(found):
            count += 1
            found = base.with_name(f"{name}-{count}")
        return found

    def _end(self, replay: RunDir, code: int) -> int:
        if code == errors.INTERRUPTED or not replay.journal.is_file():
            ended = "was stopped" if code == errors.INTERRUPTED else "did not begin"
            _say(f"the replay {ended}: exit code {code}")
            if code == errors.INTERRUPTED:
                _say("resume= would continue it with the code of now; replay begins anew")
            return code if code > 0 else errors.FAILED
        given = set(map(key_of, self._given.overrides))
        whole = given <= set(rerun.OF_THE_COMMAND)
        found = verdict.of(self._state.rundir, replay, self._given.tolerance, whole)
        about: dict[str, Any] = {
            "run": self._state.typed, "code": self._state.name,
            "overrides": self._given.overrides, "tolerance": self._given.tolerance,
            "exit_code": code, "changes": [vars(each) for each in self._changes],
            **found.to_json(), "left_out": self._notes,
        }  # fmt: skip
        write_json(replay.path / FILE, about)
        remote.push(replay.path)  # where it has an address, which the run itself has written to
        for note in found.notes:
            _say(f"note: {note}")
        for line in bits.table(found.metrics) if found.metrics else ():
            print(line)
        print(printable(found.sentence))
        if code not in (errors.OK, errors.FAILED):
            return errors.FAILED
        return errors.OK if found.same and self._ended_alike(replay) else errors.FAILED

    def _ended_alike(self, replay: RunDir) -> bool:
        """Say whether the replay ended well, or as badly as the run did."""
        one, other = (schemas.glance(each.result, schemas.Result)
                      for each in (self._state.rundir, replay))  # fmt: skip
        status = other["status"] if other is not None else "without a result"
        if status == "FINISHED" or (one is not None and one["status"] == status):
            return True
        _say(f"the replay ended {status}")
        return False


def _notes(state: State) -> list[str]:
    found = list(state.record["notes"])
    found += [
        "a later start of the run found another state "
        f"({', '.join(tree['commit'][:12] for tree in each['trees']) or 'no code'}): "
        "its points may differ"
        for each in state.later
    ]
    return found


def _texts(config: Config) -> list[str]:
    """Return the texts in those groups of a configuration that name files."""
    found: list[str] = []
    todo: list[Any] = [section.written(getattr(config, each)) for each in ("dataset", "model")]
    while todo:
        value = todo.pop()
        if isinstance(value, dict | list):
            todo += value.values() if isinstance(value, dict) else value
        elif isinstance(value, str) and "${" not in value:
            found.append(value)
    return found


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: in place of those of the process.
    """
    given = _parser().parse_intermixed_args(arguments)

    def again() -> int:
        with tracked.folder_of(given.run, given.uri) as folder:
            replay = Replay(states.read(folder, given.run), given)
            replay.check()
            replay.show()
            return replay.run()

    return boundary.answered(again, given.run)
