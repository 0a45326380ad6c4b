"""A compiled step adds, reads and assigns in the order in which that is written.

Sums of three and more: Grappler joins ``a + b + c`` to one AddN, and that begins with whichever
input it may write over, which depends on how far other threads are
(tensorflow/core/kernels/aggregate_ops.cc). So the last bit of such a sum changed: on a busy machine
in one of some 300 steps that assign weights on two replicas. An operation with the mark below has
been joined already, for Grappler, and is left alone
(tensorflow/core/grappler/optimizers/arithmetic_optimizer.cc).

Variables: that one is read before it is assigned is an edge of the graph, which Grappler takes away
where operations lead from the one to the other anyway. One of these may be the IdentityN that
``tf.custom_gradient`` makes of all gradients together, and that it takes apart afterwards: then
nothing is left of the order (TensorFlow 2.21, dependency_optimizer.cc). A layer that is computed
again for its gradients (``tf.recompute_grad``, ``hardware.remat``) read weights before or after
their update, as threads had it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dtrain.task.keras_internals.lookup import module

MARK = "_grappler_ArithmeticOptimizer_AddOpsRewriteStage"
GRAPHS = "tensorflow.python.framework.func_graph"


def keep_order() -> None:
    """Keep the order in every function that this process traces from here on.

    Without the optimization of dependencies a step of 200 microseconds takes 1 to 3 % longer. Where
    TensorFlow keeps the marks of a graph in another way, Grappler rewrites no arithmetic at
    all: the same bits, and steps of milliseconds take a few percent longer.
    """
    tf.config.optimizer.set_experimental_options({"dependency_optimization": False})
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
