"""One task of a cluster that another program starts: its environment says which.

``launcher=auto`` is the cluster that this command is a part of, if it is of one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.errors import TrainingError, UsageError, refuse
from dtrain.files import writing
from dtrain.host import frameworks
from dtrain.host import network as networks
from dtrain.host.terminal import say
from dtrain.launchers.base import Launcher, run_of
from dtrain.launchers.facts import list_alike
from dtrain.launchers.local import FIRST, LAST, Local
from dtrain.launchers.platforms import numbered, slurm, tf_config
from dtrain.launchers.platforms.base import ClusterEnvironment, Platform, Ranked, Started
from dtrain.launchers.rendezvous import cluster_key
from dtrain.launchers.rendezvous.keepalive import ENDED_WELL
from dtrain.launchers.rendezvous.messages import BEAT, Message, is_name
from dtrain.launchers.rendezvous.sides import Host, Peer, Place
from dtrain.run.cluster import Cluster, Task
from dtrain.run.devices import Machine
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, read_json, write_json
from dtrain.run.outcome import Outcome

#: Variable that names a file, which is there once the commands have met: a pod is ready then.
READY = "DTRAIN_READY_FILE"

#: Ports at which a job's chief may wait, where the platform gives it none: each may be taken by
#: another program.
CANDIDATES = 4


@dataclasses.dataclass(frozen=True)
class Meeting:
    """The meeting of one job, whose tasks agree there on their addresses.

    Attributes:
        hosts: that the chief may be on, the likeliest first.
        ports: that it may wait at, in this order.
        own: this machine's address, for the other tasks; empty for the one that they see.
        job: what no other job of this user has.
    """

    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    own: str
    job: str

    @property
    def addresses(self) -> list[str]:
        """Return ``host:port``, at one of which the chief is."""
        return [tf_config.joined(host, port) for host in self.hosts for port in self.ports]

    def key(self, key: bytes) -> bytes:
        """Return the key of this job alone: another one of the user's may wait at the same port."""
        return hmac.digest(key, f"job {self.job}".encode(), hashlib.sha256).hex().encode()

    @classmethod
    def of(
        cls, started: Started, wanted: str | None, chief: str | None, reach: Callable[[str], str]
    ) -> Meeting:
        """Return where the commands meet that a platform has started without ports of their own.

        Args:
            started: what the platform says.
            wanted: ``launcher.network``.
            chief: ``launcher.chief``.
            reach: from a host's name to one by which it is reached.

        Raises:
            UsageError: the chief's host is not known, or this machine is not in the network.
        """
        own = "" if wanted is None else networks.own_address(wanted)
        hosts = started.chief if chief is None else (chief,)
        if started.is_on_one_machine:
            hosts = ("127.0.0.1",)
        elif not hosts:
            refuse("launcher.chief", f"{started.what} does not say on which host its task 0 is",
                   "null", hint="launcher.chief=HOST, the same for all tasks")  # fmt: skip
        elif started.rank:
            hosts = tuple(map(reach, hosts))
        digest = hashlib.sha256(started.job.encode()).digest()
        numbers = [int.from_bytes(digest[i : i + 4], "big") for i in range(0, 4 * CANDIDATES, 4)]
        ports = dict.fromkeys(FIRST + number % (LAST - FIRST + 1) for number in numbers)
        return cls(hosts, tuple(ports), own, started.job)


class Env(Local):
    """Starts this host's own task, once the commands on all hosts have met at the chief's.

    Who started them starts them again, too: Kubernetes, Vertex AI, a user with several shells.

    Args:
        args, kwargs: as of every launcher.
        environment: says which task this host's is, and where the others are.
        network: in CIDR notation, or an interface: where the tasks reach each other; None for the
            addresses at which the commands have met.
        chief: the host of task 0, where the platform does not say; None for what it says.
    """

    shares_machine = False
    several = False
    patience = 600.0

    def __init__(
        self, *args: Any, environment: ClusterEnvironment, network: str | None = None,
        chief: str | None = None, **kwargs: Any,
    ):  # fmt: skip
        super().__init__(*args, **kwargs)
        if self.max_restarts:
            refuse("launcher.max_restarts", "one task of many cannot start the others again",
                   self.max_restarts, accepted="0; what started them can start them again",
                   typed="launcher.max_restarts=0")  # fmt: skip
        self._environment, self._network = environment, network
        self._started_by = environment.started() if isinstance(environment, Platform) else None
        self._chief = chief
        self._meeting: Meeting | None = None  # where addresses are agreed
        if self._started_by is not None:
            self.commands = self._started_by.number
            self.where = self._started_by.where or f"a host of {self._started_by.what}"
        self._facts: dict[str, str] = {}
        self._own: Task | None = None
        self._host: Host | None = None
        self._key: bytes | None = None
        self._left: set[str] = set()  # tasks of other hosts that have ended, or are lost

    def part(self, machine: Machine) -> Machine:
        """Return what this command's task has of a machine that it shares with others of its job.

        What the platform has not divided is divided evenly.
        """
        machine = dataclasses.replace(super().part(machine), one_task=True)
        started = self._started_by
        if started is None:
            return machine
        tasks = max(1, started.local[1])
        return dataclasses.replace(
            machine,
            gpus=machine.gpus if started.own_gpus else machine.gpus // tasks,
            beside=tasks if machine.cores == os.cpu_count() else 1,
        )

    def _first_gpu(self, task: Task) -> int:
        started = self._started_by
        return 0 if started is None or started.own_gpus else started.local[0] * task.devices

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Return the cluster, with the addresses that the environment has.

        Raises:
            UsageError: it is wrong, or not of such a cluster, or there is no key for it.
        """
        self._facts = {**facts, **list_alike(frameworks.of(cluster.environment))}
        placed, self._own = self._environment.find(
            cluster, facts["strategy.name"], facts["strategy.on_hosts"] == "True"
        )
        together = self._settle(placed)
        self._key = cluster_key.find()
        if self._key is None and not together:
            raise cluster_key.missing()
        if self._started_by is not None and placed.chief == self._own:
            say(str(self._started_by))
        return placed

    def no_sweep(self) -> UsageError:
        """Return why the commands of one cluster do no sweep: each would do the whole."""
        started = self._started_by
        if started is None:
            return super().no_sweep()
        start = f"{started.typed}1 ... -m " if started.typed else ""
        return UsageError("launcher", f"each of {started.number or 'several'} tasks of "
                          f"{started.what} would do the whole sweep", "auto", accepted="one task",
                          hint=f"{start}launcher=local sweep.parallel=2")  # fmt: skip

    def _settle(self, placed: Cluster) -> bool:
        """Settle where the commands meet; say whether all of them have the same home for a key.

        Raises:
            UsageError: it cannot be there.
        """
        environment, started = self._environment, self._started_by
        if started is not None and not started.addresses:
            reach = environment.reach if isinstance(environment, Ranked) else str
            self._meeting = Meeting.of(started, self._network, self._chief, reach)
            return started.is_on_one_machine or started.same_home
        for key, value in (("network", self._network), ("chief", self._chief)):
            if value is not None:
                refuse(f"launcher.{key}", "the environment has the addresses of the tasks", value)
        return all(tf_config.is_local(tf_config.host_port(str(t.address))[0]) for t in placed.tasks)

    def own(self, cluster: Cluster) -> Task:
        """Return the task of this command."""
        assert self._own is not None, "after check"
        return cluster.task(self._own.name)

    def delegate(self, cluster: Cluster) -> Callable[[Any], Outcome] | None:
        """Return what runs one task, where this is not the chief's command."""
        if self.own(cluster) == cluster.chief:
            return None
        return run_of("dtrain.job.host_task")

    def followed(self, cluster: Cluster) -> tuple[Task, ...]:
        """Return the own task alone: the other commands follow theirs."""
        return (self.own(cluster),)

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        """Wait for the other commands, and fork this one's task.

        Raises:
            UsageError: another host has another configuration.
            TrainingError: a host did not come within ``start_timeout``.
        """
        cluster, place = _identified(rundir, cluster)
        if len(cluster.tasks) > 1:
            addresses, key, own = self._site(cluster)
            names = [task.name for task in cluster.tasks[1:]]
            self._host = Host(addresses, names, self._facts, key, self.peer_timeout)
            self._host.wait(self.start_timeout, say)
            if own:
                place = place._replace(addresses=tuple(self._host.agreed(own)))
                cluster = self.placed(cluster, place)
                # ORDER: peers on the same disk look there as soon as they have the place.
                write_json(rundir.cluster, cluster.to_json())
            self._host.begin(place)
        self.start_own(rundir, cluster)
        return cluster

    def placed(self, cluster: Cluster, place: Place) -> Cluster:
        """Return the cluster with the addresses that were agreed, if any were.

        Raises:
            TrainingError: they are not those of such a cluster.
        """
        if not place.addresses:
            return cluster
        try:
            for address in place.addresses:
                tf_config.host_port(address)
            return cluster.at(place.addresses)
        except ValueError as error:
            raise TrainingError(f"no addresses of {len(cluster.tasks)} tasks: {error}") from None

    def start_own(self, rundir: RunDir, cluster: Cluster) -> None:
        """Fork this command's task, of which alone there will be events."""
        self._rundir, self._cluster = rundir, cluster
        self._started = {}
        if met := os.environ.get(READY):
            writing.write_bytes(Path(met), b"")
        self._start(self.own(cluster))

    def peer(self, cluster: Cluster) -> Peer:
        """Return this command's side of the meeting, where it is not the chief's."""
        addresses, key, own = self._site(cluster)
        task = self.own(cluster)
        return Peer(addresses, task.name, self._facts, key, self.peer_timeout, own)

    def _site(self, cluster: Cluster) -> tuple[list[str], bytes, str]:
        """Return where the commands meet, their key, and this one's address if it is agreed."""
        key = self._key or cluster_key.make()
        if self._meeting is None:
            assert cluster.chief.address is not None
            return [cluster.chief.address], key, ""
        [port] = self._ports.take(1)
        own = tf_config.joined(self._meeting.own, port)
        return self._meeting.addresses, self._meeting.key(key), own

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        """Wait for events of the own task; pass on what concerns the job of those of other hosts.

        ``lost`` is a task without which the job cannot continue: :attr:`losses` says why.
        """
        events = super().poll(timeout)
        if self._host is not None:
            self._host.move(int((read_json(self._rundir.progress) or {}).get("step", 0)))
        for name, message in self._host.messages() if self._host is not None else []:
            if message["kind"] == "stop":
                events.append((name, "stop"))
            elif name not in self._left:
                self._left.add(name)
                if (failure := self._failure(name, message)) is not None:
                    silent = message["kind"] in ("lost", "late")
                    events += self.lose(self._cluster, [failure], silent)
        return events

    def _failure(self, name: str, message: Message) -> Failure | None:
        """Return how another host's task was lost; None if it ended as it should."""
        if message["kind"] == "left":
            if message["code"] in ENDED_WELL:
                return None
            reason = message["reason"] or f"ended with exit code {message['code']}"
            return Failure(message["failed"], name, reason, message["place"] or None)
        if message["kind"] == "gone":
            how = "is lost: its command has ended, or the connection was closed"
        elif message["kind"] == "late":
            how = (
                f"is hardly reached: the job stood still for most of {self.peer_timeout:g} s "
                "(launcher.peer_timeout)"
            )
        else:
            others = [other for other in self.silent() if other != name]
            also = f", nor from {', '.join(others)}" if others else ""
            how = f"is lost: nothing came from it for {self.peer_timeout:g} s{also} " + (
                "(launcher.peer_timeout)"
            )
        return Failure("lost", name, how)

    def silent(self) -> list[str]:
        """Return the tasks of other hosts of which nothing has been heard lately."""
        return self._host.silent(3 * BEAT) if self._host is not None else []

    def farewell(self, code: int) -> None:
        """Tell the other commands that the job has ended."""
        if self._host is not None:
            self._host.end(code)
            self._host = None

    def exit_codes(self) -> dict[str, int]:
        """Return the own task's exit code; one without a port failed: nobody chooses another."""
        codes = super().exit_codes()
        return {n: errors.FAILED if c == errors.PORT_TAKEN else c for n, c in codes.items()}


def _identified(rundir: RunDir, cluster: Cluster) -> tuple[Cluster, Place]:
    """Give the run its identity, by which other hosts know its folder, and write it there."""
    command = read_json(rundir.command) or {}
    job = command.get("job")
    if not isinstance(job, str) or re.fullmatch("[0-9a-f]{32}", job) is None:
        job = secrets.token_hex(16)
        write_json(rundir.command, {**command, "job": job}, lasting=True)
    cluster = dataclasses.replace(cluster, job=job)
    write_json(rundir.cluster, cluster.to_json())
    day, name = rundir.path.parent.name, rundir.path.name
    if not is_name(day) or not is_name(name):  # the folder was moved to such a place
        day, name = time.strftime("%Y-%m-%d"), job
    return cluster, Place(day, name, job)


#: What is looked for, in this order: what is nearest to the command comes first. Open MPI may have
#: been started in a step of SLURM, which runs one daemon a node, and torchrun in any of them.
ENVIRONMENTS: tuple[type[Platform], ...] = (
    numbered.Torchrun, tf_config.TFConfig, numbered.OpenMPI, slurm.Slurm, numbered.Vertex,
    numbered.SageMaker, numbered.KubernetesPod, numbered.TorchVariables,
)  # fmt: skip


def found() -> tuple[Platform, Started] | None:
    """Return the platform that has started this command, and what it has started.

    Raises:
        UsageError: there is one, and what its environment says cannot be.
    """
    for kind in ENVIRONMENTS:
        environment = kind()
        started = environment.started()
        if started is not None:
            return environment, started
    return None


def auto(network: str | None = None, chief: str | None = None, **settings: Any) -> Launcher:
    """Return the launcher of the cluster that the environment speaks of, else one of this machine.

    Args:
        network, chief: as of :class:`Env`.
        settings: as of every launcher.

    Raises:
        UsageError: the environment is of a cluster, and cannot be right.
    """
    platform = found()
    if platform is not None and not platform[1].is_alone:
        return Env(environment=platform[0], network=network, chief=chief, **settings)
    launcher = Local(**settings)
    launcher.commands = None if platform is None else 1
    return launcher
