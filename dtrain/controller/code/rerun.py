"""Makes a run again in a process of its own: its overrides, with the code of its checkout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dtrain.config.overrides import key_of, parse
from dtrain.controller.code.checkout import Checkout
from dtrain.controller.code.recorder import is_deciding
from dtrain.controller.code.state import State
from dtrain.errors import UsageError
from dtrain.host import python_path, terminal

#: Keys of where a run goes and of what it continues from, which the replay has of its own.
OF_THE_RUN = ("output_dir", "hydra", "tracking", "resume", "fork", "sweep", "dry_run", "action")
#: Of those the user may give: where the new folder goes, and whether anything is done.
OF_THE_COMMAND = ("output_dir", "hydra.run.dir", "dry_run")


def check(given: list[str]) -> None:
    """Refuse overrides that a replay has no use for.

    Raises:
        UsageError: naming the key.
    """
    for override in given:
        key = key_of(override)
        if parse(override).value is None and not override.startswith("~"):
            raise UsageError(
                "OVERRIDE", override, "has no value", "KEY=VALUE",
                "python -m dtrain replay outputs/DATE/TIME_NAME trainer.epochs=1",
            )  # fmt: skip
        if key.partition(".")[0] in OF_THE_RUN and key not in OF_THE_COMMAND:
            raise UsageError(
                key, parse(override).value or "", "is the replay's own to choose",
                "overrides of hardware, launcher, trainer, checkpoint, and output_dir",
                f"the command without {override}",
            )  # fmt: skip


def overrides(state: State, given: list[str], fork: str | None) -> list[str]:
    """Return the overrides of the run, less those that ``given`` replaces, and these.

    Args:
        state: of the run.
        given: typed by the user.
        fork: the checkpoint that the run began from.
    """
    replaced = {*map(key_of, given), *OF_THE_RUN}
    kept = [each for each in state.command["overrides"] if not _is_of(key_of(each), replaced)]
    began = [] if fork is None else [f"fork={_quoted(fork)}"]
    own = [each for each in given if key_of(each) not in OF_THE_COMMAND]
    return [*kept, *own, *began, "tracking=none"]


def _is_of(key: str, names: Collection[str]) -> bool:
    return any(key == name or key.startswith((f"{name}.", f"{name}/")) for name in names)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def words(state: State, checkout: Checkout, own: list[str], folder: Path) -> list[str]:
    """Return the command line of the replay, without the interpreter.

    Args:
        state, checkout: of the run.
        own: of :func:`overrides`.
        folder: the new run folder.
    """
    flags = []
    if config_dir := state.command.get("config_dir"):
        whole = os.path.join(state.record["folder"], config_dir)
        flags = ["--config-dir", str(checkout.mapped(whole))]
    place = [f"output_dir={_quoted(str(folder.parent))}", f"hydra.run.dir={_quoted(str(folder))}"]
    return ["-m", "dtrain", *flags, *own, *place]


def environment(state: State, checkout: Checkout) -> dict[str, str]:
    """Return the variables of the replay: this process's, and the run's own where they decide."""
    found = {name: value for name, value in os.environ.items() if not is_deciding(name)}
    trust = [*state.record["trust"], *python_path.trusted()]
    path = [*checkout.path, *filter(None, [os.environ.get("PYTHONPATH")])]
    found |= state.record["environment"]
    known = [each for each in dict.fromkeys(trust) if each != state.name]
    found[python_path.TRUST] = ",".join(known)
    # The current directory is not the first place to look, as dtrain sees to for itself.
    found |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(path)}
    return found


def run(given: list[str], folder: Path, variables: Mapping[str, str]) -> int:
    """Run a command line of Python until it ends; requests to stop are passed on to it, once each.

    Args:
        given: its arguments.
        folder: its current directory.
        variables: its environment.

    Returns:
        Its exit code; that of a process that a signal ended is negative.
    """
    # ORDER: before the process: a request that comes meanwhile is passed on.
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def passed(number: int, _: Any) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    before = {number: signal.signal(number, passed) for number in terminal.stops()}
    try:
        process = subprocess.Popen(
            [sys.executable, *given], cwd=folder, env=dict(variables), stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches this process, and from here that one
        )  # fmt: skip
        for number in early:
            process.send_signal(number)
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
