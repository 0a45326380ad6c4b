"""Gradients of a replica, and the losses that TensorFlow has for several.

The functions that TensorFlow has for losses to be summed give those that are wanted.

They divide by a global batch, or by TensorFlow's number of replicas: in an evaluation, where a
batch is whole, and on workers of parameter servers, of which TensorFlow does not know, that is
another number. Outside of a strategy they are as ever.

Gradients are averaged over the replicas where the tape gives them.

The step of a replica sees its part of the global batch as a batch of its own: its losses are those
of the part, whatever they are (a function, a ``Loss`` class, a ``train_step``). What
``tf.GradientTape.gradient`` returns for variables is then the mean over the replicas, which is the
gradient of the global batch. So all that follows, such as clipping, a second tape, one optimizer or
three, does what it does on one device, and the learning rate means the same on any number of
replicas.

Keras has it in another way: it divides losses by the number of replicas, where it knows of them,
and its optimizers sum the gradients as late as they can. A loss that Keras does not know of is then
multiplied by the number of replicas, and each replica clips its own gradient.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from dtrain.errors import UsageError
from dtrain.task.aliases import Foreign, Function, Nest, Tensor, Tensors, Variable
from dtrain.task.backends import across
from dtrain.task.backends.copies import one_replica
from dtrain.task.backends.tensorflow.replica import dependence
from dtrain.task.backends.tracing import now, tracing
from dtrain.task.keras_internals import divide_losses_by_global_batch, use_moments

#: How tensors are added up over the replicas of a strategy; of others TensorFlow does it.
_totals: weakref.WeakKeyDictionary[tf.distribute.Strategy, Callable[[tf.Tensor], tf.Tensor]] = (
    weakref.WeakKeyDictionary()
)


def collective(vector: tf.Tensor) -> tf.Tensor:
    """Add a vector up over the replicas by a collective of TensorFlow's; differentiable."""
    return _context().all_reduce(tf.distribute.ReduceOp.SUM, vector)


def add_up_together(
    engine: tf.distribute.Strategy, total: Callable[[tf.Tensor], tf.Tensor] = collective
) -> None:
    """Add tensors up over replicas as one flat vector of each type, in what is traced from now on.

    A collective takes its time whatever it carries, and each operation on a small tensor as well:
    so all gradients of a type are one vector, which is reduced, divided and cut in pieces again.

    Args:
        engine: whose replicas they are.
        total: adds a vector up.
    """
    _totals[engine] = total


def _context() -> Foreign:
    context = tf.distribute.get_replica_context()
    assert context is not None
    return context


def reduce(values: Tensors, op: tf.distribute.ReduceOp) -> Tensors:
    """Reduce tensors over the replicas, in one of them.

    Args:
        values: dense tensors and ``tf.IndexedSlices``, the same of all replicas. The rows of the
            latter are brought together by TensorFlow.
        op: how.

    Raises:
        RuntimeError: the replicas cannot meet here.
    """
    context = _context()
    add = _totals.get(context.strategy)
    if add is None:
        return list(context.all_reduce(op, values))
    results: Tensors = [None] * len(values)
    sparse: list[int] = []
    packs: dict[tf.DType, list[int]] = {}
    for i in reversed(range(len(values))):  # those of the last layers first
        if isinstance(values[i], tf.IndexedSlices):
            sparse.insert(0, i)
        else:
            packs.setdefault(values[i].dtype, []).append(i)
    for pack in packs.values():
        chosen = [values[i] for i in pack]
        total = add(tf.concat([tf.reshape(value, [-1]) for value in chosen], 0))
        if op == tf.distribute.ReduceOp.MEAN:
            total = total / tf.cast(context.strategy.num_replicas_in_sync, total.dtype)
        for i, part in zip(pack, tf.split(total, [_size(value) for value in chosen]), strict=True):
            results[i] = tf.reshape(part, _shape(values[i]))
    rows = context.all_reduce(op, [values[i] for i in sparse]) if sparse else ()
    for i, value in zip(sparse, rows, strict=True):
        results[i] = value
    return results


def _size(value: tf.Tensor) -> tf.Tensor:
    elements = value.shape.num_elements()
    return tf.size(value) if elements is None else elements


def _shape(value: tf.Tensor) -> tf.Tensor:
    return value.shape if value.shape.is_fully_defined() else tf.shape(value)


def _install_declared(current: Callable[[], Step | None]) -> None:
    """Have these functions ask ``current``, as of :mod:`.gradients`; once in a process.

    The functions are ``tf.nn.compute_average_loss`` and ``tf.nn.scale_regularization_loss``.
    """
    average, scale = tf.nn.compute_average_loss, tf.nn.scale_regularization_loss
    if getattr(average, "by_dtrain", False):
        return

    def of_the_part(value: tf.Tensor) -> tf.Tensor:
        """Return what was divided by TensorFlow's number of replicas as what is wanted."""
        now, divisor = current(), tf.distribute.get_strategy().num_replicas_in_sync
        parts = now.replicas if now is not None and now.summed else 1
        return value if divisor == parts else value * tf.cast(divisor / parts, value.dtype)

    @functools.wraps(average)
    def compute_average_loss(
        per_example_loss: Tensor, sample_weight: Tensor = None, global_batch_size: Tensor = None
    ) -> tf.Tensor:
        value, now = average(per_example_loss, sample_weight, global_batch_size), current()
        if global_batch_size is None:
            return of_the_part(value)
        if now is None or now.summed:
            return value
        return value * tf.cast(now.replicas, value.dtype)

    @functools.wraps(scale)
    def scale_regularization_loss(regularization_loss: tf.Tensor) -> tf.Tensor:
        return of_the_part(scale(regularization_loss))

    # A mark on a function, which types of functions do not have.
    compute_average_loss.by_dtrain = True  # type: ignore[attr-defined]
    tf.nn.compute_average_loss = compute_average_loss
    tf.nn.scale_regularization_loss = scale_regularization_loss


#: Part of the names of operations that gather the rows of all replicas (:mod:`dtrain.replicas`).
GATHER = "gathered_by_replicas"


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step of one of several replicas, while it is traced.

    Attributes:
        replicas: how many share the global batch.
        part: of the global batch (:class:`.global_batch.Part`), which says of gradients what of
            them is there for each example; None where no tape asks.
        taped: the gradients that tapes have given, where the replicas cannot meet: each is in a
            process of its own, and its gradients are averaged elsewhere. Of each also which of its
            rows all replicas have (see :func:`dependence.divided`). None where they can meet.
        summed: the losses are parts of that of the global batch, and not losses of parts: their
            gradients are added up (``trainer.gradient_reduction=sum``).
    """

    replicas: int
    part: Any = None
    taped: list[tuple[tf.Tensor, list[bool]]] | None = None
    summed: bool = False

    def needs(self, what: str, accepted: str) -> UsageError:
        """Return the error of a step that needs what other replicas have, which it cannot meet.

        Args:
            what: it needs, and why it is not there.
            accepted: what it may do instead.
        """
        return UsageError("strategy", what, "ps", accepted=accepted, typed="strategy=multiworker")


def replica_step(
    replicas: int, part: Any, summed: bool = False,
    taped: list[tuple[tf.Tensor, list[bool]]] | None = None,
) -> Step | None:  # fmt: skip
    """Return the training step of a replica, for :func:`tracing`; None where there is one replica.

    Its tapes give gradients of the global batch. Where they are averaged elsewhere, only the mean
    over the replicas of those in ``taped`` is, as they are.

    Args:
        replicas: how many share the global batch.
        part: of it, that the replica has.
        taped, summed: as of :class:`Step`.
    """
    if replicas > 1 or taped is not None:
        install()
    return Step(replicas, part, taped, summed) if replicas > 1 else None


def tried(step: Step | None, targets: Tensors) -> contextlib.AbstractContextManager[None]:
    """Let tapes inside give zeros for variables, and take note of what gradients are wanted of.

    Args:
        step: of a part of a batch; None for the whole of it.
        targets: filled in; each as a list of tensors, in the order of the tapes.
    """
    install()
    return tracing(step=step, targets=targets)


def noted(note: Callable[[Tensors, Tensors], None]) -> contextlib.AbstractContextManager[None]:
    """Call ``note`` with the targets, and the gradients, of each tape that is asked for variables.

    What is traced inside is on one device.
    """
    install()
    return tracing(step=None, note=note)


def current() -> Step | None:
    """Return the step that is traced in this thread, None outside of one."""
    return now().step


def mean(values: Tensors, op: tf.distribute.ReduceOp = tf.distribute.ReduceOp.MEAN) -> Tensors:
    """Reduce tensors over the replicas, in one go; differentiable.

    Args:
        values: dense tensors and ``tf.IndexedSlices``, the same of all replicas.
        op: how.

    Raises:
        UsageError: the replicas cannot meet here: inside a branch, loop or ``tf.function`` that a
            replica has for itself.
    """
    step = current()
    if step is not None and step.taped is not None:
        raise step.needs(
            "the model's loss is divided by a number of all examples, such as that of the tokens "
            "that are not masked, and each worker knows its own alone",
            "a loss that is a mean over the examples, or a strategy whose replicas meet in a step",
        )
    with meeting(
        "takes a gradient", "to average it", "a train_step that calls tape.gradient outside of them"
    ):
        return reduce(values, op)


@contextlib.contextmanager
def meeting(does: str, why: str, accepted: str) -> Iterator[None]:
    """Refuse by name what is done inside, where the replicas cannot meet.

    Args:
        does: what the model's step does here, in words.
        why: what the replicas would meet for.
        accepted: what it may do.

    Raises:
        UsageError: it is inside a branch, loop or ``tf.function`` that a replica has for itself.
    """
    try:
        if _is_vectorised():  # the replicas would wait for each other for ever
            raise RuntimeError("merge_call")
        yield
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        why = f"{does} inside tf.cond, a loop or a tf.function, where replicas cannot meet {why}"
        raise one_replica(why, "train_step", accepted) from None


def install() -> None:
    """Have every tape, and losses of Keras and TensorFlow, ask :func:`current`; once in a process.

    The functions of TensorFlow are ``tf.nn.compute_average_loss`` and
    ``tf.nn.scale_regularization_loss``.
    """
    divide_losses_by_global_batch(current, mean)
    use_moments(_moments)
    _install_declared(current)
    kind: Foreign = tf.GradientTape
    if not getattr(kind.gradient, "by_dtrain", False):
        kind.gradient = _averaged(kind.gradient, is_jacobian=False)
        kind.jacobian = _averaged(kind.jacobian, is_jacobian=True)


def _averaged(original: Function, is_jacobian: bool) -> Function:
    """Return a method of tapes that asks :func:`current`."""

    @functools.wraps(original)
    def gradient(self: Foreign, target: Nest, sources: Nest, *args: Any, **kwargs: Any) -> Nest:
        # What asks for gradients while gradients are computed (a layer that is computed twice, a
        # custom gradient) gives a factor of them, which is averaged with the rest.
        traced = now()
        of_variables = not traced.inside and any(map(_is_variable, tf.nest.flatten(sources)))
        several = traced.targets is not None or traced.step is not None
        if of_variables and several and _is_vectorised():
            raise across.gradients_of_examples("train_step")
        with tracing(inside=True):
            if of_variables and traced.targets is not None:
                factors = None if is_jacobian else kwargs.get("output_gradients", (*args, None)[0])
                targets = _tensors(target)
                if factors is not None:
                    targets = [t * f for t, f in zip(targets, _tensors(factors), strict=True)]
                traced.targets.append(targets)
                of_each = tf.shape(target) if is_jacobian else tf.zeros([0], tf.int32)
                return tf.nest.map_structure(
                    lambda v: tf.zeros(tf.concat([of_each, v.shape], 0), v.dtype), sources
                )
            gradients = original(self, target, sources, *args, **kwargs)
        if not of_variables:
            return gradients
        if traced.note is not None:
            traced.note(_tensors(target), tf.nest.flatten(gradients))
        step = current()
        if step is None or not (step.taped is not None or tf.distribute.has_strategy()):
            return gradients
        return _of_the_global_batch(gradients, _tensors(target), sources, step, is_jacobian)

    # A mark on a function, which types of functions do not have.
    gradient.by_dtrain = True  # type: ignore[attr-defined]
    return gradient


def _moments(original: Function, layer: keras.Layer, inputs: tf.Tensor, mask: Tensor) -> Nest:
    """Return what a ``BatchNormalization`` normalises by: behind a mask of all replicas, too."""
    if mask is None or not layer.synchronized or current() is None:
        return original(layer, inputs, mask)
    axes = [i for i in range(inputs.shape.rank) if i != layer.axis % inputs.shape.rank]
    counts = tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(inputs))
    context: Foreign = tf.distribute.get_replica_context()

    def total(values: tf.Tensor) -> tf.Tensor:
        own = tf.reduce_sum(tf.where(counts, values, tf.zeros_like(values)), axes, keepdims=True)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

    count = total(tf.ones_like(inputs)) + keras.config.epsilon()
    mean = total(inputs) / count
    variance = total(tf.square(inputs - mean)) / count
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


def _is_vectorised() -> bool:
    """Whether what is traced is the body of ``tf.vectorized_map``, once for all elements."""
    return "loop_body" in tf.compat.v1.get_default_graph().get_name_scope()


def _of_the_global_batch(
    nested: Foreign, targets: Tensors, sources: Nest, step: Step, is_jacobian: bool
) -> tf.Tensor:
    gradients, variables = tf.nest.flatten(nested), tf.nest.flatten(sources)
    assert step.part is not None
    summed, same = step.part.compare(targets, gradients, step.summed and not is_jacobian)
    if is_jacobian:
        if summed or step.taped is not None:
            raise across.gradients_of_examples("train_step")
        summed = step.summed
    # Of inputs, such as a gradient penalty's, each replica has its own.
    chosen = [
        i
        for i, (gradient, source) in enumerate(zip(gradients, variables, strict=True))
        if gradient is not None and _is_variable(source)
    ]
    if not chosen:
        return nested
    if step.taped is not None:
        for i in chosen:
            if summed:
                gradients[i] = _times(gradients[i], step.replicas)
            step.taped.append((gradients[i], same[i]))
        return tf.nest.pack_sequence_as(nested, gradients)
    op = tf.distribute.ReduceOp.SUM if summed else tf.distribute.ReduceOp.MEAN
    reduced = _reduced([gradients[i] for i in chosen], [same[i] for i in chosen], op)
    for i, gradient in zip(chosen, reduced, strict=True):
        gradients[i] = gradient
    return tf.nest.pack_sequence_as(nested, gradients)


def _reduced(
    gradients: Tensors, same: list[list[bool]], op: tf.distribute.ReduceOp
) -> Iterator[tf.Tensor]:
    """Yield gradients reduced; of rows that all replicas have the values are, as dense ones."""
    parts = [
        dependence.divided(gradient, uses) if any(uses) else (None, gradient)
        for gradient, uses in zip(gradients, same, strict=True)
    ]
    sent = [[shared.values] if shared is not None else [] for shared, _ in parts]
    for each, (_, own) in zip(sent, parts, strict=True):
        each += [] if own is None else [own]
    total = iter(mean([value for each in sent for value in each], op))
    for each, (shared, _) in zip(sent, parts, strict=True):
        first, *rest = (next(total) for _ in each)
        if shared is not None:
            first = tf.IndexedSlices(first, shared.indices, shared.dense_shape)
        yield dependence.appended([first, *rest]) if rest else first


def _times(gradient: tf.Tensor, factor: int) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        values = _times(gradient.values, factor)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def _tensors(target: Nest) -> Tensors:
    return [tf.convert_to_tensor(each) for each in tf.nest.flatten(target)]


def _is_variable(source: Variable) -> bool:
    return isinstance(source, tf.Variable | keras.Variable | tf.distribute.DistributedValues)
