"""The plan of a TPU: one replica on each core. Read without TensorFlow."""

from __future__ import annotations

from dtrain.config.schema import Config
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster
from dtrain.task.strategies.plans import PerDevice

#: Cores where the number is not given: those of one host of the older TPUs.
CORES = 8


class TpuPlan(PerDevice):
    """One process with a replica on each core of a TPU."""

    compilable = True
    in_process = False
    kinds = ("tpu",)

    def devices(self, kind: str, gpus: int) -> int:
        """Return the cores of one host."""
        return CORES

    def check(self, config: Config, cluster: Cluster) -> None:
        """Refuse what a TPU does not compute.

        Raises:
            UsageError: the precision, or a batch of a validation that the cores cannot share.
        """
        if config.hardware.precision.name == "mixed_float16":
            raise UsageError(
                "hardware.precision", "mixed_float16", "a TPU computes in bfloat16",
                "float32, mixed_bfloat16", "hardware.precision=mixed_bfloat16",
            )  # fmt: skip
        held, cores = config.trainer.validation_batch_size, cluster.replicas
        if held is not None and held % cores:
            raise UsageError(
                "trainer.validation_batch_size", held,
                f"{cores} cores of a TPU cannot share it evenly",
                f"multiples of {cores}, or null", "trainer.validation_batch_size=null",
            )  # fmt: skip

    def rows(self, cluster: Cluster) -> dict[str, str]:
        """Return that this has not been tried."""
        return {"untried": "strategy=tpu has not yet run on a TPU"}
