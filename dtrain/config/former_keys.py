"""Keys that are gone. A user who writes one is refused, by its name; a run folder that has them is
read as if it had those of today.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from omegaconf import DictConfig, open_dict

from dtrain.config.overrides import parse
from dtrain.errors import UsageError

_PLANS = "dtrain.task.strategies"
_PLAN = (
    "the plan of a strategy has it now",
    f"strategy.plan._target_={_PLANS}.plans.OneReplica, PerDevice, PerHost, or one of your own",
    f"strategy.plan._target_={_PLANS}.plans.PerDevice",
)
#: For each: why it is gone, what is accepted in its place, and what to type.
_GONE = {
    "strategy.replicas": _PLAN,
    "strategy.compilable": _PLAN,
    "strategy.topology": _PLAN,
    "tracking.mlflow": (
        "the tracker is chosen by its class",
        "tracking=mlflow, tracking=none, or one of your own",
        "tracking=none",
    ),
    "init.from": ("the key is init.weights", "init.weights", "init.weights=RUN_DIR"),
}
#: Keys of datasets that have other names now.
_RENAMED = {
    "label": "target", "x": "inputs", "y": "target", "x_validation": "validation_inputs",
    "y_validation": "validation_target", "weight_validation": "validation_weight",
    "target_path": "target", "weight_path": "weight", "validation_path": "validation",
    "validation_target_path": "validation_target", "validation_weight_path": "validation_weight",
}  # fmt: skip
_GONE |= {
    f"dataset.{former}": (f"the key is dataset.{name}", f"dataset.{name}", f"dataset.{name}=VALUE")
    for former, name in _RENAMED.items()
}
_TRACKERS = {
    True: "dtrain.tracking.mlflow.tracker.MLflow",
    False: "dtrain.tracking.none.NoTracker",
}
#: Plans of folders that have none, by what their strategy reads and makes.
_BY_KEY = {"mesh": "dtensor.plan.MeshPlan", "tpu": "tpu.plan.TpuPlan"}
_BY_TOPOLOGY = {
    "hosts": "plans.PerHost",
    "parameter_servers": "parameter_server.plan.ParameterServerPlan",
}
_BY_REPLICAS = {
    "one": "plans.OneReplica",
    "per_device": "plans.PerDevice",
    "across_devices": "layer_placement.plan.LayerPlan",
}


def refusal(key: str, value: object, where: str | None = None) -> UsageError | None:
    """Return what to raise where a user writes ``key``; None where it is not gone.

    Args:
        key: dotted.
        value: of it.
        where: file and line, if it is not an override.
    """
    if key not in _GONE:
        return None
    problem, accepted, hint = _GONE[key]
    place = f" ({where})" if where else ""
    hint = hint.replace("RUN_DIR", str(value)).replace("VALUE", str(value))
    return UsageError(key, value, f"is gone{place}: {problem}", accepted, hint)


def overrides(given: Iterable[str]) -> Iterator[str]:
    """Yield the overrides of a run folder as they are written today."""
    for override in given:
        if override.lower() in ("tracking.mlflow=false", "tracking.mlflow=true"):
            yield "tracking=none" if override.lower().endswith("false") else "tracking=mlflow"
        elif parse(override).name not in _GONE:
            yield override


def translated(config: DictConfig) -> DictConfig:
    """Give the configuration of a run folder the keys of today, in place, and return it."""
    strategy: Any = config.get("strategy")
    if isinstance(strategy, DictConfig) and "topology" in strategy and "plan" not in strategy:
        found = next((plan for key, plan in _BY_KEY.items() if key in strategy), None)
        found = found or _BY_TOPOLOGY.get(strategy.topology)
        found = found or _BY_REPLICAS.get(strategy.get("replicas"), "plans.OneReplica")
        with open_dict(config):
            strategy.plan = {"_target_": f"{_PLANS}.{found}"}
            for key in ("replicas", "compilable", "topology"):
                strategy.pop(key, None)
    if "action" not in config:
        with open_dict(config):
            config.action = {"_target_": "dtrain.task.actions.train.Train"}
    tracking: Any = config.get("tracking")
    if isinstance(tracking, DictConfig) and "_target_" not in tracking:
        with open_dict(config):
            tracking._target_ = _TRACKERS[bool(tracking.pop("mlflow", True))]
    return config
