"""Datasets of users and other libraries as sources: by index, by batch, or one after the other."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dtrain.data import failures, generators, nest
from dtrain.data.example import (
    Dataset,
    Example,
    as_type,
    check_rows,
    joined,
    one,
    spec_difference,
    spec_of,
    structured,
    together,
)
from dtrain.data.generators import Key
from dtrain.data.nest import Nest, Parts
from dtrain.data.sources import Info, Source
from dtrain.data.streams import Stream
from dtrain.errors import refuse


def _one(value: Nest, key: str) -> Example:
    """Return what a user's code has given as an example."""
    return Example.of(value, lambda part: one(part, key, "an example"), key)


def items(dataset: Dataset, indices: list[int]) -> Sequence[Nest]:
    """Return examples of what has ``__getitem__``, or ``__getitems__``."""
    several = getattr(dataset, "__getitems__", None)
    return [dataset[index] for index in indices] if several is None else several(indices)


class Rows(Source):
    """Examples of anything with ``__len__`` and ``__getitem__``, one an index.

    As Grain's random access sources, PyTorch's map-style datasets and lists have it; with
    ``__getitems__`` a batch is asked for at once.

    Args:
        dataset: returns (x, y), (x, y, sample_weight) or inputs alone; of any nest of arrays,
            numbers and texts.
        key: for messages.
    """

    def __init__(self, dataset: Dataset, key: str = "dataset"):
        self._dataset = dataset
        self._key = key
        self.thread_safe = bool(getattr(dataset, "thread_safe", False))

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Read, and put the examples of a batch together."""
        asked = [int(index) for index in indices]
        examples = [_one(each, self._key) for each in items(self._dataset, asked)]
        if len(examples) != len(asked):
            refuse(self._key, f"returns {len(examples)} examples where {len(asked)} are asked for",
                   "__getitems__", accepted="one for each index, in their order")  # fmt: skip
        like = examples[0]
        for index, each in zip(asked, examples, strict=True):
            specs = [spec_of(part.parts, batched=False) for part in (like, each)]
            difference = spec_difference(specs[0], specs[1], types=False, shapes=False)
            if difference is not None:
                refuse(self._key, f"{difference}, unlike example {asked[0]:,}",
                       f"example {index:,}", accepted="examples of one structure")  # fmt: skip
        columns = zip(*(nest.leaves(each.parts) for each in examples), strict=True)
        made = [joined(list(values), self._key) for values in columns]
        return tuple(nest.packed(like.parts, made))


class Batches(Source):
    """Examples of a ``keras.utils.PyDataset``, which reads them a batch at a time.

    Its batches are blocks: they are shuffled, and examples inside a window of them. The last one
    may be smaller; all others have as many examples as the first.

    Args:
        dataset: has the batches.
        key: for messages.

    Raises:
        UsageError: it has no batches, no end, or changes from epoch to epoch.
    """

    #: Batches that are kept, as those of a window are asked for again.
    KEPT = 16

    def __init__(self, dataset: Dataset, key: str = "dataset"):
        self._dataset = dataset
        self._key = key
        count = dataset.num_batches
        if count is None or count < 1:
            problem = "has no end" if count is None else "has no batches"
            refuse(key, problem, f"a {type(dataset).__name__}",
                   accepted="a PyDataset with __len__, 1 or more; without an end a generator "
                   "function")  # fmt: skip
        _check_hooks(dataset, key)
        self._batches = int(count)
        self._kept: dict[int, tuple[Key | None, Example]] = {}  # and by what it was drawn
        first = self._read(0)
        self._spec = spec_of(first.parts)
        self._size = _rows(first)
        self._lengths = np.full(self._batches, self._size, np.int64)
        self._lengths[-1] = _rows(self._read(self._batches - 1))

    def _read(self, batch: int) -> Example:
        # Which steps find it kept differs where a run is resumed: what it draws is of the pass.
        seed, begin = [*(generators.reading_key() or ()), 0, 0][:2]
        key = seed, begin and begin // len(self), batch
        by, made = self._kept.pop(batch, (None, None))
        if made is None or by not in (None, key):
            name = f"batch {batch:,}"
            convert = functools.partial(structured, key=self._key, name=name)
            draws = generators.Draws(key)
            with generators.reading(draws):
                generators.seed_own(self._dataset)
                made = Example.of(self._dataset[batch], convert, self._key, name)
            check_rows(made, self._key, name)
            by = key if draws.began or generators.own_of(self._dataset) else None
            while len(self._kept) >= self.KEPT:
                del self._kept[next(iter(self._kept))]
        self._kept[batch] = by, made  # the newest is the last
        return made

    def __len__(self) -> int:
        return int(self._lengths.sum())

    @property
    def info(self) -> Info:
        """The examples of each batch, and their places."""
        size = self._size
        return Info(
            place=lambda i: f"batch {i // size:,}, row {i % size}", blocks=lambda: self._lengths
        )

    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Read the batches of the examples, and gather their rows.

        Raises:
            UsageError: a batch is unlike the first.
        """
        batches, rows = np.divmod(np.asarray(indices), self._size)
        places, examples = [], []
        for batch in np.unique(batches).tolist():
            at = np.flatnonzero(batches == batch)
            example = self._read(batch)
            self._compare(batch, example)
            places.append(at)
            examples.append(example.map(lambda leaf, mine=rows[at]: leaf[mine]))
        return together(examples, places).parts

    def _compare(self, batch: int, example: Example) -> None:
        """Refuse a batch that is not like the first."""
        if _rows(example) != self._lengths[batch]:
            refuse(self._key, f"has {_rows(example)} examples, and the first has {self._size}",
                   f"batch {batch:,}", accepted="one size of all but the last")  # fmt: skip
        difference = spec_difference(self._spec, spec_of(example.parts), types=False)
        if difference is not None:
            refuse(self._key, f"{difference}, unlike another one", f"batch {batch:,}",
                   accepted="batches whose examples have one shape")  # fmt: skip


def _rows(example: Example) -> int:
    return len(nest.leaves(example.x)[0])


def _check_hooks(dataset: Dataset, key: str) -> None:
    """Refuse a dataset that changes from epoch to epoch.

    Which examples a step has is a function of the seed and its position: batches are read ahead,
    out of order, by several processes, and read again by a resumed run.
    """
    for hook in ("on_epoch_begin", "on_epoch_end"):
        owner = next((kind for kind in type(dataset).__mro__ if hook in vars(kind)), None)
        if owner is not None and owner.__module__.partition(".")[0] != "keras":
            refuse(key, "would never be called: several processes read ahead, in an order of the "
                   "seed", f"{owner.__name__}.{hook}", accepted="a PyDataset without it, and "
                   "dataset.shuffle; a generator function where each pass has other examples",
                   hint=f"another name for {hook}, called by __init__")  # fmt: skip


#: Held while a generator makes its next example: two may read from one open file.
_stepping = threading.Lock()


def _never_returns(function: Callable[..., object]) -> bool:
    """Whether the code of a generator function has no end, as that of ``while True`` has none."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    if not isinstance(code, types.CodeType) or not code.co_flags & inspect.CO_GENERATOR:
        return False
    ends = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS"}
    return not any(each.opname in ends for each in dis.get_instructions(code))


class Generated(Stream):
    """What a generator function gives: a stream that is read as arrays.

    Args:
        function: returns an iterator; called for each pass.
        key: for messages.
    """

    def __init__(self, function: Callable[[], Iterator[Nest]], key: str):
        super().__init__(function)
        self._key = key

    @functools.cached_property
    def _like(self) -> Example:
        """The first element.

        Raises:
            UsageError: the function gives nothing, or nothing that is an example.
        """
        with _stepping, generators.reading(generators.Draws((generators.run_seed, 0))):
            element = next(iter(self._make()), None)
        if element is None:
            refuse(self._key, "gives no example", "a generator function", accepted="one or more")
        return _one(element, self._key)

    def is_batched(self) -> bool:
        """Return whether the first element is a batch: each of its arrays has as many rows."""
        leaves = nest.leaves(self._like.parts)
        return all(leaf.ndim for leaf in leaves) and len({len(leaf) for leaf in leaves}) == 1

    @property
    def spec(self) -> Parts:
        """The parts of a batch."""
        return self._changed(self._copied(self._like))

    def batches(self, size: int, remainder: bool = False) -> Iterator[Parts]:
        """Yield the batches of one pass."""
        return self._rebatched(self._elements(), size, remainder)

    def endless(self, size: int) -> Iterator[Parts]:
        """Yield batches of ``size``, pass after pass."""

        def passes() -> Iterator[Example]:  # until one gives nothing
            numbers = itertools.count()
            while (first := next(elements := self._elements(next(numbers)), None)) is not None:
                yield first
                yield from elements

        return self._rebatched(passes(), size, remainder=False)

    def length(self) -> int | None:
        """Return how many examples a pass has, where that was found out."""
        return self.examples

    def estimate(self) -> None:
        """Return nothing: how many batches a pass has is not known."""

    def _is_endless(self) -> bool:
        return _never_returns(self._make)

    def _rebatched(
        self, elements: Iterator[Example], size: int, remainder: bool
    ) -> Iterator[Parts]:
        held: list[Example] = []
        rows = 0
        for element in elements:
            held.append(self._copied(element))
            rows += _rows(held[-1])
            while rows >= size:
                whole = together(held)
                yield self._changed(whole.map(lambda leaf: leaf[:size]))
                held, rows = [whole.map(lambda leaf: leaf[size:])], rows - size
        if remainder and rows:
            yield self._changed(together(held))

    def _copied(self, element: Example) -> Example:
        """Return an element as rows of its own: a generator may give the same arrays again."""
        batched = self.is_batched()

        def copied(leaf: np.ndarray) -> np.ndarray:
            made = leaf.astype(object) if leaf.dtype.kind in "SU" else leaf.copy()
            return made if batched else made[None]

        return element.map(copied)

    def _changed(self, example: Example) -> Parts:
        return (example if self._change is None else self._change(example)).parts

    def _elements(self, number: int = 0) -> Iterator[Example]:
        """Yield the elements of a pass, each like the first and in its types.

        What the function draws is that pass' own, whatever else is drawn between two elements.

        Raises:
            UsageError: one has another structure, other shapes, or values that would be cut.
        """
        like, batched = self._like, self.is_batched()
        first = spec_of(like.parts, batched=batched)
        draws = generators.Draws((generators.run_seed, number))
        with failures.kept():
            with generators.reading(draws):
                generators.seed_own(self._make)
                iterator = iter(self._make())
            for number in itertools.count():
                with _stepping, generators.reading(draws):
                    try:
                        value = next(iterator)
                    except StopIteration:
                        return
                element, name = _one(value, self._key), f"element {number:,} of a generator"
                own = spec_of(element.parts, batched=batched)
                difference = spec_difference(first, own, types=False)
                if difference is not None:
                    refuse(self._key, f"{difference}, unlike the first", name,
                           accepted="elements of one structure and shape",
                           hint="numpy.pad, or random access and dataset.pad")  # fmt: skip
                kinds = like.map(lambda leaf: leaf.dtype)
                yield element.map(functools.partial(as_type, key=self._key, name=name), kinds)
