"""A launcher whose tasks are started by agents, on hosts that this command reaches somehow."""

from __future__ import annotations

import dataclasses
import secrets
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dtrain import errors
from dtrain.errors import TrainingError, refuse
from dtrain.host import frameworks, python_path
from dtrain.host.terminal import say
from dtrain.launchers import facts
from dtrain.launchers.agents import mirror
from dtrain.launchers.agents.host import Host, Inbox, Lost, placed
from dtrain.launchers.agents.stream import BEAT, Message, Transport
from dtrain.launchers.base import Launcher, LocalProcesses
from dtrain.run.cluster import Cluster
from dtrain.run.devices import Machine
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, write_json
from dtrain.run.mirror import OF_COMMANDS, Changes, Receiver

#: Seconds that agents have to end their tasks.
LAST = 10.0
#: What tasks that do not lead have no use for.
_CHIEF_ONLY = frozenset(
    {"checkpoints", "tensorboard", "logs", "journal.jsonl", "exports", "predictions"}
)


class Agents(Launcher, LocalProcesses):
    """Starts an agent on each host, which starts the tasks there.

    A subclass says what leads to the hosts (:meth:`transports`). Agents are started when they are
    first needed, and end with every end of the tasks: those of a restart are new ones.
    """

    shares_machine = False
    several = False
    patience = 120.0
    #: What to do where the user's code differs on a host.
    same_code = "the same code in this folder on every host"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._hosts: list[Host] = []
        self._inbox = Inbox(self.peer_timeout)
        self._codes: dict[str, int] = {}
        self._cluster: Cluster | None = None

    @abstractmethod
    def transports(self) -> list[tuple[Transport, int]]:
        """Return what leads to each host, the chief's first, and how many tasks may be there.

        Raises:
            UsageError: what the user has said of the hosts is wrong.
        """

    def variables(self) -> dict[str, str]:
        """Return the variables that tasks get: this command's own, and what it grants to them."""
        return {**facts.own(), **python_path.handed()}

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
            given = self.variables()
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
                host.send("greet", peer_timeout=self.peer_timeout, variables=given)
            self.greeted(hosts, self._inbox)
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
            if (problem := facts.problem(host.facts, facts.found())) is not None:
                refuse("launcher", f"{host.name} cannot be used: {problem[0]}",
                       accepted="the same on every host", hint=problem[1])  # fmt: skip

    def greeted(self, hosts: list[Host], inbox: Inbox) -> None:
        """See that the user's own modules are the same on every host.

        Raises:
            UsageError: they are not.
            TrainingError: a host is gone.
        """
        names = sorted(python_path.tops())
        here = facts.modules(names)
        for host in hosts:
            host.send("modules", names=names)
        replies = inbox.gather(hosts, "modules", self.start_timeout, "look for modules")
        for host in hosts:
            for name, digest in replies[host.name]["found"].items():
                if here.get(name) is not None and digest != here[name]:
                    is_not = "is not there" if digest is None else "is another there"
                    refuse("launcher", f"the module {name} {is_not}, on {host.name}",
                           accepted="the same code on every host", hint=self.same_code)  # fmt: skip

    def part(self, machine: Machine) -> Machine:
        """Return what one task has: the part of a place on the host that has least.

        Raises:
            UsageError, TrainingError: that cannot be found out.
        """
        hosts = self.connect()
        gpus = min(host.facts["gpus"] // host.slots for host in hosts)
        cores = min(max(1, host.facts["cores"] // host.slots) for host in hosts)
        places = sum(host.slots for host in hosts)
        return Machine(gpus, cores, shared=False, hosts=places)

    def assumed(self, machine: Machine) -> Machine:
        """Return what a task has if its host is as this machine; no host is asked."""
        return dataclasses.replace(machine, shared=False)

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Return the cluster with the addresses of its tasks, which reach each other.

        Raises:
            UsageError: there are too few places, or hosts that have nothing to do.
            TrainingError: they do not reach each other, or one is gone.
        """
        hosts, tasks = self.connect(), len(cluster.tasks)
        places, wanted = sum(host.slots for host in hosts), tasks // cluster.together
        if places < wanted:
            refuse("launcher.hosts", f"has {places * cluster.together} places for {tasks} tasks "
                   f"(strategy={facts['strategy.name']})",
                   ",".join(f"{h.name}:{h.slots}" for h in hosts),
                   typed=f"'launcher.hosts=[{hosts[0].name}:{wanted}]'")  # fmt: skip
        self._compare(hosts, cluster)
        self.where = hosts[0].name
        return self.place(cluster)

    def _compare(self, hosts: list[Host], cluster: Cluster) -> None:
        """Refuse hosts with another framework: only now it is known which one computes."""
        framework, here = frameworks.of(cluster.environment), facts.found()
        for host in hosts:
            problem = facts.framework_problem(framework, host.facts, here)
            if problem is not None:
                refuse("launcher.hosts", f"cannot be used: {problem[0]}", host.name,
                       accepted=f"hosts with one {framework.title}", hint=problem[1])  # fmt: skip

    def prepare(self, cluster: Cluster) -> None:
        """Have the agents begin to import the framework."""
        for host in self._used():
            host.send("prepare", environment=cluster.environment)

    def place(self, cluster: Cluster) -> Cluster:
        """Divide the tasks among the hosts, and return the cluster with their addresses.

        Raises:
            TrainingError: they do not reach each other.
        """
        return placed(cluster, self._hosts, self._inbox, self.start_timeout)

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        """Have the agents start the tasks.

        Raises:
            TrainingError: an agent could not.
        """
        again = not self._hosts  # the tasks had ended, and the agents with them
        hosts = self.connect()
        named = {task.name for task in cluster.tasks}
        if again or named != {name for host in hosts for name in host.tasks}:
            cluster = self.place(cluster)
            self.prepare(cluster)
        self._codes, self.losses = {}, {}
        self._cluster = cluster = dataclasses.replace(cluster, job=secrets.token_hex(16))
        write_json(rundir.cluster, cluster.to_json())
        self._share(rundir, cluster.job)
        environment = {**self.variables(), **facts.referred(rundir.config.read_text())}
        for host in self._used():
            host.send(
                "start", run=str(rundir.path), tasks=host.tasks, cluster=cluster.to_json(),
                variables=environment,
            )  # fmt: skip
        self._inbox.gather(self._used(), "begun", self.start_timeout, "start its tasks")
        return cluster

    def _share(self, rundir: RunDir, job: str) -> None:
        """Send the run folder to the hosts that do not see it; the chief's has all of it."""
        used = self._used()
        for host in used:
            host.send("look", run=str(rundir.path), job=job)
        said = self._inbox.gather(used, "look", self.start_timeout, "look for the run folder")
        for host in used:
            if said[host.name]["shared"] or host.stream is None:
                continue
            host.copy = Receiver(rundir.path, refuse=OF_COMMANDS)
            parts = Changes(rundir.path, leave=() if host is used[0] else _CHIEF_ONLY).parts()
            host.stream.send_all(map(mirror.as_message, parts))

    def _used(self) -> list[Host]:
        return [host for host in self._hosts if host.tasks]

    def _host(self, name: str) -> Host:
        return next(host for host in self._hosts if name in host.tasks)

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        """Return what the agents report of their tasks, and the tasks of hosts that are lost."""
        events: list[tuple[str, str]] = []
        for host, message in self._inbox.take(self._used(), timeout):
            if message["kind"] == "event" and message.get("task") in host.tasks:
                if message.get("event") == "ended":
                    self._codes[message["task"]] = int(message.get("code", errors.FAILED))
                events.append((message["task"], str(message.get("event"))))
            elif message["kind"] == "frozen":
                host.frozen = set(message.get("tasks", ())) & set(host.tasks)
            elif message["kind"] == "problem":
                say(f"{host.name}: {message.get('message')}")
            elif message["kind"] == "lost":
                events += self._lose(host)
        return events

    def _lose(self, host: Host) -> list[tuple[str, str]]:
        """Return the tasks without which the job cannot continue, of a host that is lost."""
        assert self._cluster is not None
        how = f"is lost with its host {host.name}: {host.lost}"
        lost = [Failure("lost", name, how) for name in host.tasks if name not in self._codes]
        return self.lose(self._cluster, lost, silent=host.silent > self.peer_timeout)

    def silent(self) -> list[str]:
        """Return the tasks of hosts from which nothing has come lately, with their hosts."""
        hosts = [host for host in self._used() if host.silent > 3 * BEAT]
        return [f"{name} (host {host.name})" for host in hosts for name in host.tasks]

    def stop(self) -> None:
        """Have the tasks that train asked to stop."""
        for host in self._used():
            host.send("stop")

    def kill(self) -> None:
        """End all tasks, and the agents with them; what does not answer is left to itself."""
        hosts, self._hosts = self._hosts, []
        alive = [host for host in hosts if host.lost is None]
        mute: list[Host] = []
        for host in alive:
            host.send("kill")
        try:
            mute = self._inbox.collect(alive, "killed", LAST, {})
            if names := ", ".join(host.name for host in mute):
                say(f"no answer within {LAST:g} s, the connection is closed: {names}")
        except TrainingError as error:
            say(f"{error}: its connection is closed")
        finally:
            for _, message in self._inbox.take([], 0):
                if message["kind"] == "event" and message.get("event") == "ended":
                    code = int(message.get("code", errors.FAILED))
                    self._codes.setdefault(str(message.get("task")), code)
            for host in hosts:
                host.send("over")
            with ThreadPoolExecutor(max(1, len(hosts))) as pool:  # all at once
                given_up = [host in mute or host.lost is not None for host in hosts]
                patience = [0.0 if up else LAST for up in given_up]
                list(pool.map(Host.close, hosts, patience))

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
