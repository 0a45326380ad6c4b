"""How variables and batches lie on the devices: a distribution of Keras', by rules over paths."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import keras
from keras.distribution import DeviceMesh, LayoutMap, TensorLayout

from dtrain.errors import UsageError
from dtrain.task.backends.layouts import Rules

#: The axes of a mesh.
AXES = ("batch", "model")


class Layouts(keras.distribution.ModelParallel):
    """Variables in parts over one axis of a mesh, batches in parts over ``batch``.

    Keras asks for the layout of each variable when it is made, so that no device ever holds the
    whole of one that is in parts; a slot of an optimizer lies as its variable does.

    Args:
        devices: names, a row of the mesh after the other.
        sizes: of the axes ``batch`` and ``model``.
        rules: which variables are in parts (:class:`Rules`).
        axis: that they are in parts over.
    """

    def __init__(
        self, devices: Sequence[str], sizes: tuple[int, int], rules: Any, axis: str = "model"
    ):
        mesh = DeviceMesh(sizes, AXES, list(devices))
        super().__init__(layout_map=LayoutMap(mesh), batch_dim_name="batch")
        self._axis, self._of_optimizer = axis, False
        self._rules = Rules(rules, parts=sizes[AXES.index(axis)])

    def check(self, model: keras.Model) -> None:
        """Refuse rules that do not fit a model.

        Raises:
            UsageError: naming the rule.
        """
        self._rules.axes([(v.path, tuple(v.shape)) for v in model.variables])

    @contextlib.contextmanager
    def optimizer_scope(self) -> Iterator[None]:
        """Make an optimizer inside: its variables are whole, but for slots."""
        self._of_optimizer = True
        try:
            with self.scope():
                yield
        finally:
            self._of_optimizer = False

    def get_variable_layout(self, variable: keras.Variable) -> TensorLayout:
        """Return the layout of a variable that is being made, of which no other decides."""
        shape = tuple(variable.shape)
        axes: list[str | None] = [None] * len(shape)
        with contextlib.suppress(UsageError):  # raised when all are there (:meth:`check`)
            axis = None if self._of_optimizer else self._rules.axis(variable.path, shape)
            if axis is not None:
                axes[axis] = self._axis
        return TensorLayout(axes, self.device_mesh)

    def distribute_dataset(self, dataset: Any) -> Any:
        """Return the batches as they are: Keras' own ``evaluate`` and ``predict`` divide them."""
        return dataset

    def sharding(self, rank: int, divided: bool, axis: int = 0) -> jax.sharding.NamedSharding:
        """Return where a batch of arrays of this rank lies.

        Args:
            rank: of the arrays.
            divided: over the rows of the mesh; or every device has all of it.
            axis: that of the examples.
        """
        axes = [*[None] * axis, "batch"] if divided and rank else []
        spec = jax.sharding.PartitionSpec(*axes)
        return jax.sharding.NamedSharding(self.device_mesh.backend_mesh, spec)
