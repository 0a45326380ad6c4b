"""A setting as the configuration of a trial, and as overrides."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from dtrain.config.schema import Config
from dtrain.config.section import Node
from dtrain.controller.tuned import put, typed

_TRIAL = "dtrain.task.train.trial.Trial"


def for_trial(
    config: Config, setting: Mapping[str, Any], output_dir: str, steps: int, seconds: float
) -> Config:
    """Return the configuration of a trial.

    Args:
        config: settled; is not changed.
        setting: of the trial.
        output_dir: where it has its folder.
        steps, seconds: of :class:`dtrain.task.train.trial.Trial`.
    """
    made = copy.copy(config)
    put(made, setting)
    put(made, {"trainer.callbacks": [], "trainer.log_every_steps": None,
               "checkpoint.every_epochs": None, "checkpoint.every_steps": None,
               "checkpoint.every_seconds": None})  # fmt: skip
    made.action = Node({"_target_": _TRIAL, "steps": steps, "seconds": seconds})
    made.output_dir = output_dir
    return made


def named(setting: Mapping[str, Any]) -> str:
    """Return a setting as overrides; ``plain`` for that which changes nothing."""
    return " ".join(f"{key}={typed(value)}" for key, value in setting.items()) or "plain"
