"""Structures of examples: nests of dicts, tuples and lists, whose leaves are arrays.

The leaves are in the order of ``tf.nest`` and ``keras.tree``: those of a dict by its sorted keys.
A list becomes a tuple, as in Keras' ``fit``: tf.data takes a list for one array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from dtrain.data.ragged import Ragged
from dtrain.errors import UsageError


def is_nest(value: Any) -> bool:
    """Say whether a value is a structure, and no leaf."""
    return isinstance(value, Mapping | tuple | list)


def leaves(value: Any) -> list[Any]:
    """Return the leaves of a structure; of a leaf itself that one."""
    return [leaf for _, leaf in named(value)]


def named(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf with its place, such as ``boxes.0``; that of a leaf itself is ``name``."""
    if not is_nest(value):
        yield name, value
        return
    for key, part in _items(value):
        yield from named(part, f"{name}.{key}" if name else str(key))


def mapped(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Return the structure with ``function`` of each leaf, and of those of others like it.

    Where there is None, as for targets of examples that have weights alone, it stays.
    """
    if not is_nest(value):
        return None if value is None else function(value, *others)
    if isinstance(value, Mapping):
        return {k: mapped(function, value[k], *(other[k] for other in others)) for k in value}
    return tuple(
        mapped(function, part, *parts) for part, *parts in zip(value, *others, strict=True)
    )


def structured(value: Any) -> Any:
    """Return a nest of arrays; a list of numbers or texts, however deep, is one array.

    What knows its shape is left as it is, whatever library's array it is. Lists of different
    lengths are the rows of a :class:`Ragged`.
    """
    if isinstance(value, Mapping):
        return {name: structured(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        several = any(np.ndim(leaf) for leaf in leaves(value))
        if several:
            return tuple(map(structured, value))
        try:
            return np.asarray(value)
        except ValueError:
            return Ragged.of(value)
    return value


def parts_of(value: Any) -> tuple[Any, ...]:
    """Return what ``take`` has returned as ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``.

    Raises:
        UsageError: it has other parts.
    """
    parts = tuple(value) if isinstance(value, tuple | list) else (value,)
    parts = tuple(part if part is None else structured(part) for part in trimmed(parts))
    if not 1 <= len(parts) <= 3:
        raise UsageError(
            "dataset", f"{len(parts)} parts", "are not what an example has",
            "x, (x, y) or (x, y, sample_weight)", "a dict or tuple for several inputs",
        )  # fmt: skip
    return parts


def trimmed(parts: Iterable[Any]) -> tuple[Any, ...]:
    """Return the parts of an example without None at their end: (x, y, None) is (x, y)."""
    values = list(parts)
    while len(values) > 1 and values[-1] is None:
        del values[-1]
    return tuple(values)


def packed(structure: Any, values: list[Any]) -> Any:
    """Return a structure like ``structure`` with other leaves, in the order of :func:`leaves`."""
    left = iter(values)

    def pack(value: Any) -> Any:
        if not is_nest(value):
            return next(left)
        if isinstance(value, Mapping):
            found = {key: pack(part) for key, part in _items(value)}
            return {key: found[key] for key in value}
        return tuple(map(pack, value))

    return pack(structure)


def outline(value: Any) -> str:
    """Return a structure in words, such as ``{image: float32 [28, 28], name: text}``."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {outline(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(outline, value)) + ")"
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return type(value).__name__
    name = str(getattr(dtype, "name", dtype))
    kind = "text" if getattr(dtype, "kind", name) in ("O", "S", "U", "string") else name
    shape = list(getattr(value, "shape", ()))[1:]
    return f"{kind} {shape}" if shape else kind


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return sorted(value.items(), key=lambda item: item[0])
    return list(enumerate(value))
