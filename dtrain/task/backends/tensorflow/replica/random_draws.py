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

The first dimension shows which draws are per example: those where it is a multiple of the rows of
the batch; in a model with layers that are not Keras' own, and where a replica has one example,
those where it changes with the size of the batch, as a rehearsal finds out
(:mod:`.rehearsal`), or a trace (:mod:`.global_batch`). What is not per example, such as
noise shared by a batch, is alike on all replicas. ``shuffle`` of examples is refused: a replica has
its part of them alone.
Draws that come neither from ``keras.random`` nor from the functions of ``tf.random`` in
:data:`TENSORFLOW` stay as they are, alike on all replicas.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator

import keras
import numpy as np
import tensorflow as tf

from dtrain.task.aliases import Foreign, Function, Nest, Options
from dtrain.task.backends import host
from dtrain.task.backends.tensorflow import keras_internals
from dtrain.task.backends.tensorflow.replica import rows_of_draws
from dtrain.task.backends.tensorflow.replica.rows_of_draws import (
    Draw,
    Part,
    is_known,
    shape_of,
    sizes_of,
)
from dtrain.task.backends.tracing import now, tracing

#: Functions of ``tf.random`` that layers call themselves, as ``RandomElasticTransform`` does.
TENSORFLOW = {"stateless_uniform": "uniform", "stateless_normal": "normal"}

#: Part of the names of the operations that draw, where :func:`watched`.
SCOPE = "drawn_by_keras"

_installing = threading.Lock()


def part(
    replica: tf.Tensor, replicas: int, rows: int, draws: Iterable[bool | None] | None = None
) -> Part | None:
    """Return what makes :func:`tracing` draw the rows of one replica of a global batch.

    Args:
        replica: which one, an int or an integer scalar tensor.
        replicas: how many equal parts the global batch has; with 1 Keras draws as ever.
        rows: how many examples one part has.
        draws: of each draw, in their order, whether it has a row an example; where it is None, or
            there are more, the first dimension tells.

    Raises:
        TrainingError: this version of Keras draws in another way.
    """
    if replicas == 1:
        return None
    install()
    static = tf.get_static_value(replica)
    index = tf.cast(replica, tf.int32) if static is None else int(static)
    return Part(index, replicas, rows, iter(draws or ()))


@dataclasses.dataclass
class Record:
    """What was drawn, in its order.

    Attributes:
        names: of the functions.
        sizes: the first dimension of each; None where it has none, or none that is known.
    """

    names: list[str] = dataclasses.field(default_factory=list)
    sizes: list[int | None] = dataclasses.field(default_factory=list)


def per_example(whole: Record, part: Record, parts: int = 2) -> tuple[bool | None, ...] | None:
    """Say of each draw whether it has a row an example, for :func:`part`.

    Args:
        whole: what was drawn for a batch.
        part: what was drawn for a part of it.
        parts: how many of these the batch has.

    Returns:
        None where the draws are not the same.
    """
    if whole.names != part.names:
        return None
    return tuple(
        {parts * b: True, b: False}.get(a) if a and b else None
        for a, b in zip(whole.sizes, part.sizes, strict=True)
    )


def watched(record: Record) -> contextlib.AbstractContextManager[None]:
    """Draw as ever what is traced or run inside, and fill ``record`` in."""
    install()
    return tracing(record=record)


def install() -> None:
    """Wrap functions of Keras and TensorFlow, once; outside of :func:`tracing` they are as ever.

    Raises:
        TrainingError: one of them is not as known; nothing is wrapped then.
    """
    with _installing:
        module = keras_internals.random_functions()
        if getattr(module, "drawn_by_dtrain", False):
            return
        for function in keras_internals.DRAWS:
            setattr(module, function, _wrapped(module, function))
        module.drawn_by_dtrain = True
        for function, ours in TENSORFLOW.items():
            setattr(tf.random, function, _wrapped_own(function, ours))


def _wrapped(module: Foreign, name: str) -> Function:
    original = getattr(module, name)
    signature = inspect.signature(original)
    ours: dict[str, Function] = {
        "dropout": rows_of_draws.dropout, "uniform": rows_of_draws.uniform,
        "normal": rows_of_draws.normal, "shuffle": rows_of_draws.shuffle,
    }  # fmt: skip
    seed_of = functools.partial(keras_internals.seed_of, module)
    draw = ours.get(name, rows_of_draws.whole)

    @functools.wraps(original)
    def function(*args: object, **kwargs: object) -> tf.Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return _drawn(name, seed_of, original, draw, bound.arguments)

    return function


def _wrapped_own(name: str, of: str) -> Function:
    """Wrap a function of ``tf.random``, whose seed is drawn already, as that of Keras' ``of``."""
    original = getattr(tf.random, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def function(*args: object, **kwargs: object) -> tf.Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        names = ("mean", "stddev", "minval", "maxval", "shape", "dtype", "seed")
        own = {each: arguments[each] for each in names if each in arguments}
        if own.get("maxval", 1) is None:
            own["maxval"] = 1
        draw = {"uniform": rows_of_draws.uniform, "normal": rows_of_draws.normal}[of]

        def as_ever(**changed: object) -> tf.Tensor:
            return original(**{**arguments, "shape": changed.get("shape", arguments["shape"])})

        return _drawn(name, tf.convert_to_tensor, as_ever, draw, own)

    return function


def _drawn(
    name: str, seed_of: Function, original: Function, draw: Function, arguments: Options
) -> tf.Tensor:
    """Draw as :func:`tracing` has it: see :func:`part` and :func:`watched`."""
    own: Part | None = now().draws
    record: Record | None = now().record
    if record is not None:
        record.names.append(name)
        record.sizes.append(_first(arguments))
    if own is None and record is None:
        return original(**arguments)
    # What Keras calls to draw is part of this draw, and none of its own.
    with (
        tracing(draws=None, record=None),
        contextlib.nullcontext() if record is None else tf.name_scope(SCOPE),
    ):
        if own is None:
            return original(**arguments)
        return draw(Draw(seed_of, original, own, next(own.draws, None)), **arguments)


def _first(arguments: Options) -> int | None:
    """Return the first dimension of a draw, None where it has none or it is not known."""
    whole = next((arguments[key] for key in ("logits", "inputs", "x") if key in arguments), None)
    shape = arguments.get("noise_shape")
    if whole is not None:
        sizes = shape_of(tf.convert_to_tensor(whole))
        if shape is not None:
            sizes = [a if b is None else b for a, b in zip(sizes, sizes_of(shape), strict=True)]
    else:
        sizes = sizes_of(arguments.get("shape", ()))
    return sizes[0] if sizes and is_known(sizes[0]) else None


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let what is traced inside draw what it draws whenever it is traced."""
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        _install()
    with tracing(outside=host.state()), host.seeded(seed):
        yield


def _install() -> None:
    """Let other replicas find the generators as they were outside; once in a process."""
    kind: Foreign = tf.distribute.ReplicaContext
    original = kind.merge_call
    if getattr(original, "by_dtrain", False):
        return

    @functools.wraps(original)
    def merge_call(self: Foreign, *args: object, **kwargs: object) -> Foreign:
        outside = now().outside
        if outside is None:
            return original(self, *args, **kwargs)
        with host.kept():
            host.put(outside)
            return original(self, *args, **kwargs)

    # A mark on a function, which types of functions do not have.
    merge_call.by_dtrain = True  # type: ignore[attr-defined]
    kind.merge_call = merge_call


@dataclasses.dataclass
class EvaluationDraws:
    """How often a ``test_step`` draws, by the state of the generator; known once it was traced."""

    counts: dict[int, tuple[keras.random.SeedGenerator, int]] = dataclasses.field(
        default_factory=dict
    )

    def of(self, generator: keras.random.SeedGenerator) -> int:
        """Return how many seeds it gives out in one step."""
        return self.counts.get(id(generator), (generator, 0))[1]

    def traced(self, trace: Callable[[], Foreign]) -> Foreign:
        """Return a function that ``trace`` traces; retraced where it draws, to know how often."""
        function = trace()
        return trace() if self.counts else function

    def advance(self, steps: int) -> None:
        """Let the generators be where they are after ``steps`` steps, one after the other."""
        for generator, count in self.counts.values():
            state = generator.state
            state.assign(state.value + np.asarray([0, steps * count], state.dtype))


@contextlib.contextmanager
def evaluating(batch: Nest, draws: EvaluationDraws) -> Iterator[None]:
    """Let what is traced inside draw what one device draws for batch number ``batch``.

    Replicas evaluate batches side by side. So the generators stay as they are, and each batch
    takes the seeds that it would get if all were evaluated one after the other;
    :meth:`EvaluationDraws.advance` is for afterwards.

    Args:
        batch: counted from 0 since the generators were where they are, an integer scalar.
        draws: filled in; tracing twice is for the second to know the numbers.
    """
    _take_seeds()
    evaluation = _Evaluation(batch, draws, {})
    try:
        with tracing(evaluation=evaluation):
            yield
    finally:
        for generator, count in evaluation.seen.values():
            draws.counts[id(generator)] = (generator, count)


@dataclasses.dataclass
class _Evaluation:
    number: tf.Tensor
    draws: EvaluationDraws
    seen: dict[int, tuple[keras.random.SeedGenerator, int]]


def _take_seeds() -> None:
    """Have every generator ask :func:`evaluating`, once in a process."""
    kind: Foreign = keras.random.SeedGenerator
    original = kind.next
    if getattr(original, "by_dtrain", False):
        return

    @functools.wraps(original)
    def following(self: Foreign, ordered: bool = True) -> tf.Tensor:
        batch: _Evaluation | None = now().evaluation
        if batch is None or not ordered:
            return original(self, ordered)
        count = batch.seen.get(id(self), (self, 0))[1]
        batch.seen[id(self)] = (self, count + 1)
        state = tf.convert_to_tensor(self.state.value)
        step = tf.cast(batch.number, state.dtype) * batch.draws.of(self) + count
        return state + tf.stack([tf.zeros([], state.dtype), tf.cast(step, state.dtype)])

    # A mark on a function, which types of functions do not have.
    following.by_dtrain = True  # type: ignore[attr-defined]
    kind.next = following
