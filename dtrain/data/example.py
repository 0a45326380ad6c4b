"""What an example is: inputs, targets and a weight, and how two of them differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.errors import UsageError

#: Names of the parts of an example, in messages and in ``dataset.pad``.
_PARTS = ("x", "y", "weight")
#: Of an example: by the name of each leaf, its type and the shape of a row, in words.
Spec = dict[str, tuple[str, tuple[int | None, ...]]]


@dataclasses.dataclass(frozen=True)
class Example:
    """Some examples, or one: inputs, targets and weights, each a nest of arrays or tensors.

    Attributes:
        x: inputs.
        y: targets; None for none.
        weight: of the examples; None for none.
    """

    x: Any
    y: Any = None
    weight: Any = None

    @classmethod
    def of(
        cls,
        value: Any,
        convert: Callable[[Any], Any] = nest.structured,
        key: str = "dataset",
        name: str = "an example",
    ) -> Example:
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
            raise UsageError(
                key, name, f"has {len(parts)} parts", "x, (x, y) or (x, y, sample_weight)",
                "a dict or tuple for several inputs",
            )  # fmt: skip
        return cls(*(None if part is None else convert(part) for part in parts))

    @property
    def parts(self) -> tuple[Any, ...]:
        """``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, as Keras takes them."""
        return trimmed([self.x, self.y, self.weight])

    @property
    def leaves(self) -> dict[str, Any]:
        """Its leaves by their names, such as ``0.tokens``, without those that are None."""
        return {name: leaf for name, leaf in nest.named(self.parts) if leaf is not None}

    def map(self, function: Callable[..., Any], *others: Example) -> Example:
        """Return what ``function`` makes of each leaf, and of those of others like it."""
        return Example(*nest.mapped(function, self.parts, *(other.parts for other in others)))

    def with_leaves(self, leaves: dict[str, Any]) -> Example:
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


def trimmed(parts: Iterable[Any]) -> tuple[Any, ...]:
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


def spec_of(parts: tuple[Any, ...], by_batch: Collection[str] = (), batched: bool = True) -> Spec:
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
