"""A variable whose parts lie on the devices of a mesh."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from dtrain.task.backends.tensorflow.dtensor.layouts import Placement


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
