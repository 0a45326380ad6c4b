"""The plan of a mesh: its batch axis times its model axis. Read without TensorFlow."""

from __future__ import annotations

from typing import Any

from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster
from dtrain.task.strategies.plans import CPU_DEVICES, PerDevice


class MeshPlan(PerDevice):
    """One process; each row of its mesh of devices holds one replica.

    Args:
        mesh: sizes of the axes ``batch`` and ``model``; None for the rest.
    """

    own_keys = ("mesh",)
    divides = "variables"
    in_process = False

    def __init__(self, mesh: dict[str, Any]):
        self._batch: int | None = mesh["batch"]
        self._model: int | None = mesh["model"]

    def devices(self, kind: str, gpus: int) -> int:
        """Return all GPUs, or as many logical devices of the CPU as the axes ask for."""
        if kind == "gpu":
            return gpus
        return (self._batch or CPU_DEVICES) * (self._model or CPU_DEVICES)

    def replicas(self, hosts: int, devices: int) -> int:
        """Return the size of the batch axis: the rest, where the configuration leaves it open.

        Raises:
            UsageError: the axes do not multiply out to the devices.
        """
        batch, model = self._batch, self._model
        known = (batch or 1) * (model or 1)
        if devices % known or (batch and model and devices != known):
            raise UsageError(
                "strategy.mesh", f"{{batch: {batch or 'null'}, model: {model or 'null'}}}",
                f"does not multiply out to the {devices} devices of the run",
                "batch x model = devices, null for the rest", f"hardware.devices={known}",
            )  # fmt: skip
        return batch or devices // known

    def rows(self, cluster: Cluster) -> dict[str, str]:
        """Return the two axes."""
        columns = cluster.chief.devices // cluster.replicas
        return {"mesh": f"{cluster.replicas} x {columns} (batch x model)"}
