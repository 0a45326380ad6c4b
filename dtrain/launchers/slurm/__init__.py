"""Jobs of SLURM: submitted by a batch script, which has SLURM start them again."""

from dtrain.launchers.slurm.launcher import Slurm, choose

__all__ = ["Slurm", "choose"]
