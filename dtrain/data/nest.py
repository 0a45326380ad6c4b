"""Structures of examples: nests of dicts, tuples and lists, whose leaves are arrays.

The leaves are in the order of ``tf.nest`` and ``keras.tree``: those of a dict by its sorted keys.
A list becomes a tuple, as in Keras' ``fit``: tf.data takes a list for one array. None is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optree

from dtrain.data.ragged import Ragged


def is_nest(value: Any) -> bool:
    """Say whether a value is a structure, and no leaf."""
    return isinstance(value, Mapping | tuple | list)


def tree(value: Any) -> Any:
    """Return a structure of dicts and tuples alone, whatever mappings and sequences it is of."""
    if isinstance(value, Mapping):
        return {key: tree(part) for key, part in value.items()}
    return tuple(map(tree, value)) if isinstance(value, tuple | list) else value


def leaves(value: Any) -> list[Any]:
    """Return the leaves of a structure; of a leaf itself that one."""
    return optree.tree_leaves(tree(value), none_is_leaf=True)


def named(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Return each leaf with its place, such as ``boxes.0``; that of a leaf itself is ``name``."""
    paths, values, _ = optree.tree_flatten_with_path(tree(value), none_is_leaf=True)
    before = [name] if name else []
    return [
        (".".join([*before, *map(str, path)]), leaf)
        for path, leaf in zip(paths, values, strict=True)
    ]


def mapped(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Return the structure with ``function`` of each leaf, and of those of others like it.

    Where there is None, as for targets of examples that have weights alone, it stays.
    """
    return optree.tree_map(
        lambda leaf, *rest: None if leaf is None else function(leaf, *rest),
        tree(value),
        *map(tree, others),
        none_is_leaf=True,
    )


def packed(structure: Any, values: list[Any]) -> Any:
    """Return a structure like ``structure`` with other leaves, in the order of :func:`leaves`."""
    return optree.tree_unflatten(
        optree.tree_structure(tree(structure), none_is_leaf=True), list(values)
    )


def structured(value: Any) -> Any:
    """Return a nest of arrays; a list of numbers or texts, however deep, is one array.

    What knows its shape is left as it is, whatever library's array it is. Lists of different
    lengths are the rows of a :class:`Ragged`.
    """
    if isinstance(value, Mapping):
        return {name: structured(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        if any(np.ndim(leaf) for leaf in leaves(value)):
            return tuple(map(structured, value))
        try:
            return np.asarray(value)
        except ValueError:
            return Ragged.of(value)
    return value


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
