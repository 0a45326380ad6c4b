"""The plan of a model whose layers are spread over the devices. Read without TensorFlow."""

from __future__ import annotations

from dtrain.task.strategies.plans import PerDevice


class LayerPlan(PerDevice):
    """One replica across all devices of one process."""

    divides = "layers"

    def replicas(self, hosts: int, devices: int) -> int:
        """Return one: all devices hold one model."""
        return 1
