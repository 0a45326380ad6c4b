"""Rules in YAML over the paths of a model's layers or variables: the first that matches holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from dtrain.errors import UsageError
from dtrain.task.aliases import Foreign

T = TypeVar("T")
#: A rule as it was read: a regular expression, and what it says.
Rule = tuple[str, T]
_PATHS = 12  # that an error names
KEY = "strategy.rules"


def choose(
    rules: object, paths: Sequence[str], what: str, read: Callable[[Foreign], Rule[T]],
    key: str = KEY, text: str = "path",
) -> list[Rule[T] | None]:  # fmt: skip
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
    rules = read_all(rules, read, key)
    check(rules, paths, what, key, text)
    return [first(rules, path) for path in paths]


def read_all(rules: object, read: Callable[[Foreign], Rule[T]], key: str = KEY) -> list[Rule[T]]:
    """Read every rule; the arguments are those of :func:`choose`.

    Raises:
        UsageError: ``rules`` is no list.
    """
    if not isinstance(rules, list):
        raise refused(rules, "is no list of rules", "auto, or a list", key)
    return [read(node) for node in rules]


def check(
    rules: Sequence[Rule[T]], paths: Sequence[str], what: str, key: str = KEY, text: str = "path"
) -> None:
    """Refuse rules that hold for nothing; the arguments are those of :func:`choose`.

    Raises:
        UsageError: naming the first.
    """
    for expression, _ in rules:
        if not any(re.search(expression, path) for path in paths):
            problem = f"no {what} of this model has such a {text}"
            raise refused(expression, problem, listed(paths), key)


def first(rules: Sequence[Rule[T]], path: str) -> Rule[T] | None:
    """Return the first rule whose expression is found in a path."""
    return next((rule for rule in rules if re.search(rule[0], path)), None)


def pattern(value: str, key: str = KEY) -> str:
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


def refused(value: object, problem: str, accepted: str, key: str = KEY) -> UsageError:
    """Return the error of a rule that cannot be followed."""
    typed = "strategy.rules=auto" if key == KEY else f"'{key}=[]'"
    return UsageError(key, problem, value, accepted=accepted, typed=typed)
