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
from multiprocessing.process import BaseProcess

from dtrain.cluster import Cluster
from dtrain.controller.launchers.base import Launcher
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
        context.set_forkserver_preload(["tensorflow", "keras", "dtrain.task.main"])
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


def _enter(run_path: str, task_name: str, environment: dict[str, str]) -> None:
    from dtrain.task.main import child

    child(run_path, task_name, environment)


class Local(Launcher):
    """One process a task."""

    def __init__(self, grace_seconds: float):
        super().__init__(grace_seconds)
        self._processes: dict[str, BaseProcess] = {}

    def prepare(self, cluster: Cluster) -> None:
        """Start the import of TensorFlow."""
        if warm(cluster.environment).get_start_method() == "spawn":
            print(
                "dtrain: tasks start as fresh processes here, each importing TensorFlow anew "
                "(about 10 to 30 s)",
                file=sys.stderr,
            )

    def start(self, rundir: RunDir, cluster: Cluster) -> None:
        """Fork every task."""
        context = warm(cluster.environment)
        # A forked task has the server's environment, of the moment when that was started.
        environment = {**os.environ, **cluster.environment}
        if cluster.device_kind == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        before = dict(os.environ)
        os.environ.update(environment)  # a fresh interpreter takes it from here
        try:
            for task in cluster.tasks:
                process = context.Process(  # type: ignore[attr-defined]
                    target=_enter, args=(str(rundir.path), task.name, environment), name=task.name
                )
                with _sheltered():
                    process.start()
                self._processes[task.name] = process
        finally:
            os.environ.clear()
            os.environ.update(before)

    def running(self, timeout: float) -> bool:
        """Wait for a process to end, or the time."""
        alive = [p.sentinel for p in self._processes.values() if p.is_alive()]
        if not alive:
            return False
        multiprocessing.connection.wait(alive, timeout)
        return any(p.is_alive() for p in self._processes.values())

    def stop(self) -> None:
        """Send SIGTERM."""
        for process in self._processes.values():
            if process.is_alive():
                process.terminate()

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        for process in self._processes.values():
            if process.is_alive():
                process.kill()
        for process in self._processes.values():
            process.join()

    def exit_codes(self) -> dict[str, int]:
        """Return what the processes ended with."""
        codes = {name: process.exitcode for name, process in self._processes.items()}
        return {name: code for name, code in codes.items() if code is not None}
