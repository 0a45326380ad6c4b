"""Many jobs by one command (``-m``): composed, given their cores and GPUs, run, recorded."""

from dtrain.controller.sweep.command import run
from dtrain.controller.sweep.compose import Master
from dtrain.controller.sweep.job_source import Grid, Source

__all__ = ["Grid", "Master", "Source", "run"]
