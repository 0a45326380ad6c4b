"""A ``keras.utils.PyDataset`` as a source: its batches are read, and their examples."""

from __future__ import annotations

from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.plain import structured
from dtrain.errors import UsageError


class Batches:
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

    def __init__(self, dataset: Any, key: str = "dataset"):
        self._dataset = dataset
        self._key = key
        count = dataset.num_batches
        if count is None or count < 1:
            problem = "has no end" if count is None else "has no batches"
            raise UsageError(
                key, f"a {type(dataset).__name__}", problem, "a PyDataset with __len__, the number "
                "of its batches, 1 or more", "a generator function for what has no end",
            )  # fmt: skip
        _check_hooks(dataset, key)
        self._batches = int(count)
        self._kept: dict[int, tuple[Any, ...]] = {}
        self._size = self._length(0)
        self._lengths = np.full(self._batches, self._size, np.int64)
        self._lengths[-1] = self._length(self._batches - 1)

    def _length(self, batch: int) -> int:
        return len(nest.leaves(self._read(batch))[0])

    def _read(self, batch: int) -> tuple[Any, ...]:
        if batch not in self._kept:
            found = self._dataset[batch]
            parts = nest.trimmed(found if isinstance(found, tuple | list) else [found])
            name = f"batch {batch:,}"
            made = tuple(
                None if part is None else structured(part, self._key, name) for part in parts
            )
            self._check(made, name)
            while len(self._kept) >= self.KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[batch] = made
        self._kept[batch] = self._kept.pop(batch)  # the newest is the last
        return self._kept[batch]

    def _check(self, parts: tuple[Any, ...], name: str) -> None:
        """Refuse a batch whose arrays have different numbers of rows."""
        rows = {
            place: len(leaf) if leaf.ndim else None
            for place, leaf in nest.named(parts)
            if leaf is not None
        }
        if len(set(rows.values())) != 1 or None in rows.values():
            text = ", ".join(f"{place}: {count}" for place, count in rows.items())
            raise UsageError(
                self._key, name, f"its arrays have different numbers of rows ({text})",
                "(x, y) or (x, y, sample_weight) with a row for each example in all arrays",
                "the same number of rows in all arrays of a batch",
            )  # fmt: skip

    def __len__(self) -> int:
        return int(self._lengths.sum())

    def blocks(self) -> np.ndarray:
        """Return the examples of each batch."""
        return self._lengths

    def take(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read the batches of the examples, and gather their rows."""
        batches, rows = np.divmod(np.asarray(indices), self._size)
        pieces: list[list[Any]] = []
        order, shape = [], ()
        for batch in np.unique(batches):
            at = np.flatnonzero(batches == batch)
            parts = self._read(int(batch))
            leaves = nest.leaves(parts)
            self._compare(int(batch), parts, shape or parts)
            shape = shape or parts
            order.append(at)
            pieces.append([None if leaf is None else leaf[rows[at]] for leaf in leaves])
        places = np.argsort(np.concatenate(order), kind="stable")
        made = [
            None if parts[0] is None else np.concatenate(parts)[places]
            for parts in zip(*pieces, strict=True)
        ]
        return tuple(nest.packed(shape, made))

    def _compare(self, batch: int, parts: tuple[Any, ...], others: tuple[Any, ...]) -> None:
        """Refuse a batch that is not like another one."""
        count = len(nest.leaves(parts)[0])
        if count != self._lengths[batch]:
            raise UsageError(
                self._key, f"batch {batch:,}", f"has {count} examples, and the first has "
                f"{self._size}", "batches of one size, but for the last",
                "a PyDataset whose batches have one size",
            )  # fmt: skip
        one, other = ([n for n, _ in nest.named(each)] for each in (parts, others))
        shapes = [
            [None if leaf is None else leaf.shape[1:] for leaf in nest.leaves(each)]
            for each in (parts, others)
        ]
        if one != other or shapes[0] != shapes[1]:
            raise UsageError(
                self._key, f"batch {batch:,}", f"has examples of {nest.outline(parts)}, and "
                f"another one of {nest.outline(others)}", "batches whose examples have one shape",
                "rows of one length in all batches",
            )  # fmt: skip

    def where(self, index: int) -> str:
        """Return the place of an example for messages."""
        return f"batch {index // self._size:,}, row {index % self._size}"


def _check_hooks(dataset: Any, key: str) -> None:
    """Refuse a dataset that changes from epoch to epoch.

    Which examples a step has is a function of the seed and its position: batches are read ahead,
    out of order, by several processes, and read again by a resumed run.
    """
    for hook in ("on_epoch_begin", "on_epoch_end"):
        owner = next((kind for kind in type(dataset).__mro__ if hook in vars(kind)), None)
        if owner is not None and owner.__module__.partition(".")[0] != "keras":
            raise UsageError(
                key, f"{owner.__name__}.{hook}", "would never be called: examples are read ahead "
                "of the steps and by several processes, in an order that is made of the seed",
                "a PyDataset without it, where it shuffles: dataset.shuffle does that; where it "
                "draws other examples, a generator function, which is called for each pass",
                f"another name for {hook}, where __init__ calls it, and dataset.shuffle=blocks",
            )  # fmt: skip
