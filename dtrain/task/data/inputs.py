"""Everything that decides which examples a step sees."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dtrain.data.order import Order, Shuffled
from dtrain.data.sources import Source
from dtrain.data.streams import Stream, examples_in

Augment = Callable[..., Any]

#: Positions whose examples are looked up at once, at most: few calls of NumPy for many steps.
AHEAD = 8192


def draw_keys(seed: int, begin: int, size: int) -> np.ndarray:
    """Return what augmentation draws by at neighbouring positions, int32 ``[size, 2]``.

    31 bits of the position are enough to keep 2^31 draws of one experiment apart.
    """
    positions = (begin + np.arange(size)) % 2**31
    return np.stack([np.full(size, seed), positions], 1).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Everything that decides which examples a step sees.

    Attributes:
        train: what to train on, or None.
        validation: what to evaluate on, or None.
        global_batch: examples a step, over all replicas; a multiple of their number.
        seed: of the experiment.
        start_step: the global step to begin with.
        augment: see :mod:`dtrain.augment`.
        validation_batch: examples of a batch of a validation; None: ``global_batch``.
        validation_steps: how many such batches are evaluated; None: all.
        order: of the positions of training; None: every pass shuffles all examples.
        stretches: how many examples of the validation, one after the other, no batch may have
            others beside: each stretch begins with a batch of its own. None: it is one.
        validations: how many passes over the validation were made before ``start_step``.
    """

    train: Source | Stream | None
    validation: Source | Stream | None
    global_batch: int
    seed: int
    start_step: int = 0
    augment: Augment | None = None
    validation_batch: int | None = None
    validation_steps: int | None = None
    order: Order | None = None
    stretches: tuple[int, ...] | None = None
    validations: int = 0

    @property
    def evaluation_batch(self) -> int:
        """Examples of a batch of a validation."""
        if self.validation_batch is None or self.validation is None:
            return self.global_batch
        held = examples_in(self.validation)
        # More would only be padding.
        return self.validation_batch if held is None else min(self.validation_batch, held)

    @property
    def evaluation_examples(self) -> int:
        """How many examples a validation evaluates, the first of them."""
        examples = examples_in(self.validation)
        if self.validation_steps is None:
            assert examples is not None, "a stream is counted before"
            return examples
        most = self.validation_steps * self.evaluation_batch
        return most if examples is None else min(examples, most)

    @property
    def evaluation_steps(self) -> int:
        """How many batches these are, the last of them, or of a stretch, perhaps smaller."""
        batch = self.evaluation_batch
        return sum(-(-each // batch) for each in self.stretches or (self.evaluation_examples,))

    def evaluation_batches(self, replicas: int) -> np.ndarray:
        """Return where the batches of one pass begin, and how many examples each has.

        The last turn of the replicas in a stretch is filled up with batches of none.

        Args:
            replicas: that take a batch each.

        Returns:
            int64 ``[k, 2]``, ``k`` a multiple of ``replicas``.
        """
        batch, first, tables = self.evaluation_batch, 0, []
        for examples in self.stretches or (self.evaluation_examples,):
            begin = np.arange(-(-examples // batch), dtype=np.int64) * batch
            table = np.stack([first + begin, np.minimum(batch, examples - begin)], 1)
            none = np.full([-len(table) % replicas, 2], [first, 0], np.int64)
            tables += [table, none]
            first += examples
        return np.concatenate(tables)

    def parts(self, replicas: int, chosen: slice) -> np.ndarray:
        """Return the batches of one pass, cut into a part for each replica.

        Args:
            replicas: that share a batch.
            chosen: those whose parts are returned.

        Returns:
            int64 ``[k, 2]`` as of :meth:`evaluation_batches`, for each batch the chosen in turn.
        """
        begins, counts = self.evaluation_batches(1)[:, None].T
        size = self.evaluation_batch // replicas
        before = np.minimum(np.arange(replicas, dtype=np.int64)[chosen, None] * size, counts)
        parts = np.stack([begins + before, np.minimum(counts - before, size)])
        return parts.T.reshape(-1, 2)

    @functools.cached_property
    def positions(self) -> Order:
        """The order of the positions of training."""
        if self.order is not None:
            return self.order
        assert self.train is not None and not isinstance(self.train, Stream)
        return Shuffled(len(self.train), self.seed)

    @functools.cached_property
    def steps_ahead(self) -> int:
        """How many steps are looked up at once."""
        assert self.train is not None and not isinstance(self.train, Stream)
        return max(1, min(AHEAD, len(self.train)) // self.global_batch)

    def rows(
        self, steps: np.ndarray, replicas: int, chosen: slice
    ) -> tuple[np.ndarray, np.ndarray]:
        """Look up what replicas train on.

        Args:
            steps: global steps, int64 ``[k]``.
            replicas: that share a global batch.
            chosen: those whose rows are returned.

        Returns:
            For each step the chosen in turn: the first position, int64 ``[n]``, and indices of
            examples, int64 ``[n, global_batch / replicas]``.
        """
        size = self.global_batch // replicas
        parts = np.arange(replicas, dtype=np.int64)[chosen]
        begins = (steps[:, None] * self.global_batch + parts * size).reshape(-1)
        positions = begins[:, None] + np.arange(size)
        return begins, self.positions(positions.reshape(-1)).reshape(positions.shape)
