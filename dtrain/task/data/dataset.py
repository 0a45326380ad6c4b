"""From the ``dataset`` group to what a run reads: sources, their order, what changes examples.

The random numbers of Keras' preprocessing layers are of variables; in ``dataset.augment`` they are
of the seed that functions of :mod:`dtrain.augment` get.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from dtrain.config import targets, trust
from dtrain.config.tree import Config
from dtrain.data import nest
from dtrain.data.convert import adapted
from dtrain.data.encoding import Encoding
from dtrain.data.failures import before_training
from dtrain.data.images import DecodedImages
from dtrain.data.mixture import Mixture, Subset, members_of
from dtrain.data.options import OnError, Options, Shuffle, divided
from dtrain.data.order import Balanced, Order, order_of
from dtrain.data.sources import Source, Splits
from dtrain.data.streams import Stream, examples_in, settle_streams
from dtrain.data.tabular.encoded import unseen
from dtrain.data.target_kind import Counted, ignored_label
from dtrain.data.transforms import padded, weighted
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.task.aliases import Function, Nest, Tensor
from dtrain.task.backends.runtime import runtime
from dtrain.task.data import data_identity, reading
from dtrain.task.data.inputs import Augment
from dtrain.task.data.readers import Pool

#: Examples whose range of values is looked at before Keras' layers change them, at most.
_TRIED = 64


@dataclasses.dataclass(frozen=True)
class Data:
    """The examples of a run.

    Attributes:
        splits: what to train and evaluate on, as sources and streams.
        options: how they are read.
        augment: changes training examples; None for none.
        order: of training; None for a stream, which has its own.
        identity: records of what they are, by split (:mod:`dtrain.task.data.data_identity`).
        pool: of the readers, a context that they are there in.
        notices: what is to be reported of them.
    """

    splits: Splits
    options: Options
    augment: Augment | None
    order: Order | None
    identity: dict[str, Json]
    pool: Pool
    notices: tuple[str, ...] = ()

    def without_validation(self) -> Data:
        """Return the same examples, and none to evaluate on."""
        return dataclasses.replace(self, splits=dataclasses.replace(self.splits, validation=None))


def load(
    config: Config, trains: bool = True, encoding: Encoding | None = None, test: bool = False
) -> Data:
    """Make the examples of a run from its ``dataset`` group.

    Args:
        config: of the run.
        trains: whether they are trained on: the weights of classes are of a training alone.
        encoding: by which the columns of a table are read; None: it is fitted.
        test: those to test on are in the place of the validation.

    Raises:
        UsageError: they cannot be read, or are not what the other keys ask for.
    """
    with before_training(config.dataset):
        return _loaded(config, trains, encoding, test)


def _loaded(config: Config, trains: bool, encoding: Encoding | None, test: bool) -> Data:
    node, options = divided(config.dataset)

    def made() -> Splits:
        value = targets.instantiate(node, "dataset", on_error=options.on_error, fitted=encoding)
        splits = adapted(value)
        if test:
            splits = dataclasses.replace(splits, validation=splits.test)
        return runtime().readable(splits, str(node["_target_"]))

    splits = dataclasses.replace(_with_some(made(), node), task=options.task)
    ignored = ignored_label(config.trainer.loss)
    if ignored is not None and isinstance(splits.classes, Counted):
        splits = dataclasses.replace(splits, classes=splits.classes.without(ignored))
    splits = padded(splits, options.pad)
    if options.on_error is OnError.skip and isinstance(splits.train, DecodedImages):
        refuse("dataset.on_error",
               "images that are all decoded first cannot be left out one by one", "skip",
               accepted="dataset.cache=none, or fail", typed="dataset.cache=none")  # fmt: skip
    pool = Pool(splits, options.workers, node)
    splits = pool.splits
    notices: list[str | None] = [*splits.notices, *pool.notices]
    if options.on_error is OnError.skip:
        (train, one), (held, other) = map(_sound, (splits.train, splits.validation))
        splits = dataclasses.replace(splits, train=train, validation=held)
        notices += [one, other]
    if splits.encoding is not None:
        made_of = splits.encoding()
        if encoding is None:
            notices += unseen(splits.validation, made_of)
            out = made_of.left_out.items()
            notices += [f"the column {name!r} is left out: {why}" for name, why in out]
            notices += made_of.notices
        elif not trains:
            other = splits.train if splits.validation is None else splits.validation
            notices += unseen(other, made_of, "this data")
        names = [feature.name for feature in made_of.features]
        splits = dataclasses.replace(splits, columns={**(splits.columns or {}), "inputs": names})
    data_records = data_identity.records(splits)
    notices += count_streams(splits, config)
    settle_streams(splits, made)
    classes = config.trainer.class_weight
    if classes is not None and trains:
        splits = dataclasses.replace(splits, train=weighted(splits, classes, reading.first))
    order = _order(splits, options, config.seed)
    changes = _augment(options, splits)
    return Data(splits, options, changes, order, data_records, pool, tuple(filter(None, notices)))


def _with_some(splits: Splits, node: Mapping[str, object]) -> Splits:
    """Return splits without a validation of no examples, where that is what was split off.

    Raises:
        UsageError: there is nothing to train on, or to evaluate on where that was asked for.
    """
    if not isinstance(splits.train, Stream) and not len(splits.train):
        refuse("dataset", "there is nothing to train on", "0 examples",
               accepted="one example or more", hint="a dataset that has some")  # fmt: skip
    held = splits.validation
    if held is None or isinstance(held, Stream) or len(held):
        return splits
    if path := node.get("validation"):
        refuse("dataset.validation", "has no example", path, accepted="one example or more, or "
               "null", typed="dataset.validation=null")  # fmt: skip
    if "validation_split" not in node:
        refuse("dataset", "has no example", "the validation", accepted="one or more, or None",
               hint="return what to train on alone")  # fmt: skip
    return dataclasses.replace(splits, validation=None)


def _sound(source: Any) -> tuple[Source | None, str | None]:
    """Return a source without the examples that cannot be read, and a sentence about them."""
    if source is None:
        return None, None
    if isinstance(source, Stream | Mixture):
        refuse("dataset.on_error",
               "examples of a stream or a mixture cannot be left out before they are read", "skip",
               accepted="a dataset with random access", typed="dataset.on_error=fail")  # fmt: skip
    bad = list(reading.bad_examples(source, np.arange(len(source))))
    if not bad:
        return source, None
    if len(bad) == len(source):
        raise bad[0][1]
    rows = np.delete(np.arange(len(source)), [index for index, _ in bad])
    return Subset(source, rows), (
        f"dataset.on_error=skip: {len(bad):,} of {len(source):,} examples cannot be read and are "
        f"left out, the first: {bad[0][1]}"
    )


def _order(splits: Splits, options: Options, seed: int) -> Order | None:
    if options.balance:
        labels = None if isinstance(splits.train, Stream | Mixture) else splits.train.info.labels()
        if labels is None or labels.ndim != 1 or labels.dtype.kind not in "biu":
            refuse("dataset.balance", "the classes of the examples are not known without their "
                   "inputs", "true", accepted="a dataset whose target is one column of classes",
                   typed="dataset.balance=false")  # fmt: skip
        return Balanced(labels, seed)
    if isinstance(splits.train, Stream):
        if options.shuffle not in (Shuffle.auto, Shuffle.none):
            refuse("dataset.shuffle", "a stream has an order of its own", options.shuffle.name,
                   accepted="auto, none, or tf.data's shuffle with a seed",
                   typed="dataset.shuffle=auto")  # fmt: skip
        return None
    every = members_of(splits.train)
    if options.shuffle is Shuffle.blocks and all(each.info.blocks() is None for each in every):
        refuse("dataset.shuffle", "each example of this dataset is read by itself", "blocks",
               accepted="auto, examples, none", typed="dataset.shuffle=examples")  # fmt: skip
    return order_of(splits.train, options.shuffle, options.window, seed)


def _augment(options: Options, splits: Splits) -> Augment | None:
    nodes = options.augment
    if not nodes:
        return None
    keys = {"dataset.augment": nodes} if isinstance(nodes, Mapping) else {
        f"dataset.augment[{index}]": node for index, node in enumerate(nodes)
    }  # fmt: skip
    functions = [_one_augment(key, node, splits) for key, node in keys.items()]
    return in_turn(functions)


def _one_augment(key: str, node: Mapping[str, Any], splits: Splits) -> Augment:
    made = targets.instantiate({**node, "_partial_": True}, key)
    is_layer = inspect.isclass(made.func)
    function: Augment = Layer(made(), key) if is_layer else made
    if is_layer or node["_target_"].partition(".")[0] in trust.KNOWN:  # tried before training
        x, *_ = reading.first(splits.train, _TRIED if is_layer else 1)
        if isinstance(function, Layer):
            for leaf in nest.leaves(x):
                function.check(key, leaf)
        with targets.blame(key, node, node["_target_"]), runtime().on_cpu():
            one = nest.mapped(lambda leaf: keras.ops.convert_to_tensor(leaf[0]), x)
            changed = function(one, seed=runtime().fold_in(np.zeros(2, np.int32), 0))
            if is_layer and changed.shape != one.shape:
                raise ValueError(f"makes an example of shape {changed.shape} of {one.shape}: the "
                                 "model is built for the other shape")  # fmt: skip
    return function


def lengths(splits: Splits) -> tuple[int | None, int | None]:
    """Return how many examples there are to train and to evaluate on, None where not known."""
    return examples_in(splits.train), examples_in(splits.validation)


_STREAM_NOTICE = (
    "the data is a stream of {}: it is read in its own order, by every host, and a resumed run "
    "reads it from its beginning up to its position"
)


def count_streams(splits: Splits, config: Config) -> tuple[str, ...]:
    """Count what a validation is to evaluate, where a stream does not say.

    Returns:
        What is to be reported.

    Raises:
        UsageError: how many steps an epoch has is not known, or the validation has no end.
    """
    train, held, trainer = splits.train, splits.validation, config.trainer
    if isinstance(held, Stream):
        most = None
        if trainer.validation_steps is not None:
            batch = trainer.validation_batch_size or trainer.batch_size
            most = trainer.validation_steps * batch
        held.count(most)
    if not isinstance(train, Stream):
        return ()
    if trainer.steps_per_epoch is None and train.length_of_a_small_one() is None:
        about = train.estimate()
        problem = "how many examples the stream has is not known"
        if about is not None:
            problem = f"how many examples the {about[0]:,} batches of the stream have is not known"
        steps = 100 if about is None else max(1, about[0] * about[1] // trainer.batch_size)
        refuse("trainer.steps_per_epoch", problem, "null", accepted="the steps of an epoch",
               typed=f"trainer.steps_per_epoch={steps}")  # fmt: skip
    return (_STREAM_NOTICE.format("batches" if train.is_batched() else "single examples"),)


class _PositionSeed(keras.random.SeedGenerator):
    """A stateless seed generator: its n-th seed is a function of ``key`` and n."""

    key: Any = None
    _draws = 0

    def start(self, key: Tensor) -> None:
        """Draw from ``key``, the seed of an example, from here on."""
        self.key, self._draws = key, 0

    def next(self, ordered: bool = True) -> Tensor:
        """Return a seed."""
        self._draws += 1
        return runtime().fold_in(self.key, self._draws)


class Layer:
    """Calls a Keras layer on one example, with random numbers of the example's seed.

    Args:
        layer: one of Keras' preprocessing layers, or of the user's own whose random numbers come
            from seed generators that are its attributes.
        key: in the configuration, for messages.

    Raises:
        UsageError: the layer changes several examples together, or not by a seed.
    """

    #: Of Keras, those whose changes are not of one example and its seed.
    REFUSED = {
        "MixUp": "mixes the examples of a batch, and their targets",
        "CutMix": "mixes the examples of a batch, and their targets",
        "AugMix": "draws from Python's random numbers, once for all examples",
    }

    def __init__(self, layer: keras.Layer, key: str):
        kind = type(layer).__name__
        if kind in self.REFUSED:
            refuse(key, self.REFUSED[kind], kind, accepted="layers that change one example by its "
                   "seed", hint=f"the configuration without {key}")  # fmt: skip
        self._layer = layer
        self._seeds = _PositionSeed(0)
        for part in _layers(layer):
            for name, value in vars(part).items():
                if isinstance(value, keras.random.SeedGenerator):
                    setattr(part, name, self._seeds)

    def __call__(self, x: Nest, seed: Tensor) -> Nest:
        """Return what the layer makes of ``x``, in the type of ``x``."""
        self._seeds.start(seed)
        ops = keras.ops
        changed = ops.convert_to_tensor(self._layer(ops.cast(x, "float32"), training=True))
        if keras.backend.is_int_dtype(x.dtype):
            changed = ops.saturate_cast(ops.round(changed), x.dtype)
        return ops.cast(changed, x.dtype)

    def check(self, key: str, x: np.ndarray) -> None:
        """Refuse a range of values that is not that of the examples.

        Args:
            key: of the node.
            x: some examples, ``[n, ...]``.

        Raises:
            UsageError: naming the range.
        """
        bounds = [tuple(getattr(part, "value_range", (0, 1))) for part in _layers(self._layer)]
        high = max(high for _, high in bounds)
        if high == 255 and x.size and x.max() <= 1.0:
            refuse(f"{key}.value_range", f"the examples are {x.min():.4g} to {x.max():.4g}",
                   "[0, 255]", accepted="[0, 1] for these",
                   hint=f"value_range: [0, 1], in the node of {key}")  # fmt: skip


def _layers(layer: keras.Layer) -> Iterator[keras.Layer]:
    """Yield a layer and those that are its attributes, alone or in a list."""
    yield layer
    for value in list(vars(layer).values()):
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, keras.Layer) and part is not layer:
                yield from _layers(part)


def in_turn(functions: Sequence[Function]) -> Function:
    """Return a function of an example and a seed that calls others one after the other.

    Args:
        functions: of an example and a seed; each gets a seed of its own.
    """

    def augment(x: Nest, seed: Tensor) -> Nest:
        for index, function in enumerate(functions):
            own = runtime().fold_in(seed, index) if index else seed
            x = function(x, seed=own)
        return x

    return augment
