"""What every strategy decides: a scope, a layout, a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

NONE = tf.VariableAggregation.NONE


class Strategy:
    """Runs Keras' own step under one ``tf.distribute`` strategy.

    A new strategy is a subclass that builds its ``engine`` and overrides what differs, and one
    YAML file that names it.

    Args:
        engine: the TensorFlow strategy.
    """

    def __init__(self, engine: tf.distribute.Strategy):
        self.engine = engine

    @property
    def replicas(self) -> int:
        """How many replicas share each global batch."""
        return int(self.engine.num_replicas_in_sync)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Create model and metrics inside it.

        Keras leaves every replica its own moving statistics. Then no single value could be saved,
        and no run could go on as it was: here they are the mean over the replicas, everywhere.
        """
        with self.engine.scope(), tf.variable_creator_scope(self._create):
            yield

    def optimizer_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Create the optimizer and its slots inside it: replicas update them alike."""
        return self.engine.scope()

    def _create(self, next_creator: Any, **kwargs: Any) -> Any:
        own = kwargs.get("aggregation", NONE) == NONE and not kwargs.get("trainable")
        if self.replicas > 1 and own and tf.as_dtype(kwargs["dtype"]).is_floating:
            kwargs["aggregation"] = tf.VariableAggregation.MEAN
        return next_creator(**kwargs)

    def iterate(self, make: Callable[[int, int], tf.data.Dataset]) -> Any:
        """Lay the input out over the replicas.

        Args:
            make: from (first replica, number of replicas) of one input pipeline to its dataset,
                whose elements go to these replicas in turn.

        Returns:
            An iterator; ``next`` gives the argument of :meth:`run` for one step.
        """

        def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            local = self.replicas // context.num_input_pipelines
            return make(context.input_pipeline_id * local, local)

        return iter(self.engine.distribute_datasets_from_function(pipeline))

    def run(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Run ``step`` once on every replica, each with its part of ``data``."""
        return self.engine.run(step, args=(data,))

    def sum(self, value: Any) -> tf.Tensor:
        """Add a per-replica scalar up over the replicas."""
        return self.engine.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)

    def read(self, variable: keras.Variable) -> tf.Tensor:
        """Return a metric variable summed over the replicas. Call outside the replicas."""
        return tf.convert_to_tensor(variable.value)
