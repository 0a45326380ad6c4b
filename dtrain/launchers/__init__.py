"""Launchers start planned tasks and watch their processes; they know nothing of training."""

import importlib
from typing import TYPE_CHECKING, Any

from dtrain.launchers.base import Elsewhere, Launcher, LocalProcesses
from dtrain.launchers.env import Env, auto
from dtrain.launchers.local import Inline, Local

if TYPE_CHECKING:
    from dtrain.launchers.k8s import Kubernetes
    from dtrain.launchers.ray import Ray
    from dtrain.launchers.ssh import Ssh

__all__ = [
    "Elsewhere", "Env", "Inline", "Kubernetes", "Launcher", "Local", "LocalProcesses", "Ray",
    "Ssh", "auto",
]  # fmt: skip

#: Imported when they are chosen: most commands need none of them.
_LATE = {"Kubernetes": "k8s", "Ray": "ray", "Ssh": "ssh"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
