"""Structures of examples: nests of dicts, tuples and lists, whose leaves are arrays or ragged rows.

The leaves are in the order of ``tf.nest`` and ``keras.tree``: those of a dict by its sorted keys.
A list becomes a tuple, as in Keras' ``fit``: tf.data takes a list for one array. None is a leaf.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import optree

#: A tensor of TensorFlow, JAX or PyTorch.
Tensor = Any
#: An array or a tensor, rows of different lengths, or None.
Leaf = Any
#: A leaf, or dicts, tuples and lists of such.
Nest = Any
#: Inputs, targets and weights of some examples, without those at the end that there are none of.
Parts = tuple[Nest, ...]
DType = np.dtype[Any]


def is_nest(value: object) -> bool:
    """Say whether a value is a structure, and no leaf."""
    return isinstance(value, Mapping | tuple | list)


def tree(value: Nest) -> Nest:
    """Return a structure of dicts and tuples alone, whatever mappings and sequences it is of."""
    if isinstance(value, Mapping):
        return {key: tree(part) for key, part in value.items()}
    return tuple(map(tree, value)) if isinstance(value, tuple | list) else value


def leaves(value: Nest) -> list[Leaf]:
    """Return the leaves of a structure; of a leaf itself that one."""
    return optree.tree_leaves(tree(value), none_is_leaf=True)


def named(value: Nest, name: str = "") -> list[tuple[str, Leaf]]:
    """Return each leaf with its place, such as ``boxes.0``; that of a leaf itself is ``name``."""
    paths, values, _ = optree.tree_flatten_with_path(tree(value), none_is_leaf=True)
    before = [name] if name else []
    return [
        (".".join([*before, *map(str, path)]), leaf)
        for path, leaf in zip(paths, values, strict=True)
    ]


def mapped(function: Callable[..., Leaf], value: Nest, *others: Nest) -> Nest:
    """Return the structure with ``function`` of each leaf, and of those of others like it.

    Where there is None, as for targets of examples that have weights alone, it stays.
    """
    return optree.tree_map(
        lambda leaf, *rest: None if leaf is None else function(leaf, *rest),
        tree(value),
        *map(tree, others),
        none_is_leaf=True,
    )


def packed(structure: Nest, values: list[Leaf]) -> Nest:
    """Return a structure like ``structure`` with other leaves, in the order of :func:`leaves`."""
    return optree.tree_unflatten(
        optree.tree_structure(tree(structure), none_is_leaf=True), list(values)
    )


def structured(value: Nest) -> Nest:
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


def outline(value: Nest) -> str:
    """Return a structure in words, such as ``{image: float32 [28, 28], name: text}``."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {outline(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(outline, value)) + ")"
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return type(value).__name__
    kind, shape = kind_of(dtype), list(getattr(value, "shape", ()))[1:]
    return f"{kind} {shape}" if shape else kind


def kind_of(dtype: object) -> str:
    """Return the name of a type, of whatever library; of texts it is ``text``."""
    name = str(getattr(dtype, "name", dtype))
    return "text" if getattr(dtype, "kind", name) in ("O", "S", "U", "string") else name


def digest(parts: Iterable[Nest]) -> hashlib.blake2b:
    """Return a hash of nests of arrays: their types, shapes and bytes."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        for name, leaf in named(part):
            if isinstance(leaf, Ragged):
                made.update(leaf.lengths.tobytes())
                leaf = leaf.values
            array = np.asarray(leaf)
            made.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            if array.dtype == object:
                for value in array.reshape(-1):
                    text = value if isinstance(value, bytes) else str(value).encode()
                    made.update(len(text).to_bytes(8, "little") + text)
            else:
                made.update(np.ascontiguousarray(array).tobytes())
    return made


class Ragged:
    """Rows of different lengths, one after the other.

    Args:
        values: ``[total, ...]``, those of all rows.
        lengths: int64 ``[b]``, how many each row has.
    """

    def __init__(self, values: np.ndarray, lengths: np.ndarray):
        self.values = values
        self.lengths = np.asarray(lengths, np.int64)

    @classmethod
    def of(cls, rows: Sequence[Leaf]) -> Ragged:
        """Join rows, each ``[length, ...]``."""
        parts = [np.asarray(row) for row in rows]
        # The type of an empty list is a guess.
        full = [part for part in parts if len(part)] or parts[:1]
        return cls(np.concatenate(full), np.array([len(part) for part in parts], np.int64))

    @classmethod
    def of_array(cls, array: np.ndarray) -> Ragged:
        """Return the rows of an array ``[b, length, ...]``, which have one length."""
        rows, length, *rest = array.shape
        return cls(array.reshape(rows * length, *rest), np.full(rows, length, np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def dtype(self) -> DType:
        """The type of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """``(b, None, ...)``: the length differs."""
        return len(self), None, *self.values.shape[1:]

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def mapped(self, function: Callable[[np.ndarray], np.ndarray]) -> Ragged:
        """Return the same rows with other values."""
        return Ragged(function(self.values), self.lengths)

    def padded(self, length: int, value: str | float | None = None) -> np.ndarray:
        """Return ``[b, length, ...]``: shorter rows are filled up, longer ones cut.

        Args:
            length: of all rows.
            value: that fills; None: 0, and of text the empty one.
        """
        values, empty = self.values, 0 if value is None else value
        if values.dtype.kind in "OSU":
            values = values.astype(object)  # which has no longest text
            empty = "" if value is None else str(value)
        made = np.full((len(self), length, *values.shape[1:]), empty, values.dtype)
        kept = np.minimum(self.lengths, length)
        starts = np.cumsum(self.lengths) - self.lengths
        rows = np.repeat(np.arange(len(self)), kept)
        at = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
        made[rows, at] = values[np.repeat(starts, kept) + at]
        return made
