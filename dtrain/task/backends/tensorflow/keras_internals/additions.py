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
their update, as threads had it. So could the weights of the last layer be, where the gradient of a
loss does not depend on its value, as of a critic's mean: an all-reduce of gradients is such an
IdentityN, and Keras' optimizers make one on one replica, too (:func:`.updates.reduce_nothing`).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dtrain.task.keras_internals.model import module, unknown

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
    kind: Any = getattr(module(GRAPHS), "FuncGraph", None)
    if kind is None or not isinstance(getattr(tf.Graph(), "_attr_scope_map", None), dict):
        raise unknown("marks the operations of a graph", package="tensorflow")
    original = kind.__init__
    if getattr(original, "__module__", "") == __name__:
        return
    value = tf.compat.v1.AttrValue(b=True)

    def marked(self: Any, *arguments: Any, **named: Any) -> None:
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
    registry: Any = getattr(module(OPERATIONS), "gradient_registry", None)
    if not hasattr(registry, "list"):
        raise unknown("registers gradients", package="tensorflow")
    custom = any(name.startswith(CUSTOM) for name in registry.list())
    tf.config.optimizer.set_experimental_options({"dependency_optimization": not custom})
