"""What a strategy needs of Keras and TensorFlow, and no public way leads to.

Optimizers that update several replicas, losses that layers add, TensorFlow's variable inside of
one of a strategy's, the devices of a task, and the default graph, where a strategy's scope is kept.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from dtrain.task.aliases import Foreign, Function, Nest, Tensor, Tensors, Variable
from dtrain.task.keras_internals.model import (
    ONE_REPLICA,
    function,
    is_of_keras,
    layers,
    module,
    parameters,
    unknown,
)

#: Keras' modules that branch on what an optimizer has counted: is it time for an update?
OPTIMIZERS = ("base_optimizer", "loss_scale_optimizer")


def take_gradients_as_they_are(optimizer: keras.optimizers.Optimizer) -> None:
    """Let ``optimizer`` reduce no gradients over the replicas: they are reduced already.

    Nor does any other of this process. Where it branches on what it has counted (accumulation, a
    moving average that overwrites weights, a loss scale), ``tf.cond`` becomes one in whose branches
    the replicas may meet; no other optimizer's modules are touched.

    Raises:
        TrainingError: this version of Keras reduces in another way, and would do so once more.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not hasattr(inner, "_all_reduce_sum_gradients"):
        raise unknown("sums gradients", ONE_REPLICA)
    kind: Foreign
    for kind in type(inner).__mro__:
        if "_all_reduce_sum_gradients" in vars(kind):
            kind._all_reduce_sum_gradients = lambda _, pairs: list(pairs)
    if not _branches(optimizer):
        return
    for name in OPTIMIZERS:
        owner = module(f"keras.src.optimizers.{name}")
        if not hasattr(owner, "ops"):
            raise unknown("has optimizers that branch", ONE_REPLICA)
        if not isinstance(owner.ops, _Operations):
            owner.ops = _Operations(owner.ops)


def reduce_nothing(optimizer: keras.optimizers.Optimizer) -> None:
    """Let ``optimizer``, of one replica, reduce no gradients: that puts a custom gradient around.

    Raises:
        TrainingError: this version of Keras reduces in another way.
    """
    inner: Foreign = getattr(optimizer, "inner_optimizer", optimizer)
    if not hasattr(inner, "_all_reduce_sum_gradients"):
        raise unknown("sums gradients")
    inner._all_reduce_sum_gradients = list


def _branches(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether it branches in a step; one of a user's class may hold others, wherever it likes."""
    return (
        not is_of_keras(optimizer)
        or isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        or bool(getattr(optimizer, "gradient_accumulation_steps", None))
        or bool(getattr(optimizer, "ema_overwrite_frequency", None))
    )


class _Operations:
    """``keras.ops``, with a ``cond`` in whose branches the replicas may meet.

    TensorFlow lets them meet in no branch that a replica has taken for itself. So they meet before,
    and one branch is taken for all, as Keras' own loss scale optimizer does.
    """

    def __init__(self, operations: Foreign):
        self._operations = operations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)

    def cond(self, pred: tf.Tensor, true_fn: Function, false_fn: Function) -> Nest:
        """Branch for the side effects; ``pred`` is the same on all replicas."""
        if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
            return self._operations.cond(pred, true_fn, false_fn)

        def together(strategy: tf.distribute.Strategy, pred: Tensor, *branches: Function) -> None:
            def run(branch: Function) -> Nest:
                strategy.extended.call_for_each_replica(lambda each: each(), args=(branch,))

            first = strategy.experimental_local_results(pred)[0]
            tf.cond(first, *(lambda branch=branch: run(branch) for branch in branches))

        tf.distribute.get_replica_context().merge_call(together, args=(pred, true_fn, false_fn))


def unwrapped(variable: Variable) -> Variable:
    """Return the plain variable inside of one that ``CentralStorageStrategy`` has made.

    The wrapper refuses to be assigned in a replica, which a metric has to be. Any other variable
    is plain as it is.
    """
    return getattr(variable, "_v", variable)


def is_plain(variable: Variable) -> bool:
    """Whether a variable of TensorFlow's is one by itself, and no strategy's."""
    return type(variable) is type(tf.Variable(0.0))


@contextlib.contextmanager
def without_strategy(models: list[keras.Model]) -> Iterator[None]:
    """Let ``predict`` and ``evaluate`` of models run as if they were made under no strategy.

    Keras keeps the strategy that a model was made under, and has no way to set it.

    Raises:
        TrainingError: this version of Keras keeps it in another way.
    """
    if not all(hasattr(model, "_distribute_strategy") for model in models):
        raise unknown("keeps the strategy of a model")
    before = [model._distribute_strategy for model in models]
    for model in models:
        model._distribute_strategy = None
    try:
        yield
    finally:
        for model, strategy in zip(models, before, strict=True):
            model._distribute_strategy = strategy


def read_as_numbers(variable: Variable) -> None:
    """Let ``float`` and ``int`` read variables like this one of a strategy's, as any other.

    Keras' ``float(optimizer.learning_rate)`` asks TensorFlow's variable, and that of several
    replicas has no such method.
    """
    names = {each.__name__: each for each in type(variable).__mro__}
    base = names.get("DistributedVariable")
    if base is not None and not hasattr(base, "__float__"):
        for name, number in (("__float__", float), ("__int__", int)):
            setattr(base, name, lambda self, number=number: number(self.numpy()))


@contextlib.contextmanager
def keep_session() -> Iterator[None]:
    """Let ``keras.backend.clear_session``, which a model's function may call, clear names alone.

    It would reset TensorFlow's default graph, where the strategy's scope is kept, and the precision
    of ``hardware.precision``.
    """
    original, policy = tf.compat.v1.reset_default_graph, keras.config.dtype_policy()
    tf.compat.v1.reset_default_graph = lambda: keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        tf.compat.v1.reset_default_graph = original


def losses_of(layer: keras.Layer) -> Foreign:
    """Return the list in which a layer keeps the losses that it has added itself.

    Keras' public ``losses`` has those of the layers inside of it and of regularizers as well.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    losses = getattr(layer, "_losses", None)
    if not isinstance(losses, list | _Apart):
        raise unknown("keeps losses that layers add", ONE_REPLICA)
    return losses


def keep_losses_apart(model: keras.Model) -> None:
    """Let each replica see the losses that it has added itself (``add_loss``, activities), alone.

    Keras has one list of them in a layer. Replicas are traced in threads of their own that take
    turns where they meet, as over a variable that a call assigns (batch normalization does), and
    each would find the losses of those before it beside its own.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    for layer in layers(model):
        if not isinstance(losses_of(layer), _Apart):
            object.__setattr__(layer, "_losses", _Apart())
            if hasattr(layer, "_loss_ids"):  # which of the losses of a StatelessScope are its own
                object.__setattr__(layer, "_loss_ids", _IdsApart())


class _Apart:
    """A list for each thread, of which Keras, and :mod:`.remat`, use these methods."""

    def __init__(self) -> None:
        self._lists: dict[int, Tensors] = {}

    def _own(self) -> Tensors:
        return self._lists.setdefault(threading.get_ident(), [])

    def extend(self, losses: Tensors) -> None:
        """Add ``losses``."""
        self._own().extend(losses)

    def clear(self) -> None:
        """Forget all."""
        self._own().clear()

    def __getitem__(self, index: Any) -> Any:
        return self._own()[index]

    def __delitem__(self, index: Any) -> None:
        del self._own()[index]

    def __len__(self) -> int:
        return len(self._own())


class _IdsApart:
    """A set for each thread."""

    def __init__(self) -> None:
        self._sets: dict[int, set[int]] = {}

    def _own(self) -> set[int]:
        return self._sets.setdefault(threading.get_ident(), set())

    def add(self, loss: int) -> None:
        """Add the id of a loss."""
        self._own().add(loss)

    def clear(self) -> None:
        """Forget all."""
        self._own().clear()

    def __contains__(self, loss: int) -> bool:
        return loss in self._own()


#: Where ``MultiWorkerMirroredStrategy`` finds its devices.
COLLECTIVES = "tensorflow.python.distribute.collective_all_reduce_strategy"


@contextlib.contextmanager
def local_devices(devices: Sequence[str]) -> Iterator[None]:
    """Let the ``MultiWorkerMirroredStrategy`` that is made inside have these devices in each task.

    TensorFlow counts a task's GPUs and knows of one CPU device alone: several logical ones, on
    which a data-parallel run is tried without GPUs, cannot be asked for publicly. Where they are
    GPUs, or one CPU device, nothing is replaced.

    Raises:
        TrainingError: this version of TensorFlow finds them in another way.
    """
    if len(devices) == 1 or not all(name.startswith("CPU") for name in devices):
        yield
        return
    kind = getattr(module(COLLECTIVES), "CollectiveAllReduceExtended", None)
    name = "_initialize_local_devices"
    original = function(kind, name, ["self", "cluster_resolver", "worker_device"])
    if original is None:
        raise unknown(
            "finds the CPU devices of a task", "set hardware.devices=1, or use strategy=mirrored",
            "tensorflow",
        )  # fmt: skip

    def found(self: object, resolver: object, worker_device: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker_device}/device:{name}" for name in devices), "CPU"

    setattr(kind, name, found)
    try:
        yield
    finally:
        setattr(kind, name, original)


#: The module of the functions through which all of Keras draws random numbers: no public hook is
#: on the way from a layer to its draw, for seeds are made inside of layers.
RANDOM = "keras.src.backend.tensorflow.random"
#: What these functions must look like for a replica to draw its rows of the global batch.
DRAWS = {
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
}
#: What these functions make of their argument ``seed``.
SEEDS = ("draw_seed", "_cast_seed")


def random_functions() -> Foreign:
    """Return the module, whose functions are as in :data:`DRAWS`.

    Raises:
        TrainingError: one is not.
    """
    owner = module(RANDOM)
    for each, expected in {**{each: ["seed"] for each in SEEDS}, **DRAWS}.items():
        if parameters(getattr(owner, each, None)) != expected:
            raise unknown(f"draws random numbers ({RANDOM}.{each})", ONE_REPLICA)
    return owner


def seed_of(owner: Foreign, seed: tf.Tensor) -> tf.Tensor:
    """Return the tensor that a function of ``owner`` makes of its argument ``seed``."""
    return owner._cast_seed(owner.draw_seed(seed))


# A compiled step adds, reads and assigns in the order in which that is written.
#
# Sums of three and more: Grappler joins ``a + b + c`` to one AddN, and that begins with whichever
# input it may write over, which depends on how far other threads are
# (tensorflow/core/kernels/aggregate_ops.cc). So the last bit of such a sum changed: on a busy
# machine in one of some 300 steps that assign weights on two replicas. An operation with the mark
# below has been joined already, for Grappler, and is left alone
# (tensorflow/core/grappler/optimizers/arithmetic_optimizer.cc).
#
# Variables: that one is read before it is assigned is an edge of the graph, which Grappler takes
# away where operations lead from the one to the other anyway. One of these may be the IdentityN
# that ``tf.custom_gradient`` makes of all gradients together, and that it takes apart afterwards:
# then nothing is left of the order (TensorFlow 2.21, dependency_optimizer.cc). A layer that is
# computed again for its gradients (``tf.recompute_grad``, ``hardware.remat``) read weights before
# or after their update, as threads had it. So could the weights of the last layer be, where the
# gradient of a loss does not depend on its value, as of a critic's mean: an all-reduce of
# gradients is such an IdentityN, and Keras' optimizers make one on one replica, too
# (:func:`reduce_nothing`).
MARK = "_grappler_ArithmeticOptimizer_AddOpsRewriteStage"
GRAPHS = "tensorflow.python.framework.func_graph"
OPERATIONS = "tensorflow.python.framework.ops"
#: How TensorFlow names the gradient of a ``tf.custom_gradient`` that was traced.
CUSTOM = "CustomGradient-"


def keep_order() -> None:
    """Keep the order in every function that this process traces from here on.

    Raises:
        TrainingError: this version of TensorFlow keeps the marks of a graph in another way.
    """
    tf.config.optimizer.set_experimental_options({"dependency_optimization": False})
    kind: Foreign = getattr(module(GRAPHS), "FuncGraph", None)
    if kind is None or not isinstance(getattr(tf.Graph(), "_attr_scope_map", None), dict):
        raise unknown("marks the operations of a graph", package="tensorflow")
    original = kind.__init__
    if getattr(original, "__module__", "") == __name__:
        return
    value = tf.compat.v1.AttrValue(b=True)

    def marked(self: Foreign, *arguments: object, **named: object) -> None:
        original(self, *arguments, **named)
        self._attr_scope_map[MARK] = value

    kind.__init__ = marked


def optimize_dependencies() -> None:
    """Undo the part of :func:`keep_order` that costs time, where no gradient is custom.

    Without the optimization of dependencies a step of 200 microseconds takes 1 to 3 % longer. Call
    it when a step has been traced, in the thread that calls it next: TensorFlow optimizes a
    function at its first call, with the options of the thread.

    Raises:
        TrainingError: this version of TensorFlow registers gradients in another way.
    """
    registry: Foreign = getattr(module(OPERATIONS), "gradient_registry", None)
    if not hasattr(registry, "list"):
        raise unknown("registers gradients", package="tensorflow")
    custom = any(name.startswith(CUSTOM) for name in registry.list())
    tf.config.optimizer.set_experimental_options({"dependency_optimization": not custom})
