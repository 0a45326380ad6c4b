"""Rules in YAML over the paths of a model's layers or variables: the first that matches holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dtrain.errors import UsageError

T = TypeVar("T")
_PATHS = 12  # that an error names
KEY = "strategy.rules"


def choose(
    rules: Any,
    paths: Sequence[str],
    what: str,
    read: Callable[[Any], tuple[str, T]],
    key: str = KEY,
    text: str = "path",
) -> list[tuple[str, T] | None]:
    """Find the rule that holds for each path.

    Args:
        rules: a list of nodes, as they come from YAML.
        paths: of layers or variables.
        what: has them, in a word.
        read: returns a node's regular expression (:func:`pattern`) and what it says.
        key: of the errors.
        text: what an error calls a path.

    Returns:
        For each path what ``read`` made of the first rule whose expression is found in it.

    Raises:
        UsageError: ``rules`` is no list, or one matches nothing.
    """
    if not isinstance(rules, list):
        raise refused(rules, "is no list of rules", "auto, or a list", key)
    chosen: list[tuple[str, T] | None] = [None for _ in paths]
    for rule in [read(node) for node in rules]:
        matches = [i for i, path in enumerate(paths) if re.search(rule[0], path)]
        if not matches:
            raise refused(rule[0], f"no {what} of this model has such a {text}", listed(paths), key)
        for i in matches:
            chosen[i] = chosen[i] or rule
    return chosen


def pattern(value: Any, key: str = KEY) -> str:
    """Return ``value``, which must be a regular expression.

    Raises:
        UsageError: it is none.
    """
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        problem = f"is no regular expression ({error})"
        raise refused(value, problem, "Python's regular expressions", key) from None
    return str(value)


def listed(paths: Sequence[str]) -> str:
    """Return the first of some paths, for an error."""
    return ", ".join(paths[:_PATHS]) + (", ..." if len(paths) > _PATHS else "")


def refused(value: Any, problem: str, accepted: str, key: str = KEY) -> UsageError:
    """Return the error of a rule that cannot be followed."""
    hint = "strategy.rules=auto" if key == KEY else f"'{key}=[]'"
    return UsageError(key, value, problem, accepted, hint)
