"""The strategies of ``conf/strategy``, and those that compute on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from dtrain.config import trust
from dtrain.run.strategy_plan import StrategyPlan
from dtrain.task.backends.tensorflow import STRATEGIES

FOLDER = Path(__file__).parents[1] / "conf" / "strategy"
#: Files of the strategies that TensorFlow has, which is what the suite's warm server imports.
OF_TENSORFLOW = {
    path.stem: path
    for path in sorted(FOLDER.glob("*.yaml"))
    if yaml.safe_load(path.read_text())["_target_"].rpartition(".")[2] in STRATEGIES
}


def chosen(takes: Callable[[type[StrategyPlan]], bool] = lambda plan: True) -> dict[str, list[str]]:
    """Return the overrides that choose each strategy, synchronous, by its name.

    Args:
        takes: says of the class of its plan whether it is wanted.
    """
    found = {}
    for name, path in OF_TENSORFLOW.items():
        node = yaml.safe_load(path.read_text())
        plan = trust.locate(node["plan"]["_target_"], "strategy.plan._target_")
        if "cpu" in plan.kinds and takes(plan):
            update = ["strategy.update=sync"] if "update" in node else []
            found[name] = [f"strategy={name}", *update]
    return found
