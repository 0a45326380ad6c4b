"""A step of SLURM: what ``srun`` has started, where its first task is, how many a node has.

The variables are those of srun(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping

from dtrain.errors import refuse
from dtrain.launchers.platforms.base import Ranked, Started, Variables

#: From this number on a step is none of srun's: a batch script, a shell of salloc (slurm.h).
_SPECIAL = 0xFFFF_FFF0
#: Seconds that ``scontrol`` may take.
_PATIENCE = 20.0


class Slurm(Ranked):
    """A task of a step is a command of the job."""

    name = "a SLURM step"

    def started(self) -> Started | None:
        """Return the step that this command is of, None if it is of none."""
        return read(os.environ)

    def reach(self, host: str) -> str:
        """Return the name of a node, or its address where only SLURM knows it."""
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            return _address(host) or host
        return host


def in_step(environ: Mapping[str, str]) -> bool:
    """Say whether srun has started this command; a batch script is a step of another kind."""
    step = environ.get("SLURM_STEP_ID", "")
    return "SLURM_JOB_ID" in environ and step.isdecimal() and int(step) < _SPECIAL


def read(environ: Mapping[str, str]) -> Started | None:
    """Return the step that a process with this environment is a task of.

    A batch script, or a shell of ``salloc``, on its only node is of none.

    Raises:
        UsageError: it is not started by ``srun``, and there are several nodes; or a variable is
            not as SLURM sets it.
    """
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    variables = Variables(environ, "srun", "in a step of SLURM")
    step = variables.number("SLURM_STEP_ID", _SPECIAL)
    if step >= _SPECIAL:
        _refuse_one_of_many(job, environ)
        return None
    what = f"SLURM step {job}.{step}"
    rank, number = variables.rank("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    if number > 1 and "SLURM_PTY_PORT" in environ:
        refuse("launcher", f"this shell is a task of {number} of {what}, and starts no others",
               "auto", accepted="local; or srun, in a shell of one task",
               hint="srun -n1 --pty bash")  # fmt: skip
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    if not (first := first_host(nodes)):
        raise variables.wrong("SLURM_STEP_NODELIST", "names no host")
    counts = tasks(environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    node = variables.number("SLURM_NODEID", 0)
    arbitrary = environ.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")
    cluster, tries = environ.get("SLURM_CLUSTER_NAME"), environ.get("SLURM_RESTART_COUNT")
    return Started(
        what, rank, number,
        where=nodes,
        # Rank 0 is on the first node, unless a file says where each is.
        chief=() if arbitrary else (first,),
        job=f"{what} of {cluster}, start {tries}",
        local=(variables.number("SLURM_LOCALID", 0), counts[node] if node < len(counts) else 1),
        own_gpus=_has_own_gpus(environ), same_home=True, typed="srun -n",
    )  # fmt: skip


def _has_own_gpus(environ: Mapping[str, str]) -> bool:
    """Say whether SLURM has divided the GPUs of a node among the tasks there."""
    asked = environ.get("SLURM_TRES_PER_TASK", "")
    if "SLURM_GPUS_PER_TASK" in environ or "gpu" in asked:
        return True
    visible, on_node = (environ.get(n) for n in ("CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE"))
    if not visible or not on_node or not on_node.isdecimal():
        return False
    return len(visible.split(",")) < int(on_node)


def _refuse_one_of_many(job: str, environ: Mapping[str, str]) -> None:
    """Refuse a command that is alone on several nodes."""
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    if nodes.isdecimal() and int(nodes) > 1:
        refuse("launcher", f"SLURM job {job} has {nodes} nodes, and this command is on one of them",
               "auto", accepted="srun, on each; or local, which leaves the others idle",
               hint="srun --ntasks-per-node=1 python -m dtrain ...")  # fmt: skip


def _address(node: str) -> str | None:
    """Return the address that SLURM itself has for a node."""
    program = shutil.which("scontrol")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-o", "show", "node", node], capture_output=True, text=True, check=False,
            timeout=_PATIENCE, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    address = re.search(r"\bNodeAddr=(\S+)", done.stdout)
    return address[1] if address is not None else None


def first_host(text: str) -> str:
    """Return the first name that a list stands for, such as ``n[01-03,7]``; empty where none is."""
    first = re.match(r"((?:[^\[\],\s]|\[[^\[\]\s]*\])+)(?:,|$)", text)
    return re.sub(r"\[([0-9]*)[^\]]*\]", r"\1", first[1]) if first is not None else ""


def tasks(text: str) -> list[int]:
    """Return how many tasks each host has: ``2(x3),1`` is 2, 2, 2, 1.

    Args:
        text: as in ``SLURM_STEP_TASKS_PER_NODE``.
    """
    counts: list[int] = []
    for number, times in re.findall(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", text):
        counts += [int(number)] * int(times or 1)
    return counts
