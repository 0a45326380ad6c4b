"""Processes on this machine, forked from a warm server that has imported TensorFlow once."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from dtrain.cluster import Cluster, Task
from dtrain.controller.launchers.base import Launcher
from dtrain.controller.launchers.ports import Ports
from dtrain.rundir import RunDir

#: Environment that the warm server of this process was started with; None before that.
_warm: dict[str, str] | None = None


def warm(environment: dict[str, str]) -> multiprocessing.context.BaseContext:
    """Start the server, or find it running, and return the context to make processes with.

    The import of TensorFlow is paid once for each controller process. TensorFlow reads part of the
    environment while it is imported, so a job that needs another one gets a fresh interpreter.
    Where forking is not safe (macOS, Windows) every process is a fresh one too.
    """
    global _warm
    if sys.platform != "linux" or (_warm is not None and _warm != environment):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    if _warm is None:
        # ORDER: the first ends the server with this process, even while it imports the others.
        modules = ["dtrain.task.server", "tensorflow", "keras", "dtrain.task.main"]
        context.set_forkserver_preload(modules)
    _warm = dict(environment)
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        with _sheltered():
            forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


@contextlib.contextmanager
def _sheltered() -> Iterator[None]:
    """Start processes that leave Ctrl-C to the controller and do not chatter.

    A terminal sends SIGINT to every process of the group: they inherit it blocked. TensorFlow's
    import writes to standard error: they have none until a task opens its log.
    """
    # ORDER: this unblocks SIGINT when it starts its process; afterwards it does nothing.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


def _enter(run_path: str, task_name: str, environment: dict[str, str], pipe: Any) -> None:
    from dtrain.task.main import child

    child(run_path, task_name, environment, pipe)


class _Process:
    """One started task, and the pipe by which it tells how far it is."""

    def __init__(self, process: BaseProcess, pipe: Connection):
        self.process = process
        self.pipe: Connection | None = pipe
        self.ended = False  # and that has been told
        self.seconds = -1.0  # of processor time, at the last look

    def words(self) -> list[str]:
        """Return what the task has said since the last call."""
        said: list[str] = []
        try:
            while self.pipe is not None and self.pipe.poll():
                said.append(self.pipe.recv())
        except (EOFError, OSError):  # it has ended
            self.close()
        return said

    def close(self) -> None:
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None


class Local(Launcher):
    """One process a task."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._ports = Ports()
        self._started: dict[str, _Process] = {}

    def prepare(self, cluster: Cluster) -> None:
        """Start the import of TensorFlow."""
        if warm(cluster.environment).get_start_method() == "spawn":
            print(
                "dtrain: tasks start as fresh processes here, each importing TensorFlow anew "
                "(about 10 to 30 s)",
                file=sys.stderr,
            )

    def place(self, cluster: Cluster) -> Cluster:
        """Choose a free port for each task of several."""
        self._ports.release()
        if len(cluster.tasks) == 1:
            return cluster
        ports = self._ports.take(len(cluster.tasks))
        return cluster.at([f"127.0.0.1:{port}" for port in ports])

    def start(self, rundir: RunDir, cluster: Cluster) -> None:
        """Fork every task."""
        self._rundir, self._cluster = rundir, cluster
        self._started = {}
        for task in cluster.tasks:
            self._start(task)

    def start_again(self, name: str) -> None:
        """Fork one task once more."""
        self._started[name].process.join()
        self._started[name].close()
        self._start(self._cluster.task(name))

    def _start(self, task: Task) -> None:
        cluster = self._cluster
        context = warm(cluster.environment)
        # A forked task has the server's environment, of the moment when that was started.
        environment = {
            **os.environ,
            **cluster.environment,
            "CUDA_VISIBLE_DEVICES": self._gpus(task),
            "no_grpc_proxy": "127.0.0.1",  # the tasks talk to each other, not to a proxy
        }
        ours, theirs = context.Pipe(duplex=False)
        before = dict(os.environ)
        os.environ.update(environment)  # a fresh interpreter takes it from here
        try:
            process = context.Process(  # type: ignore[attr-defined]  # the base class lacks it
                target=_enter,
                args=(str(self._rundir.path), task.name, environment, theirs),
                name=task.name,
            )
            with _sheltered():
                process.start()
        finally:
            theirs.close()
            os.environ.clear()
            os.environ.update(before)
        self._started[task.name] = _Process(process, ours)

    def _gpus(self, task: Task) -> str:
        """Return the GPUs of a task: each task of the cluster has its own."""
        if self._cluster.device_kind == "cpu" or task.devices == 0:
            return "-1"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        total = sum(each.devices for each in self._cluster.tasks)
        names = visible.split(",") if visible else [str(index) for index in range(total)]
        first = 0
        if self.shares_machine:
            position = self._cluster.tasks.index(task)
            first = sum(each.devices for each in self._cluster.tasks[:position])
        return ",".join(names[first : first + task.devices])

    def wait(self, timeout: float) -> list[tuple[str, str]]:
        """Wait for a word of a task, for its end, or the time."""
        handles: list[Any] = []
        for started in self._started.values():
            if not started.ended:
                handles.append(started.process.sentinel)
            if started.pipe is not None:
                handles.append(started.pipe)
        if handles:
            multiprocessing.connection.wait(handles, timeout)
        news: list[tuple[str, str]] = []
        for name, started in self._started.items():
            gone = not started.process.is_alive()  # ORDER: looked at first: its words are whole
            news += [(name, word) for word in started.words()]
            if gone and not started.ended:
                started.ended = True
                news.append((name, "ended"))
        return news

    def stop(self) -> None:
        """Send SIGTERM to the tasks that train; those that serve are needed until these ended."""
        for name, started in self._started.items():
            if not self._cluster.task(name).serves and started.process.is_alive():
                started.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        for started in self._started.values():
            if started.process.is_alive():
                started.process.kill()
        for started in self._started.values():
            started.process.join()
            started.close()
        self._ports.release()

    def end(self, name: str) -> None:
        """Send SIGKILL to one task."""
        self._started[name].process.kill()

    def exit_codes(self) -> dict[str, int]:
        """Return what the processes ended with."""
        codes = {name: started.process.exitcode for name, started in self._started.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def frozen(self) -> set[str]:
        """Return the tasks that are stopped and have had no processor time since the last call."""
        found = set()
        for name, started in self._started.items():
            state, seconds = _state(started.process.pid)
            if state == "T" and seconds == started.seconds:
                found.add(name)
            started.seconds = seconds
        return found

    def dump(self) -> None:
        """Send SIGUSR1, at which a task writes its stacks, to all."""
        for started in self._started.values():
            if started.process.is_alive() and started.process.pid is not None:
                os.kill(started.process.pid, signal.SIGUSR1)


def _state(pid: int | None) -> tuple[str, float]:
    """Return a process's state and processor time from ``/proc``, where there is one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", -1.0
    return fields[0], float(fields[11]) + float(fields[12])
