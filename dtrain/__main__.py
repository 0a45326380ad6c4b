"""``python -m dtrain [COMMAND] ...``: without a command it trains.

Kept light: a task process may import it, and must not get Hydra by it.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
from collections.abc import Callable

from dtrain import errors
from dtrain.errors import UsageError, nearest
from dtrain.host import answer, commands, pyproject, terminal


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        if "DTRAIN_SLURM_RUN" not in os.environ:
            return _run()
        from dtrain.launchers.slurm import batch

        with batch.in_step() as codes:
            codes.append(_run())
        return codes[0]
    except KeyboardInterrupt:  # it came where a request is answered, or the command ends
        return terminal.stopped(sys.argv[1:])


def _run() -> int:
    with terminal.lasting():
        try:
            with terminal.interrupting() as check:
                try:
                    return _main(sys.argv[1:], check)
                except Exception:
                    check()  # Python makes a RuntimeError of it where a class is being made
                    raise
        except KeyboardInterrupt:
            return terminal.stopped(sys.argv[1:])


def _main(arguments: list[str], check: Callable[[], None]) -> int:
    try:
        os.getcwd()
    except FileNotFoundError:
        answer.error("the current folder is not there any more: cd to another")
        return errors.USAGE
    first = arguments[0] if arguments else ""
    try:
        pyproject.extend_trust()
    except UsageError as refused:
        answer.error(str(refused), refused.key)
        return refused.exit_code
    if first in commands.names():
        return _command(first)(arguments[1:])
    if any(re.fullmatch(r"-h|--help?|--version", argument) for argument in arguments):
        about = next((argument for argument in arguments if argument in commands.names()), None)
        if about is not None:
            return _command(about)(["--help"])
        from dtrain.cli import registry

        return registry.answer_help(arguments)
    if any(argument.startswith("query=") for argument in arguments):  # a shell asks, at <TAB>
        from dtrain.cli import registry

        candidates, is_all = registry.complete(os.environ.get("COMP_LINE", ""))
        print(*candidates, sep="\n")
        if is_all:
            return errors.OK
    if re.fullmatch(r"[\w-]*[a-z]", first) and not first.startswith("-"):
        error = _no_command(first, arguments[1:])
        answer.error(str(error), error.key)
        return error.exit_code
    from dtrain.job import early_import

    sys.argv[1:] = arguments = answer.without_quiet(arguments)
    with early_import.begun(arguments):
        from dtrain.cli.app import main as train

        check()
        return train()


def _command(name: str) -> Callable[[list[str]], int]:
    """Return a command, whose module is imported."""
    module = importlib.import_module(f"dtrain.cli.commands.{name}")
    command: Callable[[list[str]], int] = module.main
    return command


def _no_command(name: str, rest: list[str]) -> UsageError:
    # Not above: a task process may import this module.
    from dtrain.config import command_line, suggest
    from dtrain.job import latest

    problem = "there is no such command"
    accepted = f"{', '.join(commands.names())}, or overrides (KEY=VALUE), which train"
    theirs = suggest.tables()["command"]
    near = name if name in theirs else nearest(name, [*commands.names(), *theirs])
    if near is None or (name not in theirs and suggest.is_named(name)):
        return command_line.refusal(name, rest, problem=problem, accepted=accepted)
    advice = theirs.get(near, {"typed": near})
    if (command := advice.get("typed")) is None:
        return UsageError(name, problem, accepted=accepted, **advice)
    if not rest and command in commands.names() and " RUN" in commands.summary(command).usage:
        return UsageError(name, problem, accepted=accepted, hint=latest.hint(command))
    if not command and rest and os.path.isdir(rest[0]):
        instead = shlex.join([f"resume={rest[0]}", *rest[1:]])
    else:
        instead = " ".join(filter(None, ("python -m dtrain", command, shlex.join(rest))))
    return UsageError(name, problem, accepted=accepted, typed=instead)


if __name__ == "__main__":
    sys.exit(main())
