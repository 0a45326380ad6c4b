"""Model parallel and hybrid: one model in parts, and copies of it, on a DTensor mesh."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import keras
import tensorflow as tf
from tensorflow.experimental import dtensor

from dtrain.data.sources import Source
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster
from dtrain.task import keras_internals
from dtrain.task.backends import layouts
from dtrain.task.backends.base import Abilities, Finish
from dtrain.task.backends.layouts import Placement
from dtrain.task.backends.tensorflow.base import HostBuilt
from dtrain.task.backends.tensorflow.dtensor.forward import MeshForward
from dtrain.task.backends.tensorflow.dtensor.steps import MeshSteps
from dtrain.task.data.inputs import Inputs


class MeshVariable(dtensor.DVariable):
    """Stored in parts. A graph on the mesh reads them as they lie; the host reads the whole.

    So everything that looks at variables from outside (checkpoints, callbacks, ``model.save``)
    needs to know nothing of the mesh.

    Args:
        value: all of it, ``[*shape]``.
        mesh: whose axes are ``batch`` and ``model``.
        placement: which axis is split.
        **kwargs: as of ``tf.Variable``.
    """

    # `mesh` by keyword: TensorFlow takes a second position for `trainable`, whatever the class.
    def __init__(
        self, value: tf.Tensor, *, mesh: dtensor.Mesh, placement: Placement, **kwargs: Any
    ):
        specs = [spec or dtensor.UNSHARDED for spec in placement.specs(len(value.shape))]
        self.placement = placement
        self._whole = dtensor.Layout.replicated(mesh, len(specs))
        super().__init__(dtensor.relayout(value, dtensor.Layout(specs, mesh)), **kwargs)

    def parts(self) -> list[tf.Tensor]:
        """Return what each device holds, in the order of the mesh; out of graphs only."""
        return list(dtensor.unpack(super().read_value()))

    def value(self) -> tf.Tensor:
        """Read it."""
        return self._read(super().value())

    def read_value(self) -> tf.Tensor:
        """Read it now, in a graph at this point of it."""
        return self._read(super().read_value())

    def _read(self, value: tf.Tensor) -> tf.Tensor:
        # The gradient of a relayout has its input's layout and is dense, as that of a lookup in an
        # embedding would not be: DTensor scatters into no variable.
        whole = tf.executing_eagerly() or self.placement.gathered
        return dtensor.relayout(value, self._whole if whole else self.layout)

    # DTensor adds what has another layout to the parts as if it had this one, and says nothing.
    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Set it to ``value``, of any layout."""
        return super().assign(self._laid_out(value), *args, **kwargs)

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Add ``delta``, of any layout."""
        return super().assign_add(self._laid_out(delta), *args, **kwargs)

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Subtract ``delta``, of any layout."""
        return super().assign_sub(self._laid_out(delta), *args, **kwargs)

    def _laid_out(self, value: Any) -> tf.Tensor:
        return dtensor.relayout(tf.convert_to_tensor(value, self.dtype), self.layout)


class Mesh(HostBuilt):
    """The devices of this task as rows of ``batch``, each of which holds one model in parts.

    TensorFlow's default strategy is the engine: to Keras there is one replica, which has the whole
    batch and the whole model, and DTensor divides its graph over the devices.

    Args:
        devices: names of the devices, a row of the mesh after the other.
        cluster: its replicas are the rows.
        rules: which variables are split, and how (:mod:`.layouts`).
    """

    abilities = Abilities(plain_variables=False, eager=False, dense_lookups=True)

    def __init__(self, devices: list[str], cluster: Cluster, rules: Any):
        # ORDER: before DTensor compiles anything. It would combine the reductions of a graph, and
        # then sort all operations by their inputs alone: a variable that is written and read in one
        # step may be read first. So the metrics of the first step were 0, and every other's those
        # of the step before.
        os.environ["DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"] = "0"
        super().__init__()
        self._sizes = cluster.replicas, len(devices) // cluster.replicas
        self._rules = rules
        self.mesh = dtensor.create_mesh(
            list(zip(("batch", "model"), self._sizes, strict=True)), devices=devices
        )
        self._placed: list[tuple[str, layouts.Shape, Placement]] = []

    @property
    def replicas(self) -> int:
        """How many rows share each global batch."""
        return self._sizes[0]

    @property
    def parts(self) -> int:
        """One: DTensor divides the batch, and the step has the whole of it."""
        return 1

    @property
    def sizes(self) -> str:
        """The mesh in words."""
        return f"{self._sizes[0]} x {self._sizes[1]}"

    def place(self, model: keras.Model) -> None:
        """Put every variable of the model and its metrics on the mesh.

        Raises:
            UsageError: ``strategy.rules`` do not fit the model.
        """
        if model.optimizer is not None and model.optimizer.built:
            raise UsageError(
                "model", type(model).__name__,
                "its optimizer was built already, as that of a model from a file, and the mesh has "
                "other variables",
                "keras.saving.load_model(..., compile=False), or another strategy",
                "strategy=mirrored",
            )  # fmt: skip
        shapes = [(v.path, tuple(v.shape)) for v in model.variables]
        placements = layouts.place(self._rules, shapes, self._sizes[1])
        self._placed = [(*each, p) for each, p in zip(shapes, placements, strict=True)]
        for variable, placement in zip(model.variables, placements, strict=True):
            self._move(variable, placement)
        others = [variable for metric in model.metrics for variable in metric.variables]
        others += [] if model.optimizer is None else model.optimizer.variables
        for variable in others:
            if not isinstance(keras_internals.stored(variable), MeshVariable):
                self._move(variable, Placement())

    def _move(self, variable: keras.Variable, placement: Placement) -> None:
        # A variable creator knows no path, least of all of what a layer inside another creates; and
        # created there, the model would be built by DTensor, operation by operation.
        old = keras_internals.stored(variable)
        with tf.device("CPU:0"):
            whole = tf.identity(old)
        new = self._variable(whole, placement, variable.name, old.trainable)
        keras_internals.exchange(variable, new)

    def _variable(
        self, value: tf.Tensor, placement: Placement, name: str, trainable: bool
    ) -> MeshVariable:
        return MeshVariable(
            value, mesh=self.mesh, placement=placement, name=name, trainable=trainable
        )

    def optimizer_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Create the optimizer and its slots inside it: a slot lies as its variable does."""
        return tf.variable_creator_scope(self._create_slot)

    def _create_slot(self, next_creator: Any, **kwargs: Any) -> Any:
        value = kwargs["initial_value"]
        with tf.device("CPU:0"):
            value = value() if callable(value) else value
            whole = tf.convert_to_tensor(value, kwargs.get("dtype"))
        placement = layouts.slot(kwargs["name"], tuple(whole.shape), self._placed)
        return self._variable(whole, placement, kwargs["name"], bool(kwargs.get("trainable")))

    def pack(self, part: tf.Tensor, divided: bool) -> tf.Tensor:
        """Send a tensor ``[b, ...]`` to the mesh, its examples divided over the rows or not."""
        rows, columns = self._sizes
        specs = [dtensor.UNSHARDED] * len(part.shape)
        pieces = [part] * rows
        if divided:
            specs[0], pieces = "batch", tf.split(part, rows)
        return dtensor.pack(
            [piece for piece in pieces for _ in range(columns)], dtensor.Layout(specs, self.mesh)
        )

    def gathered(self, value: tf.Tensor) -> tf.Tensor:
        """Return a tensor whole on every device; traced on the mesh."""
        layout = dtensor.Layout([dtensor.UNSHARDED] * len(value.shape), self.mesh)
        return dtensor.relayout(value, layout)

    def forward(
        self, model: keras.Model, source: Source, batch: int, finish: Finish
    ) -> MeshForward:
        """Return the function that predicts on the mesh."""
        return MeshForward(self, model, source, batch, finish)

    @property
    def arithmetic(self) -> dict[str, Any]:
        """Sums over a part of the model are others than those over the whole; rows are alike."""
        parts = self._sizes[1]
        return {} if parts == 1 else {"model_parts": parts, "rules": self._rules}

    def steps(self, model: keras.Model, inputs: Inputs, jit_compile: bool) -> MeshSteps:
        """Return what runs the steps of ``model`` on the mesh."""
        return MeshSteps(model, self, inputs)
