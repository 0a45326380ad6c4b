"""How much data there is, in which order and batches it is read, and of which classes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dtrain.config.schema import Config
from dtrain.data.mixture import Concatenated, Mixture
from dtrain.data.order import Blocks, Mixed, Sequential
from dtrain.data.sources import Arrays, Splits
from dtrain.data.streams import Stream, examples_in
from dtrain.errors import UsageError
from dtrain.host.columns import aligned
from dtrain.task.data.dataset import Data, lengths
from dtrain.task.data.inputs import Inputs
from dtrain.task.train.step_schedule import make_schedule

#: Members of a mixture that are named.
_MEMBERS = 10
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def inputs(config: Config, data: Data) -> Inputs:
    """Return what a run of one replica reads."""
    trainer = config.trainer
    return Inputs(
        data.splits.train, data.splits.validation, trainer.batch_size, config.seed, 0,
        data.augment, trainer.validation_batch_size, trainer.validation_steps, data.order,
    )  # fmt: skip


def rows(config: Config, data: Data) -> dict[str, str]:
    """Return facts by their names, in the order in which they are shown.

    Raises:
        DataError: a file is not there any more.
        UsageError: the steps do not go with the data.
    """
    schedule = make_schedule(config, *lengths(data.splits))
    facts = {
        "training": _amount(data.splits.train),
        "validation": _amount(data.splits.validation),
        "order of training": _order(config, data),
        "batch": counted(config.trainer.batch_size, "example"),
        "epoch": counted(schedule.steps_per_epoch, "step"),
    }
    if schedule.validation_examples:
        reading = inputs(config, data)
        facts["a validation"] = (
            f"{counted(schedule.validation_examples, 'example')} in "
            f"{counted(reading.evaluation_steps, 'batch')} of {reading.evaluation_batch:,}"
        )
    # Others are counted, which may take reading.
    if isinstance(data.splits.classes, int) or isinstance(data.splits.train, Arrays):
        count = classes(data.splits)
        facts |= {} if count is None else {"classes": f"{count:,}"}
    if data.options.augment is not None:
        nodes = data.options.augment
        nodes = [nodes] if isinstance(nodes, Mapping) else nodes
        facts["augmentation"] = ", ".join(str(node["_target_"]) for node in nodes)
    digests = {split: record["digest"] for split, record in data.identity.items()}
    return {**facts, **_files(data), "digests": ", ".join(f"{k} {v}" for k, v in digests.items())}


def classes(splits: Splits) -> int | None:
    """Return how many classes there are; None where the targets are none, or not counted from 0."""
    try:
        return splits.count_classes()
    except UsageError:  # a loss and a model of the user's own may take them
        return None


def _amount(source: Any) -> str:
    if source is None:
        return "none"
    examples = examples_in(source)
    amount = "unknown length" if examples is None else counted(examples, "example")
    return f"a stream of {amount}" if isinstance(source, Stream) else amount


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: ``1 step``, ``2,000 batches``."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def _order(config: Config, data: Data) -> str:
    order, source = data.order, data.splits.train
    if order is None:
        return "its own: it is a stream"
    if data.options.balance:
        return "each class is drawn as often as any other"
    if isinstance(order, Mixed):
        return _mixture(config, data, source)
    if isinstance(order, Sequential):
        return "none: that of the dataset, in every pass"
    if isinstance(order, Blocks):
        blocks = source.info.blocks()
        least, most = int(blocks.min()), int(blocks.max())
        sizes = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        return (
            f"{len(blocks):,} blocks of {sizes} examples are shuffled, and examples inside a "
            f"window of {data.options.window}"
        )
    return "all examples are shuffled, in every pass"


def _mixture(config: Config, data: Data, source: Mixture) -> str:
    names = list(config.dataset.get("members") or ())
    if len(names) != len(source.members):
        names = [str(index) for index in range(len(source.members))]
    total = sum(source.shares)
    parts = [
        f"{name} {100 * share / total:.4g} % (of {length:,} examples)"
        for name, share, length in zip(names, source.shares, source.lengths, strict=True)
    ]
    others = f" and {len(parts) - _MEMBERS} others" if len(parts) > _MEMBERS else ""
    return f"a mixture: {', '.join(parts[:_MEMBERS])}{others}"


def _files(data: Data) -> dict[str, str]:
    """Return how many files the data is of, how large they are, and the first and the last one."""
    sources = [data.splits.train, data.splits.validation]
    every = [s.info.files() for s in sources if s is not None and not isinstance(s, Stream)]
    sizes = {file.name: file.size() for file in itertools.chain.from_iterable(every)}
    if not sizes:
        return {}
    ends = " to ".join(dict.fromkeys([min(sizes), max(sizes)]))
    return {"files": f"{len(sizes):,}, {_size(sum(sizes.values()))}: {ends}"}


def _size(amount: float) -> str:
    unit = 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:,.0f} {_UNITS[unit]}" if unit == 0 else f"{amount:.3g} {_UNITS[unit]}"


#: Classes that a table has a row for, at most.
_CLASSES = 20


def known_classes(source: Any) -> np.ndarray | None:
    """Return the classes of all examples of a source, ``[n]``; None where it does not know them."""
    if source is None or isinstance(source, Stream):
        return None
    if isinstance(source, Concatenated):
        parts = [part for part in map(known_classes, source.members) if part is not None]
        return np.concatenate(parts) if len(parts) == len(source.members) else None
    numbers = source.info.labels()
    if numbers is not None and numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]  # as some of keras.datasets have it
    usable = numbers is not None and numbers.ndim == 1 and numbers.dtype.kind in "biu"
    return numbers if usable else None


def class_table(
    parts: Mapping[str, np.ndarray], classes: int | None, words: Sequence[str]
) -> list[str]:
    """Return a table of classes, or of the most and the least frequent where there are many.

    Args:
        parts: whole numbers ``[n]``, by the name of their split; that of the first is ``training``.
        classes: their number, of which some may have no example; None where that is not known.
        words: the names of the classes, where they have any.
    """
    found = {part: pd.Series(labels.astype(np.int64)) for part, labels in parts.items()}
    table = pd.DataFrame({part: labels.value_counts() for part, labels in found.items()})
    known = range(classes if classes is not None and classes <= 1 << 20 else 0)
    table = table.reindex(table.index.union(known).sort_values()).fillna(0).astype(np.int64)
    absent, half = 0, _CLASSES // 2
    if len(table) > _CLASSES:  # the most frequent first; of those without any only the number
        absent = int((~table.any(axis=1)).sum())
        table = table[table.any(axis=1)].sort_values("training", ascending=False, kind="stable")
    table.index = [f"{n} {words[n]}" if 0 <= n < len(words) else str(n) for n in table.index]
    if len(table) > _CLASSES:
        others = table[half:-half]
        line = others.sum().to_frame(f"{len(others):,} others").T
        table = pd.concat([table[:half], line, table[-half:]])
    rows = [["class", *(cell for part in parts for cell in (part, "share"))]]
    for name, counts in table.iterrows():
        cells = ((f"{n:,}", _percent(n, len(found[part]))) for part, n in counts.items())
        rows.append([name, *itertools.chain.from_iterable(cells)])
    lines = aligned(rows, set(range(1, len(rows[0]))))
    return [*lines, f"{absent:,} more without examples"] if absent else lines


def _percent(count: int, total: int) -> str:
    percent = 100 * count / max(1, total)
    return f"{percent:.{1 if percent >= 0.1 or not percent else 3}f} %"
