"""Launchers of this machine: a process for each task, or everything in this one process."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing.connection
import os
import random
import signal
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from dtrain import errors
from dtrain.errors import TrainingError, refuse
from dtrain.files import writing
from dtrain.host import frameworks
from dtrain.host.forkserver import LOCK, Process, ready, warm
from dtrain.host.terminal import say
from dtrain.launchers.base import Launcher, LocalProcesses
from dtrain.launchers.platforms.tf_config import host_port
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir, write_json
from dtrain.task.entry import enter


class Local(Launcher, LocalProcesses):
    """One process a task."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._ports = Ports()
        self._started: dict[str, Process] = {}

    def prepare(self, cluster: Cluster) -> None:
        """Start the import of the framework."""
        if warm(cluster.environment).get_start_method() == "spawn":
            say("tasks start as fresh processes here, each importing "
                f"{frameworks.of(cluster.environment).title} anew (about 10 to 30 s)")  # fmt: skip

    def ready(self, cluster: Cluster) -> None:
        """Wait until the framework is imported."""
        ready(cluster.environment)

    def place(self, cluster: Cluster) -> Cluster:
        """Choose a free port for each task of several."""
        self._ports.release()
        if len(cluster.tasks) == 1:
            return cluster
        ports = self._ports.take(len(cluster.tasks))
        return cluster.at([f"127.0.0.1:{port}" for port in ports])

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        """Fork every task, each of several with a port of its own."""
        cluster = self.place(cluster)
        write_json(rundir.cluster, cluster.to_json())
        self._rundir, self._cluster = rundir, cluster
        self._started = {}
        for task in cluster.tasks:
            self._start(task)
        return cluster

    def start_again(self, name: str) -> None:
        """Fork one task once more."""
        self._started[name].join()
        self._start(self._cluster.task(name))

    def _start(self, task: Task) -> None:
        cluster = self._cluster
        with LOCK:  # another job's start changes the environment for a moment
            # A forked task has the server's environment, of the moment when that was started.
            environment = {
                **os.environ,
                **cluster.environment,
                "CUDA_VISIBLE_DEVICES": self._gpus(task),
                "no_grpc_proxy": around_proxies(cluster, os.environ),
            }
            self._started[task.name] = Process(
                cluster.environment,
                task.name,
                enter,
                (str(self._rundir.path), task.name, environment),
                environment,
            )

    def _gpus(self, task: Task) -> str:
        """Return the GPUs of a task: each task of the cluster has its own."""
        if self._cluster.device_kind == "cpu" or task.devices == 0:
            return "-1"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        processes = self._cluster.tasks
        total = sum(each.devices for each in processes)
        names = visible.split(",") if visible else [str(index) for index in range(total)]
        names = names if self.gpus is None else list(self.gpus)
        first = self._first_gpu(task)
        return ",".join(names[first : first + task.devices])

    def _first_gpu(self, task: Task) -> int:
        """Return how many GPUs of this machine are those of the tasks before this one."""
        processes = self._cluster.tasks
        return sum(each.devices for each in processes[: processes.index(task)])

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        """Wait for an event of a task, for its end, or the time."""
        handles: list[Any] = []
        for started in self._started.values():
            if not started.ended:
                handles.append(started.sentinel)
            if started.pipe is not None:
                handles.append(started.pipe)
        if handles:
            multiprocessing.connection.wait(handles, timeout)
        events: list[tuple[str, str]] = []
        for name, started in self._started.items():
            gone = started.code() is not None  # ORDER: looked at first: its statuses are whole
            events += [(name, status) for status in started.statuses()]
            if gone and not started.ended:
                started.ended = True
                events.append((name, "ended"))
        return events

    def stop(self) -> None:
        """Send SIGTERM to the tasks that train; those that serve are needed until these ended."""
        for name, started in self._started.items():
            if not self._cluster.task(name).serves:
                started.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        for started in self._started.values():
            started.signal(signal.SIGKILL)
        for started in self._started.values():
            started.join()
        self._ports.release()

    def end(self, name: str) -> None:
        """Send SIGKILL to one task."""
        self._started[name].signal(signal.SIGKILL)

    def exit_codes(self) -> dict[str, int]:
        """Return what the processes ended with."""
        codes = {name: started.code() for name, started in self._started.items()}
        return {name: _of_task(code) for name, code in codes.items() if code is not None}

    def frozen(self) -> set[str]:
        """Return the tasks that are stopped and have had no processor time since the last call."""
        frozen = set()
        for name, started in self._started.items():
            state, seconds = _state(started.pid)
            if state == "T" and seconds == started.seconds:
                frozen.add(name)
            started.seconds = seconds
        return frozen

    def dump(self) -> None:
        """Send SIGUSR1, at which a task writes its stacks, to all."""
        for started in self._started.values():
            started.signal(signal.SIGUSR1)


def _of_task(code: int) -> int:
    """Return the exit code of the task of a process that ended with ``code``."""
    if code < 0:  # a signal
        return code
    if code >= errors.OF_TASK:
        return code - errors.OF_TASK
    return errors.FAILED if code else errors.ENDED_EARLY


def around_proxies(cluster: Cluster, environ: Mapping[str, str]) -> str:
    """Return the hosts that gRPC reaches without a proxy that the environment may name.

    What a user has excluded stays so: where this variable is set, gRPC does not look at
    ``no_proxy`` (its ``http_proxy_mapper.cc``).
    """
    addresses = [task.address for task in cluster.tasks if task.address is not None]
    hosts = ["127.0.0.1", "localhost", *(host_port(address)[0] for address in addresses)]
    excluded = environ.get("no_grpc_proxy") or environ.get("no_proxy") or ""
    return ",".join(dict.fromkeys([*hosts, *filter(None, excluded.split(","))]))


def _state(pid: int) -> tuple[str, float]:
    """Return a process's state and processor time from ``/proc``, where there is one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", -1.0
    return fields[0], float(fields[11]) + float(fields[12])


#: Below what Linux gives to outgoing connections (net.ipv4.ip_local_port_range), which would
#: otherwise take a port between our look and TensorFlow's bind.
FIRST, LAST = 20000, 32767


class Ports:
    """Holds ports by locks on files: a free one is only known to TensorFlow once it listens there.

    Commands that look at the same moment would otherwise find the same ones.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"dtrain-ports-{os.getuid()}"
        self._locks: list[tuple[Path, IO[str]]] = []

    def take(self, count: int) -> list[int]:
        """Return ``count`` ports on which no server listens, held until :meth:`release`.

        Raises:
            TrainingError: there are not so many.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if self._folder.lstat().st_uid != os.getuid():
            raise TrainingError(f"{self._folder} belongs to another user")
        ports: list[int] = []
        for port in random.sample(range(FIRST, LAST + 1), LAST - FIRST + 1):
            path = self._folder / str(port)
            lock = os.fdopen(writing.open_lock(path), "r+")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            # ORDER: who held it may have removed the file after we opened it: a lock on nothing.
            if os.fstat(lock.fileno()).st_nlink == 0 or not _free(port):
                lock.close()
                continue
            self._locks.append((path, lock))
            ports.append(port)
            if len(ports) == count:
                return ports
        raise TrainingError(f"there are no {count} free ports between {FIRST} and {LAST}")

    def release(self) -> None:
        """Give all of them back."""
        for path, lock in self._locks:
            with contextlib.suppress(OSError):
                writing.unlink(path)  # while it is locked: no other process holds it
            lock.close()
        self._locks = []


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))  # TensorFlow binds to every interface
        except OSError:
            return False
        return True


class Inline(Launcher):
    """Runs the single task of a job inside :meth:`start`, which returns when it has ended."""

    several = False
    _codes: dict[str, int] | None = None

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Refuse a job of several tasks."""
        if len(cluster.tasks) > 1:
            refuse("launcher", f"one process cannot be {len(cluster.tasks)} tasks", "inline",
                   accepted="local, or a strategy of one task", typed="launcher=local")  # fmt: skip
        return cluster

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        """Import the framework here and train here."""
        os.environ.update(cluster.environment)
        from dtrain.task.main import run  # the one place where the controller's process has it

        self._codes = {cluster.chief.name: run(str(rundir.path), cluster.chief.name)}
        return cluster

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        """Return at once: :meth:`start` has done all."""
        return [(name, "ended") for name in self._codes or {}]

    def stop(self) -> None:
        """Nothing to do: the task, in this process, sees SIGTERM itself."""

    def kill(self) -> None:
        """Nothing to do: there is no other process."""

    def exit_codes(self) -> dict[str, int]:
        """Return the one exit code."""
        return self._codes or {}
