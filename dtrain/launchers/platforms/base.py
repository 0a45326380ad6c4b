"""What says which task this command stands for, and where the others are."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from dtrain.errors import UsageError, refuse
from dtrain.run.cluster import Cluster, Task


class ClusterEnvironment(Protocol):
    """A platform that starts a command on each host, and tells it so by its environment.

    ``launcher.environment`` names the class, its constructor takes the keys beside that.
    """

    def find(self, planned: Cluster, strategy: str, on_hosts: bool) -> tuple[Cluster, Task]:
        """Find the planned cluster, and this command's task in it.

        Args:
            planned: the tasks that the configuration asks for, without addresses.
            strategy: its name, for messages.
            on_hosts: it runs a process on each host, and there may be one.

        Returns:
            The cluster with an address for each task, the chief first, and the own task.

        Raises:
            UsageError: the environment says nothing of a cluster, or it is not the planned one.
        """


@dataclasses.dataclass(frozen=True)
class Started:
    """The commands that a platform has started for one job.

    Attributes:
        what: the platform and its own name of the job, for messages: ``SLURM step 41.0``.
        rank: of this command; 0 is the chief's.
        number: how many there are; None where the platform does not say.
        where: their hosts, in short, for messages; empty where they are not known.
        addresses: ``host:port`` of each rank, where the platform gives them ports; else empty, and
            the ports are agreed when the commands meet.
        chief: hosts that the chief may be on, the likeliest first, where ports are agreed.
        job: what no other job of this user has: it says where the commands meet, and who is one.
        local: the rank of this command among those on its machine, and how many these are.
        own_gpus: the platform shows each command the GPUs that it may have, and no others.
        same_home: the hosts have the user's home in common, as far as is usual there.
        typed: what is typed in front of the number of commands, such as ``srun -n``; may be empty.
    """

    what: str
    rank: int
    number: int | None
    where: str = ""
    addresses: tuple[str, ...] = ()
    chief: tuple[str, ...] = ()
    job: str = ""
    local: tuple[int, int] = (0, 1)
    own_gpus: bool = False
    same_home: bool = False
    typed: str = ""

    @property
    def is_alone(self) -> bool:
        """Whether there is no other command."""
        return self.number == 1 and self.rank == 0

    @property
    def is_on_one_machine(self) -> bool:
        """Whether all commands are on this machine."""
        return self.local[1] == self.number

    def __str__(self) -> str:
        """Return a clause: what was found."""
        tasks = "" if self.number is None else f": {self.number} tasks"
        return f"{self.what}{tasks}{' on ' if self.where else ''}{self.where}"


@runtime_checkable
class Platform(ClusterEnvironment, Protocol):
    """An environment that can be looked for: ``launcher=auto`` asks it whether it is there."""

    def started(self) -> Started | None:
        """Return what the platform has started, None if this command is not of it.

        Raises:
            UsageError: it is, and what its environment says cannot be.
        """


class Ranked(ABC):
    """A platform that numbers its commands: the first is the chief's.

    The workers follow, then the parameter servers.
    """

    #: The platform, for messages.
    name: str

    @abstractmethod
    def started(self) -> Started | None:
        """Return what the platform has started, None if this command is not of it.

        Raises:
            UsageError: it is, and what its environment says cannot be.
        """

    def find(self, planned: Cluster, strategy: str, on_hosts: bool) -> tuple[Cluster, Task]:
        """Find the planned cluster, and this command's task in it.

        Args:
            planned, strategy, on_hosts: as of every environment.

        Raises:
            UsageError: this is no command of the platform, or others were planned.
        """
        started = self.started()
        if started is None:
            refuse("launcher.environment", f"the environment says nothing of {self.name}",
                   type(self).__name__, accepted="a command that it starts, or launcher=auto",
                   typed="launcher=auto")  # fmt: skip
        check(started, planned, strategy, on_hosts)
        if started.addresses:
            planned = planned.at(started.addresses[: len(planned.tasks)])
        return planned, planned.tasks[started.rank]

    def reach(self, host: str) -> str:
        """Return the name or address by which a host of this platform is reached."""
        return host


def check(started: Started, planned: Cluster, strategy: str, on_hosts: bool) -> None:
    """Refuse a plan that is not of as many tasks as were started.

    Raises:
        UsageError: naming the key that decides how many there are.
    """
    number, tasks = started.number, planned.tasks
    if len(tasks) == 1 and not on_hosts:
        if number == 1:
            return
        refuse("strategy", f"is one process, and {started.what} has {number or 'several'} tasks",
               strategy, accepted=f"a strategy of several tasks, or {_tasks(1, started)}",
               typed="strategy=multiworker")  # fmt: skip
    if number is not None and number != len(tasks):
        raise _other_number(number, started, planned, strategy)
    if not 0 <= started.rank < len(tasks):
        refuse("launcher.environment", f"is task {started.rank}, from 0, of {len(tasks)}",
               started.what, accepted=f"{len(tasks)} commands",
               typed=f"hardware.hosts={started.rank + 1}")  # fmt: skip


def _other_number(number: int, started: Started, planned: Cluster, strategy: str) -> UsageError:
    """Return the error of so many commands in the place of those that are planned."""
    roles = [task.role for task in planned.tasks]
    counts = Counter(roles)
    wanted = in_words(counts)
    if "ps" in counts:
        key, beside = "strategy.workers", len(roles) - counts["worker"]
    else:
        key, beside = "hardware.hosts", 0
    fits = max(1, number - beside)
    if planned.together == len(planned.tasks) > 1:  # all on one host
        key = "hardware.devices"
    value = counts["worker"] if "ps" in counts else len(roles)
    accepted = _tasks(len(roles), started)
    instead = f"{key}={fits}" if number > beside else None
    why = f"makes {len(roles)} tasks ({wanted}), and {started.what} has {_count(number)}"
    return UsageError(key, why, value, typed=instead, hint=f"a cluster for strategy={strategy}",
                      accepted=f"{accepted}, or {instead}" if instead else accepted)  # fmt: skip


def in_words(counts: Mapping[str, int]) -> str:
    """Return how many tasks of each role there are: ``1 chief, 2 workers``."""
    names = {"worker": "workers", "ps": "parameter servers"}
    words = [f"{n} {role if n == 1 else names.get(role, role)}" for role, n in counts.items()]
    return ", ".join(words) or "no task"


def _tasks(number: int, started: Started) -> str:
    return f"{started.typed}{number}" if started.typed else _count(number)


def _count(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"


@dataclasses.dataclass(frozen=True)
class Variables:
    """Variables that a platform has set.

    Attributes:
        environ: of the command.
        setter: what sets them, for messages.
        place: where it does, as a clause.
    """

    environ: Mapping[str, str]
    setter: str
    place: str

    def number(self, name: str, default: int | None = None) -> int:
        """Return the number in a variable.

        Raises:
            UsageError: it is none.
        """
        if name not in self.environ and default is not None:
            return default
        if re.fullmatch("[0-9]{1,10}", self.environ.get(name, "")) is None:
            raise self.wrong(name, f"is {'not a number' if name in self.environ else 'not there'}")
        return int(self.environ[name])

    def rank(self, name: str, size: str) -> tuple[int, int]:
        """Return the number of this command, and how many there are.

        Raises:
            UsageError: they cannot be.
        """
        number, rank = self.number(size), self.number(name)
        if rank >= number:
            raise self.wrong(name, f"{size}={number} has no such rank")
        return rank, number

    def wrong(self, name: str, problem: str) -> UsageError:
        """Return the error of a variable that is not as the platform sets it."""
        value = self.environ.get(name, "(not set)")
        return wrong_variable(self.setter, name, value, f"{problem}, {self.place}")


def wrong_variable(setter: str, name: str, value: str, problem: str) -> UsageError:
    """Return the error of a variable that is not as ``setter`` sets it."""
    accepted = f"what {setter} sets; or launcher=local, for this command alone"
    return UsageError(name, problem, value, accepted=accepted, typed="launcher=local")
