"""What becomes of examples for a run: sizes of batches, and numbers of classes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.data.mixture import Concatenated, by_member
from dtrain.data.nest import Parts
from dtrain.data.sources import Info, Source, View
from dtrain.data.transforms import InGraph, operations
from dtrain.errors import refuse


def check_batch(batch: int, replicas: int, examples: int | None) -> None:
    """Refuse a global batch that the replicas cannot share, or the examples cannot fill.

    What is to be typed holds for both at once.

    Args:
        batch: ``trainer.batch_size``.
        replicas: that share it.
        examples: to train on; None where that is not known.

    Raises:
        UsageError: naming a size that both have.
    """
    most = None if examples is None else examples // replicas * replicas
    if most == 0 and batch > 0:
        there = f"{examples} training example" + ("" if examples == 1 else "s")
        problem = f"{replicas} replicas cannot share {there}" if examples else "there are none"
        refuse("trainer.batch_size", problem, batch, accepted="more examples, or fewer replicas",
               hint=f"strategy=one_device trainer.batch_size={examples}"
               if examples else "python -m dtrain data shows what a dataset has")  # fmt: skip
    below, above = batch // replicas * replicas, (batch // replicas + 1) * replicas
    largest = above if most is None else most
    near = [size for size in (below, above) if 0 < size <= largest] or [largest]
    if batch % replicas:
        both = " and ".join(map(str, near))
        refuse("trainer.batch_size", f"{replicas} replicas cannot share it evenly", batch,
               accepted=f"multiples of {replicas}, the nearest being {both}",
               typed=f"trainer.batch_size={near[-1]}")  # fmt: skip
    if most is not None and batch > most:
        refuse("trainer.batch_size", f"the dataset has {examples:,} training examples", batch,
               accepted=f"up to {most:,}", typed=f"trainer.batch_size={most}")  # fmt: skip


def evaluated(trainer: Any, examples: int | None) -> int:
    """Return how many of the validation examples are evaluated: all, or those of the first batches.

    Args:
        trainer: the ``trainer`` group, of which ``validation_batch_size`` and ``validation_steps``
            are read.
        examples: of the validation; None of a stream of which that is not known, and of which so
            many steps are evaluated.

    Raises:
        UsageError: there are fewer batches than ``trainer.validation_steps``.
    """
    batch, steps = trainer.validation_batch_size or trainer.batch_size, trainer.validation_steps
    if examples is None:
        return int(steps * batch)
    batches = -(-examples // batch)
    if steps is not None and steps > batches:
        refuse("trainer.validation_steps", f"the {examples:,} validation examples are {batches:,} "
               f"batches of {batch:,}", steps, accepted=f"up to {batches:,}, or null for all"
               if batches else "null, or a validation dataset",
               typed=f"trainer.validation_steps={batches or 'null'}")  # fmt: skip
    return examples if steps is None else min(examples, steps * batch)


def renumbered(source: Source, own: Sequence[str]) -> Source:
    """Return a source whose classes have the numbers that their names have in ``own``.

    Raises:
        UsageError: a class is none of those.
    """
    if isinstance(source, Concatenated):
        return by_member(source, lambda member: renumbered(member, own))
    classes = list(source.info.class_names())
    if not classes or not own or classes == list(own):
        return source
    for name in classes:
        if name not in own:
            refuse("dataset", "is none of the classes of the run", name, accepted=", ".join(own),
                   hint="the examples of these classes, or a new run on this data")  # fmt: skip
    numbers = np.array([list(own).index(name) for name in classes], np.int64)
    return _Renumbered(source, list(own), numbers)


class _Renumbered(View):
    def __init__(self, source: Source, names: list[str], numbers: np.ndarray):
        super().__init__(source.changed(InGraph(functools.partial(_renumber, numbers), True)))
        self._names, self._numbers = names, numbers

    @property
    def info(self) -> Info:
        """That of the source, with the names and numbers of the run."""
        own, numbers = self.source.info, self._numbers

        def labels() -> np.ndarray | None:
            values = own.labels()
            return None if values is None else numbers[values]

        return dataclasses.replace(own, class_names=lambda: self._names, labels=labels)


def _renumber(numbers: np.ndarray, parts: Parts) -> Parts:
    x, y, *weight = parts
    return (x, operations(y).take(numbers, y), *weight)
