"""Generator functions of a user's as ``tf.data.Dataset``: of examples, or of batches."""

from __future__ import annotations

import dis
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dtrain.data import failures, nest
from dtrain.data.plain import as_type, example
from dtrain.errors import UsageError

#: Held while a generator makes its next example: two may read from one open file.
_stepping = threading.Lock()


def _never_returns(function: Callable[..., Any]) -> bool:
    """Whether the code of a generator function has no end, as that of ``while True`` has none."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    if not isinstance(code, types.CodeType) or not code.co_flags & inspect.CO_GENERATOR:
        return False
    ends = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS"}
    return not any(each.opname in ends for each in dis.get_instructions(code))


class Generated:
    """Makes a ``tf.data.Dataset`` of what a generator function gives.

    Args:
        function: returns an iterator; called for each pass.
        key: for messages.
    """

    def __init__(self, function: Callable[[], Iterator[Any]], key: str):
        self._function = function
        self._key = key
        self._like: tuple[Any, ...] | None = None

    def __call__(self) -> Any:
        """Return the dataset of one pass.

        Raises:
            UsageError: the function gives nothing, or nothing that is an example.
        """
        import tensorflow as tf

        if self._like is None:
            with _stepping:
                found = next(iter(self._function()), None)
            if found is None:
                raise UsageError(
                    self._key, "a generator function", "gives no example", "one or more",
                    "a function whose iterator is not empty",
                )  # fmt: skip
            self._like = self._parts(found)
        like, batched = self._like, self._is_batched(self._like)

        def spec(leaf: np.ndarray) -> Any:
            kind = tf.string if leaf.dtype.kind in "OSU" else leaf.dtype
            return tf.TensorSpec([None, *leaf.shape[1:]] if batched else leaf.shape, kind)

        def examples() -> Iterator[Any]:
            with failures.kept():
                iterator = iter(self._function())
                for number in range(2**62):
                    with _stepping:
                        try:
                            value = next(iterator)
                        except StopIteration:
                            return
                    yield self._checked(self._parts(value), like, batched, number)

        made = tf.data.Dataset.from_generator(
            examples, output_signature=tuple(nest.mapped(spec, part) for part in like)
        )
        if _never_returns(self._function):
            made = made.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return made

    def _parts(self, value: Any) -> tuple[Any, ...]:
        parts = nest.trimmed(value if isinstance(value, tuple | list) else [value])
        if not 1 <= len(parts) <= 3:
            raise UsageError(
                self._key, "a generator function", f"gives examples of {len(parts)} parts",
                "x, (x, y) or (x, y, sample_weight)", "a dict or tuple for several inputs",
            )  # fmt: skip
        return tuple(example(part, self._key, "an example") for part in parts)

    @staticmethod
    def _is_batched(parts: tuple[Any, ...]) -> bool:
        """Whether a first element is a batch: each of its arrays has as many rows."""
        leaves = nest.leaves(parts)
        return all(leaf.ndim for leaf in leaves) and len({len(leaf) for leaf in leaves}) == 1

    def _checked(
        self, parts: tuple[Any, ...], like: tuple[Any, ...], batched: bool, number: int
    ) -> tuple[Any, ...]:
        """Return an element, in the types of the first one.

        Raises:
            UsageError: it has another structure, other shapes, or values that would be cut.
        """
        names = [[name for name, _ in nest.named(each)] for each in (parts, like)]
        skipped = 1 if batched else 0
        shapes = [[leaf.shape[skipped:] for leaf in nest.leaves(each)] for each in (parts, like)]
        if names[0] != names[1] or shapes[0] != shapes[1]:
            what, first = (", ".join(str(list(shape)) for shape in each) for each in shapes)
            raise UsageError(
                self._key, f"element {number:,} of a generator", f"has arrays of the shapes "
                f"{what}, and the first has {first}", "elements of one structure and shape",
                "numpy.pad, or a dataset with random access and dataset.pad",
            )  # fmt: skip

        def cast(leaf: np.ndarray, first: np.ndarray) -> np.ndarray:
            return as_type(leaf, first.dtype, self._key, f"element {number:,} of a generator")

        return tuple(
            nest.mapped(cast, part, other) for part, other in zip(parts, like, strict=True)
        )
