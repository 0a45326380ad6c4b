"""The report on a dataset, part by part: each is sent as soon as it is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.config.schema import Config
from dtrain.data import nest
from dtrain.data.order import Sequential
from dtrain.data.ragged import Ragged
from dtrain.data.streams import Stream, examples_in
from dtrain.errors import UsageError
from dtrain.host.columns import aligned
from dtrain.run.cluster import Cluster
from dtrain.task import dataset, default_loss, input_pipeline, reading
from dtrain.task.dataset import Data
from dtrain.task.inputs import Augment
from dtrain.task.inspection import (
    classes,
    facts,
    looks,
    pictures,
    readable,
    speed,
    structure,
    values,
)
from dtrain.task.inspection.structure import Leaf
from dtrain.task.process import hardware

#: Sends a part: ``doing`` (what is done next, a clause), ``lines`` (a title and lines below it), or
#: ``pictures`` (:func:`_pictures`).
Send = Callable[[str, Any], None]


def report(
    config: Config, cluster: Cluster, send: Send, examples: int, images: str | None, measure: bool,
    check: bool,
) -> None:  # fmt: skip
    """Read a dataset as a training does, and report what it gives.

    Args:
        config: of the training.
        cluster: as planned.
        send: takes the parts.
        examples: how many of the first are shown.
        images: the file that the first images are for; None for none.
        measure: how fast it can be read, too, which takes some seconds.
        check: whether all examples are read, and not only as many as can be in some seconds.

    Raises:
        UsageError: a training would be refused.
        DataError: an example cannot be read.
    """
    on_cpu = dataclasses.replace(cluster, device_kind="cpu")
    hardware.configure(config.hardware, on_cpu, cluster.chief)
    send("doing", "loading the dataset")
    data = dataset.load(config)
    train = data.splits.train
    _check(train)
    found = facts.rows(config, data)
    send("lines", (f"data: {config.dataset['_target_']}", aligned(list(found.items()))))
    if data.notices:
        send("lines", ("notices", list(data.notices)))

    send("doing", "reading the first examples")
    most = max(1, examples, min(pictures.MOST, config.trainer.batch_size))
    count = reading.available(train, most)
    leaves = structure.of(train, data.options, count)
    send("lines", ("structure of an example", structure.table(leaves, count)))
    drawn = None if images is None else pictures.leaf_of(leaves, images)
    names = _classes(config, data, send)
    structure.check(leaves)
    send("doing", "looking at the columns")
    if kinds := looks.columns(data.splits):
        send("lines", ("columns", kinds))
    advice = looks.sentences(data.splits, default_loss.is_regression(config, data.splits))
    if advice:
        send("lines", ("worth a look", advice))
    send("doing", "reading all examples")
    if reads := readable.sentence(data.splits, check):
        send("lines", ("readable", [reads]))
    if examples:
        lines = _examples(config, data, leaves, min(examples, count), names)
        send("lines", ("the first training examples", lines))
    if drawn is not None:
        send("doing", "reading images")
        send("pictures", _pictures(config, data, leaves.index(drawn), names))
    if measure:
        _speed(config, data, send)


def _check(source: Any) -> None:
    """Refuse a dataset without examples: there is nothing to show of it."""
    if examples_in(source) == 0:
        raise UsageError(
            "dataset", "0 examples", "there is nothing to train on", "one example or more",
            "another file, or a smaller dataset.validation_split",
        )  # fmt: skip


def _classes(config: Config, data: Data, send: Send) -> Sequence[str]:
    """Report the classes, where they are known without the inputs; return their names, if any."""
    splits = data.splits
    send("doing", "reading the targets")
    training, validation = (classes.known(each) for each in (splits.train, splits.validation))
    if training is None or default_loss.is_regression(config, splits):
        return ()
    names = list(splits.train.info.class_names())
    lines = classes.table(training, validation, facts.classes(splits), names)
    send("lines", ("classes of the target", lines))
    return names


def _examples(
    config: Config, data: Data, leaves: Sequence[Leaf], count: int, names: Sequence[str]
) -> list[str]:
    """Return the first examples in short, with what augmentation makes of their inputs."""
    source = data.splits.train
    after: Iterator[np.ndarray] = iter(())
    if data.augment is not None:
        after = iter(_augmented(config, data.augment, reading.first(source, count)[0], 0))
    changed = [next(after, None) if leaf.role == "input" else None for leaf in leaves]
    lines = []
    for index in range(count):
        where = f"example {index:,}" if isinstance(source, Stream) else source.info.place(index)
        rows = []
        for leaf, others in zip(leaves, changed, strict=True):
            assert not isinstance(leaf.values, Ragged)  # structure.check has refused it
            text = values.shown(leaf.values[index : index + 1])
            if leaf.role == "target" and text.isdecimal() and int(text) < len(names):
                text += f" {names[int(text)]}"
            rows.append([leaf.label, text])
            if others is not None:
                rows.append(["  augmented", values.shown(others[index : index + 1])])
        lines += [where, *(f"  {line}" for line in aligned(rows))]
    return lines


def _augmented(config: Config, augment: Augment, x: Any, begin: int) -> list[np.ndarray]:
    """Return inputs as a training changes them at positions from ``begin`` on."""
    with tf.device("CPU:0"):
        positions = tf.range(begin, begin + len(nest.leaves(x)[0]))
        seeds = tf.fill(tf.shape(positions), tf.constant(config.seed, tf.int32))
        changed = input_pipeline.changed(augment, x, tf.stack([seeds, positions], 1))
        return [leaf.numpy() for leaf in nest.leaves(changed)]


def _pictures(config: Config, data: Data, chosen: int, names: Sequence[str]) -> dict[str, Any]:
    """Return the images that a training gets first: before and after augmentation, and captions.

    They are in its order: the first of a dataset are often all of one class.

    Args:
        config: of the training.
        data: has them.
        chosen: which of the arrays of an example they are.
        names: of the classes.
    """
    source = data.splits.train
    count = reading.available(source, pictures.MOST)
    size = min(config.trainer.batch_size, count)
    before, after, texts = [], [], []
    for begin in range(0, count, size):
        few = min(size, count - begin)
        x, *rest = _at(data, begin, few)
        before.append(pictures.small(nest.leaves(x)[chosen].numpy()))
        targets = [leaf.numpy() for y in rest[:1] if y is not None for leaf in nest.leaves(y)]
        texts += pictures.captions(targets, names, few)
        if data.augment is not None:
            found = _augmented(config, data.augment, x, begin)
            after.append(pictures.small(found[chosen]))
    made = pictures.drawable([*before, *after])
    images, changed = made[: len(before)], made[len(before) :]
    return {
        "images": np.concatenate(images),
        "changed": np.concatenate(changed) if changed else None,
        "captions": texts,
    }


def _at(data: Data, begin: int, count: int) -> tuple[Any, ...]:
    """Return the examples at some positions of a training."""
    source = data.splits.train
    if data.order is None or isinstance(source, Stream):
        return reading.first(source, count, begin)
    with tf.device("CPU:0"):
        return reading.take(source, data.order(np.arange(begin, begin + count)))


def _speed(config: Config, data: Data, send: Send) -> None:
    send("doing", "measuring how fast it can be read")
    inputs = facts.inputs(config, data)
    shuffled = data.order is not None and not isinstance(data.order, Sequential)
    with data.pool as pool:
        pool.ready()
        found = [f"{speed.measured(inputs)} {'shuffled' if shuffled else 'in order'}"]
        if shuffled:
            in_order = dataclasses.replace(inputs, order=Sequential(len(data.splits.train)))
            found.append(f"{speed.measured(in_order)} in order")
    readers = f", by {pool.workers} processes" if pool.workers else ""
    send("lines", (f"reading, in batches of {inputs.global_batch:,}{readers}", found))
