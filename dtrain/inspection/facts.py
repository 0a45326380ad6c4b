"""How much data there is, and in which order and batches it is read."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from dtrain.config.schema import Config
from dtrain.data.mixture import Mixture
from dtrain.data.order import Blocks, Mixed, Sequential
from dtrain.data.sources import Arrays, Splits
from dtrain.data.streams import Stream, examples_in
from dtrain.errors import UsageError
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
    found = {
        "training": _amount(data.splits.train),
        "validation": _amount(data.splits.validation),
        "order of training": _order(config, data),
        "batch": counted(config.trainer.batch_size, "example"),
        "epoch": counted(schedule.steps_per_epoch, "step"),
    }
    if schedule.validation_examples:
        reading = inputs(config, data)
        found["a validation"] = (
            f"{counted(schedule.validation_examples, 'example')} in "
            f"{counted(reading.evaluation_steps, 'batch')} of {reading.evaluation_batch:,}"
        )
    # Others are counted, which may take reading.
    if isinstance(data.splits.classes, int) or isinstance(data.splits.train, Arrays):
        count = classes(data.splits)
        found |= {} if count is None else {"classes": f"{count:,}"}
    if data.options.augment is not None:
        nodes = data.options.augment
        nodes = [nodes] if isinstance(nodes, Mapping) else nodes
        found["augmentation"] = ", ".join(str(node["_target_"]) for node in nodes)
    digests = {split: record["digest"] for split, record in data.identity.items()}
    return {**found, **_files(data), "digests": ", ".join(f"{k} {v}" for k, v in digests.items())}


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
