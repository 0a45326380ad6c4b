"""The options of Hydra's that a training has, as one sentence where one is wrong."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from dtrain.config import suggest
from dtrain.errors import ALONE, UsageError, nearest

_ACCEPTED = "--help, --version, --cfg, --info, -m, --config-dir, and overrides (KEY=VALUE)"
#: What to type for an option that is nearly one of these.
_HINTS = {
    "--help": "python -m dtrain --help",
    "--version": "python -m dtrain --version",
    "--multirun": "-m KEY=VALUE,VALUE",
    "--config-dir": "--config-dir FOLDER",
}


class _Parser(argparse.ArgumentParser):
    arguments: list[str]

    def error(self, message: str) -> NoReturn:
        file = re.search(r"ambiguous option: (--\w+)|argument (--cfg)/-c: invalid choice", message)
        if file is not None:
            option = file[1] or "-c"
            raise of_file(option, _behind(option, self.arguments))
        option = re.match(r"argument (--?[\w-]+)\S*: (.*)", message)
        key, problem = (option[1], option[2]) if option else ("options", message)
        raise UsageError(key, "", problem, _ACCEPTED, "python -m dtrain --help")


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options and the overrides of a command line.

    Raises:
        UsageError: there is no such option, or it lacks its value.
    """
    parser = _Parser(add_help=False, parents=[get_args_parser()])
    parser.arguments = arguments
    options, unknown = parser.parse_known_args(arguments)
    wrong = [word for word in unknown if word.startswith("-")]
    if wrong:
        raise _refusal(wrong[0], arguments)
    options.overrides += unknown  # those behind an option that stands between overrides
    return options


def of_file(option: str, value: str) -> UsageError:
    """Return what to raise for an option that other tools read a file of keys by."""
    return UsageError(
        option, value or ALONE, "is no option: a file of keys is an experiment", _ACCEPTED,
        suggest.of_preset(value or "NAME"),
    )  # fmt: skip


def _behind(option: str, arguments: list[str]) -> str:
    """Return the value of an option that is not known, or an empty text."""
    typed = next(word for word in arguments if word.startswith(option))
    _, _, value = typed.partition("=")
    behind = arguments[arguments.index(typed) + 1 :]
    if not value and behind and not behind[0].startswith("-") and "=" not in behind[0]:
        return behind[0]
    return value


def _refusal(option: str, arguments: list[str]) -> UsageError:
    name, value = option.partition("=")[0], _behind(option, arguments)
    key = name.lstrip("-").replace("-", "_")
    hint = suggest.known(key, value or suggest.VALUE)
    if (near := nearest(name, _HINTS)) is not None:
        hint = _HINTS[near]
    return UsageError(
        name, value or ALONE, "there is no such option", _ACCEPTED,
        hint or "python -m dtrain --help",
    )  # fmt: skip
