"""Types of the keys of strategies: one class for each that has keys of its own."""

from __future__ import annotations

import dataclasses
import enum
import importlib
from typing import Any

from omegaconf import MISSING

from dtrain.config.forms import FILE_NAME, NODE, PLACEMENT, target, text
from dtrain.config.ranges import MANY, formed, within
from dtrain.host.frameworks import FRAMEWORKS

#: Where the classes of dtrain's own strategies are named.
_OWN = "dtrain.task.strategies"
#: TensorFlow's collectives, by which gradients are added up over the tasks.
Communication = enum.Enum("Communication", ["auto", "ring", "nccl"])
#: When a gradient is applied: as soon as it is there, or averaged with those of a global batch.
Update = enum.Enum("Update", ["async", "sync"])  # `async` is a keyword, hence the call


@dataclasses.dataclass
class Strategy:
    """What the plan knows of every strategy.

    Attributes:
        _target_: class of the strategy.
        name: name of the strategy, in the plan and in records.
        plan: class that plans tasks, devices and replicas before TensorFlow is imported.
    """

    _target_: str = target()
    name: str = formed(MISSING, FILE_NAME)
    plan: Any = formed(MISSING, NODE)


@dataclasses.dataclass
class MultiWorker(Strategy):
    """Data parallel over hosts.

    Attributes:
        communication: how gradients are added up over the tasks: ring (gRPC, any device), nccl
            (NVIDIA GPUs), auto (TensorFlow's choice; ring on CPUs).
    """

    communication: Communication = Communication.auto


@dataclasses.dataclass
class ParameterServer(Strategy):
    """Parameter servers hold the variables, workers compute the gradients.

    Attributes:
        workers: number of workers.
        servers: number of parameter servers.
        update: async: apply each gradient when it is ready; sync: one average a global batch.
        max_staleness: async: largest age of a gradient, in updates; null: no limit.
        backup_workers: sync: how many of the workers' gradients are dropped, the slowest.
    """

    workers: int = within(2, 1, 10_000)
    servers: int = within(1, 1, 10_000)
    update: Update = Update["async"]
    max_staleness: int | None = within(None, 0, MANY)
    backup_workers: int = within(0, 0, 10_000)


@dataclasses.dataclass
class Mesh:
    """Axes of a mesh of devices; their product is the number of devices.

    Attributes:
        batch: parts of the global batch; null: what the other axis leaves.
        model: parts of each model; null: what the other axis leaves.
    """

    batch: int | None = within(None, 1, 10_000)
    model: int | None = within(None, 1, 10_000)


@dataclasses.dataclass
class MeshStrategy(Strategy):
    """Variables split over a mesh of devices.

    Attributes:
        mesh: axes of the mesh.
        rules: how variables are split: auto, or a list like those of conf/strategy/rules/.
    """

    mesh: Mesh = dataclasses.field(default_factory=Mesh)
    rules: Any = formed("auto", PLACEMENT)


@dataclasses.dataclass
class FullySharded(Strategy):
    """Data parallel, with a part of every variable on each device.

    Attributes:
        rules: which axes are split: auto, or a list such as [{path: REGEX, split: 0}].
    """

    rules: Any = formed("auto", PLACEMENT)


@dataclasses.dataclass
class LayerPlacement(Strategy):
    """One model over all devices, layer by layer.

    Attributes:
        rules: auto: runs of layers of equal bytes; or a list [{layer: REGEX, device: 1}, ...].
    """

    rules: Any = formed("auto", PLACEMENT)


@dataclasses.dataclass
class Tpu(Strategy):
    """Data parallel on the cores of a TPU.

    Attributes:
        tpu: local: this machine's; a name, grpc://HOST:PORT; null: that of TPU_NAME.
        zone: zone of a TPU given by name; null: that of the cloud's metadata server.
        project: project of a TPU given by name; null: that of the cloud's metadata server.
    """

    tpu: str | None = formed("local", text())
    zone: str | None = formed(None, text())
    project: str | None = formed(None, text())


def backends(target: str) -> list[str]:
    """Return the backends that have a strategy: all, of a class that is not dtrain's own.

    Args:
        target: ``strategy._target_``.
    """
    package, _, name = target.rpartition(".")
    having = [each for each in FRAMEWORKS if package == _OWN and name in registry(each)]
    return having or list(FRAMEWORKS)


def registry(backend: str) -> dict[str, str]:
    """Return the registry of strategies of a backend; no framework is imported."""
    strategies: dict[str, str] = importlib.import_module(
        f"dtrain.task.backends.{backend}"
    ).STRATEGIES
    return strategies


_KINDS: list[type[Strategy]] = [Strategy, *Strategy.__subclasses__()]
#: By the name that a file of ``conf/strategy`` refers to it with.
SCHEMAS: dict[str, type] = {kind.__name__: kind for kind in _KINDS}
