"""``launcher=slurm``: what a job asks SLURM for, and the batch script that is submitted."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dtrain.errors import UsageError, refuse
from dtrain.files import writing
from dtrain.files.fields import Json, Values
from dtrain.host.terminal import say
from dtrain.launchers.base import Elsewhere, Launcher, run_of
from dtrain.launchers.env import auto
from dtrain.launchers.local import Local
from dtrain.launchers.platforms.slurm import in_step
from dtrain.launchers.rendezvous import cluster_key
from dtrain.launchers.slurm import client
from dtrain.run.cluster import Cluster
from dtrain.run.devices import Machine
from dtrain.run.outcome import Outcome

#: Seconds beyond ``launcher.grace_seconds`` from SLURM's signal to its time limit: what the command
#: does when all is saved.
MARGIN = 30
#: What ends a quoted option of sbatch.
_UNSAFE = "'\"\\\n"


def choose(network: str | None, chief: str | None, **settings: Any) -> Launcher:
    """Return what submits a job; in a step of SLURM, what ``launcher=auto`` is there.

    Raises:
        UsageError: the environment is of a step, and cannot be right.
    """
    submitting = Slurm(**settings)
    if in_step(os.environ):
        return auto(network=network, chief=chief, **submitting.common)
    return submitting


class Slurm(Elsewhere):
    """Has a batch script do each job."""

    where = "a node of SLURM"

    def here(self, trains: bool = False) -> Launcher:
        """Return what does a job in this place, and print so: what is submitted is resumed."""
        say("SLURM is given runs alone: this command works here; srun in front of it has it work "
            "on a node")  # fmt: skip
        return Local(**self.common)

    def show(self, spec: Any) -> None:
        """Print the plan, and the batch script that would be submitted."""
        spec.show()
        print(self.text(spec.folder.absolute(), spec.cluster, spec.config.name), end="")

    def delegate(self, cluster: Cluster) -> Callable[[Any], Outcome]:
        """Return what submits a job, and follows it."""
        return run_of("dtrain.job.slurm_job")

    def part(self, machine: Machine) -> Machine:
        """Return what SLURM is asked for on each node."""
        gpus, cores = self.settings.gpus_per_node or 0, self.settings.cpus_per_task or 1
        return dataclasses.replace(machine, gpus=gpus, cores=cores, shared=False)

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Refuse a number of nodes that the tasks cannot be on, and a command in an allocation."""
        tasks, nodes = len(cluster.tasks), self.settings.nodes
        if nodes is not None and nodes > tasks:
            refuse("launcher.nodes", f"the job has {tasks} process" + "es" * (tasks > 1), nodes,
                   accepted=f"up to {tasks}, or null", typed="launcher.nodes=null")  # fmt: skip
        if (job := os.environ.get("SLURM_JOB_ID")) is not None:
            srun = f"srun --nodes={self._nodes(cluster)} --ntasks={tasks}"
            refuse("launcher", f"this command is in SLURM job {job}, and submits no other", "slurm",
                   accepted="srun in front of it; for a sweep -m launcher=local sweep.parallel=N",
                   hint=f"{srun} python -m dtrain ...")  # fmt: skip
        if self.max_restarts:
            refuse("launcher.max_restarts", "SLURM starts the job again (launcher.max_requeues)",
                   self.max_restarts, accepted="0", typed="launcher.max_restarts=0")  # fmt: skip
        return cluster

    def _nodes(self, cluster: Cluster) -> int:
        nodes = len(cluster.tasks) // cluster.together
        return self.settings.nodes or nodes

    def request(self, cluster: Cluster) -> Json:
        """Return what a job asks for, as options of sbatch: all jobs of an array ask for the same.

        Raises:
            UsageError: an option of ``launcher.extra`` is one that dtrain gives.
        """
        asked, nodes, tasks = self.settings, self._nodes(cluster), len(cluster.tasks)
        options = {
            "chdir": _path(Path.cwd()),
            "partition": asked.partition,
            "account": asked.account,
            "time": asked.time,
            "nodes": nodes,
            "ntasks": tasks,
            "ntasks-per-node": math.ceil(tasks / nodes),
            "gpus-per-node": asked.gpus_per_node,
            "cpus-per-task": asked.cpus_per_task,
            "mem": asked.memory,
            "open-mode": "append",
            "requeue": True,
            # In 16 bits, and so long before the time limit.
            "signal": f"B:USR2@{min(65535, math.ceil(self.grace_seconds) + MARGIN)}",
        }
        extra = asked.extra or {}
        for name in sorted({*options, "job-name", "array", "output"} & extra.keys()):
            refuse(f"launcher.extra.{name}", "dtrain gives this option itself", extra[name],
                   hint=f"launcher.extra without {name}")  # fmt: skip
        return {**options, **extra}

    def text(self, folder: Path, cluster: Cluster, name: str) -> str:
        """Return the batch script of a run."""
        options = {"job-name": name, "output": f"{_path(folder)}/{client.LOG}"}
        return self._script(cluster, options, shlex.quote(str(folder)))

    def array(self, folder: Path, cluster: Cluster, name: str, numbers: Sequence[int],
              parallel: int | None) -> str:  # fmt: skip
        """Return the batch script of jobs of a sweep, whose folders are called by their numbers.

        Args:
            folder: of the sweep.
            cluster: of each job.
            name: of the sweep.
            numbers: of the jobs.
            parallel: how many run at once; None for as many as there is room for.
        """
        elements = ",".join(map(str, numbers)) + (f"%{parallel}" if parallel else "")
        options = {"job-name": name, "array": elements,
                   "output": f"{_path(folder)}/%a/{client.LOG}"}  # fmt: skip
        return self._script(cluster, options, f'{shlex.quote(str(folder))}/"$SLURM_ARRAY_TASK_ID"')

    def _script(self, cluster: Cluster, options: dict[str, str], run: str) -> str:
        """Return a batch script.

        Args:
            cluster: of the job.
            options: of sbatch, beside those of :meth:`request`.
            run: the run folder, as the shell reads it.
        """
        request = {**options, **self.request(cluster)}
        request["job-name"] = "dtrain-" + re.sub(r"[^\w.@+-]", "_", options["job-name"])
        step = [f"--{name}={request[name]}" for name in ("nodes", "ntasks")]
        if request["cpus-per-task"]:  # from 22.05 on srun has not that of its job
            step.append(f"--cpus-per-task={request['cpus-per-task']}")
        python = shlex.quote(sys.executable)
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in _directives(request)),
            "",
            "# Written by dtrain. Once more by hand: sbatch and the path of this file.",
            f"export {client.LIMIT}={self.settings.max_requeues}",
            *self.settings.setup,
            f"run={run}",
            "# Starts what follows --, and has SLURM start the job again where it is to go on.",
            f'exec {python} -m dtrain.launchers.slurm.batch "$run" -- \\',
            f'    srun {" ".join(step)} --kill-on-bad-exit=1 {python} -m dtrain "resume=$run"',
        ]
        return "\n".join(lines) + "\n"

    def submit(self, folder: Path, text: str) -> str:
        """Write a batch script into a folder and submit it; return the number of the job.

        Raises:
            UsageError: SLURM does not take it.
        """
        if cluster_key.find() is None:
            cluster_key.make()  # which the nodes read in the user's home
        path = folder / client.SCRIPT
        writing.write_bytes(path, text.encode(), lasting=True)
        try:
            return client.submit(path)
        except client.Refused as error:
            writing.remove(path)
            raise UsageError("launcher", f"SLURM does not take the job: {error}", "slurm",
                             hint="dry_run=true, which prints the script") from None  # fmt: skip


def _directives(options: Values) -> list[str]:
    """Return options as sbatch reads them in a script: in quotes where they hold a blank.

    Raises:
        UsageError: sbatch cannot read one.
    """
    lines = []
    for key, value in options.items():
        if value is True:
            lines.append(f"--{key}")
        elif value is not None and value is not False:
            bad = next((c for c in str(value) if c in _UNSAFE), None)
            if bad is not None:
                name = "output_dir" if key in ("output", "chdir") else f"launcher.extra.{key}"
                refuse(name, f"a batch script cannot have {bad!r} in an option", value,
                       hint=f"{name} without quotes and backslashes")  # fmt: skip
            plain = all(c.isalnum() or c in "/._-:@%,+=[]*" for c in str(value))
            lines.append(f"--{key}={value}" if plain else f"--{key}='{value}'")
    return lines


def _path(folder: Path) -> str:
    """Return a folder as sbatch takes it for ``--output``, where % begins a pattern."""
    return str(folder).replace("%", "%%")
