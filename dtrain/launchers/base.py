"""What the controller asks of a launcher."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

from dtrain.errors import UsageError, refuse
from dtrain.host.terminal import say
from dtrain.run.cluster import Cluster, Task
from dtrain.run.devices import Machine
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir
from dtrain.run.outcome import Outcome


class Launcher(ABC):
    """Starts the tasks of one job. Five methods are its own; the others are optional hooks.

    One that does a job in another way than starting its tasks has a :meth:`delegate`.

    One that starts processes of this machine has :class:`LocalProcesses` as well.

    Args:
        grace_seconds: from the request to stop to the end by force.
        start_timeout: seconds until every task must have joined the cluster, or must at least
            have read something (the framework, a checkpoint); None for :attr:`patience`.
        stall_timeout: seconds without a step after which the job is ended; None for never.
        max_restarts: how often the tasks may be started again after one of them died.
        peer_timeout: seconds of silence after which another host is lost.
    """

    #: Whether all tasks of a job run on this machine and share its devices and cores.
    shares_machine = True
    #: Whether one command may have several at a time, each for a job of its own.
    several = True
    #: ``start_timeout`` where none is given, in seconds.
    patience = 60.0
    #: Where tasks without an address are, for messages.
    where = "this machine"
    #: How many commands were started for the job, one a task; None where it is not known.
    commands: int | None = None
    #: Whether the files of this machine are those that the tasks will read.
    sees_data = True
    #: The GPUs that the tasks may have, named as in ``CUDA_VISIBLE_DEVICES``; None: all.
    gpus: tuple[str, ...] | None = None

    def __init__(
        self, grace_seconds: float, start_timeout: float | None, stall_timeout: float | None,
        max_restarts: int, peer_timeout: float = 45.0,
    ):  # fmt: skip
        self.grace_seconds = grace_seconds
        self.start_timeout = self.patience if start_timeout is None else start_timeout
        self.stall_timeout = stall_timeout
        self.max_restarts = max_restarts
        self.peer_timeout = peer_timeout
        #: Why each of the tasks of other hosts is lost that are.
        self.losses: dict[str, Failure] = {}

    def part(self, machine: Machine) -> Machine:
        """Return what the tasks of this launcher have of a machine."""
        return dataclasses.replace(machine, shared=self.shares_machine, hosts=self.commands)

    def assumed(self, machine: Machine) -> Machine:
        """Return :meth:`part` as far as it is known without asking other machines."""
        return self.part(machine)

    def prepare(self, cluster: Cluster) -> None:  # noqa: B027 - an optional hook
        """Begin early with what takes long (importing the framework), before the job is checked."""

    def ready(self, cluster: Cluster) -> None:  # noqa: B027 - an optional hook
        """Wait for what :meth:`prepare` has begun."""

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Refuse a cluster that this launcher cannot start; return it as far as it is known now.

        Args:
            cluster: the planned one.
            facts: the configuration, flat, as text: what must be the same for every task.

        Raises:
            UsageError: it cannot.
        """
        return cluster

    def here(self, trains: bool = False) -> Launcher:
        """Return what does a job that is no run (``evaluate``, ``debug=``): no command resumes it.

        Args:
            trains: whether it does.

        Raises:
            UsageError: nothing can.
        """
        return self

    def no_sweep(self) -> UsageError:
        """Return why one that is not :attr:`several` does no sweep."""
        return UsageError("launcher", "cannot run one job beside another", type(self).__name__,
                          accepted="local, or a command each", typed="launcher=local")  # fmt: skip

    def show(self, spec: Any) -> None:
        """Print what would be done with a :class:`dtrain.job.run.JobSpec`."""
        spec.show()

    def delegate(self, cluster: Cluster) -> Callable[[Any], Outcome] | None:
        """Return what does a job of these tasks in another way than by starting them here.

        It is given the :class:`dtrain.job.run.JobSpec`. None: this launcher starts and
        follows the tasks.
        """
        return None

    def followed(self, cluster: Cluster) -> tuple[Task, ...]:
        """Return the tasks of which there will be events, the chief always among them."""
        return cluster.tasks

    @abstractmethod
    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        """Start every task of ``cluster``, also once more after all have ended.

        Each task reads its part from the run folder. Addresses that tasks need have to stand in
        its ``cluster.json`` before they look.

        Returns:
            The cluster as it was placed, as far as the addresses are known.

        Raises:
            TrainingError, OSError: it could not be started.
        """

    @abstractmethod
    def poll(self, timeout: float) -> list[tuple[str, str]]:
        """Wait up to ``timeout`` seconds for events, and return them as (task, event).

        ``started``, ``joined``, ``training``, ``reading``, ``stop`` and ``failed CAUSE`` are events
        that a task reports (:func:`dtrain.task.main.run`); ``ended`` means that its process is
        gone, ``lost`` that it was another host's, and the job cannot continue without it
        (:attr:`losses`). Only ``ended`` is needed.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ask every task that trains to save its state and end."""

    @abstractmethod
    def kill(self) -> None:
        """End every task at once; returns when none is left."""

    @abstractmethod
    def exit_codes(self) -> dict[str, int]:
        """Return the exit code of each task that has ended, by name; negative for a signal."""

    def lose(
        self, cluster: Cluster, failures: list[Failure], silent: bool
    ) -> list[tuple[str, str]]:
        """Take note of tasks of another host that are lost; return ``lost`` of those that count.

        Args:
            cluster: of the job.
            failures: of the tasks, one each.
            silent: their host is not heard: what was handed to them the others would wait for
                without an end. TensorFlow notices of those that died, and does without one of
                several workers.
        """
        self.losses.update({str(failure.task): failure for failure in failures})
        events = []
        for failure in failures:
            task = cluster.task(str(failure.task))
            alike = {each.name for each in cluster.tasks if each.role == task.role}
            if task.replaceable and not silent and alike - self.losses.keys():
                say(f"{failure.sentence()}; the others continue without it")
            else:
                events.append((task.name, "lost"))
        return events

    def silent(self) -> list[str]:
        """Return the tasks of other hosts of which nothing has been heard lately."""
        return []

    def farewell(self, code: int) -> None:  # noqa: B027 - an optional hook
        """Called once when the job is over, with the command's exit code."""


def run_of(module: str) -> Callable[[Any], Outcome]:
    """Return ``run`` of a module, by its name: it imports the launcher that it works for."""
    run: Callable[[Any], Outcome] = importlib.import_module(module).run
    return run


class LocalProcesses(ABC):
    """A capability beside that of a launcher: to look at single processes and act on them.

    A job whose launcher has it continues without a worker that died and can be replaced, notices
    tasks that are stopped, and has the stacks of all tasks in their logs when it stalls.
    """

    @abstractmethod
    def start_again(self, name: str) -> None:
        """Start one task that has ended once more, at its old address."""

    @abstractmethod
    def end(self, name: str) -> None:
        """End one task at once."""

    @abstractmethod
    def frozen(self) -> set[str]:
        """Return the tasks that have been stopped (SIGSTOP) since the last such call or before."""

    @abstractmethod
    def dump(self) -> None:
        """Have every task write its Python stacks to its log."""


class Elsewhere(Launcher):
    """Has a job done by :meth:`delegate` alone: who does it starts and follows its tasks.

    Args:
        settings: fields of its model in :mod:`dtrain.config.schema.launchers`.

    Attributes:
        common: the settings of every launcher.
        settings: those that others do not have.
    """

    shares_machine = False
    where = "elsewhere"

    def __init__(self, **settings: Any):
        names = inspect.signature(Launcher).parameters
        self.common = {key: value for key, value in settings.items() if key in names}
        super().__init__(**self.common)
        own = {key: value for key, value in settings.items() if key not in names}
        self.settings = SimpleNamespace(**own)

    def here(self, trains: bool = False) -> Launcher:
        """Refuse what does not train: the run folder that it works on may not be there."""
        if trains:
            return self
        refuse("launcher", "trains elsewhere, and this command needs its run folder here",
               type(self).__name__, accepted="local", typed="launcher=local")  # fmt: skip

    @abstractmethod
    def delegate(self, cluster: Cluster) -> Callable[[Any], Outcome]:
        """Return what has a job done, and returns how it ended, as far as that is known."""

    def _none(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: no task is started and followed here."""
        raise TypeError(f"{type(self).__name__} starts no task itself")

    start = poll = stop = exit_codes = _none

    def kill(self) -> None:
        """Nothing to do: no task is here."""
