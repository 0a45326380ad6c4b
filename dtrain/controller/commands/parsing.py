"""The parser of a command's own line: what is wrong with it is one sentence, as everywhere."""

from __future__ import annotations

import argparse
import re
import sys
from typing import NoReturn

from dtrain import errors
from dtrain.config import other_tools, suggest
from dtrain.controller import latest
from dtrain.errors import ALONE, UsageError, nearest


class Parser(argparse.ArgumentParser):
    """A parser whose program is ``python -m dtrain COMMAND``."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and what to type, and exit with 2."""
        print(f"error: {self._refusal(message)}", file=sys.stderr)
        sys.exit(errors.USAGE)

    def _refusal(self, message: str) -> UsageError:
        command = self.prog.rpartition(" ")[2]
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ")
        missing = re.match(r"the following arguments are required: ([^,\s]+)", message)
        if missing is not None:
            return UsageError(missing[1], ALONE, "is missing", usage, latest.hint(command))
        unknown = re.match(r"unrecognized arguments: (--?)([\w-]+)[= ]?(\S*)", message)
        if unknown is not None:
            name, value = unknown[2].replace("-", "_"), unknown[3] or suggest.VALUE
            word = other_tools.WORDS.get(command, {}).get(name)
            own = [option for action in self._actions for option in action.option_strings]
            known = f"{word}={value}" if word else None
            if known is None and (near := nearest(f"--{unknown[2]}", own)) is not None:
                known = f"{self.prog} {near} {value}"
            known = known or suggest.known(name, value)
            return UsageError(
                f"{unknown[1]}{unknown[2]}", ALONE, f"{command} has no such option", usage,
                known or f"{self.prog} --help",
            )  # fmt: skip
        option = re.match(r"argument (--?[\w-]+)\S*: (.*)", message)
        key, problem = (option[1], option[2]) if option else (command, message)
        return UsageError(key, ALONE, problem, usage, f"{self.prog} --help")
