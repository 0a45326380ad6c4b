"""The replicas of a strategy: where their variables are, what they read, what they add up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.data.streams import Stream
from dtrain.errors import refuse
from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Function, Nest, Options, Variable
from dtrain.task.backends import across
from dtrain.task.backends.base import Backend, Tasks
from dtrain.task.backends.copies import check_alike
from dtrain.task.backends.tensorflow import input_pipeline, short_adam
from dtrain.task.backends.tensorflow import keras_internals as tf_internals
from dtrain.task.backends.tensorflow.tensors import total
from dtrain.task.data.inputs import Inputs

NONE = tf.VariableAggregation.NONE


def dtype_of(created: Options) -> tf.DType:
    """Return the type of a variable that is about to be made, which need not have been said."""
    if created.get("dtype") is None:
        value = created["initial_value"]
        value = value() if callable(value) else value
        return tf.convert_to_tensor(value).dtype
    return tf.as_dtype(created["dtype"])


def _array(value: tf.Tensor) -> np.ndarray:
    return np.asarray(tf.cast(value, tf.float32))


class Replicas(Backend):
    """The replicas of one ``tf.distribute`` strategy, which share each global batch.

    Args:
        engine: the TensorFlow strategy.
    """

    def __init__(self, engine: tf.distribute.Strategy):
        self.engine = engine
        self.tasks = Tasks()
        #: How the input comes to the replicas; None as TensorFlow has it.
        self.input_options: tf.distribute.InputOptions | None = None

    @property
    def replicas(self) -> int:
        """How many replicas share each global batch."""
        return int(self.engine.num_replicas_in_sync)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Create model and metrics inside it.

        Keras leaves every replica its own moving statistics, and a weight that a step assigns
        itself, such as a codebook. Then no single value could be saved, and no run could
        continue as it was: here they are the mean over the replicas, everywhere.
        """
        with self.engine.scope(), tf.variable_creator_scope(self._create):
            yield

    def optimizer_scope(self) -> contextlib.AbstractContextManager[object]:
        """Create the optimizer and its slots inside it: replicas update them alike."""
        return self.engine.scope()

    def _create(self, next_creator: Function, **kwargs: object) -> tf.Variable:
        own = kwargs.get("aggregation", NONE) == NONE
        if self.replicas > 1 and own and dtype_of(kwargs).is_floating:
            kwargs["aggregation"] = tf.VariableAggregation.MEAN
        return next_creator(**kwargs)

    def read(self, variables: Mapping[str, Variable]) -> dict[str, np.ndarray]:
        """Copy variables to the host."""
        with self.engine.scope():
            return {
                name: np.asarray(tf.convert_to_tensor(variable.value))
                for name, variable in variables.items()
            }

    def write(self, variables: Mapping[str, Variable], arrays: Mapping[str, np.ndarray]) -> None:
        """Set each variable to the array of its name."""
        with self.engine.scope():
            for name, variable in variables.items():
                variable.assign(arrays[name])

    def place(self, model: keras.Model) -> None:
        """Lay the model's variables out, where :meth:`scope` did not know enough to do it.

        Raises:
            UsageError: a layer mixes the examples of a batch; or it wants the statistics of the
                global batch, and workers that compute alone have a part each.
        """
        if self.replicas == 1:
            return
        across.check_layers(model)
        if self.abilities.exchanges:
            return
        for layer in keras_internals.layers(model):
            if getattr(layer, "synchronized", False):
                refuse("model", f"{type(layer).__name__} {layer.name} is synchronized=True, and "
                       "each worker has a part of the batch", type(model).__name__,
                       accepted="synchronized=False, or a strategy whose replicas meet",
                       typed="strategy=multiworker")  # fmt: skip

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Let ``optimizer`` take replicas for one; called in :meth:`optimizer_scope`."""
        if self.abilities.short_updates:
            short_adam.shorten(optimizer)
        if tf.distribute.has_strategy():
            tf_internals.take_gradients_as_they_are(optimizer)

    @property
    def replica(self) -> Foreign:
        """The number of the replica that is traced, among those of the job; an int32 scalar."""
        context = tf.distribute.get_replica_context()
        assert context is not None
        return context.replica_id_in_sync_group

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

    def distribute(self, make: Callable[..., tf.data.Dataset], inputs: Inputs) -> Foreign:
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

    def run(self, step: Function, data: Nest) -> Foreign:
        """Run ``step`` once on every replica, each with its part of ``data``."""
        return self.engine.run(step, args=(data,))

    def reduce_local(self, value: tf.Tensor) -> tf.Tensor:
        """Add a value of each replica up over the replicas of this task, in or out of a graph."""
        return total(self.engine.experimental_local_results(value))

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

    def reset(self, metrics: list[keras.metrics.Metric]) -> None:
        """Let metrics begin again, on every replica of this task."""
        for metric in metrics:
            metric.reset_state()

    def all_reduce(self, vector: tf.Tensor) -> tf.Tensor:
        """Add a vector up over the tasks; each of them must call it at the same point."""
        return vector
