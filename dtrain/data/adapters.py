"""What a dataset function may return, as users have their data, made sources and streams."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.ragged import Ragged
from dtrain.data.sources import Arrays, Splits
from dtrain.data.streams import Stream
from dtrain.errors import UsageError

#: Names of splits in a mapping of them, as the datasets of Hugging Face have.
_TRAIN = ("train", "training")
_VALIDATION = ("validation", "valid", "val", "dev", "test")
#: What is accepted of a dataset function.
ACCEPTED = (
    "dtrain.datasets.Splits(train, validation), or train alone, or (train, validation); each "
    "(x, y) arrays, a source, what has __len__ and __getitem__, a keras.utils.PyDataset, a "
    "tf.data.Dataset, or a generator function"
)
#: Held while a generator of the user's makes its next example.
_stepping = threading.Lock()


def adapted(value: Any, key: str = "dataset") -> Splits:
    """Return the splits that a dataset function has returned.

    Args:
        value: as it returned it.
        key: for messages.

    Raises:
        UsageError: it is nothing that can be read, or could be read in two ways.
    """
    if isinstance(value, Splits):
        found = value
    elif isinstance(value, Mapping) and any(name in value for name in _TRAIN):
        held = next((value[name] for name in _VALIDATION if name in value), None)
        found = Splits(next(value[name] for name in _TRAIN if name in value), held)
    else:
        found = Splits(*_divided(value, key))
    train = _source(found.train, key, "train")
    if train is None:
        raise _refused(key, None, "train")
    validation = _source(found.validation, key, "validation")
    classes = found.classes
    if classes is None and isinstance(train, Arrays):
        classes = _count(train, validation)
    return Splits(train, validation, classes)


def _divided(value: Any, key: str) -> tuple[Any, Any]:
    """Return (train, validation) of what may be either, or one pair of inputs and targets."""
    if not isinstance(value, tuple | list):
        return value, None
    if len(value) != 2:
        return value, None  # (x, y, sample_weight), or nothing that is known
    first, second = value
    if second is None or not (_is_data(first) or _is_data(second)):
        pairs = [_is_pair(part) for part in (first, second)]
        if second is None and (pairs[0] or _is_data(first)):
            return first, None
        if not all(pairs):
            return value, None
        # ((a, b), (c, d)): two splits as of keras.datasets, or two inputs and two targets.
        lengths = [[_rows(part) for part in pair] for pair in (first, second)]
        if lengths[0][0] != lengths[1][0]:
            return first, second
        raise UsageError(
            key, "((a, b), (c, d))", "can be read as training and validation, and as inputs and "
            "targets: all have the same number of rows", ACCEPTED,
            "return dtrain.datasets.Splits(train=(x, y), validation=(x, y))",
        )  # fmt: skip
    return first, second


def _is_pair(value: Any) -> bool:
    """Whether a value is (x, y) or (x, y, sample_weight)."""
    return isinstance(value, tuple | list) and len(value) in (2, 3) and _rows(value) is not None


def _rows(value: Any) -> int | None:
    """Return how many rows the arrays of a nest have; None where it is none of arrays."""
    found = {len(leaf) if _is_array(leaf) else None for leaf in nest.leaves(value)}
    return found.pop() if len(found) == 1 else None


def _is_array(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    return hasattr(value, "dtype") and shape is not None and len(shape) > 0


def _is_data(value: Any) -> bool:
    """Whether a value is a dataset by itself, and no part of one."""
    return value is not None and not nest.is_nest(value) and not _is_array(value)


def _source(value: Any, key: str, split: str) -> Any:
    if value is None or isinstance(value, Stream):
        return value
    if isinstance(value, str | bytes):
        raise _refused(key, value, split)
    if hasattr(value, "element_spec") and hasattr(value, "batch"):  # a tf.data.Dataset
        return Stream(lambda: value)
    random_access = hasattr(value, "take") and hasattr(value, "__len__")
    if random_access and not _of_huggingface(value):
        return value
    if _is_py_dataset(value):
        return Batches(value, key)
    if _of_huggingface(value):
        names = ", ".join(getattr(value, "column_names", None) or [])
        raise UsageError(
            key, f"a {type(value).__name__} of Hugging Face", "does not say which columns are "
            f"inputs and which is the target ({names})",
            "dataset=huggingface, or dtrain.datasets.columns(dataset, inputs=..., target=...)",
            "dataset=huggingface dataset.path=FOLDER dataset.target=COLUMN",
        )  # fmt: skip
    if nest.is_nest(value) or _is_array(value):
        return _arrays(value, key, split)
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return Rows(value, key)
    if inspect.isgenerator(value) or (hasattr(value, "__next__") and not callable(value)):
        raise UsageError(
            key, f"a {type(value).__name__}", "can be read once, and a run reads pass after pass",
            "the generator function itself, which is called for each pass",
            "return the function, without calling it",
        )  # fmt: skip
    if inspect.isgeneratorfunction(getattr(value, "func", value)):  # or a partial of one
        return Stream(generated(value, key))
    if callable(value) and not inspect.isclass(value) and _iterates(value):
        return Stream(generated(value, key))
    raise _refused(key, value, split)


def _refused(key: str, value: Any, split: str) -> UsageError:
    return UsageError(
        f"{key}._target_", f"a {type(value).__name__}", f"is no data ({split})", ACCEPTED,
        "return dtrain.datasets.Splits(train=(x, y), validation=(x, y))",
    )  # fmt: skip


def _iterates(function: Any) -> bool:
    """Whether a function without arguments returns what can be gone through."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return hasattr(function(), "__iter__")


def _of_huggingface(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "datasets"


def _is_py_dataset(value: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.utils.PyDataset)


def _arrays(value: Any, key: str, split: str) -> Arrays:
    """Return arrays in memory: (x, y), (x, y, sample_weight), or inputs alone."""
    parts = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(parts) <= 3:
        raise _refused(key, value, split)
    made = [None if part is None else nest.mapped(_plain, part) for part in parts]
    lengths = {
        name: len(leaf) if leaf.ndim else None
        for name, leaf in nest.named(tuple(made))
        if leaf is not None
    }
    if len(set(lengths.values())) != 1 or None in lengths.values():
        text = ", ".join(f"{name}: {rows}" for name, rows in lengths.items())
        raise UsageError(
            key, split, f"its arrays have different numbers of rows ({text})",
            "arrays with a row for each example", "the same number of rows in all arrays",
        )  # fmt: skip
    x, y, weight = (*made, None, None)[:3]
    return Arrays(x, y, weight)


def _plain(value: Any) -> np.ndarray:
    """Return an array as Keras' ``fit`` takes it: floating numbers as float32."""
    found = np.asarray(value)
    return found.astype(np.float32) if found.dtype.kind == "f" else found


def _count(train: Arrays, validation: Any) -> int | None:
    found = []
    for source in (train, validation):
        labels = source.labels() if isinstance(source, Arrays) else None
        if source is None:
            continue
        if labels is None or labels.dtype.kind not in "iu" or labels.ndim != 1 or not len(labels):
            return None
        found.append(int(labels.max()) + 1)
    return max(found)


class Rows:
    """Examples of anything with ``__len__`` and ``__getitem__``, one an index.

    As Grain's random access sources, PyTorch's map-style datasets and lists have it; with
    ``__getitems__`` a batch is asked for at once.

    Args:
        dataset: returns (x, y), (x, y, sample_weight) or inputs alone; of any nest of arrays,
            numbers and texts.
        key: for messages.
    """

    def __init__(self, dataset: Any, key: str = "dataset"):
        self._dataset = dataset
        self._key = key
        self.thread_safe = bool(getattr(dataset, "thread_safe", False))

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read, and put the examples of a batch together."""
        asked = [int(index) for index in indices]
        several = getattr(self._dataset, "__getitems__", None)
        found = several(asked) if several is not None else [self._dataset[i] for i in asked]
        examples = [tuple(e) if isinstance(e, tuple | list) else (e,) for e in found]
        first = examples[0]
        leaves = [nest.leaves(example) for example in examples]
        if any(len(each) != len(leaves[0]) for each in leaves):
            raise UsageError(
                self._key, f"example {asked[0]:,}", "has another structure than others",
                "examples of one structure", "the same inputs and targets in all examples",
            )  # fmt: skip
        return tuple(nest.packed(first, [joined(list(each)) for each in zip(*leaves, strict=True)]))

    def where(self, index: int) -> str:
        """Return the place of an example for messages."""
        return f"example {index:,}"


def joined(values: Sequence[Any]) -> Any:
    """Put the values of one leaf of some examples together: an array, or :class:`Ragged`."""
    arrays = [np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        made = np.stack(arrays)
    elif len({array.ndim for array in arrays}) == 1 and len({s[1:] for s in shapes}) == 1:
        ragged = Ragged.of(arrays)
        return ragged.mapped(_plain)
    else:
        raise UsageError(
            "dataset", " and ".join(str(list(shape)) for shape in sorted(shapes)[:2]),
            "are shapes of the same input or target of two examples",
            "one shape, or rows that differ in length alone (dataset.pad)",
            "arrays of one shape",
        )  # fmt: skip
    return _plain(made)


class Batches:
    """Examples of a ``keras.utils.PyDataset``, which reads them a batch at a time.

    Its batches are blocks: they are shuffled, and examples inside a window of them. The last one
    may be smaller; all others have as many examples as the first.

    Args:
        dataset: has the batches.
        key: for messages.
    """

    #: Batches that are kept, as those of a window are asked for again.
    KEPT = 16

    def __init__(self, dataset: Any, key: str = "dataset"):
        self._dataset = dataset
        self._key = key
        count = getattr(dataset, "num_batches", None)
        self._batches = int(len(dataset) if count is None else count)
        if self._batches < 1:
            raise UsageError(key, "a PyDataset", "has no batches", "one or more", f"{key}=digits")
        self._kept: dict[int, tuple[Any, ...]] = {}
        self._size = self._length(0)
        last = self._length(self._batches - 1)
        self._lengths = np.full(self._batches, self._size, np.int64)
        self._lengths[-1] = last

    def _length(self, batch: int) -> int:
        return len(nest.leaves(self._read(batch))[0])

    def _read(self, batch: int) -> tuple[Any, ...]:
        if batch not in self._kept:
            found = self._dataset[batch]
            parts = tuple(found) if isinstance(found, tuple | list) else (found,)
            while len(self._kept) >= self.KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[batch] = tuple(
                None if part is None else nest.mapped(_plain, part) for part in parts
            )
        self._kept[batch] = self._kept.pop(batch)  # the newest is the last
        return self._kept[batch]

    def __len__(self) -> int:
        return int(self._lengths.sum())

    def blocks(self) -> np.ndarray:
        """Return the examples of each batch."""
        return self._lengths

    def take(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read the batches of the examples, and gather their rows."""
        batches, rows = np.divmod(np.asarray(indices), self._size)
        made: list[np.ndarray] | None = None
        shape: tuple[Any, ...] = ()
        for batch in np.unique(batches):
            at = np.flatnonzero(batches == batch)
            parts = self._read(int(batch))
            leaves = nest.leaves(parts)
            if len(leaves[0]) != self._lengths[batch]:
                raise UsageError(
                    self._key, f"batch {batch:,}", f"has {len(leaves[0])} examples, and the first "
                    f"has {self._size}", "batches of one size, but for the last",
                    "a PyDataset whose batches have one size",
                )  # fmt: skip
            if made is None:
                shape = parts
                made = [np.empty((len(indices), *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
            for whole, leaf in zip(made, leaves, strict=True):
                whole[at] = leaf[rows[at]]
        assert made is not None
        return tuple(nest.packed(shape, list(made)))

    def where(self, index: int) -> str:
        """Return the place of an example for messages."""
        return f"batch {index // self._size:,}, row {index % self._size}"


class Columns:
    """A mapping of columns for each example, as (x, y): of a dataset of Hugging Face, say.

    Args:
        dataset: ``__len__`` and ``__getitem__``, which returns a mapping of columns.
        inputs: a column, a list of them (a tuple of inputs), or columns by the names of inputs.
        target: likewise; None for none.
        weight: a column, or None.
    """

    def __init__(self, dataset: Any, inputs: Any, target: Any = None, weight: Any = None):
        self._dataset = dataset
        self._roles = [role for role in (inputs, target, weight) if role is not None]

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return one example."""
        return self._arranged(self._dataset[index])

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, ...]]:
        """Return some examples."""
        several = getattr(self._dataset, "__getitems__", None)
        found = several(indices) if several is not None else [self._dataset[i] for i in indices]
        return [self._arranged(row) for row in found]

    def _arranged(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(nest.mapped(lambda name: row[name], role) for role in self._roles)


def generated(function: Callable[[], Iterator[Any]], key: str) -> Callable[[], Any]:
    """Return what makes a ``tf.data.Dataset`` of a generator function's examples, or batches."""

    def parts(value: Any) -> tuple[Any, ...]:
        made = tuple(value) if isinstance(value, tuple | list) else (value,)
        return tuple(nest.mapped(_plain, part) for part in made)

    def made() -> Any:
        import tensorflow as tf

        found = next(iter(function()), None)
        if found is None:
            raise UsageError(
                key, "a generator function", "gives no example", "one or more", f"{key}=digits"
            )
        like = parts(found)
        batched = all(leaf.ndim for leaf in nest.leaves(like))
        batched = batched and len({len(leaf) for leaf in nest.leaves(like)}) == 1

        def spec(leaf: np.ndarray) -> Any:
            kind = tf.string if leaf.dtype.kind in "OSU" else leaf.dtype
            return tf.TensorSpec([None, *leaf.shape[1:]] if batched else leaf.shape, kind)

        def examples() -> Iterator[Any]:
            iterator = iter(function())
            while True:
                with _stepping:  # two streams may read from one open file
                    try:
                        value = next(iterator)
                    except StopIteration:
                        return
                yield parts(value)

        return tf.data.Dataset.from_generator(
            examples, output_signature=tuple(nest.mapped(spec, part) for part in like)
        )

    return made


__all__ = ["ACCEPTED", "Batches", "Columns", "Rows", "adapted", "generated", "joined"]
