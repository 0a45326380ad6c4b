"""Values from files, checked against the types that annotations give them."""

import functools
import math
import re
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from dtrain.errors import DamagedFile

#: Plain values by name: of a JSON or YAML file, or a node of the configuration.
Values = Mapping[str, Any]
Json = dict[str, Any]
#: A plain value of a file, of a type that is not checked yet.
JsonValue = Any

#: The largest number that is an integer in every JSON reader; nothing is counted beyond it.
LARGEST = 2**53

_SCALARS = {str: "text", bool: "true or false", int: "a number", float: "a number"}
#: Returns why a value is refused, None if it is not.
Test = Callable[[JsonValue], str | None]


def between(low: float, high: float) -> Test:
    """Return a test of a number."""
    return lambda value: None if low <= value <= high else f"is not from {low:g} to {high:g}"


def like(pattern: re.Pattern[str], what: str) -> Test:
    """Return a test of a text: it is ``what`` if it is like ``pattern``."""
    return lambda value: None if pattern.fullmatch(value) else f"is not {what}"


@functools.cache
def _fields(kind: Any) -> Json:
    return get_type_hints(kind, include_extras=True)


def check(value: JsonValue, kind: Any, path: object, field: str) -> None:
    """Refuse a ``value`` that is not of a ``kind``.

    Args:
        value: of a JSON or YAML file.
        kind: a ``TypedDict``, ``list[kind]``, ``dict[kind, kind]``, ``kind | None``, ``Literal`` of
            texts, ``Annotated[kind, test]``, ``Any``, ``str``, ``int``, ``float`` or ``bool``.
        path: of the file, for the message.
        field: where in it ``value`` stands.

    Raises:
        DamagedFile: it is not; the field is named.
    """
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if origin in (NotRequired, Annotated):
        check(value, inside[0], path, field)
        for test in inside[1:]:
            if (problem := test(value)) is not None:
                raise DamagedFile(path, f"{_shown(value)} {problem}", field)
    elif origin in (Union, UnionType):  # with None: nothing else is used here
        if value is not None:
            [each] = (each for each in inside if each is not NoneType)
            check(value, each, path, field)
    elif origin is Literal:
        if value not in inside or not isinstance(value, str):
            raise DamagedFile(path, f"{_shown(value)} is none of {', '.join(inside)}", field)
    elif origin is list:
        _is(value, list | tuple, "a list", path, field)
        for index, item in enumerate(value):
            check(item, inside[0], path, f"{field}[{index}]")
    elif origin is dict:
        _is(value, dict, "a mapping", path, field)
        for name, item in value.items():
            check(name, inside[0], path, _below(field, str(name)))
            check(item, inside[1], path, _below(field, name))
    elif is_typeddict(kind):
        _is(value, dict, "a mapping", path, field)
        for name, each in _fields(kind).items():
            if name in value:
                check(value[name], each, path, _below(field, name))
            elif name in kind.__required_keys__:
                raise DamagedFile(path, "is not there", _below(field, name))
    else:
        is_other = isinstance(value, bool) and kind is not bool  # to Python it is a number, too
        if is_other or not isinstance(value, int | float if kind is float else kind):
            raise DamagedFile(path, f"{_shown(value)} is not {_SCALARS[kind]}", field)
        if isinstance(value, int) and abs(value) > LARGEST:
            raise DamagedFile(path, "is too large", field)


def _is(value: object, kind: type | UnionType, what: str, path: object, field: str) -> None:
    if not isinstance(value, kind):
        raise DamagedFile(path, f"{_shown(value)} is not {what}", field)


def _below(field: str, name: str) -> str:
    return f"{field}.{name[:80]}" if field else name[:80]


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number"
    return text if len(text) <= 60 else f"{text[:59]}…"
