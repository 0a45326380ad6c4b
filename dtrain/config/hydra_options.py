"""The options of Hydra's that a training has, as one sentence where one is wrong."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from dtrain.config import suggest
from dtrain.errors import UsageError

_ACCEPTED = "--help, --version, --cfg, --info, -m, --config-dir, and overrides (KEY=VALUE)"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        option = re.match(r"argument (--?[\w-]+)\S*: (.*)", message)
        key, problem = (option[1], option[2]) if option else ("options", message)
        raise UsageError(key, "", problem, _ACCEPTED, "python -m dtrain --help")


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options and the overrides of a command line.

    Raises:
        UsageError: there is no such option, or it lacks its value.
    """
    parser = _Parser(add_help=False, parents=[get_args_parser()])
    options, unknown = parser.parse_known_args(arguments)
    wrong = [word for word in unknown if word.startswith("-")]
    if wrong:
        raise _refusal(wrong[0], arguments)
    options.overrides += unknown  # those behind an option that stands between overrides
    return options


def _refusal(option: str, arguments: list[str]) -> UsageError:
    name, _, value = option.partition("=")
    behind = arguments[arguments.index(option) + 1 :]
    if not value and behind and not behind[0].startswith("-") and "=" not in behind[0]:
        value = behind[0]
    key = name.lstrip("-").replace("-", "_")
    hint = suggest.assigned(key, value or "VALUE")
    return UsageError(
        name, value, "there is no such option", _ACCEPTED, hint or "python -m dtrain --help"
    )
