"""How many threads an operation has where the user does not say: decided before a run, and kept."""

from __future__ import annotations

import os

from dtrain.files import reading
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir

#: Variable by which TensorFlow itself is told how many.
VARIABLE = "TF_NUM_INTRAOP_THREADS"
#: Up to so many cores an operation has one thread. TensorFlow's own choice is one for each core.
#: Operations still run beside each other, one on each core; what one thread saves is that the
#: parts of a small operation are handed out and waited for (experiments/threads.py measures it).
ONE_THREAD_CORES = 2


def chosen(cores: int) -> int | None:
    """Return how many threads an operation has; None for TensorFlow's own choice.

    A rule, and no measurement: the same on every start, so that a resumed run has the same bits.

    Args:
        cores: that one task has for itself.
    """
    return 1 if cores <= ONE_THREAD_CORES else None


def are_given() -> bool:
    """Say whether the environment tells TensorFlow how many threads an operation has."""
    return bool(os.environ.get(VARIABLE))


def recorded(rundir: RunDir) -> int | None:
    """Return how many threads were chosen for the operations of a run; None where none were.

    Another number may change the last bits. Of several tasks each has its part of a machine,
    which may be another one now.

    Raises:
        DamagedFile: the file that says so is damaged.
    """
    found = reading.read_json(rundir.cluster)
    if found is None:
        return None
    cluster = Cluster.from_json(found, rundir.cluster)
    alone = len(cluster.processes) == 1 and cluster.device_kind == "cpu"
    return cluster.chief.threads if alone else None
