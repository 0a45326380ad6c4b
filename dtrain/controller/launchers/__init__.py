"""Launchers start planned tasks and watch their processes; they know nothing of training."""

from dtrain.controller.launchers.automatic import auto
from dtrain.controller.launchers.base import Launcher
from dtrain.controller.launchers.external import Env
from dtrain.controller.launchers.inline import Inline
from dtrain.controller.launchers.k8s.launcher import Kubernetes
from dtrain.controller.launchers.local import Local
from dtrain.controller.launchers.processes import LocalProcesses
from dtrain.controller.launchers.ray import Ray
from dtrain.controller.launchers.ssh import Ssh

__all__ = [
    "Env", "Inline", "Kubernetes", "Launcher", "Local", "LocalProcesses", "Ray", "Ssh", "auto",
]  # fmt: skip
