"""The report on a dataset, part by part, each sent as soon as it is made; and that on a model."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dtrain import errors, secrets
from dtrain.config.tree import Config
from dtrain.data import failures, nest
from dtrain.data.failures import before_training
from dtrain.data.mixture import members_of
from dtrain.data.nest import Nest, Parts, Tensor
from dtrain.data.order import Sequential
from dtrain.data.sources import Splits
from dtrain.data.streams import Stream, examples_in
from dtrain.data.tabular import look
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.host.terminal import aligned
from dtrain.inspection import facts
from dtrain.inspection.facts import Leaf
from dtrain.run import strategy_plan
from dtrain.run.cluster import Cluster
from dtrain.task import strategies
from dtrain.task.backends import layouts
from dtrain.task.backends.runtime import runtime
from dtrain.task.data import dataset, reading
from dtrain.task.data.dataset import Data
from dtrain.task.data.inputs import Augment, Inputs, draw_keys
from dtrain.task.model import build, calls, losses
from dtrain.task.process import own_code
from dtrain.task.process.answer import Send, answer

#: Seconds after which no more examples are tried, unless all are to be.
_TRIED = 10.0
#: Seconds in which the speed is measured, and of data that is through before.
SECONDS, LEAST = 2.0, 0.5
#: Batches, and seconds, that are read before that: functions are traced, buffers are filled.
WARM_BATCHES, WARM_SECONDS = 10, 0.5
#: Of a report: ``doing`` (what is done next, a clause), ``lines`` (a title and lines below it), or
#: ``pictures`` (:func:`_pictures`).
Part = tuple[str, Any]


def report(
    config: Config, cluster: Cluster, examples: int, images: Path | None, measure: bool,
    check: bool, layers: bool,
) -> Iterator[Part]:  # fmt: skip
    """Read a dataset as a training does, and yield what it gives, each part as soon as it is made.

    Args:
        config: of the training.
        cluster: as planned.
        examples: how many of the first are shown.
        images: the file that the first images are for; None for none.
        measure: how fast it can be read, too, which takes some seconds.
        check: whether all examples are read, and not only as many as can be in some seconds.
        layers: what the layers of the model take and give, too.

    Raises:
        UsageError: a training would be refused.
        DataError: an example cannot be read.
    """
    on_cpu = dataclasses.replace(cluster, device_kind="cpu")
    runtime().configure(config.hardware, on_cpu, cluster.chief)
    yield "doing", "loading the dataset"
    data = dataset.load(config)
    splits, train = data.splits, data.splits.train
    if examples_in(train) == 0:
        refuse("dataset", "there is nothing to train on", "0 examples", accepted="one or more",
               hint="another file, or a smaller dataset.validation_split")  # fmt: skip
    rows = list(facts.rows(config, data).items())
    yield "lines", (f"data: {config.dataset['_target_']}", aligned(rows))
    if data.notices:
        yield "lines", ("notices", list(data.notices))

    yield "doing", "reading the first examples"
    most = max(1, examples, min(facts.IMAGES, config.trainer.batch_size))
    count = reading.available(train, most)
    leaves = facts.leaves_of(train, count)
    yield "lines", ("structure of an example", facts.table(leaves, count))
    drawn = None if images is None else facts.index_of(leaves, images)
    yield "doing", "reading the targets"
    labels = {
        name: known
        for name, source in (("training", train), ("validation", splits.validation))
        if (known := facts.known_classes(source)) is not None
    }
    names: Sequence[str] = ()
    if "training" in labels and not losses.is_regression(config, splits):
        names = list(train.info.class_names())
        lines = facts.class_table(labels, facts.classes(splits), names)
        yield "lines", ("classes of the target", lines)
    facts.refuse_ragged(leaves)
    if layers:
        yield "doing", "building the model"
        yield "lines", ("layers of the model", layers_of(config, splits))
    yield "doing", "looking at the columns"
    if kinds := look.columns(splits):
        yield "lines", ("columns", kinds)
    if advice := look.advice(splits, losses.is_regression(config, splits)):
        yield "lines", ("worth a look", advice)
    yield "doing", "reading all examples"
    if reads := _readable(splits, check):
        yield "lines", ("readable", [reads])
    if examples:
        lines = _examples(config, data, leaves, min(examples, count), names)
        yield "lines", ("the first training examples", lines)
    if drawn is not None:
        yield "doing", "reading images"
        yield "pictures", _pictures(config, data, drawn, names)
    if measure:
        yield "doing", "measuring how fast it can be read"
        yield "lines", _speed(config, data)


def _readable(splits: Splits, everything: bool) -> str | None:
    """Read the examples of both splits, and return how many can be read; None of streams.

    Raises:
        DataError: naming the first that cannot be read.
    """
    sources = [each for split in (splits.train, splits.validation) for each in members_of(split)]
    if any(isinstance(source, Stream) for source in sources):
        return None
    end = time.monotonic() + _TRIED
    total, count = sum(map(len, sources)), 0
    for source in sources:
        for begin in range(0, len(source), reading.CHUNK):
            if not everything and time.monotonic() > end:
                return f"{count:,} of {total:,} examples can be read; check=true reads all"
            rows = np.arange(begin, min(begin + reading.CHUNK, len(source)))
            problem = reading.first_bad(source, rows)
            if problem is not None:
                raise problem
            count += len(rows)
    return f"all {total:,} examples can be read"


def _examples(
    config: Config, data: Data, leaves: Sequence[Leaf], count: int, names: Sequence[str]
) -> list[str]:
    """Return the first examples in short, with what augmentation makes of their inputs."""
    source = data.splits.train
    changed: list[np.ndarray] = []
    if data.augment is not None:
        changed = _augmented(config, data.augment, reading.first(source, count)[0], 0)
    columns: list[tuple[str, Any]] = []
    for leaf in leaves:
        columns.append((leaf.label, leaf.values))
        if leaf.role == "input" and changed:
            columns.append(("  augmented", changed.pop(0)))

    def row(label: str, value: np.ndarray) -> list[str]:
        text = facts.shown(value)
        is_class = label.startswith("target") and text.isdecimal() and int(text) < len(names)
        return [label, f"{text} {names[int(text)]}" if is_class else text]

    lines = []
    for index in range(count):
        where = f"example {index:,}" if isinstance(source, Stream) else source.info.place(index)
        rows = [row(label, values[index : index + 1]) for label, values in columns]
        lines += [where, *(f"  {line}" for line in aligned(rows))]
    return lines


def _augmented(config: Config, augment: Augment, x: Nest, begin: int) -> list[np.ndarray]:
    """Return inputs as a training changes them at positions from ``begin`` on."""
    with runtime().on_cpu():
        keys = draw_keys(config.seed, begin, len(nest.leaves(x)[0]))
        changed = runtime().augmented(augment, x, keys)
        return [np.asarray(leaf) for leaf in nest.leaves(changed)]


def _pictures(config: Config, data: Data, chosen: int, names: Sequence[str]) -> Json:
    """Return the images that a training gets first: before and after augmentation, and captions.

    They are in its order: the first of a dataset are often all of one class.

    Args:
        config: of the training.
        data: has them.
        chosen: which of the arrays of an example they are.
        names: of the classes.
    """
    source = data.splits.train
    count = reading.available(source, facts.IMAGES)
    size = min(config.trainer.batch_size, count)
    before, after, texts = [], [], []
    for begin in range(0, count, size):
        few = min(size, count - begin)
        x, *rest = _at(data, begin, few)
        before.append(facts.small(nest.leaves(x)[chosen]))
        targets = nest.leaves(rest[0]) if rest and rest[0] is not None else []
        texts += facts.captions(targets, names, few)
        if data.augment is not None:
            augmented = _augmented(config, data.augment, x, begin)
            after.append(facts.small(augmented[chosen]))
    parts = [np.concatenate(each) for each in (before, after) if each]
    images, *changed = facts.drawable(parts)
    return {"images": images, "changed": changed[0] if changed else None, "captions": texts}


def _at(data: Data, begin: int, count: int) -> Parts:
    """Return the examples at some positions of a training."""
    source = data.splits.train
    if data.order is None or isinstance(source, Stream):
        return reading.first(source, count, begin)
    return reading.chosen(source, data.order(np.arange(begin, begin + count)))


def _speed(config: Config, data: Data) -> tuple[str, list[str]]:
    """Return a title and lines: how fast it can be read, as a training does and in order."""
    inputs = facts.inputs(config, data)
    shuffled = data.order is not None and not isinstance(data.order, Sequential)
    with data.pool as pool:
        pool.ready()
        lines = [f"{_measured(inputs)} {'shuffled' if shuffled else 'in order'}"]
        if shuffled:
            in_order = dataclasses.replace(inputs, order=Sequential(len(data.splits.train)))
            lines.append(f"{_measured(in_order)} in order")
    readers = f", by {pool.workers} processes" if pool.workers else ""
    return f"reading, in batches of {inputs.global_batch:,}{readers}", lines


def _measured(inputs: Inputs) -> str:
    """Return how fast one replica reads batches of training: for 2 s, or for one shorter pass.

    Raises:
        DataError: an example cannot be read.
    """
    whole = examples_in(inputs.train)
    with failures.shown(), runtime().on_cpu():
        batches = runtime().batches(inputs)
        begun = time.perf_counter()
        for _ in range(WARM_BATCHES):
            next(batches)
            if time.perf_counter() - begun > WARM_SECONDS:
                break
        examples = size = 0
        begun, seconds = time.perf_counter(), 0.0
        while seconds < (LEAST if whole is not None and examples >= whole else SECONDS):
            size += _bytes(next(batches))
            examples += inputs.global_batch
            seconds = time.perf_counter() - begun
    rate = size / seconds / 1e6
    return (
        f"{examples / seconds:,.0f} examples/s, "
        f"{f'{rate:,.0f}' if rate >= 100 else f'{rate:.3g}'} MB/s"
    )


def _bytes(batch: Parts) -> int:
    leaves = [leaf for part in batch if part is not None for leaf in nest.leaves(part)]
    arrays = map(np.asarray, leaves)
    return sum(
        sum(map(len, array.flat)) if array.dtype == object else array.nbytes for array in arrays
    )


#: What TensorFlow puts in front of a message, of an error of an operation and of a function that it
#: traces; and a line of the traceback in one.
_AROUND = re.compile(r"^(\{\{.*?\}\} )?(Error in user-defined function .*? iterator: \S+: )?")
_TRACED = "in user code:"
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')


def child(*arguments: Any) -> None:
    """Answer as :func:`dtrain.task.process.answer.answer`: send the parts of a report.

    What is asked are arguments of :func:`dtrain.inspection.report.report`.
    """
    answer(_reported, _message, *arguments)


def _reported(config: Config, cluster: Cluster, send: Send, asked: Json) -> None:
    with before_training(config.dataset):
        for part in report(config, cluster, **asked):
            send(part)


def _message(error: Exception) -> str:
    """Return what went wrong, without what is TensorFlow's own; print where, of the user's code."""
    lines = str(getattr(error, "message", error)).splitlines() or [""]
    places = [match.groups() for match in map(_FRAME.search, lines) if match is not None]
    users = [place for place in places if own_code.is_users(place[0])]
    where = " ({}, line {}, in {})".format(*users[-1]) if users else ""
    if lines[0] == _TRACED:
        return [line.strip() for line in lines if line.strip()][-1] + where
    if isinstance(error, runtime().ERRORS):
        return _AROUND.sub("", lines[0]) + where
    print(secrets.mask(own_code.part(error)), file=sys.stderr)
    return f"{type(error).__name__}: {error}"


# Tables of a model that is built and not trained: its layers, and what devices have of it.

#: Headings of columns that are set to the right.
NUMBERS = ("bytes", "on each device", "parameters", "trained")


def describe_child(*arguments: Any) -> None:
    """Answer as :func:`dtrain.task.process.answer.answer`: a table, as lines."""
    answer(lambda config, cluster, *_: describe(config, cluster), errors.describe, *arguments)


def describe(config: Config, cluster: Cluster) -> list[str]:
    """Return a table of the model's variables or layers, and of what each device has of them.

    Raises:
        UsageError: the model cannot be built, or ``strategy.rules`` do not fit it.
    """
    # The variables are the same there, and other tasks are not.
    on_cpu = dataclasses.replace(cluster, device_kind="cpu", tasks=(cluster.chief,))
    devices = runtime().configure(config.hardware, on_cpu, cluster.chief)
    splits = dataset.load(config).splits
    plan = strategy_plan.of(config)
    if plan.divides == "variables":
        rows = _variables(config, splits, plan.parts(cluster))
    else:
        rows = _layers(config, splits, devices, cluster.device_kind.upper())
    return _aligned(rows)


def _aligned(rows: Any) -> list[str]:
    return aligned(rows, {i for i, heading in enumerate(rows[0]) if heading in NUMBERS})


def layers_of(config: Config, splits: Splits) -> list[str]:
    """Return a table of what each layer takes and gives in training; nothing is computed.

    Args:
        config: of the training.
        splits: its data.

    Raises:
        UsageError: the model cannot be built.
    """
    shapes = _Shapes()
    with calls.watched(shapes, symbolic=True) as watched:
        model = build.model(config, splits, strategies.Default([]), 1, 1, trains=False)
        with watched():
            spec = reading.specs(splits.train, config.trainer.batch_size)
            runtime().trace(lambda x: model(x, training=True), spec[0])
    total, trained = map(_count, (model.weights, model.trainable_weights))
    shapes.rows.append(["all", type(model).__name__, "", "", total, trained])
    head = ("layer", "class", "input", "output", "parameters", "trained")
    return _aligned([head, *dict.fromkeys(map(tuple, shapes.rows))])


class _Shapes:
    """A watcher of calls that makes a row of each, in the order in which they begin."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self._open: list[list[str]] = []

    def entered(self, path: str, layer: keras.Layer, args: Nest, kwargs: Nest) -> tuple[Nest, Nest]:
        """Take note of what goes into a layer."""
        above, _, name = path.rpartition("/")
        depth = above.count("/") + bool(above)
        self._open.append(
            ["  " * depth + name, type(layer).__name__, _described((args, kwargs)), "", "0", "0"]
        )
        self.rows.append(self._open[-1])
        return args, kwargs

    def left(self, path: str, layer: keras.Layer, outputs: Nest) -> Nest:
        """Take note of what comes out of it."""
        row = self._open.pop()
        row[3] = _described(outputs)
        if isinstance(layer, keras.Layer):
            row[4:] = _count(layer.weights), _count(layer.trainable_weights)
        return outputs


def _count(weights: Sequence[keras.Variable]) -> str:
    return f"{sum(math.prod(weight.shape) for weight in weights):,}"


def _described(values: Nest) -> str:
    """Return types and shapes of tensors, as ``float32 [64, 8]``; a size that differs is ``?``."""
    texts, kinds = list[str](), (keras.KerasTensor, *runtime().TENSORS)
    tensors: list[Tensor] = [each for each in keras.tree.flatten(values) if isinstance(each, kinds)]
    for tensor in tensors:
        sizes = ", ".join("?" if size is None else str(size) for size in tensor.shape)
        texts.append(f"{keras.backend.standardize_dtype(tensor.dtype)} [{sizes}]")
    return ", ".join(texts) or "-"


def _variables(config: Config, splits: Splits, parts: int) -> list[tuple[str, ...]]:
    """Return a row for each variable of a model in ``parts``."""
    model = build.model(config, splits, strategies.Default([]), 1, 1)
    shapes = [(v.path, tuple(v.shape)) for v in model.variables]
    axes = layouts.Rules(config.strategy.rules, parts).axes(shapes)
    split = [(*each, axis) for each, axis in zip(shapes, axes, strict=True)]
    kept = [] if model.optimizer is None else model.optimizer.variables
    slots = [layouts.slot(v.name, tuple(v.shape), split) for v in kept]
    rows: list[tuple[str, ...]] = [("variable", "shape", "layout", "bytes", "on each device")]
    for variable, axis in zip(model.variables, axes, strict=True):
        shape = " x ".join(map(str, variable.shape))
        layout = "whole" if axis is None else f"split {axis}"
        rows.append((variable.path, shape, layout, *_sizes([variable], [axis], parts)))
    rows.append(("all variables", "", "", *_sizes(model.variables, axes, parts)))
    rows.append(("optimizer", "", "as its variable", *_sizes(kept, slots, parts)))
    return rows


def _layers(config: Config, splits: Splits, devices: list[str], kind: str) -> list[tuple[str, ...]]:
    """Return a row for each layer, and what its variables and the optimizer come to on a device."""
    strategy = strategies.LayerPlacement(devices, config.strategy.rules)
    model = build.model(config, splits, strategy, 1, 1)
    rows: list[tuple[str, ...]] = [("layer", "device", "bytes")]
    rows += [(path, f"{kind}:{index}", f"{size:,}") for path, index, size in strategy.placed]
    kept = [] if model.optimizer is None else model.optimizer.variables
    for name, variables in (("all variables", model.variables), ("optimizer", kept)):
        for index, device in enumerate(devices):
            size = sum(_size(v) for v in variables if v.value.device.endswith(device))
            rows.append((name, f"{kind}:{index}", f"{size:,}"))
    return rows


def _sizes(variables: list[keras.Variable], axes: list[int | None], parts: int) -> tuple[str, str]:
    """Return the bytes of all of them, and of what one device has."""
    sizes = list(map(_size, variables))
    own = (size if axis is None else size // parts for size, axis in zip(sizes, axes, strict=True))
    return f"{sum(sizes):,}", f"{sum(own):,}"


def _size(variable: keras.Variable) -> int:
    """Return the bytes of a variable."""
    return int(runtime().to_numpy(variable).nbytes)
