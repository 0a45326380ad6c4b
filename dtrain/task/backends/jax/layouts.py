"""How variables and batches lie on the devices: a distribution of Keras', by rules over paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import keras
from keras.distribution import DeviceMesh, LayoutMap, TensorLayout

from dtrain.task.backends.layouts import Placement, place

#: The axes of a mesh.
AXES = ("batch", "model")


class Layouts(keras.distribution.ModelParallel):
    """Variables in parts over one axis of a mesh, batches in parts over ``batch``.

    Keras asks for the layout of each variable when it is made, so that no device ever holds the
    whole of one that is in parts; a slot of an optimizer lies as its variable does.

    Args:
        devices: names, a row of the mesh after the other.
        sizes: of the axes ``batch`` and ``model``.
        rules: which variables are in parts (:func:`place`); None: none is.
        axis: that they are in parts over.
    """

    def __init__(
        self, devices: Sequence[str], sizes: tuple[int, int], rules: Any = None, axis: str = "model"
    ):
        mesh = DeviceMesh(sizes, AXES, list(devices))
        super().__init__(layout_map=LayoutMap(mesh), batch_dim_name="batch")
        self._rules, self._axis = rules, axis
        self._sizes = dict(zip(AXES, sizes, strict=True))

    def placements(self, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> list[Placement]:
        """Place variables.

        Args:
            shapes: (path, shape) of each.

        Raises:
            UsageError: a rule does not fit one of them, or fits none.
        """
        if self._rules is None:
            return [Placement() for _ in shapes]
        return place(self._rules, shapes, self._sizes[self._axis])

    def _placement(self, path: str, shape: tuple[int, ...]) -> Placement:
        """Place one variable; a rule that fits none is refused when all are there."""
        rules = self._rules
        if isinstance(rules, list):
            rules = [rule for rule in rules if re.search(rule["path"], path)][:1]
        if not rules:
            return Placement()
        [placement] = place(rules, [(path, shape)], self._sizes[self._axis])
        return placement

    def get_variable_layout(self, variable: keras.Variable) -> TensorLayout:
        """Return the layout of a variable that is being made."""
        rank = len(variable.shape)
        axes: list[str | None] = [None] * rank
        placement = self._placement(variable.path, tuple(variable.shape))
        if placement.axis is not None:
            axes[placement.axis] = self._axis
        return TensorLayout(axes, self.device_mesh)

    def distribute_dataset(self, dataset: Any) -> Any:
        """Return the batches as they are: Keras' own ``evaluate`` and ``predict`` divide them."""
        return dataset

    def sharding(self, rank: int, divided: bool) -> jax.sharding.NamedSharding:
        """Return where a batch of arrays of this rank lies, divided over the rows or whole."""
        axes = ["batch"] if divided and rank else []
        spec = jax.sharding.PartitionSpec(*axes)
        return jax.sharding.NamedSharding(self.device_mesh.backend_mesh, spec)
