"""Layers of one model on several devices.

One model over several devices, layer by layer.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator

import keras
import tensorflow as tf

from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Function, Nest
from dtrain.task.backends.layouts import assign_layers
from dtrain.task.backends.tensorflow.base import Strategy
from dtrain.task.model.walk import own, walk


class LayerPlacement(Strategy):
    """TensorFlow's default strategy, with each layer's variables and operations on one device.

    One device works at a time: it holds what is too large for one, and is no faster. The model is
    built on the host; :meth:`place` takes it from there.

    Args:
        devices: names of the devices.
        rules: which layer goes where (:func:`assign_layers`).
    """

    def __init__(self, devices: list[str], rules: object):
        super().__init__(tf.distribute.get_strategy())
        self._devices = [f"/device:{device}" for device in devices]
        self._rules = rules
        #: Path, index of the device and bytes of its own variables of each layer, once placed.
        self.placed: list[tuple[str, int, int]] = []
        self._scopes: dict[str, str] = {}  # of the layers' operations in the graph being traced

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Create model and metrics inside it, on the host."""
        with tf.device("CPU:0"):
            yield

    def place(self, model: keras.Model) -> None:
        """Put every layer on its device; what is in no layer, and metrics, on device 0.

        Raises:
            UsageError: ``strategy.rules`` do not fit the model.
        """
        layers = list(walk(model))
        owners = {id(v): i for i, (_, layer) in enumerate(layers) for v in own(layer, "variables")}
        sizes = [0] * len(layers)
        for variable in model.variables:
            if id(variable) in owners:
                size = math.prod(variable.shape) * variable.value.dtype.size
                sizes[owners[id(variable)]] += size
        paths = [path for path, _ in layers]
        chosen = assign_layers(self._rules, zip(paths, sizes, strict=True), len(self._devices))
        self.placed = list(zip(paths, chosen, sizes, strict=True))
        for (_, layer), index in zip(layers, chosen, strict=True):
            layer.call = self._on(self._devices[index], layer.call)
        for variable in _variables(model):
            owner = owners.get(id(variable))
            _move(variable, self._devices[0 if owner is None else chosen[owner]])

    def _on(self, device: str, call: Function) -> Function:
        @functools.wraps(call)
        def placed(*args: object, **kwargs: object) -> Nest:
            with tf.device(device):
                if not tf.executing_eagerly():
                    self._scopes[tf.get_current_name_scope()] = device
                return call(*args, **kwargs)

        return placed

    def optimizer_scope(self) -> contextlib.AbstractContextManager[object]:
        """Create the optimizer and its slots inside it: a slot lies where its variable does."""
        return tf.device(self._devices[0])  # Keras itself puts a slot where its variable is

    def run(self, step: Function, data: Nest) -> Foreign:
        """Run ``step``, in a graph."""
        self._scopes = {}
        with tf.compat.v1.get_default_graph().device(self._choose):
            return self.engine.run(step, args=(data,))

    def _choose(self, op: tf.Operation) -> str:
        """Place an operation of the graph that no layer's call has placed.

        A gradient goes with the operation whose gradient it is: TensorFlow itself leaves all of
        them on the device of the step, and with them two thirds of the work. Everything else
        (losses, metrics, updates) goes with its variable, or with what it reads.
        """
        if op.device:
            return str(op.device)
        name = op.name
        while name.startswith("gradient_tape/"):  # as TensorFlow's tapes name them, and the scope
            name = name.removeprefix("gradient_tape/")
        while name:
            if name in self._scopes:
                return self._scopes[name]
            name = name.rpartition("/")[0]
        near = [_home(tensor) for tensor in op.inputs]
        return next((d for d in near if d and not d.endswith(self._devices[0])), self._devices[0])


def _home(tensor: tf.Tensor) -> str:
    """Return the device of a tensor; of a variable, or of what was read from one, that of it."""
    if tensor.op.type == "ReadVariableOp":  # which TensorFlow places when it runs the graph
        tensor = tensor.op.inputs[0]
    while tensor.dtype == tf.resource and not tensor.device:
        outside = [outer for outer, inner in tensor.graph.captures if inner is tensor]
        if not outside:
            break
        tensor = outside[0]
    return str(tensor.device)


def _move(variable: keras.Variable, device: str) -> None:
    with tf.device("CPU:0"):
        value = tf.identity(variable.value)
    with tf.device(device):
        new = tf.Variable(value, trainable=variable.trainable, name=variable.name)
    keras_internals.exchange(variable, new)


def _variables(model: keras.Model) -> list[keras.Variable]:
    """Return the variables of the model and of its metrics, each once."""
    of_metrics = [variable for metric in model.metrics for variable in metric.variables]
    return list({id(v): v for v in [*model.variables, *of_metrics]}.values())
