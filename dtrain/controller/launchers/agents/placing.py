"""Which host gets which tasks, and the addresses at which these reach each other."""

from __future__ import annotations

import dataclasses
import secrets

from dtrain.controller.launchers.agents.host import Host, Inbox
from dtrain.errors import TrainingError
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
