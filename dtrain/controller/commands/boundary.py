"""Where a command begins and ends: its line is parsed, and a failure is one sentence."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import NoReturn

from dtrain import errors
from dtrain.config import suggest
from dtrain.controller import latest
from dtrain.errors import DtrainError, UsageError, nearest


class Parser(argparse.ArgumentParser):
    """A parser whose program is ``python -m dtrain COMMAND``."""

    def add_overrides(self, help: str) -> None:
        """Add what a configuration is composed of, the last of the arguments."""
        self.add_argument(
            "overrides", nargs="*", default=[],  # else a message says that they are required
            metavar="GROUP=OPTION | KEY=VALUE", help=help,
        )  # fmt: skip
        self.add_argument("--config-dir", "-cd", metavar="FOLDER", help="presets of your own")

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and what to type, and exit with 2."""
        print(f"error: {self._refusal(message)}", file=sys.stderr)
        sys.exit(errors.USAGE)

    def _refusal(self, message: str) -> UsageError:
        command = self.prog.rpartition(" ")[2]
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ")
        missing = re.match(r"the following arguments are required: ([^,\s]+)", message)
        if missing is not None:
            return UsageError(missing[1], "is missing", accepted=usage, hint=latest.hint(command))
        unknown = re.match(r"unrecognized arguments: (--?)([\w-]+)[= ]?(\S*)", message)
        if unknown is not None:
            name, value = unknown[2].replace("-", "_"), unknown[3] or suggest.VALUE
            row = suggest.tables().get(f"option of {command}", {}).get(name, {})
            own = [option for action in self._actions for option in action.option_strings]
            advice = {"hint": f"{row['typed']}={value}"} if "typed" in row else row
            if not advice and (near := nearest(f"--{unknown[2]}", own)) is not None:
                advice = {"hint": f"{self.prog} {near} {value}"}
            advice = advice or suggest.known(name, value) or {"hint": f"{self.prog} --help"}
            return UsageError(f"{unknown[1]}{unknown[2]}", f"{command} has no such option",
                              accepted=usage, **advice)  # fmt: skip
        option = re.match(r"argument (--?[\w-]+)\S*: (.*)", message)
        key, problem = (option[1], option[2]) if option else (command, message)
        return UsageError(key, problem, accepted=usage, hint=f"{self.prog} --help")


def words(given: argparse.Namespace) -> list[str]:
    """Return what :meth:`Parser.add_overrides` has parsed, as Hydra takes it."""
    option = [] if given.config_dir is None else ["--config-dir", given.config_dir]
    return [*option, *given.overrides]


def report(error: Exception, otherwise: str) -> int:
    """Print what went wrong.

    Args:
        error: what ended the command.
        otherwise: the sentence for an error that is neither dtrain's own nor a wrong path.

    Returns:
        The exit code of the command.
    """
    text, code = otherwise, errors.FAILED
    if isinstance(error, DtrainError):
        text, code = str(error), error.exit_code
    elif isinstance(error, OSError) and (wrong := errors.of_a_name(error)) is not None:
        text, code = wrong, errors.USAGE
    print(f"error: {text}", file=sys.stderr)
    return code


def answered(work: Callable[[], int], what: object) -> int:
    """Return the exit code of a command; what ends it is printed.

    Args:
        work: the command.
        what: it works on, for an error that names no file.
    """
    try:
        return work()
    except (DtrainError, OSError) as error:
        place = getattr(error, "filename", None) or what
        return report(error, f"{place}: {getattr(error, 'strerror', None) or error}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return errors.FAILED
