"""The keys of strategies: one class for each that has keys of its own."""

from importlib import import_module
from typing import Annotated, Literal, Self

from pydantic import model_validator

from dtrain.config import fields as f
from dtrain.errors import refuse
from dtrain.host.frameworks import FRAMEWORKS

#: Where the classes of dtrain's own strategies are named.
_OWN = "dtrain.task.strategies"


def _rules(value: f.Plain) -> str | None:
    """Say why ``strategy.rules`` cannot be read: what needs the model is checked by the task."""
    if value == "auto":
        return None
    if not isinstance(value, list):
        return "is no list of rules"
    if not value:
        return "has no rule"
    for item in value:
        pattern = item.get("path", item.get("layer")) if isinstance(item, dict) else None
        if not isinstance(item, dict) or pattern is None or len(item) != 2:
            return f"{f.short(item)} is no rule"
        if (problem := f.regex_problem(pattern)) is not None:
            return f"{f.short(pattern)} {problem}"
        for name in ("split", "gather", "device"):
            number = item.get(name, 0)
            if type(number) is not int or not -64 <= number <= 4096:
                return f"{name}: {f.short(number)} is no whole number from -64 to 4096"
    return None


Rules = Annotated[f.Plain, f.Form("auto, or a list of rules", _rules, "auto")]


class Strategy(f.Group, scope="host"):
    """What the plan knows of every strategy."""

    target_: f.Target
    """Class of the strategy."""
    name: f.FileName
    """Name of the strategy, in the plan and in records."""
    plan: f.Node
    """Class that plans tasks, devices and replicas before TensorFlow is imported."""


class MultiWorker(Strategy, target="dtrain.task.strategies.MultiWorker"):
    """Data parallel over hosts."""

    communication: Literal["auto", "ring", "nccl"] = "auto"
    """How gradients are added up over the tasks: ring (gRPC, any device), nccl (NVIDIA GPUs), auto
    (TensorFlow's choice; ring on CPUs)."""


class ParameterServer(Strategy, target="dtrain.task.strategies.ParameterServer"):
    """Parameter servers hold the variables, workers compute the gradients."""

    workers: f.Number = 2
    """Number of workers."""
    servers: f.Number = 1
    """Number of parameter servers."""
    update: Literal["async", "sync"] = "async"
    """async: apply each gradient when it is ready; sync: one average a global batch."""
    max_staleness: f.Index | None = None
    """async: largest age of a gradient, in updates; null: no limit."""
    backup_workers: Annotated[int, f.within(0, 10_000)] = 0
    """sync: how many of the workers' gradients are dropped, the slowest."""

    @model_validator(mode="after")
    def _updates_have_their_keys(self) -> Self:
        """Refuse a key of the other kind of updates, and more backups than workers."""
        backups, workers = self.backup_workers, self.workers
        if self.update == "sync" and self.max_staleness is not None:
            refuse("strategy.max_staleness", "a synchronous update is never stale",
                   self.max_staleness, accepted="null, or strategy.update=async",
                   typed="strategy.update=async")  # fmt: skip
        if self.update == "async" and backups:
            refuse("strategy.backup_workers", "asynchronous updates do not wait", backups,
                   accepted="0, or strategy.update=sync", typed="strategy.update=sync")  # fmt: skip
        if backups >= workers:
            refuse("strategy.backup_workers", f"would drop the gradients of all {workers} workers",
                   backups, accepted=f"up to {workers - 1}",
                   typed=f"strategy.backup_workers={workers - 1}")  # fmt: skip
        return self


class Mesh(f.Group, scope="host"):
    """Axes of a mesh of devices; their product is the number of devices."""

    batch: f.Number | None = None
    """Parts of the global batch; null: what the other axis leaves."""
    model: f.Number | None = None
    """Parts of each model; null: what the other axis leaves."""


class MeshStrategy(Strategy, target="dtrain.task.strategies.Mesh"):
    """Variables split over a mesh of devices."""

    mesh: Mesh = Mesh()
    """Axes of the mesh."""
    rules: Rules = "auto"
    """How variables are split: auto, or a list like those of conf/strategy/rules/."""


class FullySharded(Strategy, target="dtrain.task.strategies.FullySharded"):
    """Data parallel, with a part of every variable on each device."""

    rules: Rules = "auto"
    """Which axes are split: auto, or a list such as [{path: REGEX, split: 0}]."""


class LayerPlacement(Strategy, target="dtrain.task.strategies.LayerPlacement"):
    """One model over all devices, layer by layer."""

    rules: Rules = "auto"
    """auto: runs of layers of equal bytes; or a list [{layer: REGEX, device: 1}, ...]."""


class Tpu(Strategy, target="dtrain.task.strategies.TPU"):
    """Data parallel on the cores of a TPU."""

    tpu: f.Line | None = "local"
    """local: this machine's; a name, grpc://HOST:PORT; null: that of TPU_NAME."""
    zone: f.Line | None = None
    """Zone of a TPU given by name; null: that of the cloud's metadata server."""
    project: f.Line | None = None
    """Project of a TPU given by name; null: that of the cloud's metadata server."""


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
    strategies: dict[str, str] = import_module(f"dtrain.task.backends.{backend}").STRATEGIES
    return strategies
