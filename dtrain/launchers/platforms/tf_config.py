"""TF_CONFIG, TensorFlow's way to show each process of a cluster where all of them are."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
from collections import Counter

from dtrain.errors import UsageError, nearest, refuse
from dtrain.launchers.platforms.base import Started, in_words
from dtrain.run.cluster import Cluster, Task

#: Hosts that mean "this machine" on every machine, besides 127.x.
_HERE = ("localhost", "localhost.localdomain", "ip6-localhost", "::1", "0.0.0.0", "::")
_EXAMPLE = (
    """export TF_CONFIG='{"cluster": {"chief": ["host1:2222"], "worker": ["host2:2222"]}, """
    """"task": {"type": "worker", "index": 0}}'"""
)


#: Roles that TensorFlow's own programs have, and why they are none here.
_OTHER_ROLES = {
    "master": "is an old name of the role: name it chief",
    "evaluator": "is no task of a training: python -m dtrain evaluate RUN follow=true",
    "ps": "is of strategy=ps alone",
}


class TFConfig:
    """The cluster environment of TensorFlow: Kubernetes' training operator, Vertex AI, shells."""

    def started(self) -> Started | None:
        """Return the tasks that ``TF_CONFIG`` speaks of, None where it is not set or empty.

        The rest is for :func:`read`, which knows what was planned.

        Raises:
            UsageError: it is no JSON of a cluster and a task.
        """
        text = os.environ.get("TF_CONFIG", "")
        if not text.strip():
            return None
        addresses, role, index = _parse(text)
        flat = tuple(address for listed in addresses.values() for address in listed)
        is_first = (role, index) == ("chief" if "chief" in addresses else "worker", 0)
        return Started("TF_CONFIG", 0 if is_first else 1, len(flat), addresses=flat)

    def find(self, planned: Cluster, strategy: str, on_hosts: bool) -> tuple[Cluster, Task]:
        """Find the planned cluster, and this command's task in it, in ``TF_CONFIG``.

        Args:
            planned, strategy, on_hosts: as of :func:`read`.

        Raises:
            UsageError: TF_CONFIG is wrong in itself, or is not the cluster that was planned.
        """
        return read(os.environ.get("TF_CONFIG"), planned, strategy, on_hosts)


def read(text: str | None, planned: Cluster, strategy: str, on_hosts: bool) -> tuple[Cluster, Task]:
    """Find the planned cluster, and this process in it, in the cluster that was started.

    A cluster of equal hosts may have workers only: worker 0 leads then, and the tasks have the
    names of TF_CONFIG, for TensorFlow's cluster specification is the same on all hosts.

    Args:
        text: value of the environment variable; None where it is not set.
        planned: the tasks that the configuration asks for, without addresses.
        strategy: its name, ``strategy.name``.
        on_hosts: it runs a process on each host, and there may be one.

    Returns:
        The cluster with the addresses of TF_CONFIG, and the task that this process is.

    Raises:
        UsageError: TF_CONFIG is wrong in itself, or is not the cluster that was planned.
    """
    if len(planned.tasks) == 1 and not on_hosts:
        refuse("strategy", "is one process and has no use for a cluster", strategy,
               accepted="one of several tasks, or any with launcher=local",
               hint="strategy=multiworker, or launcher=local")  # fmt: skip
    if text is None or not text.strip():
        refuse("TF_CONFIG", "says nothing of the cluster that launcher=env is to join",
               text or "(not set)", hint=_EXAMPLE,
               accepted="JSON, or RANK, WORLD_SIZE, MASTER_ADDR; or launcher=local")  # fmt: skip
    addresses, role, index = _parse(text)
    usable = {"chief", "worker", *(task.role for task in planned.tasks)}
    for each in (*addresses, role):
        if each not in usable:
            near = nearest(each, sorted(usable)) or "worker"
            raise _wrong(each, _OTHER_ROLES.get(each, "is no role of a task"), hint=f'"{near}"')
    if "chief" not in addresses and "ps" not in usable:
        planned = dataclasses.replace(planned, tasks=tuple(
            dataclasses.replace(task, role="worker", index=number)
            for number, task in enumerate(planned.tasks)
        ))  # fmt: skip
    _check_numbers({role: len(listed) for role, listed in addresses.items()}, planned)
    _check_hosts([address for listed in addresses.values() for address in listed])
    placed = planned.at([addresses[task.role][task.index] for task in planned.tasks])
    own = [task for task in placed.tasks if (task.role, task.index) == (role, index)]
    if not own or type(index) is not int:
        raise _wrong(f"{role} {index}", 'is the task, and "cluster" lists no such one')
    return placed, own[0]


def host_port(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[IPv6]:port``.

    Raises:
        ValueError: it is neither.
    """
    pattern = r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[\w.-]+)):(?P<port>[0-9]{1,5})"
    parts = re.fullmatch(pattern, address)
    if parts is None or not 0 < int(parts["port"]) < 65536:
        raise ValueError(f"{address!r:.60} is not host:port")
    if parts["six"]:
        ipaddress.IPv6Address(parts["six"])
    return parts["six"] or parts["host"], int(parts["port"])


def joined(host: str, port: int | str) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(host: str) -> bool:
    """Say whether ``host`` means the machine that asks, whichever it is."""
    return host.lower() in _HERE or host.startswith("127.")


def _wrong(value: str, problem: str, typed: str | None = None, hint: str = _EXAMPLE) -> UsageError:
    """Return the error of a part of ``TF_CONFIG``."""
    text = " ".join(value.split())
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return UsageError("TF_CONFIG", problem, text, typed=typed, hint=hint,
                      accepted="TensorFlow's JSON, with one cluster on every host")  # fmt: skip


def _parse(text: str) -> tuple[dict[str, list[str]], str, object]:
    """Return the addresses by role, and the role and the index of this process."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _wrong(text, f"is not JSON: {error}") from None
    try:
        cluster, task = value["cluster"], value["task"]
        addresses = {str(role): list(listed) for role, listed in cluster.items() if listed}
        for address in (each for listed in addresses.values() for each in listed):
            host_port(address)
        return addresses, str(task["type"]), task["index"]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        problem = f"is no cluster and task of it ({type(error).__name__}: {error})"
        raise _wrong(text, problem) from None


def _check_numbers(counts: dict[str, int], planned: Cluster) -> None:
    """Refuse another cluster than the planned one, and say which keys would plan it."""
    wanted = Counter(task.role for task in planned.tasks)
    if counts == wanted:
        return
    keys = {"worker": "strategy.workers", "ps": "strategy.servers"}
    typed = " ".join(f"{key}={counts[role]}" for role, key in keys.items() if role in counts)
    if "ps" not in wanted:
        typed = f"hardware.hosts={sum(counts.values())}"
    fits = counts.get("chief") == 1 or ("ps" not in wanted and "chief" not in counts)
    raise _wrong(in_words(counts), f"the configuration asks for {in_words(wanted)}",
                 typed=typed if fits and counts else None)  # fmt: skip


def _check_hosts(addresses: list[str]) -> None:
    """Refuse an address that two tasks have, and one that is another machine on each host."""
    if len({address.lower() for address in addresses}) < len(addresses):
        raise _wrong(", ".join(addresses), "two tasks have one address")
    here = [address for address in addresses if is_local(host_port(address)[0])]
    if here and len(here) < len(addresses):
        problem = "is another machine on each host, and the cluster has other hosts"
        raise _wrong(here[0], problem)
