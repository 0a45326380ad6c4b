"""Sums of three and more are added in the order in which they are written.

Grappler joins ``a + b + c`` to one AddN, and that begins with whichever input it may write over,
which depends on how far other threads are (tensorflow/core/kernels/aggregate_ops.cc). So the last
bit of such a sum changed: on a busy machine in one of some 300 steps that assign weights on two
replicas. An operation with the mark below has been joined already, for Grappler, and is left alone
(tensorflow/core/grappler/optimizers/arithmetic_optimizer.cc).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dtrain.task.keras_internals.lookup import module

MARK = "_grappler_ArithmeticOptimizer_AddOpsRewriteStage"
GRAPHS = "tensorflow.python.framework.func_graph"


def keep_order() -> None:
    """Mark the operations of every function that this process traces from here on.

    Where TensorFlow keeps the marks of a graph in another way, Grappler rewrites no arithmetic at
    all: the same bits, and steps of milliseconds take a few percent longer.
    """
    kind: Any = getattr(module(GRAPHS), "FuncGraph", None)
    marks = getattr(tf.Graph(), "_attr_scope_map", None)
    if kind is None or not isinstance(marks, dict):
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
        return
    original = kind.__init__
    if getattr(original, "__module__", "") == __name__:
        return
    value = tf.compat.v1.AttrValue(b=True)

    def marked(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self._attr_scope_map[MARK] = value

    kind.__init__ = marked
