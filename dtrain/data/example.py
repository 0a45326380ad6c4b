"""What an example is: inputs, targets and a weight, and how two of them differ.

Its arrays are those of NumPy, made of what users have of any library: numbers and texts of a shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.nest import DType, Leaf, Nest, Parts, Ragged
from dtrain.errors import UsageError, refuse

#: Names of the parts of an example, in messages and in ``dataset.pad``.
_PARTS = ("x", "y", "weight")
#: Of an example: by the name of each leaf, its type and the shape of a row, in words.
Spec = dict[str, tuple[str, tuple[int | None, ...]]]


#: A source, a stream, or what a user or another library has that becomes one.
Dataset = Any


@dataclasses.dataclass(frozen=True)
class Example:
    """Some examples, or one: inputs, targets and weights, each a nest of arrays or tensors.

    Attributes:
        x: inputs.
        y: targets; None for none.
        weight: of the examples; None for none.
    """

    x: Nest
    y: Nest = None
    weight: Nest = None

    @classmethod
    def of(
        cls, value: Nest, convert: Callable[[Nest], Nest] = nest.structured, key: str = "dataset",
        name: str = "an example",
    ) -> Example:  # fmt: skip
        """Return what a user's code has given: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.

        Args:
            value: with None where there are no targets or weights, or without them.
            convert: makes a nest of arrays of a part.
            key, name: for messages: the configuration's key, and what the value is.

        Raises:
            UsageError: it has other parts.
        """
        parts = trimmed(value if isinstance(value, tuple | list) else [value])
        if not 1 <= len(parts) <= 3:
            refuse(key, f"has {len(parts)} parts", name, accepted="x, (x, y) or (x, y, "
                   "sample_weight), of several inputs each a dict or tuple")  # fmt: skip
        return cls(*(None if part is None else convert(part) for part in parts))

    @property
    def parts(self) -> Parts:
        """``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, as Keras takes them."""
        return trimmed([self.x, self.y, self.weight])

    @property
    def leaves(self) -> dict[str, Leaf]:
        """Its leaves by their names, such as ``0.tokens``, without those that are None."""
        return {name: leaf for name, leaf in nest.named(self.parts) if leaf is not None}

    def map(self, function: Callable[..., Leaf], *others: Example) -> Example:
        """Return what ``function`` makes of each leaf, and of those of others like it."""
        return Example(*nest.mapped(function, self.parts, *(other.parts for other in others)))

    def with_leaves(self, leaves: dict[str, Leaf]) -> Example:
        """Return one like it with some other leaves, by their names."""
        names = nest.named(self.parts)
        return Example(*nest.packed(self.parts, [leaves.get(name, leaf) for name, leaf in names]))


def together(examples: Sequence[Example], places: Sequence[np.ndarray] = ()) -> Example:
    """Return the rows of several as one: one after the other, or each in its place.

    Args:
        examples: of arrays.
        places: of the rows of each, ascending, int64.
    """
    first, *others = examples
    if not others:
        return first
    order = np.argsort(np.concatenate(places), kind="stable") if places else slice(None)
    return first.map(lambda *leaves: np.concatenate(leaves)[order], *others)


def trimmed(parts: Iterable[Nest]) -> Parts:
    """Return the parts of an example without None at their end: (x, y, None) is (x, y)."""
    values = list(parts)
    while len(values) > 1 and values[-1] is None:
        del values[-1]
    return tuple(values)


def place(name: str) -> str:
    """Return the name of a leaf in ``dataset.pad``: ``0.tokens`` is ``tokens``, ``1`` is ``y``."""
    part, _, inside = name.partition(".")
    return inside or _PARTS[int(part)]


def label(name: str) -> str:
    """Return the place of a leaf among the parts of an example, in words."""
    part, _, inside = name.partition(".")
    role = ("the input", "the target", "the weight")[int(part)]
    return f"{role} {inside}".strip()


def spec_of(parts: Parts, by_batch: Collection[str] = (), batched: bool = True) -> Spec:
    """Return what the leaves of an example are.

    Args:
        parts: arrays, tensors, or what has a type and a shape as they have.
        by_batch: places of those of which each batch has a length of its own.
        batched: whether there is a row for each example, or one example alone.
    """
    spec = {}
    for name, leaf in nest.named(parts):
        if leaf is None:  # no target beside a weight
            continue
        shape = tuple(leaf.shape)[1:] if batched else tuple(leaf.shape)
        open_shape = (None, *shape[1:]) if place(name) in by_batch else shape
        spec[name] = nest.kind_of(leaf.dtype), open_shape
    return spec


def spec_difference(one: Spec, other: Spec, types: bool = True, shapes: bool = True) -> str | None:
    """Return how an example differs from another one, as a clause about ``other``.

    Args:
        one: what is expected; a length of it that is None may be any.
        other: what there is.
        types, shapes: whether these have to be the same.

    Returns:
        Such as ``has float32 [3] as x instead of float32 [2]``; None where they do not differ.
    """
    for name in one:
        if name not in other:
            return f"has no {place(name)}"
    for name, actual in other.items():
        if name not in one:
            return f"has {place(name)} besides"
        alike = len(one[name][1]) == len(actual[1]) and all(
            size in (None, own) for size, own in zip(one[name][1], actual[1], strict=True)
        )
        if (shapes and not alike) or (types and one[name][0] != actual[0]):
            expected, found = (
                f"{kind} {list(shape)}" if shape else kind for kind, shape in (one[name], actual)
            )
            return f"has {found} as {place(name)} instead of {expected}"
    return None


#: Kinds of NumPy's types that a tensor can have: numbers, booleans and texts.
_KINDS = "biufcOSU"


def is_array(value: Leaf) -> bool:
    """Whether a value is an array with rows, whatever library's, or a table of pandas."""
    if is_frame(value):
        return True
    try:
        return hasattr(value, "dtype") and len(value.shape) > 0
    except (AttributeError, TypeError, ValueError):  # no shape, or none that is known
        return False


def is_frame(value: object) -> bool:
    """Whether a value is a table of pandas or the like: columns by name, of several types."""
    return hasattr(value, "to_numpy") and hasattr(value, "columns") and hasattr(value, "shape")


def rows_of(value: Nest) -> int | None:
    """Return how many rows all arrays of a nest have; None where they differ, or it has others."""
    try:
        leaves = nest.leaves(nest.structured(value))
    except (TypeError, ValueError):  # of no type that NumPy knows
        return None
    found = {len(leaf) if is_array(leaf) else None for leaf in leaves}
    return found.pop() if len(found) == 1 else None


def structured(value: Nest, key: str, name: str) -> Nest:
    """Return a nest of arrays as Keras' ``fit`` takes them: floating numbers as float32.

    Args:
        value: arrays, tables of pandas, lists of numbers or texts, and nests of them.
        key, name: for messages: the configuration's key, and what the value is.

    Raises:
        UsageError: a leaf is no array of numbers or texts.
    """
    try:
        found = nest.structured(value)
    except (TypeError, ValueError):
        raise _refused(key, name, f"a {type(value).__name__} that is no array") from None
    return nest.mapped(lambda leaf: plain(leaf, key, name), found)


def one(value: Nest, key: str, name: str) -> Nest:
    """Return a nest of arrays and numbers of one example: a tuple is several, a list is one array.

    Raises:
        UsageError: as of :func:`structured`.
    """
    if isinstance(value, Mapping):
        return {each: one(part, key, name) for each, part in value.items()}
    if isinstance(value, tuple):
        return tuple(one(part, key, name) for part in value)
    return None if value is None else structured(value, key, name)


def plain(value: Nest, key: str, name: str) -> Nest:
    """Return one array or number; :class:`Ragged` as it is, but for the type of its values.

    Raises:
        UsageError: it is no array of numbers or texts.
    """
    if isinstance(value, Ragged):
        return value.mapped(lambda values: plain(values, key, name))
    if hasattr(value, "toarray") or type(value).__name__ == "SparseTensor":
        dense = "values.toarray()" if hasattr(value, "toarray") else "tensorflow.sparse.to_dense"
        refuse(key, "is sparse", name, hint=dense, accepted="dense arrays, or a tf.data.Dataset "
               "that makes each batch dense")  # fmt: skip
    if hasattr(value, "row_lengths") and hasattr(value, "values"):  # a RaggedTensor
        return plain(Ragged(np.asarray(value.values), value.row_lengths()), key, name)
    found = _of_frame(value, key, name) if is_frame(value) else np.asarray(value)
    if found.dtype.kind == "O" and found.size and all(np.ndim(row) for row in found.flat):
        return plain(Ragged.of(list(found.flat)), key, name)  # an array of arrays
    found = checked(found, key, name)
    return found.astype(np.float32) if found.dtype.kind == "f" else found


def checked(found: np.ndarray, key: str, name: str) -> np.ndarray:
    """Return an array of numbers or texts as it is.

    Raises:
        UsageError: it holds something else.
    """
    if found.dtype.kind not in _KINDS and found.dtype.name != "bfloat16":
        raise _refused(key, name, f"an array of type {found.dtype}")
    if found.dtype.kind == "O":
        # Texts of any length are objects too.
        other = [v for v in found.reshape(-1) if not isinstance(v, str | bytes)]
        if other:
            what = f"a {type(other[0]).__name__}"
            raise _refused(key, name, f"an array with {what}" if found.ndim else what)
    return found


def joined(values: Sequence[Leaf], key: str = "dataset") -> Leaf:
    """Put the values of one leaf of some examples together: an array, or :class:`Ragged`.

    Raises:
        UsageError: they are no numbers or texts, or differ in more than the length of rows.
    """
    if all(value is None for value in values):  # no target beside a weight
        return None
    arrays = [np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        return plain(np.stack(arrays), key, "an example")
    # An empty list has no shape of its own: one row more of nothing.
    arrays = [a for a in arrays if a.shape != (0,)] or arrays
    if len({array.ndim for array in arrays}) == 1 and len({a.shape[1:] for a in arrays}) == 1:
        return plain(Ragged.of([np.asarray(value) for value in values]), key, "an example")
    refuse(key, "are shapes of the same input or target of two examples",
           " and ".join(str(list(shape)) for shape in sorted(shapes)[:2]),
           accepted="one shape, or rows that differ in length alone (dataset.pad)")  # fmt: skip


def check_rows(example: Example, key: str, name: str, hint: str | None = None) -> None:
    """Refuse arrays that have different numbers of rows.

    Args:
        example: arrays with a row for each example.
        key, name: for messages.
        hint: what to do where each has rows.
    """
    rows = {name: len(leaf) if leaf.ndim else None for name, leaf in example.leaves.items()}
    counts = set(rows.values())
    if len(counts) == 1 and None not in counts:
        return
    shown = [f"{name}: {count}" for name, count in rows.items()]
    text = ", ".join([*shown[:4], *(["..."] if len(shown) > 4 else [])])
    refuse(key, f"its arrays have different numbers of rows ({text})", name,
           accepted="arrays with a row for each example: two are inputs and targets",
           hint=None if None in counts else hint)  # fmt: skip


def _of_frame(value: Leaf, key: str, name: str) -> np.ndarray:
    """Return the columns of a table side by side."""
    found = np.asarray(value.to_numpy())
    if found.dtype.kind == "O":  # columns of several types
        kinds = dict(zip(value.columns, value.dtypes, strict=True))
        words = [str(n) for n, kind in kinds.items() if getattr(kind, "kind", "O") not in "biuf"]
        if words:
            refuse(key, f"its columns {', '.join(words)} hold no numbers, and all become one array",
                   name, accepted="columns of numbers, or several inputs by name",
                   hint=f"{{'a': table[{words[0]!r}], ...}}, an input for each")  # fmt: skip
        found = np.asarray(value.to_numpy(dtype=np.float32))
    return found


def as_type(values: np.ndarray, dtype: DType, key: str, name: str) -> np.ndarray:
    """Return values in the type that the first example had.

    Args:
        values: of any type.
        dtype: of the first example.
        key, name: for messages.

    Raises:
        UsageError: they are others then: a text is no number, and 2.5 no whole one.
    """
    texts = [kind in "OSU" for kind in (values.dtype.kind, dtype.kind)]
    if all(texts):
        return values.astype(object)  # of one length in NumPy, of any in TensorFlow
    with np.errstate(invalid="ignore", over="ignore"):
        made = values if values.dtype == dtype or any(texts) else values.astype(dtype)
    whole = dtype.kind in "biu"
    if any(texts) or (whole and made is not values and not np.array_equal(made, values)):
        wrong = "texts" if texts[0] else f"{values.dtype} values"
        like = "texts" if texts[1] else str(dtype)
        refuse(key, f"has {wrong}, and the first example has {like}", name,
               accepted="one type in all examples, as of numpy.asarray(v, 'float32')")  # fmt: skip
    return made


def _refused(key: str, name: str, what: str) -> UsageError:
    return UsageError(key, f"holds {what}", name, accepted="arrays of numbers or texts, in dicts "
                      "and tuples, as of numpy.asarray(values, 'float32')")  # fmt: skip
