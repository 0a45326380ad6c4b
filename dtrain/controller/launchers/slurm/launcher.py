"""Jobs that are submitted to SLURM, and what becomes of them."""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.controller.launchers.base import Launcher
from dtrain.controller.launchers.local import Local
from dtrain.controller.launchers.rendezvous import cluster_key
from dtrain.controller.launchers.slurm import batch, client, script
from dtrain.controller.launchers.work import Work
from dtrain.controller.outcome import Outcome
from dtrain.controller.resources.devices import Machine
from dtrain.errors import UsageError
from dtrain.files import reading, writing
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir

#: Seconds that a job which SLURM does not know any more is still looked for.
_FORGOTTEN = 30.0
#: Seconds that a queue which cannot be read is asked again for.
_SILENCE = 600.0


class OfSlurm(Launcher):
    """What submitted jobs and steps have in common: whole commands that do the job elsewhere.

    Args:
        asked: what is asked of SLURM, by the names of the configuration.
        settings: as of every launcher.
    """

    shares_machine = False
    where = "a node of SLURM"
    #: Whether the job goes on without this command.
    detached = True
    #: Why this command can no longer follow the job, which goes on; None while it can.
    unreachable: str | None = None

    def __init__(self, asked: Mapping[str, Any], **settings: Any):
        super().__init__(**settings)
        self.asked = asked
        #: The number of the job of SLURM; None before there is one.
        self.job: str | None = None
        self.follow: bool = asked["follow"]
        self._settings = settings

    def here(self, trains: bool = False) -> Launcher:
        """Return what does a job in this place, and print so: what is submitted is resumed."""
        print(
            "dtrain: SLURM is given runs alone: this command works here; srun in front of it has "
            "it work on a node", file=sys.stderr,
        )  # fmt: skip
        return Local(**self._settings)

    def do(self, work: Work) -> Outcome:
        """Have another command do the job."""
        return work.handed_over()

    def part(self, machine: Machine) -> Machine:
        """Return what SLURM is asked for on each node."""
        gpus, cores = self.asked["gpus_per_node"] or 0, self.asked["cpus_per_task"] or 1
        return dataclasses.replace(machine, gpus=gpus, cores=cores, shared=False)

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Refuse a number of nodes that the tasks cannot be on; see to a key for several."""
        tasks, nodes = len(cluster.tasks), self.asked["nodes"]
        if nodes is not None and nodes > tasks:
            raise UsageError(
                "launcher.nodes", nodes, f"the job has {tasks} process" + "es" * (tasks > 1),
                f"up to {tasks}, or null for a node each", "launcher.nodes=null",
            )  # fmt: skip
        if self.max_restarts:
            raise UsageError(
                "launcher.max_restarts", self.max_restarts,
                "SLURM starts the job again, from its last checkpoint", "launcher.max_requeues",
                "launcher.max_restarts=0",
            )  # fmt: skip
        warning, time = script.warning(self.grace_seconds), self.asked["time"]
        limit = script.seconds(time) if time is not None else None
        if limit is not None and limit < 2 * warning:
            raise UsageError(
                "launcher.time", time, f"a start of {limit} s would hardly train: SLURM warns "
                f"{warning} s before its end (launcher.grace_seconds + {script.MARGIN})",
                f"{2 * warning} s or more", f"launcher.time={math.ceil(warning / 30)}",
            )  # fmt: skip
        return cluster

    def wanted(self, cluster: Cluster) -> script.Asked:
        """Return what a job asks for."""
        asked, tasks = self.asked, len(cluster.tasks)
        nodes = len(cluster.tasks) // cluster.together
        return script.Asked(
            asked["partition"], asked["time"], asked["account"],
            asked["nodes"] or nodes, tasks, asked["gpus_per_node"], asked["cpus_per_task"],
            asked["memory"], tuple(asked["setup"]), asked["extra"] or {}, self.grace_seconds,
        )  # fmt: skip

    def followed(self, cluster: Cluster) -> tuple[Task, ...]:
        """Return the chief's, which stands for the whole job."""
        return (cluster.chief,)


class Slurm(OfSlurm):
    """Submits a batch script that does the job, and says what becomes of it."""

    def __init__(self, asked: Mapping[str, Any], **settings: Any):
        super().__init__(asked, **settings)
        self._chief = ""
        self._code: int | None = None
        self._shown: client.Found | None = None
        self._news: list[str] = []
        #: Since when SLURM has known nothing of the job; None while it knows it.
        self._unseen: float | None = None
        self._ticks = threading.Event()

    def show(self, work: Work) -> Outcome:
        """Print the plan, and the batch script that would be submitted."""
        outcome = work.shown()
        print(self.text(RunDir(work.folder), work.cluster, work.name), end="")
        return outcome

    def text(self, rundir: RunDir, cluster: Cluster, name: str) -> str:
        """Return the batch script of a run."""
        asked = self.wanted(cluster)
        log = Path(script.path(rundir.path / script.LOG))
        directives = script.options(asked, f"dtrain-{name}", log)
        command = script.step(asked, sys.executable, "-m", "dtrain", "resume=$run")
        return script.text(directives, self._setup(), script.quoted(rundir.path), command)

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
        asked = self.wanted(cluster)
        log = f"{script.path(folder)}/%a/{script.LOG}"
        elements = ",".join(map(str, numbers)) + (f"%{parallel}" if parallel else "")
        directives = script.options(asked, f"dtrain-{name}", Path(log), elements)
        command = script.step(asked, sys.executable, "-m", "dtrain", "resume=$run")
        run = f'{script.quoted(folder)}/"$SLURM_ARRAY_TASK_ID"'
        return script.text(directives, self._setup(), run, command)

    def whole(self, folder: Path, name: str) -> str:
        """Return the batch script of a sweep that has one allocation for all of its jobs."""
        nodes, asked = self.asked["allocation"], self.asked
        wanted = script.Asked(
            asked["partition"], asked["time"], asked["account"], nodes, nodes,
            asked["gpus_per_node"], asked["cpus_per_task"], asked["memory"],
            tuple(asked["setup"]), asked["extra"] or {}, self.grace_seconds,
        )  # fmt: skip
        log = Path(script.path(folder / script.LOG))
        directives = script.options(wanted, f"dtrain-{name}", log)
        command = [sys.executable, "-m", "dtrain", "sweep.resume=$run"]
        return script.text(directives, self._setup(), script.quoted(folder), command)

    def _setup(self) -> list[str]:
        return [f"export {batch.LIMIT}={self.asked['max_requeues']}", *self.asked["setup"]]

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
            raise UsageError(
                "launcher", "slurm", f"SLURM does not take the job: {error}",
                "a job that sbatch takes, on a machine that has sbatch",
                "dry_run=true, which prints the script",
            ) from None  # fmt: skip

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        """Follow the job that this run has been given; another one is submitted before."""
        assert self.job is not None, "it was submitted"
        self._rundir, self._chief = rundir, cluster.chief.name
        client.watch.add([self.job])
        return cluster

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        """Wait, and say whether the job has ended."""
        assert self.job is not None
        self._ticks.wait(timeout)
        if self._code is not None:
            return []
        found = client.watch.state(self.job)
        if client.watch.problem is not None:
            self._unseen = None
            return self._unheard()
        if found is None:
            # Just submitted, or long gone: SLURM forgets a job minutes after its end.
            self._unseen = self._unseen or time.monotonic()
            if time.monotonic() - self._unseen < _FORGOTTEN:
                return []
            code = batch.left(self._rundir.path, self.job)
            self._code = errors.FAILED if code is None else code
        else:
            self._unseen = None
            self._code = self._ended(found) if found.ended else None
        if found is not None and (self._shown is None or found.text != self._shown.text):
            self._shown = found
            self._news.append(f"SLURM job {found.id}: {found.text}")
        return [] if self._code is None else [(self._chief, "ended")]

    def _unheard(self) -> list[tuple[str, str]]:
        """Go by the run folder while the queue cannot be read, and not for ever."""
        if batch.left(self._rundir.path, self.job) == errors.OK:
            self._code = errors.OK
            return [(self._chief, "ended")]
        if client.watch.silence >= _SILENCE:
            self.unreachable = (
                f"SLURM has not answered for {client.watch.silence:.0f} s: this command ends, and "
                f"job {self.job} goes on"
            )
        return []

    def news(self) -> list[str]:
        """Return what became of the job since the last call, as lines."""
        said, self._news = self._news, []
        return said

    def _ended(self, found: client.Found) -> int:
        code = batch.left(self._rundir.path, self.job)
        if found.state == "COMPLETED":
            return errors.OK
        if found.state == "CANCELLED":
            return errors.INTERRUPTED if code is None else code
        return errors.FAILED if code in (None, errors.OK) else code

    @property
    def problem(self) -> str | None:
        """How the job ended, where its run folder does not say it."""
        if self._shown is None:
            return f"SLURM knows nothing of job {self.job} any more"
        return f"SLURM job {self.job}: {self._shown.text}"

    def stop(self) -> None:
        """Cancel the job: SLURM asks its tasks to stop."""
        assert self.job is not None
        try:
            client.cancel(self.job)
        except client.Refused as error:
            self._news.append(f"SLURM job {self.job} cannot be cancelled: {error}")

    def kill(self) -> None:
        """Nothing: the job goes on."""

    def exit_codes(self) -> dict[str, int]:
        """Return that of the job."""
        return {} if self._code is None else {self._chief: self._code}


def log_lines(rundir: RunDir) -> str:
    """Return the end of what the batch script printed."""
    try:
        text = reading.read_bytes(rundir.path / script.LOG, 1 << 20)
    except (OSError, UsageError):
        return "it left no log"
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-5:])
