"""What every strategy decides: a scope, a layout, a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.config.schema import Config
from dtrain.data.sources import Source, Splits
from dtrain.data.streams import Stream
from dtrain.errors import UsageError
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.cluster import Cluster, Task
from dtrain.task.backends.tensorflow import input_pipeline, short_adam
from dtrain.task.backends.tensorflow.forward import Finish, Forward
from dtrain.task.backends.tensorflow.in_loop import in_loop
from dtrain.task.backends.tensorflow.rehearsal import across, metrics
from dtrain.task.backends.tensorflow.rehearsal.trace import trace_step
from dtrain.task.backends.tensorflow.replica import gradients
from dtrain.task.backends.tensorflow.steps import Steps
from dtrain.task.backends.tensorflow.tensors import total
from dtrain.task.data.inputs import Inputs
from dtrain.task.model.optimizers import Update

#: Copies of a weight are alike where they differ by so much of its largest element: devices of
#: several kinds may round otherwise.
COPIES = 1e-6
NONE = tf.VariableAggregation.NONE


def dtype_of(created: dict[str, Any]) -> tf.DType:
    """Return the type of a variable that is about to be made, which need not have been said."""
    if created.get("dtype") is None:
        value = created["initial_value"]
        value = value() if callable(value) else value
        return tf.convert_to_tensor(value).dtype
    return tf.as_dtype(created["dtype"])


def check_replicas(strategy: Strategy, config: Config, planned: int) -> None:
    """Refuse a strategy whose replicas are not those that the batch was divided among.

    Args:
        strategy: as it was made.
        config: of the run.
        planned: replicas that ``strategy.plan`` makes of the devices.

    Raises:
        UsageError: every replica would get another part of the batch than was planned.
    """
    if strategy.replicas == planned:
        return
    plans = "dtrain.task.strategies.plans"
    fitting = "OneReplica" if strategy.replicas == 1 else "PerDevice"
    raise UsageError(
        "strategy.plan", config.strategy.plan["_target_"],
        f"{type(strategy).__name__} has {strategy.replicas} replicas, and the plan has {planned}",
        f"a plan of the strategy's own replicas: {plans}.{{OneReplica,PerDevice,PerHost}}",
        f"strategy.plan._target_={plans}.{fitting}",
    )  # fmt: skip


def check_alike(
    model: keras.Model, variable: keras.Variable, own: np.ndarray, other: np.ndarray
) -> None:
    """Refuse a model of which two replicas have other values of a weight.

    Raises:
        UsageError: naming the weight.
    """
    with np.errstate(invalid="ignore"):  # of what is not finite other checks tell
        differ = np.any(np.abs(other - own) > COPIES * np.max(np.abs(own), initial=0.0))
    if differ:
        raise UsageError(
            "model", type(model).__name__,
            f"its step changes {variable.path} otherwise on each replica, as noise does that is "
            "drawn for weights or gradients: replicas draw what is for examples",
            "a step that changes weights by what tapes give and what is the same on all replicas, "
            "or one replica", "strategy=one_device",
        )  # fmt: skip


def _array(value: Any) -> np.ndarray:
    return np.asarray(tf.cast(value, tf.float32))


class Strategy:
    """Runs Keras' own step under one ``tf.distribute`` strategy.

    A new strategy is a subclass that builds its ``engine`` and overrides what differs, and one
    YAML file that names it.

    Args:
        engine: the TensorFlow strategy.
    """

    #: Whether optimizers beside that of ``compile`` get the right gradients, and state, on it.
    several_optimizers = False
    #: ``mean``, or ``sum`` where the losses of replicas are parts of that of the global batch.
    gradient_reduction = "mean"
    #: Whether a model may have variables of TensorFlow's own beside those of Keras.
    plain_variables = True
    #: Whether the gradient of rows that are looked up is dense, where one device has rows.
    dense_lookups = False
    #: Whether devices have float64, and so may wait for a timestamp.
    has_float64 = True
    #: Whether one step begins when the one before has ended: a state may go from one to the next.
    in_turn = True
    #: Whether steps can be traced anew in the middle of a run, when other weights are trained.
    retraces = True
    #: Whether a loop of steps may read examples that are in memory itself: it has one replica, on
    #: the CPU.
    reads_in_loop = False
    #: Steps from one meeting of the replicas to the next; more than 1 where each trains by itself
    #: in between, and their variables are averaged then (:meth:`average`).
    sync_every = 1
    #: Whether a weight and its slots are plain variables where an optimizer updates them.
    short_updates = False

    def __init__(self, engine: tf.distribute.Strategy):
        self.engine = engine
        #: How the input comes to the replicas; None as TensorFlow has it.
        self.input_options: tf.distribute.InputOptions | None = None

    @staticmethod
    def serve(cluster: Cluster, task: Task, ready: Callable[[], None]) -> None:
        """Do the part of a task that serves the chief, until it is ended from outside."""
        raise NotImplementedError("no task of this strategy serves another")

    @property
    def replicas(self) -> int:
        """How many replicas share each global batch."""
        return int(self.engine.num_replicas_in_sync)

    @property
    def batches(self) -> int:
        """How many batches of their own a global batch is divided into."""
        return self.replicas

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Create model and metrics inside it.

        Keras leaves every replica its own moving statistics, and a weight that a step assigns
        itself, such as a codebook. Then no single value could be saved, and no run could
        continue as it was: here they are the mean over the replicas, everywhere.
        """
        with self.engine.scope(), tf.variable_creator_scope(self._create):
            yield

    def optimizer_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Create the optimizer and its slots inside it: replicas update them alike."""
        return self.engine.scope()

    def _create(self, next_creator: Any, **kwargs: Any) -> Any:
        own = kwargs.get("aggregation", NONE) == NONE
        if self.replicas > 1 and own and dtype_of(kwargs).is_floating:
            kwargs["aggregation"] = tf.VariableAggregation.MEAN
        return next_creator(**kwargs)

    def place(self, model: keras.Model) -> None:
        """Lay the model's variables out, where :meth:`scope` did not know enough to do it."""

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Let ``optimizer`` take replicas for one; called in :meth:`optimizer_scope`."""
        if self.short_updates:
            short_adam.shorten(optimizer)
        if tf.distribute.has_strategy():
            gradients.prepare(optimizer)

    @property
    def replica(self) -> Any:
        """The number of the replica that is traced, among those of the job; an int32 scalar."""
        context = tf.distribute.get_replica_context()
        assert context is not None
        return context.replica_id_in_sync_group

    def averaged(
        self, part: gradients.Part, summed: bool
    ) -> contextlib.AbstractContextManager[Any]:
        """Let what is traced inside, in a replica, get gradients of the global batch.

        Args:
            part, summed: as of :class:`gradients.Step`.
        """
        return gradients.averaged(self.replicas, part, summed)

    def average(self, model: keras.Model, done: tf.Tensor, steps: tf.Tensor) -> None:
        """Average the variables of ``model`` over the tasks where that is due; in a graph.

        Args:
            model: with its optimizers.
            done: steps of the call until now, int64 scalar.
            steps: of the whole call, int64 scalar.
        """

    def iterate(self, make: Callable[[int, int], tf.data.Dataset], *, shared: bool = False) -> Any:
        """Lay the input out over the replicas.

        Args:
            make: from (first replica, number of replicas) of one input pipeline to its dataset,
                whose elements go to these replicas in turn.
            shared: let one iterator feed all replicas of this task.

        Returns:
            An iterator; ``next`` gives the argument of :meth:`run` for one step.
        """

        def read(context: tf.distribute.InputContext) -> tf.data.Dataset:
            local = self.replicas // context.num_input_pipelines
            return make(context.input_pipeline_id * local, local)

        options = None if shared else self.input_options
        return iter(self.engine.distribute_datasets_from_function(read, options))

    def distribute(self, make: Callable[..., tf.data.Dataset], inputs: Inputs) -> Any:
        """Lay out what :func:`input_pipeline.training` or its siblings make."""
        source = inputs.train if make is input_pipeline.training else inputs.validation
        return self.iterate(
            lambda first, local: make(
                inputs, replicas=self.replicas, first_replica=first, local_replicas=local
            ),
            # A shuffle of tf.data's gives each iterator another order: of two, each would drop
            # examples that the other repeats.
            shared=isinstance(source, Stream),
        )

    def run(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Run ``step`` once on every replica, each with its part of ``data``."""
        return self.engine.run(step, args=(data,))

    def reduce_local(self, value: Any) -> tf.Tensor:
        """Add a value of each replica up over the replicas of this task, in or out of a graph."""
        parts = self.engine.experimental_local_results(value)
        return total(parts)

    def check_copies(self, model: keras.Model) -> None:
        """Refuse a model whose step has left the replicas with weights of their own.

        Each replica updates its copy, by gradients that are the same on all. What else a step does
        to weights must be so too: of copies that differ one would be saved, and each trained.

        Raises:
            UsageError: naming the weight.
        """
        for variable in model.trainable_variables:
            own, *others = self.engine.experimental_local_results(variable.value)
            for other in others:
                check_alike(model, variable, _array(own), _array(other))

    def trace_step(
        self, model: keras.Model, examples: tuple[Any, ...], creates: bool = False
    ) -> list[Update]:
        """Trace ``train_step`` and run nothing; return what optimizers would update.

        Args:
            model: compiled; inside a scope of this strategy.
            examples: as the input gives them.
            creates: the trace creates the variables of the model.
        """
        return trace_step(model, self, examples, creates)

    def notices(
        self, model: keras.Model, splits: Splits, batch: int | None, rows: int | None = None
    ) -> Iterator[str]:
        """Try a step on a few examples; yield what the user should know of its numbers.

        Args:
            model: built and compiled.
            splits: has the examples.
            batch: examples of a global batch; None where nothing is trained.
            rows: how many examples a batch of the model must have; None where any number will do.
        """
        messages = [metrics.notice(model, splits, self, rows)]
        if batch is not None:
            messages.append(across.notice(model, self, splits.train, batch))
        yield from filter(None, messages)

    def reset(self, metrics: list[keras.metrics.Metric]) -> None:
        """Let metrics begin again, on every replica of this task."""
        for metric in metrics:
            metric.reset_state()

    def all_reduce(self, vector: tf.Tensor) -> tf.Tensor:
        """Add a vector up over the tasks; each of them must call it at the same point."""
        return vector

    def all_reduce_numbers(self, numbers: list[float]) -> list[float]:
        """Add numbers up over the tasks, on the host; each must call it at the same point."""
        return numbers

    def barrier(self) -> None:
        """Wait until the chief is done; the last that a task does, when all is saved."""

    def broadcast(self, past: Checkpoint | None) -> Checkpoint | None:
        """Return the chief's checkpoint; each task must call it at the same point."""
        return past

    def forward(self, model: keras.Model, source: Source, batch: int, finish: Finish) -> Forward:
        """Return the function that predicts; the arguments are those of :class:`Forward`."""
        return Forward(model, self, source, batch, finish)

    @property
    def arithmetic(self) -> dict[str, Any]:
        """What of the strategy the last bits of a prediction may depend on; JSON values."""
        return {}

    def steps(self, model: keras.Model, inputs: Inputs, jit_compile: bool) -> Steps:
        """Return the compiled functions that train and evaluate ``model`` on ``inputs``.

        Args:
            model: built on this strategy.
            inputs: what to read.
            jit_compile: compile each step by XLA.
        """
        own = in_loop(inputs) if self.reads_in_loop and inputs.train is not None else None
        return Steps(
            model,
            self,
            inputs,
            None
            if inputs.train is None or own is not None
            else self.distribute(input_pipeline.training, inputs),
            None
            if inputs.validation is None
            else self.distribute(input_pipeline.evaluation, inputs),
            jit_compile,
            own,
        )
