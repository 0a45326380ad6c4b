"""Jobs as steps of the allocation that this command is in: SLURM deals out cores and GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from dtrain.controller.launchers.cluster_env import hostlist
from dtrain.controller.launchers.slurm import batch, script
from dtrain.controller.launchers.slurm.launcher import OfSlurm
from dtrain.controller.resources.devices import Machine
from dtrain.errors import UsageError
from dtrain.files import writing
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir

#: Seconds from the second request to stop to the end of srun itself.
_PATIENCE = 10.0


class Steps(OfSlurm):
    """Starts each job as one step of this allocation, which nothing else shares (``--exact``)."""

    detached = False

    def __init__(self, asked: Mapping[str, Any], **settings: Any):
        super().__init__(asked, **settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._chief = ""
        self._over = False
        #: Cores of each task, where the job shares the allocation with others.
        self.cores: int | None = None

    @property
    def room(self) -> Machine:
        """What the allocation has, on all nodes together."""
        return Machine(gpus() * nodes(), sum(cpus()), shared=False)

    def part(self, machine: Machine) -> Machine:
        """Return what a task may have: of a node of the allocation, all."""
        return Machine(gpus(), self.asked["cpus_per_task"] or max(cpus()), shared=False)

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Refuse a job that needs more nodes, or more of a node, than the allocation has."""
        super().check(cluster, facts)
        request = self.wanted(cluster)
        wanted = request.nodes
        if wanted > nodes():
            raise UsageError(
                "launcher.nodes", wanted, f"this allocation has {nodes()}",
                f"up to {nodes()}, or a command outside of it", f"launcher.nodes={nodes()}",
            )  # fmt: skip
        if (each := self._gpus(cluster, request)) > gpus():
            raise UsageError(
                "hardware.devices", max(task.devices for task in cluster.tasks),
                f"{request.tasks} tasks on {wanted} node{'s' * (wanted > 1)} take {each} GPUs of a "
                f"node, and each node of this allocation has {gpus()}",
                f"up to {gpus()} on a node", f"hardware.devices={gpus() * wanted // request.tasks}"
                if gpus() * wanted >= request.tasks else "hardware=cpu",
            )  # fmt: skip
        return cluster

    @staticmethod
    def _gpus(cluster: Cluster, request: script.Asked) -> int:
        """Return how many GPUs of each node a job takes."""
        on_node = -(-request.tasks // request.nodes)
        most = max(task.devices for task in cluster.tasks)
        return most * on_node if cluster.device_kind == "gpu" else 0

    def command(self, rundir: RunDir, cluster: Cluster) -> list[str]:
        """Return the command that starts a job."""
        asked = self.wanted(cluster)
        cores = asked.cpus or self._each(asked)
        on_node = -(-asked.tasks // asked.nodes)
        words = [
            "srun", "--exact", f"--nodes={asked.nodes}", f"--ntasks={asked.tasks}",
            "--kill-on-bad-exit=1", f"--cpus-per-task={cores}",
        ]  # fmt: skip
        if gpus():
            each = self._gpus(cluster, asked)
            words.append(f"--gres=gpu:{each}" if each else "--gres=none")
        memory = os.environ.get("SLURM_MEM_PER_NODE", "")
        if memory.isdecimal():  # a step that does not say what it needs would take all
            words.append(f"--mem={max(1, int(memory) * on_node * cores // max(cpus()))}M")
        return [*words, sys.executable, "-m", "dtrain", f"resume={rundir.path}"]

    def _each(self, asked: script.Asked) -> int:
        """Return the cores of each task: of its share of the allocation, as nodes have them."""
        on_node = -(-asked.tasks // asked.nodes)
        most = max(1, min(cpus()) // on_node)
        return max(1, min(most, self.cores or most))

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        """Start the step; what it prints goes to the run folder."""
        self._chief, self._over = cluster.chief.name, False
        self._rundir, self.job = rundir, batch.own()
        batch.begin(rundir.path, time.time())
        writing.remove(rundir.path / batch.ALIVE)  # of a job that had the run before
        descriptor = writing.open_append(rundir.path / script.LOG)
        try:
            self._process = subprocess.Popen(
                self.command(rundir, cluster), stdin=subprocess.DEVNULL, stdout=descriptor,
                stderr=descriptor, env=_environment(rundir), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(descriptor)
        return cluster

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        """Wait for the end of the step."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        if self._process.returncode is None or self._over:
            return []
        self._over = True
        return [(self._chief, "ended")]

    def news(self) -> list[str]:
        """Return nothing: srun waits for its part of the allocation without a word."""
        return []

    @property
    def problem(self) -> str | None:
        """How the step ended, where its run folder does not say it."""
        assert self._process is not None
        return f"srun ended with exit code {self._process.returncode}"

    def stop(self) -> None:
        """Ask every task to save and end."""
        self._signal(signal.SIGUSR2)

    def kill(self) -> None:
        """End the step at once, if it has not ended."""
        if self._process is None or self._process.poll() is not None:
            return
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
                return
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def exit_codes(self) -> dict[str, int]:
        """Return that of the job: its first task's, where that has left one."""
        if not self._over:
            return {}
        assert self._process is not None
        code = batch.left(self._rundir.path)
        return {self._chief: (self._process.returncode or 1) if code is None else code}


def _environment(rundir: RunDir) -> dict[str, str]:
    """Return the environment of srun: what the batch script asked for is not each step's."""
    asked = re.compile(r"SLURM_(CPUS_PER_TASK|NTASKS.*|NPROCS|TRES_PER_TASK|GPUS.*|MEM_.*|DISTR.*)")
    kept = {name: value for name, value in os.environ.items() if not asked.fullmatch(name)}
    return {**kept, batch.RUN: str(rundir.path)}


def nodes() -> int:
    """Return how many nodes the allocation has."""
    text = os.environ.get("SLURM_JOB_NUM_NODES", "1")
    return int(text) if text.isdecimal() else 1


def cpus() -> list[int]:
    """Return the cores of each node of the allocation."""
    try:
        return hostlist.tasks(os.environ.get("SLURM_JOB_CPUS_PER_NODE", "1")) or [1]
    except ValueError:
        return [1]


def gpus() -> int:
    """Return the GPUs that each node of the allocation has for it."""
    text = os.environ.get("SLURM_GPUS_ON_NODE", "0")
    return int(text) if text.isdecimal() else 0
