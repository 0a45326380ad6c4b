"""Tasks on other hosts, which the user's own OpenSSH client reaches."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from dtrain.errors import UsageError, refuse
from dtrain.host import network as network_of
from dtrain.host.terminal import aligned, say
from dtrain.launchers import facts
from dtrain.launchers.agents import Agents, Command, Transport, mirror
from dtrain.launchers.agents.host import Host, Inbox, Unreached, in_file, listed
from dtrain.run.cluster import Cluster
from dtrain.run.devices import Machine

#: Of the client, whatever its configuration says: it asks nothing, forwards nothing, and shares its
#: connection with no other job, whose end would be this one's.
_OPTIONS = {
    "BatchMode": "yes",
    "ControlMaster": "no",
    "ControlPath": "none",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "RemoteCommand": "none",
    "LogLevel": "ERROR",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "3",
}
#: Seconds for a connection to open.
_CONNECT = 15
#: What the client and the shell there print, what that means, and what to do about it.
_MEANINGS = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|[Hh]ost key.*(changed|mismatch)",
     "its host key is another than the one that this machine knows",
     "ask who runs it; if the key was changed: ssh-keygen -R HOST, then ssh HOST"),
    (r"Host key verification failed|No .* host key is known", "its host key is not known here",
     "ssh HOST, once, and compare the fingerprint"),
    (r"Permission denied|Too many authentication failures",
     "it takes none of your keys, and a password cannot be asked for",
     "ssh-copy-id HOST, or ssh-add for a key with a passphrase"),
    ("Could not resolve hostname", "there is no host of this name",
     "its address, or ~/.ssh/config"),
    ("Connection refused", "no OpenSSH server listens there", "the server, or its port"),
    ("[Tt]imed out|No route to host|unreachable", "it is not reached", "the network to it"),
    (r"No module named '?dtrain\.agent", "has a dtrain that knows no agents",
     "the same dtrain there"),
    (r"No module named '?dtrain", "dtrain is not installed for its Python",
     "pip install dtrain there, or launcher.python=PATH"),
    ("ModuleNotFoundError", "its Python lacks a package that dtrain needs",
     "pip install dtrain there, or launcher.python=PATH"),
    ("(not found|No such file or directory|Permission denied)$", "its Python cannot be started",
     "launcher.python=PATH, of a Python there that has dtrain"),
)  # fmt: skip


class Ssh(Agents):
    """Starts an agent on each host by ``ssh``; nothing but its name stands on a command line.

    Args:
        args, kwargs: as of every launcher.
        hosts: ``[user@]host[:tasks]`` each.
        hostfile: a file with ``host slots=N`` a line, in the place of ``hosts``.
        python: the interpreter there; None: the path of this one.
        folder: where tasks look for files; None: this command's, where it is there.
        setup: shell commands on the hosts, before the interpreter.
        ssh_config: configuration of the client; None: the user's.
        variables: names of variables that go along to the hosts.
        sync: send this command's folder along, as it is: tasks look for code there.
        network: ``10.0.0.0/8``, or the name of an interface, by which the hosts reach each other;
            None: as this machine reaches them.
    """

    same_code = "launcher.sync=true, which sends it along"

    def __init__(
        self, *args: Any, hosts: list[str] | None = None, hostfile: str | None = None,
        python: str | None = None, folder: str | None = None, setup: list[str] | None = None,
        ssh_config: str | None = None, variables: list[str] | None = None, sync: bool = False,
        network: str | None = None, **kwargs: Any,
    ):  # fmt: skip
        super().__init__(*args, **kwargs)
        self._names, self._hostfile = list(hosts or []), hostfile
        self._python, self._folder, self._setup = python, folder, list(setup or [])
        self._ssh_config, self._variables = ssh_config, list(variables or [])
        self._sync, self._network = sync, network

    def transports(self) -> list[tuple[Transport, int]]:
        """Return the command that leads to each host."""
        return [(Command(name, self.command(name)), slots) for name, slots in self._named()]

    def assumed(self, machine: Machine) -> Machine:
        """Return what a task has if its host is as this machine; the hosts are counted."""
        places = sum(slots for _, slots in self._named())
        return dataclasses.replace(super().assumed(machine), hosts=places)

    def _named(self) -> list[tuple[str, int]]:
        if bool(self._names) == bool(self._hostfile):
            both = "hosts and a file of hosts are given" if self._names else "no host is given"
            refuse("launcher.hosts", both, self._names,
                   hint="launcher.hosts=[a,b:2], or launcher.hostfile=FILE")  # fmt: skip
        if self._names:
            return listed(self._names)
        assert self._hostfile is not None
        hosts = in_file(self._hostfile)
        if not hosts:
            refuse("launcher.hostfile", "names no host", self._hostfile,
                   accepted="host slots=N in each line", hint="a slots=1")  # fmt: skip
        return hosts

    def command(self, host: str) -> list[str]:
        """Return the command that starts the agent of a host."""
        options = [f"{name}={value}" for name, value in _OPTIONS.items()]
        options.append(f"ConnectTimeout={min(_CONNECT, max(1, int(self.start_timeout)))}")
        config = [] if self._ssh_config is None else ["-F", os.path.expanduser(self._ssh_config)]
        words = [word for option in options for word in ("-o", option)]
        return ["ssh", *config, "-T", "-x", *words, "--", host, self._remote()]

    def _remote(self) -> str:
        """Return what the login shell there, whichever it is, is to do."""
        if self._folder is not None:
            there = f"cd {shlex.quote(self._folder)}"
        else:
            there = f"{{ cd {shlex.quote(os.getcwd())} 2>/dev/null || cd; }}"
        python = shlex.quote(self._python or sys.executable)
        steps = [there, *self._setup, f"exec {python} -m dtrain.agent"]
        return f"exec /bin/sh -c {shlex.quote(' && '.join(steps))}"

    def variables(self) -> dict[str, str]:
        """Return those of every launcher of agents, and what the user names."""
        missing = [name for name in self._variables if name not in os.environ]
        if missing:
            refuse("launcher.variables", f"the environment has no variable {missing[0]}",
                   self._variables, hint=f"{missing[0]}=VALUE in front of the command")  # fmt: skip
        return {**super().variables(), **{name: os.environ[name] for name in self._variables}}

    def address(self, host: Host) -> str | None:
        """Return the address of a host in ``launcher.network``, if that is given.

        Raises:
            UsageError: it has none there.
        """
        if self._network is None or host.lost is not None:
            return super().address(host)
        own = [(name, ipaddress.ip_address(text)) for name, text in host.facts["addresses"]]
        return network_of.address_in(self._network, host.name, own)

    def place(self, cluster: Cluster) -> Cluster:
        """Divide the tasks among the hosts.

        Raises:
            UsageError: they do not reach each other.
        """
        try:
            return super().place(cluster)
        except Unreached as error:
            raise UsageError("launcher.network", str(error), self._network or "null",
                             accepted="one in which ports 20000 to 32767 of the hosts are open",
                             typed="launcher.network=10.0.0.0/8") from None  # fmt: skip

    def greeted(self, hosts: list[Host], inbox: Inbox) -> None:
        """Send the working tree, or see that the user's own modules are the same everywhere.

        Raises:
            UsageError: they are not.
            TrainingError: a host is gone.
        """
        if self._sync:
            data = mirror.archive(Path.cwd())
            for host in hosts:
                assert host.stream is not None
                host.stream.send_all(mirror.messages(data))
            inbox.gather(hosts, "tree", self.start_timeout, "take the working tree in")
        super().greeted(hosts, inbox)

    def examine(self, hosts: list[Host]) -> None:
        """Print what the hosts are, and refuse those on which the job would be another.

        Raises:
            UsageError: naming the first that cannot be used, and how many others there are.
        """
        here = facts.found()
        problems: dict[str, tuple[str, str]] = {}
        for host in hosts:
            if host.lost is not None:
                problems[host.name] = explain(host)
            elif (differs := facts.problem(host.facts, here)) is not None:
                problems[host.name] = differs
        say("hosts")
        shown = {name: problem for name, (problem, _) in problems.items()}
        print(table(hosts, shown), file=sys.stderr)
        if problems:
            name, (problem, hint) = next(iter(problems.items()))
            others = f" (nor can {', '.join(list(problems)[1:])})" if len(problems) > 1 else ""
            refuse("launcher.hosts", f"cannot be used: {problem}{others}", name, hint=hint,
                   accepted="hosts that ssh enters without a question, with the same packages as "
                   "here")  # fmt: skip


def explain(host: Host) -> tuple[str, str]:
    """Return why the agent of a host has not come, and what to do about it."""
    leads: Any = host.transport
    printed = leads.printed()
    name = host.name.rpartition("@")[2]
    for pattern, meaning, hint in _MEANINGS:
        if re.search(pattern, printed, re.MULTILINE):
            return meaning, hint.replace("HOST", name)
    last = (printed.splitlines() or [str(host.lost)])[-1]
    return f"no agent answers there: {last}", f"ssh {name}, and what is said there"


def table(hosts: list[Host], problems: dict[str, str]) -> str:
    """Return a line for each host: what it has, or why it cannot be used."""
    rows: list[tuple[str, ...]] = [
        ("host", "tasks", "cores", "GPUs", "Python", "TensorFlow", "address", "")
    ]
    for host in hosts:
        facts = host.facts
        shown = [
            str(facts.get(key) if facts.get(key) is not None else "-")
            for key in ("cores", "gpus", "python", "tensorflow")
        ]
        status = problems.get(host.name, "ready")
        rows.append((host.name, str(host.slots), *shown, host.address or "-", status))
    return "\n".join(line.rstrip() for line in aligned(rows))
