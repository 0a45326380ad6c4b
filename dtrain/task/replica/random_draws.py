"""Random draws of layers are those of the global batch, on any number of replicas.

Under ``tf.distribute`` every replica holds the same seeds: each would drop the same units of its
own examples, and four replicas would drop others than one. Here replica ``r`` of ``R`` draws just
the rows that one replica with the whole global batch would have drawn for the same examples.

It costs nothing for ``dropout``, ``uniform`` and ``normal``. TensorFlow's generator Philox
(Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3) is a function of a key and a
counter; TensorFlow makes elements ``4 i .. 4 i + 3`` of a draw from ``counter + i``, two of them
where they have 64 bits, on CPUs and under XLA, as tests verify; GPUs draw as CPUs do, by its
documentation (``tf.random.stateless_uniform``). So a replica begins at a later counter. TPUs may
use another generator; this pins Philox where there are several replicas, untried on a TPU.

What is per example is told by the first dimension: of a model with layers of other classes than
Keras' own by whether it changes with the size of the batch (:mod:`dtrain.task.rehearsal`), else by
whether it is a multiple of the rows of the batch. What is not, such as noise shared by a batch, is
alike on all replicas. ``shuffle`` of examples is refused: a replica has its part of them alone.
Draws that come neither from ``keras.random`` nor from the functions of ``tf.random`` in
:data:`TENSORFLOW` stay as they are, alike on all replicas.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import math
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.errors import TrainingError, UsageError

#: The module whose functions all of Keras looks up when it draws, and what they must look like.
#: No public hook is on the way from a layer to its draw: seeds are made inside of layers.
MODULE = "keras.src.backend.tensorflow.random"
PARAMETERS = {
    "dropout": ["inputs", "rate", "noise_shape", "seed"],
    "uniform": ["shape", "minval", "maxval", "dtype", "seed"],
    "normal": ["shape", "mean", "stddev", "dtype", "seed"],
    "truncated_normal": ["shape", "mean", "stddev", "dtype", "seed"],
    "randint": ["shape", "minval", "maxval", "dtype", "seed"],
    "categorical": ["logits", "num_samples", "dtype", "seed"],
    "gamma": ["shape", "alpha", "dtype", "seed"],
    "binomial": ["shape", "counts", "probabilities", "dtype", "seed"],
    "beta": ["shape", "alpha", "beta", "dtype", "seed"],
    "shuffle": ["x", "axis", "seed"],
    "draw_seed": ["seed"],
    "_cast_seed": ["seed"],
}

#: Functions of ``tf.random`` that layers call themselves, as ``RandomElasticTransform`` does.
TENSORFLOW = {"stateless_uniform": "uniform", "stateless_normal": "normal"}

# MirroredStrategy traces each replica in a thread of its own, and they take turns.
_current = threading.local()
_installing = threading.Lock()


@contextlib.contextmanager
def part(
    replica: Any, replicas: int, rows: int, draws: Sequence[bool | None] | None = None
) -> Iterator[None]:
    """Make what is traced or run inside draw the rows of one replica of a global batch.

    It holds in this thread alone: enter it in the function that a strategy runs, not around it.

    Args:
        replica: which one, an int or an integer scalar tensor.
        replicas: how many equal parts the global batch has; with 1 Keras draws as ever.
        rows: how many examples one part has.
        draws: of each draw, in their order, whether it has a row an example; where it is None, or
            there are more, the first dimension tells.

    Raises:
        TrainingError: this version of Keras draws in another way.
    """
    if replicas > 1:
        install()
    known = tf.get_static_value(replica)
    index = tf.cast(replica, tf.int32) if known is None else int(known)
    before = getattr(_current, "part", None)
    _current.part = _Part(index, replicas, rows, iter(draws or ())) if replicas > 1 else None
    try:
        yield
    finally:
        _current.part = before


@dataclasses.dataclass
class Record:
    """What was drawn, in its order.

    Attributes:
        names: of the functions.
        sizes: the first dimension of each; None where it has none, or none that is known.
    """

    names: list[str] = dataclasses.field(default_factory=list)
    sizes: list[int | None] = dataclasses.field(default_factory=list)


def per_example(whole: Record, half: Record) -> tuple[bool | None, ...] | None:
    """Say of each draw whether it has a row an example, for :func:`part`.

    Args:
        whole: what was drawn for a batch.
        half: what was drawn for half of it.

    Returns:
        None where the draws are not the same.
    """
    if whole.names != half.names:
        return None
    return tuple(
        {2 * b: True, b: False}.get(a) if a and b else None
        for a, b in zip(whole.sizes, half.sizes, strict=True)
    )


@contextlib.contextmanager
def watched(record: Record) -> Iterator[None]:
    """Draw as ever what is traced or run inside, and fill ``record`` in."""
    install()
    before = getattr(_current, "record", None)
    _current.record = record
    try:
        yield
    finally:
        _current.record = before


def install(name: str = MODULE) -> None:
    """Wrap the functions of Keras' module, once; outside of :func:`part` they do as before.

    Args:
        name: of the module; another one in tests.

    Raises:
        TrainingError: one of them is missing, or has other parameters; nothing is wrapped then.
    """
    with _installing:
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            module = None
        if getattr(module, "drawn_by_dtrain", False):
            return
        for function, expected in PARAMETERS.items():
            there = getattr(module, function, None)
            found = list(inspect.signature(there).parameters) if callable(there) else None
            if found != expected:
                raise TrainingError(
                    f"Keras {keras.__version__} has {name}.{function} with parameters {found}, "
                    f"where dtrain knows {expected}: it cannot draw dropout masks and noise for "
                    "several replicas; train on one, or with the Keras of constraints.txt"
                )
        for function in PARAMETERS.keys() - {"draw_seed", "_cast_seed"}:  # used, not replaced
            setattr(module, function, _wrapped(module, function))
        module.drawn_by_dtrain = True
        if name == MODULE:
            for function, ours in TENSORFLOW.items():
                setattr(tf.random, function, _wrapped_own(module, function, ours))


def _wrapped(module: Any, name: str) -> Callable[..., Any]:
    original = getattr(module, name)
    signature = inspect.signature(original)
    ours: dict[str, Callable[..., Any]] = {
        "dropout": _dropout, "uniform": _uniform, "normal": _normal, "shuffle": _shuffle
    }  # fmt: skip
    draw = ours.get(name, _whole)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return _drawn(name, module, original, draw, bound.arguments)

    return function


def _wrapped_own(module: Any, name: str, of: str) -> Callable[..., Any]:
    """Wrap a function of ``tf.random``, whose seed is drawn already, as that of Keras' ``of``."""
    original = getattr(tf.random, name)
    signature = inspect.signature(original)
    fixed = types.SimpleNamespace(draw_seed=tf.convert_to_tensor, _cast_seed=lambda seed: seed)
    names = {"mean": "mean", "stddev": "stddev", "minval": "minval", "maxval": "maxval"}

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        own = {ours: given[theirs] for ours, theirs in names.items() if theirs in given}
        if own.get("maxval", 1) is None:
            own["maxval"] = 1
        own |= {"shape": given["shape"], "dtype": given["dtype"], "seed": given["seed"]}
        draw = {"uniform": _uniform, "normal": _normal}[of]

        def as_ever(**changed: Any) -> Any:
            return original(**{**given, "shape": changed.get("shape", given["shape"])})

        return _drawn(name, fixed, as_ever, draw, own)

    return function


def _drawn(
    name: str, module: Any, original: Callable[..., Any], draw: Any, given: dict[str, Any]
) -> Any:
    """Draw as ``now`` has it: see :func:`part` and :func:`watched`."""
    now: _Part | None = getattr(_current, "part", None)
    record: Record | None = getattr(_current, "record", None)
    if record is not None:
        record.names.append(name)
        record.sizes.append(_first(given))
    if now is None and record is None:
        return original(**given)
    # What Keras calls to draw is part of this draw, and none of its own.
    _current.part = _current.record = None
    try:
        if now is None:
            return original(**given)
        return draw(_Draw(module, original, now, next(now.draws, None)), **given)
    finally:
        _current.part, _current.record = now, record


def _first(given: dict[str, Any]) -> int | None:
    """Return the first dimension of a draw, None where it has none or it is not known."""
    whole = next((given[key] for key in ("logits", "inputs", "x") if key in given), None)
    shape = given.get("noise_shape")
    if whole is not None:
        sizes = _shape(tf.convert_to_tensor(whole))
        if shape is not None:
            sizes = [a if b is None else b for a, b in zip(sizes, _sizes(shape), strict=True)]
    else:
        sizes = _sizes(given["shape"])
    return sizes[0] if sizes and _known(sizes[0]) else None


@dataclasses.dataclass(frozen=True)
class _Part:
    """See :func:`part`."""

    replica: Any
    replicas: int
    rows: int
    draws: Iterator[bool | None]

    def place(self, first: Any, per_example: bool | None) -> tuple[Any, Any]:
        """Return which of how many pieces a draw with this first dimension is: (0, 1) if shared."""
        if per_example is not None:
            return (self.replica, self.replicas) if per_example else (0, 1)
        if _known(first):
            return (self.replica, self.replicas) if first % self.rows == 0 else (0, 1)
        own = tf.equal(first % self.rows, 0)
        return tf.where(own, self.replica, 0), tf.where(own, self.replicas, 1)


@dataclasses.dataclass(frozen=True)
class _Draw:
    """One call of a function of Keras' module, which was ``original``, inside of ``part``."""

    module: Any
    original: Callable[..., Any]
    part: _Part
    per_example: bool | None

    def place(self, first: Any) -> tuple[Any, Any]:
        """Return which of how many pieces of the global batch's draw this is."""
        return self.part.place(first, self.per_example)

    def rows(self, op: Callable[..., Any], sizes: list[Any], dtype: Any, seed: Any) -> tf.Tensor:
        """Draw this part's rows of what the Philox op ``op`` gives for the global batch."""
        dtype = tf.as_dtype(dtype)
        seed = self.module._cast_seed(self.module.draw_seed(seed))
        first, *rest = sizes
        width: Any = math.prod(size if _known(size) else tf.cast(size, tf.int64) for size in rest)
        index, pieces = self.place(first)
        begin = index * first
        group = 2 if dtype.size == 8 else 4  # elements that are made from one counter
        # XLA makes normal numbers of pairs of rows, or of columns where the number of rows is odd.
        together = 2 if op is tf.raw_ops.StatelessRandomNormalV2 else 1
        # A counter begins with every row whose number is a multiple of this.
        period = max(together, group // math.gcd(width, group) if _known(width) else group)
        if _known(first) and first % period == 0:
            cut = spare = 0
        else:
            cut = begin % period
            spare = cut if _known(cut) else period - 1
        rows = first + spare
        rows += (rows + first * pieces) % together
        skip = (begin - cut if _known(begin) else tf.cast(begin - cut, tf.int64)) * width // group

        state = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
        counter = state.counter
        if not _known(skip) or skip:
            # The low word is 0 as yet, and never comes near its end.
            skip = tf.constant(skip, tf.uint64) if _known(skip) else tf.cast(skip, tf.uint64)
            counter += tf.stack([skip, tf.zeros([], tf.uint64)])
        shape = tf.convert_to_tensor([rows, *rest])
        alg = tf.random.Algorithm.PHILOX.value
        drawn = op(shape=shape, key=state.key, counter=counter, alg=alg, dtype=dtype)
        if _known(rows) and rows == first:
            return drawn
        return tf.slice(drawn, [cut] + [0] * len(rest), sizes)


def _dropout(draw: _Draw, inputs: Any, rate: Any, noise_shape: Any, seed: Any) -> Any:
    sizes = _shape(inputs := tf.convert_to_tensor(inputs))
    if not sizes or (not tf.is_tensor(rate) and rate in (0, 1)):
        return draw.original(inputs, rate, noise_shape, seed)
    if noise_shape is not None:
        noise = enumerate(_sizes(noise_shape))
        sizes = [sizes[i] if size is None else size for i, size in noise]
    uniform = tf.raw_ops.StatelessRandomUniformV2
    return tf.nn.experimental.general_dropout(
        inputs,
        rate=rate,
        noise_shape=sizes,
        uniform_sampler=lambda shape, dtype: draw.rows(uniform, sizes, dtype, seed),
    )


def _uniform(draw: _Draw, **given: Any) -> Any:
    sizes, dtype = _sizes(given["shape"]), tf.as_dtype(given["dtype"] or keras.config.floatx())
    if not sizes or not dtype.is_floating:
        return _whole(draw, **given)
    low, high = tf.cast(given["minval"], dtype), tf.cast(given["maxval"], dtype)
    drawn = draw.rows(tf.raw_ops.StatelessRandomUniformV2, sizes, dtype, given["seed"])
    return drawn * (high - low) + low


def _normal(draw: _Draw, **given: Any) -> Any:
    sizes, dtype = _sizes(given["shape"]), tf.as_dtype(given["dtype"] or keras.config.floatx())
    odd = draw.part.replicas % 2 and all(_known(size) and size % 2 for size in sizes)
    if not sizes or odd:  # what XLA makes a normal number of then cannot be told by the rows
        return _whole(draw, **given)
    mean, stddev = (tf.convert_to_tensor(given[name], dtype) for name in ("mean", "stddev"))
    drawn = draw.rows(tf.raw_ops.StatelessRandomNormalV2, sizes, dtype, given["seed"])
    return drawn * stddev + mean


def _shuffle(draw: _Draw, x: Any, axis: int, seed: Any) -> Any:
    x = tf.convert_to_tensor(x)
    if axis in (0, -x.shape.rank):
        _, pieces = draw.place(_shape(x)[0])
        if not _known(pieces) or pieces > 1:
            raise UsageError(
                "model", "keras.random.shuffle",
                "orders the examples of a batch, and each replica has its part of them alone; "
                "keras.layers.MixUp and CutMix call it",
                "a model without it, or one replica", "strategy=one_device",
            )  # fmt: skip
    return draw.original(x, axis, seed)


def _whole(draw: _Draw, **given: Any) -> Any:
    """Draw for the global batch and keep this part: for what is rare, and not elements in a row.

    Parameters that have a row for each of this part's are those of the other parts as well.
    """
    logits = given.get("logits")
    sizes = _sizes(given["shape"]) if logits is None else _shape(tf.convert_to_tensor(logits))
    index, pieces = draw.place(sizes[0]) if sizes else (0, 1)
    if _known(pieces) and pieces == 1:
        return draw.original(**given)

    def of_all(value: Any) -> Any:
        if np.ndim(value) < len(sizes) or value.shape[0] == 1:
            return value
        return tf.tile(value, [pieces] + [1] * (len(sizes) - 1))

    fixed = ("shape", "num_samples", "dtype", "seed")
    changed = {k: v if k in fixed else of_all(v) for k, v in given.items()}
    if logits is None:
        changed["shape"] = [sizes[0] * pieces, *sizes[1:]]
    drawn = draw.original(**changed)
    return tf.reshape(drawn, [pieces, sizes[0], *_shape(drawn)[1:]])[index]


def _known(size: Any) -> bool:
    return isinstance(size, int)


def _sizes(shape: Any) -> list[Any]:
    """Return the dimensions of a shape: ints where they are known, None, or int32 scalars."""
    if tf.is_tensor(shape):
        known = tf.get_static_value(shape)
        shape = tf.unstack(shape) if known is None else known
    sizes = []
    for size in shape:
        known = size if size is None else tf.get_static_value(size)
        if known is None and size is not None:
            size = tf.cast(size, tf.int32)
        sizes.append(size if known is None else int(known))
    return sizes


def _shape(tensor: tf.Tensor) -> list[Any]:
    """Return the dimensions of a tensor of known rank: ints where they are known."""
    sizes = [tf.shape(tensor)[i] if s is None else s for i, s in enumerate(tensor.shape)]
    return _sizes(sizes)
