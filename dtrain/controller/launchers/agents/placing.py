"""Names of hosts, how many tasks each has room for, and which host gets which tasks."""

from __future__ import annotations

import dataclasses
import re
import secrets
from pathlib import Path

from dtrain.controller.launchers.agents.host import Host, Inbox
from dtrain.errors import TrainingError, UsageError
from dtrain.run.cluster import Cluster, Task

#: Seconds that hosts have to try whether they reach each other.
REACH = 10.0


class Unreached(TrainingError):
    """A host does not reach a port of another."""


def placed(cluster: Cluster, hosts: list[Host], inbox: Inbox, seconds: float) -> Cluster:
    """Divide the tasks among the hosts, and return the cluster with their addresses.

    Hosts are filled in their order. A place is that of one task, or of those that have a device
    each of its host; a task that follows the chief's checkpoints is beside it.

    Args:
        cluster: as planned.
        hosts: with agents; they get to know their tasks.
        inbox: of the hosts.
        seconds: that they have to find ports.

    Raises:
        Unreached: they do not reach each other.
        TrainingError: there are too few places, no free ports, or a host is gone.
    """
    slots = [host for host in hosts for _ in range(host.slots)]
    rooms = [host for host in slots for _ in range(cluster.together)]
    if len(rooms) < len(cluster.tasks):
        raise TrainingError(f"{len(cluster.tasks)} tasks have {len(rooms)} places")
    where = dict(zip((task.name for task in cluster.tasks), rooms, strict=False))
    for host in hosts:
        host.tasks = [name for name, its in where.items() if its is host]
    cluster = dataclasses.replace(cluster, tasks=_divided(cluster, where))
    if len(cluster.tasks) == 1:
        return cluster
    used, secret = [host for host in hosts if host.tasks], secrets.token_hex(16)
    for host in used:
        host.send("ports", count=len(host.tasks), secret=secret)
    ports = inbox.gather(used, "ports", seconds, "find free ports")
    left = {name: iter(message["ports"]) for name, message in ports.items()}
    addresses = [
        _joined(where[task.name].address or "127.0.0.1", next(left[where[task.name].name]))
        for task in cluster.tasks
    ]
    _check(used, addresses, secret, inbox)
    return cluster.at(addresses)


def _divided(cluster: Cluster, where: dict[str, Host]) -> tuple[Task, ...]:
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


def _check(used: list[Host], addresses: list[str], secret: str, inbox: Inbox) -> None:
    """Have every host try the ports of all."""
    for host in used:
        host.send("reach", addresses=addresses, secret=secret, seconds=REACH)
    said = inbox.gather(used, "reach", 2 * REACH + 5, "try the ports of the others")
    for host in used:
        for address, why in said[host.name]["found"].items():
            if why is not None:
                raise Unreached(f"{host.name} does not reach {address}: {why}")


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


#: A host as OpenSSH takes it, with the tasks that it has room for behind it.
_HOST = re.compile(
    r"(?P<user>[\w.+-]+@)?(?:\[(?P<six>[0-9a-fA-F:.]+(?:%\w+)?)\]|(?P<name>\w[\w.-]*))"
    r"(?::(?P<slots>[0-9]{1,4}))?"
)
_ACCEPTED = "[user@]host, or host:2 for two tasks, an IPv6 address in brackets"
#: Options of a line of a file: Open MPI's and DeepSpeed's, of which the number of tasks counts.
_SLOTS = re.compile(r"slots\s*=\s*([0-9]{1,4})")
_OPTION = re.compile(r"(slots|max[-_]slots)\s*=\s*[0-9]{1,4}")
#: Lines of a file.
_MOST = 100_000


def listed(hosts: list[str]) -> list[tuple[str, int]]:
    """Return the names of ``launcher.hosts``, and how many tasks each has room for.

    Raises:
        UsageError: one is no host, or is given twice.
    """
    found = [_parsed("launcher.hosts", text) for text in hosts]
    return _once("launcher.hosts", found)


def in_file(path: str) -> list[tuple[str, int]]:
    """Return those of a file of hosts: ``host slots=N`` a line, ``#`` before a comment.

    Open MPI's and DeepSpeed's files are of this form, and so is a plain list of hosts. A host that
    stands there again has room for more.

    Raises:
        UsageError: there is no such file, or a line is none of these.
    """
    key = "launcher.hostfile"
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no text"
        raise UsageError(
            key, path, f"cannot be read ({why})", "a file with a line for each host: host slots=N",
            f"{key}=FILE",
        ) from None  # fmt: skip
    slots: dict[str, int] = {}
    for number, line in enumerate(lines[:_MOST], 1):
        name, _, options = line.partition("#")[0].strip().partition(" ")
        if not name:
            continue
        if _OPTION.sub("", options).strip():
            raise UsageError(
                key, path, f"line {number} is {line.strip()!r}", "host slots=N in each line",
                f"{name} slots=1",
            )  # fmt: skip
        host, room = _parsed(key, name)
        given = _SLOTS.findall(re.sub(r"max[-_]slots\s*=\s*[0-9]+", "", options))
        slots[host] = slots.get(host, 0) + (int(given[0]) if given else room)
    return [(host, room) for host, room in slots.items() if room]


def _parsed(key: str, text: str) -> tuple[str, int]:
    found = _HOST.fullmatch(str(text).strip())
    if found is None or int(found["slots"] or 1) == 0:
        raise UsageError(key, text, "is no host", _ACCEPTED, "'launcher.hosts=[a,b:2]'")
    return (found["user"] or "") + (found["six"] or found["name"]), int(found["slots"] or 1)


def _once(key: str, found: list[tuple[str, int]]) -> list[tuple[str, int]]:
    for place, (name, slots) in enumerate(found):
        if name in [other for other, _ in found[:place]]:
            more = slots + next(room for other, room in found if other == name)
            raise UsageError(
                key, name, "is given twice", "each host once, with the number of its tasks",
                f"{name}:{more}",
            )  # fmt: skip
    return found
