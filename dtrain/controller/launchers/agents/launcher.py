"""A launcher whose tasks are started by agents, on hosts that this command reaches somehow."""

from __future__ import annotations

import dataclasses
import os
import secrets
import sys
from abc import abstractmethod
from typing import Any

from dtrain.controller.launchers.agents import checks, facts
from dtrain.controller.launchers.agents.host import Host, Inbox, Lost
from dtrain.controller.launchers.agents.stream import BEAT, Message
from dtrain.controller.launchers.agents.transport import Transport
from dtrain.controller.launchers.base import Launcher
from dtrain.controller.launchers.processes import LocalProcesses
from dtrain.controller.resources.devices import Machine
from dtrain.errors import TrainingError, UsageError
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir, write_json

#: Seconds that hosts have to try whether they reach each other.
REACH = 10.0
#: Seconds that agents have to end their tasks.
LAST = 10.0
#: Variables that go along to every host.
_OWN = ("DTRAIN_TRUST", "DTRAIN_ENV", "DTRAIN_SECRET_", "TF_CPP_MIN_LOG_LEVEL")


class Agents(Launcher, LocalProcesses):
    """Starts an agent on each host, which starts the tasks there.

    A subclass says what leads to the hosts (:meth:`transports`). Agents are started when they are
    first needed, and end with every end of the tasks: those of a restart are new ones.
    """

    shares_machine = False
    several = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._hosts: list[Host] = []
        self._inbox = Inbox(self.peer_timeout)
        self._codes: dict[str, int] = {}
        self._losses: dict[str, str] = {}  # tasks of hosts that are gone, and how
        self._cluster: Cluster | None = None

    @abstractmethod
    def transports(self) -> list[tuple[Transport, int]]:
        """Return what leads to each host, the chief's first, and how many tasks may be there.

        Raises:
            UsageError: what the user has said of the hosts is wrong.
        """

    def variables(self) -> dict[str, str]:
        """Return variables of this command's environment that tasks need as well."""
        return {name: value for name, value in os.environ.items() if name.startswith(_OWN)}

    def connect(self) -> list[Host]:
        """Have an agent on every host, and its greeting.

        Raises:
            UsageError: of :meth:`transports` and :meth:`examine`.
            TrainingError: a host has no agent.
        """
        if self._hosts:
            return self._hosts
        self._inbox = Inbox(self.peer_timeout)
        hosts = [Host(leads, slots, self._inbox.queue) for leads, slots in self.transports()]
        said: dict[str, Message] = {}
        try:
            variables = self.variables()
            for host in hosts:
                host.open()
            for host in self._inbox.collect(hosts, "hello", self.start_timeout, said):
                host.lost = host.lost or f"no agent came within {self.start_timeout:g} s"
            for name, message in said.items():
                host = next(host for host in hosts if host.name == name)
                host.facts = message
                host.address = self.address(host)
            self.examine(hosts)
            for host in hosts:
                host.send("greet", peer_timeout=self.peer_timeout, variables=variables)
        except BaseException:
            for host in hosts:
                host.close(0.0)
            raise
        self._hosts = hosts
        return hosts

    def address(self, host: Host) -> str | None:
        """Return the address by which the others reach a host; None: it is this machine."""
        found: str | None = host.facts["address"]
        return found

    def examine(self, hosts: list[Host]) -> None:
        """Refuse hosts that cannot be used: of some :attr:`Host.lost` says that they are not there.

        Raises:
            UsageError, TrainingError: there is one.
        """
        for host in hosts:
            if host.lost is not None:
                raise Lost(host, host.lost)
            if (problem := checks.problem(host.facts, facts.found())) is not None:
                raise TrainingError(f"{host.name} {problem[0]}")

    def machine(self, here: Machine) -> Machine:
        """Return what one task has: the part of a place on the host that has least."""
        hosts = self.connect()
        gpus = min(host.facts["gpus"] // host.slots for host in hosts)
        cores = min(max(1, host.facts["cores"] // host.slots) for host in hosts)
        return Machine(gpus, cores, shared=False, hosts=sum(host.slots for host in hosts))

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Return the cluster with the addresses of its tasks, which reach each other.

        Raises:
            UsageError: there are too few places, or hosts that have nothing to do.
            TrainingError: they do not reach each other, or one is gone.
        """
        hosts, tasks = self.connect(), len(cluster.tasks)
        places = sum(host.slots for host in hosts)
        if places < tasks:
            raise UsageError(
                "launcher.hosts", ",".join(f"{h.name}:{h.slots}" for h in hosts),
                f"strategy={facts['strategy.name']} has {tasks} tasks, and there are places for "
                f"{places}", f"places for {tasks}, such as {hosts[0].name}:{tasks}",
                f"'launcher.hosts=[{hosts[0].name}:{tasks}]'",
            )  # fmt: skip
        return self.place(cluster)

    def prepare(self, cluster: Cluster) -> None:
        """Have the agents begin to import TensorFlow."""
        for host in self._used():
            host.send("prepare", environment=cluster.environment)

    def place(self, cluster: Cluster) -> Cluster:
        """Divide the tasks among the hosts, and return the cluster with their addresses.

        Hosts are filled in their order; a task that follows the chief's checkpoints is beside it.

        Raises:
            TrainingError: they do not reach each other.
        """
        rooms = [host for host in self._hosts for _ in range(host.slots)]
        where = dict(zip((task.name for task in cluster.tasks), rooms, strict=False))
        for host in self._hosts:
            host.tasks = [name for name, its in where.items() if its is host]
        if cluster.evaluator is not None:
            self._hosts[0].tasks.append(cluster.evaluator_name)
        cluster = dataclasses.replace(cluster, tasks=self._divided(cluster, where))
        if len(cluster.tasks) == 1:
            return cluster
        used, secret = self._used(), secrets.token_hex(16)
        for host in used:
            host.send("ports", count=len(host.tasks), secret=secret)
        ports = self._inbox.gather(used, "ports", self.start_timeout, "find free ports")
        left = {name: iter(message["ports"]) for name, message in ports.items()}
        addresses = [
            _joined(where[task.name].address or "127.0.0.1", next(left[where[task.name].name]))
            for task in cluster.tasks
        ]
        self._reach(used, addresses, secret)
        return cluster.at(addresses)

    def _divided(self, cluster: Cluster, where: dict[str, Host]) -> tuple[Task, ...]:
        """Return the tasks; those that share a host have a part of its cores each."""
        found = []
        for task in cluster.tasks:
            host = where[task.name]
            sharing = [t.name for t in cluster.tasks if where[t.name] is host and t.devices]
            own = host.facts["cores"] // max(1, len(sharing))
            if cluster.device_kind == "cpu" and len(sharing) > 1 and task.devices and own:
                first = sharing.index(task.name) * own
                cores = tuple(range(first, first + own))
                task = dataclasses.replace(task, threads=task.threads or own, cores=cores)
            found.append(task)
        return tuple(found)

    def _reach(self, used: list[Host], addresses: list[str], secret: str) -> None:
        for host in used:
            host.send("reach", addresses=addresses, secret=secret, seconds=REACH)
        said = self._inbox.gather(used, "reach", 2 * REACH + 5, "try the others' ports")
        for host in used:
            for address, why in said[host.name]["found"].items():
                if why is not None:
                    raise TrainingError(f"{host.name} does not reach {address}: {why}")

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        """Have the agents start the tasks.

        Raises:
            TrainingError: an agent could not.
        """
        if not self._hosts:  # the tasks had ended, and the agents with them
            self.connect()
            cluster = self.place(cluster)
            self.prepare(cluster)
        self._codes, self._losses = {}, {}
        self._cluster = cluster = dataclasses.replace(cluster, job=secrets.token_hex(16))
        write_json(rundir.cluster, cluster.to_json())
        for host in self._used():
            host.send(
                "start", run=str(rundir.path), job=cluster.job, tasks=host.tasks,
                cluster=cluster.to_json(), variables=self.variables(),
            )  # fmt: skip
        self._inbox.gather(self._used(), "begun", self.start_timeout, "start its tasks")
        return cluster

    def _used(self) -> list[Host]:
        return [host for host in self._hosts if host.tasks]

    def _host(self, name: str) -> Host:
        return next(host for host in self._hosts if name in host.tasks)

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        """Return what the agents report of their tasks, and the tasks of hosts that are lost."""
        events: list[tuple[str, str]] = []
        for host, message in self._inbox.take(self._used(), timeout):
            if message["kind"] == "event" and message["task"] in host.tasks:
                if message["event"] == "ended":
                    self._codes[message["task"]] = int(message["code"])
                events.append((message["task"], message["event"]))
            elif message["kind"] == "frozen":
                host.frozen = set(message["tasks"]) & set(host.tasks)
            elif message["kind"] == "problem":
                self._say(f"{host.name}: {message['message']}")
            elif message["kind"] == "lost":
                events += self._lose(host)
        return events

    def _lose(self, host: Host) -> list[tuple[str, str]]:
        """Return the tasks without which the job cannot continue, of a host that is lost."""
        assert self._cluster is not None
        lost = [name for name in host.tasks if name not in self._codes]
        how = f"is lost with its host {host.name}: {host.lost}"
        self._losses.update({name: how for name in lost})
        silent = host.silent > self.peer_timeout
        found = []
        for name in lost:
            task = self._cluster.task(name)
            left = [t for t in self._cluster.tasks if t.role == task.role]
            left = [t for t in left if t.name not in self._losses]
            # What is handed to one that is silent the others would wait for without an end.
            if task.replaceable and left and not silent:
                self._say(f"{name} {how}: the others continue without it")
            else:
                found.append((name, "lost"))
        return found

    def loss(self, name: str) -> str:
        """Return how a task was lost."""
        return self._losses[name]

    def silent(self) -> list[str]:
        """Return the tasks of hosts from which nothing has come lately."""
        return [name for host in self._used() if host.silent > 3 * BEAT for name in host.tasks]

    def stop(self) -> None:
        """Have the tasks that train asked to stop."""
        for host in self._used():
            host.send("stop")

    def kill(self) -> None:
        """End all tasks, and the agents with them."""
        hosts, self._hosts = self._hosts, []
        alive = [host for host in hosts if host.lost is None]
        for host in alive:
            host.send("kill")
        try:
            self._end(alive)
        except TrainingError as error:
            self._say(f"{error}: its connection is closed")
        finally:
            for host in hosts:
                host.send("over")
            for host in hosts:
                host.close(0.0 if host.lost is not None else LAST)

    def _end(self, alive: list[Host]) -> None:
        """Wait until every task has ended, and take their exit codes in."""
        try:
            self._inbox.gather(alive, "killed", LAST, "end its tasks")
        finally:
            for _, message in self._inbox.take([], 0):
                if message["kind"] == "event" and message["event"] == "ended":
                    self._codes.setdefault(message["task"], int(message["code"]))

    def exit_codes(self) -> dict[str, int]:
        """Return what the tasks ended with."""
        return dict(self._codes)

    def start_again(self, name: str) -> None:
        """Have one task started once more."""
        self._codes.pop(name, None)
        self._host(name).send("again", task=name)

    def end(self, name: str) -> None:
        """Have one task ended at once."""
        self._host(name).send("end", task=name)

    def frozen(self) -> set[str]:
        """Return the tasks that are stopped."""
        return set().union(*(host.frozen for host in self._used()))

    def dump(self) -> None:
        """Have every task write its stacks."""
        for host in self._used():
            host.send("dump")

    @staticmethod
    def _say(text: str) -> None:
        print(f"dtrain: {text}", file=sys.stderr)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
