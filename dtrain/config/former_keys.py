"""Keys that are gone: a user who writes one is refused, by its name."""

from __future__ import annotations

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
