"""Commands on a run: ``python -m dtrain COMMAND RUN [KEY=VALUE]``, also on one at an address.

That is fetched before, and what a command adds is copied after."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from dtrain import errors
from dtrain.controller import cli, early_import, remote
from dtrain.controller.commands import boundary
from dtrain.controller.commands.boundary import Parser
from dtrain.controller.terminal.progress import Activity
from dtrain.errors import UsageError, refuse
from dtrain.files import addresses
from dtrain.run.follow import LOOK, Followed


def parser(
    command: str,
    description: str,
    keys: str,
    run: tuple[str, str] = ("RUN", "a run folder, or RUN/checkpoints/STEP"),
) -> Parser:
    """Return the parser of such a command line.

    Args:
        command: its name.
        description: what it does.
        keys: those that it takes, in a paragraph.
        run: what its first argument is called, and what that is.
    """
    made = Parser(
        prog=f"python -m dtrain {command}", allow_abbrev=False, description=description, epilog=keys
    )
    made.add_argument("run", metavar=run[0], help=run[1])
    made.add_overrides("changes to the configuration of the run")
    return made


def parsed(parser: Parser, arguments: Sequence[str] | None) -> tuple[str, list[str]]:
    """Return the run that a command line names, and the rest of it, as Hydra takes that.

    Args:
        parser: of :func:`parser`.
        arguments: in place of those of the process.
    """
    given = parser.parse_intermixed_args(arguments)
    return given.run, boundary.words(given)


def wait_for_first(followed: Followed, also: Callable[[], None] = lambda: None) -> str:
    """Return the first checkpoint of a run that is followed, and show that it is waited for.

    Args:
        followed: the run.
        also: called as long as there is none.

    Returns:
        As of :meth:`dtrain.run.follow.Followed.newest`.

    Raises:
        UsageError: it has ended without one.
    """
    activity = Activity()
    activity.begin("waiting for the first checkpoint")

    def wait() -> None:
        activity.continues()
        also()
        time.sleep(LOOK)

    try:
        return followed.wait_for_first(wait)
    finally:
        activity.end()


def start(run: str, given: list[str], command: Callable[[str], cli.Command]) -> int:
    """Run a command whose tasks are those of a job, and return its exit code.

    Args:
        run, given: of :func:`parsed`.
        command: makes it, of the run.
    """
    with early_import.begun(given):
        try:
            return cli.composed(given, command(run))
        except OSError as error:
            return boundary.report(error, f"{run} cannot be read: {error.strerror}")


#: Commands that write into the folder of the run.
_ADD = ("evaluate", "predict", "export", "promote")


def at_address(command: ModuleType, given: list[str]) -> int:
    """Run a command and return its exit code.

    Args:
        command: of :mod:`dtrain.controller.commands`.
        given: its command line.
    """
    try:
        words = remote.arguments(given, ("",))
        if "follow=true" in words:
            for word in filter(addresses.is_far, words):
                if remote.is_unfinished_copy(_run_of(Path(word).absolute())):
                    refuse("follow", f"{word} is a copy of a run that another machine trains",
                           "true", accepted="the folder in which that machine trains it",
                           hint="no follow=true, again when there is more")  # fmt: skip
    except UsageError as error:
        return boundary.report(error, "")
    code = int(command.main(words))
    if command.__name__.rpartition(".")[2] in _ADD:
        for word in filter(addresses.is_far, words):
            if not remote.push(_run_of(Path(word).absolute())) and code == errors.OK:
                code = errors.FAILED
    return code


def _run_of(folder: Path) -> Path:
    """Return the folder of the run that a folder is, or that a checkpoint is of."""
    return folder.parent.parent if folder.parent.name == "checkpoints" else folder
