"""TF_CONFIG, TensorFlow's way to show each process of a cluster where all of them are."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re

from dtrain.errors import UsageError, nearest, refuse
from dtrain.files.fields import Json
from dtrain.launchers.platforms.base import Started
from dtrain.run.cluster import Cluster, Task

#: Hosts that mean "this machine" on every machine, besides 127.x.
_HERE = ("localhost", "localhost.localdomain", "ip6-localhost", "::1", "0.0.0.0", "::")
_EXAMPLE = (
    """export TF_CONFIG='{"cluster": {"chief": ["host1:2222"], "worker": ["host2:2222"]}, """
    """"task": {"type": "worker", "index": 0}}'"""
)


class TFConfig:
    """The cluster environment of TensorFlow: Kubernetes' training operator, Vertex AI, shells."""

    def started(self) -> Started | None:
        """Return how many tasks ``TF_CONFIG`` speaks of, None where it is not set or empty.

        The rest is for :func:`read`, which knows what was planned.

        Raises:
            UsageError: it is no JSON of a cluster and a task.
        """
        text = os.environ.get("TF_CONFIG", "")
        if not text.strip():
            return None
        value = _parse(text)
        task, listed = value["task"], value["cluster"]
        counts = {role: len(each) for role, each in listed.items() if isinstance(each, list)}
        addresses = tuple(str(address) for each in counts for address in listed[each])
        leads = "chief" if counts.get("chief") else "worker"
        is_first = (task.get("type"), task.get("index")) == (leads, 0)
        return Started("TF_CONFIG", 0 if is_first else 1, len(addresses), addresses=addresses)

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
    value = _parse(text)
    usable = list(dict.fromkeys(["chief", "worker", *(task.role for task in planned.tasks)]))
    addresses: dict[str, list[str]] = {}
    for role, listed in value["cluster"].items():
        if listed == []:
            continue
        _check_role(f"cluster.{role}", role, listed, usable, strategy)
        addresses[role] = _addresses(f"cluster.{role}", listed)
    _check_numbers(addresses, planned)
    _check_together(addresses)
    if "chief" not in addresses:
        workers = [
            dataclasses.replace(task, role="worker", index=index)
            for index, task in enumerate(planned.tasks)
        ]
        planned = dataclasses.replace(planned, tasks=tuple(workers))
    placed = planned.at([addresses[task.role][task.index] for task in planned.tasks])
    return placed, placed.task(_own_name(value["task"], addresses, usable, strategy))


def host_port(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[IPv6]:port``.

    Raises:
        ValueError: it is neither; the message is a clause that says why.
    """
    parts = re.fullmatch(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[\w.-]+)):(?P<port>[0-9]+)", address)
    if parts is None:
        raise ValueError("is not host:port")
    if parts["six"]:
        try:
            ipaddress.IPv6Address(parts["six"])
        except ValueError:
            raise ValueError("has no IPv6 address in its brackets") from None
    if len(parts["port"]) > 5 or not 0 < int(parts["port"]) < 65536:
        raise ValueError(f"has a port out of range, {parts['port'][:9]}")
    return parts["six"] or parts["host"], int(parts["port"])


def joined(host: str, port: int | str) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(host: str) -> bool:
    """Say whether ``host`` means the machine that asks, whichever it is."""
    return host.lower() in _HERE or host.startswith("127.")


def _wrong(
    where: str, value: object, problem: str, typed: str | None = None, hint: str = _EXAMPLE
) -> UsageError:
    """Return the error of a part of ``TF_CONFIG``, such as ``cluster.worker[0]``."""
    text = " ".join((value if isinstance(value, str) else json.dumps(value)).split())
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return UsageError(f"TF_CONFIG.{where}".rstrip("."), problem, text, typed=typed, hint=hint,
                      accepted="TensorFlow's JSON, with one cluster on every host")  # fmt: skip


def _parse(text: str | None) -> Json:
    if text is None or not text.strip():
        refuse("TF_CONFIG", "says nothing of the cluster that launcher=env is to join",
               text or "(not set)", hint=_EXAMPLE,
               accepted="JSON, or RANK, WORLD_SIZE, MASTER_ADDR; or launcher=local")  # fmt: skip
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _wrong("", text, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _wrong("", text, "is not a JSON object")
    for part in ("cluster", "task"):
        if part not in value:
            raise _wrong("", text, f'has no "{part}"')
        if not isinstance(value[part], dict):
            raise _wrong(part, value[part], "is not a JSON object")
    return value


def _check_role(where: str, role: object, value: object, usable: list[str], strategy: str) -> None:
    if role in usable:
        return
    problem, typed = "is no role of a task", None
    hint = f'"{nearest(str(role), usable) or "worker"}"'
    if role == "master":
        problem, hint = "is an old name of the role: name it chief", '"chief"'
    elif role == "evaluator":
        problem = "dtrain evaluates in the training loop itself"
        hint = "TF_CONFIG without the evaluator; python -m dtrain evaluate RUN follow=true"
    elif role == "ps":
        problem, typed = f"strategy={strategy} has no use for parameter servers", "strategy=ps"
    raise _wrong(where, value, problem, typed, hint)


def _addresses(where: str, listed: object) -> list[str]:
    if not isinstance(listed, list):
        raise _wrong(where, listed, "is not a list of addresses")
    for index, address in enumerate(listed):
        try:
            host_port(address if isinstance(address, str) else "")
        except ValueError as error:
            raise _wrong(f"{where}[{index}]", address, str(error)) from None
    return listed


def _check_numbers(addresses: dict[str, list[str]], planned: Cluster) -> None:
    chiefs, workers = len(addresses.get("chief", [])), len(addresses.get("worker", []))
    if chiefs > 1:
        raise _wrong("cluster.chief", f"{chiefs} tasks", "a cluster has one chief")
    if not any(task.role == "ps" for task in planned.tasks):
        _check_number("cluster", chiefs + workers, "hardware.hosts", len(planned.tasks))
        return
    if not chiefs:
        raise _wrong("cluster", ", ".join(addresses), "has no chief, and of a cluster with "
                     "parameter servers the chief is the one that leads")  # fmt: skip
    for role, key in (("worker", "strategy.workers"), ("ps", "strategy.servers")):
        wanted = sum(task.role == role for task in planned.tasks)
        _check_number(f"cluster.{role}", len(addresses.get(role, [])), key, wanted)


def _check_number(where: str, number: int, key: str, wanted: int) -> None:
    if number != wanted:
        tasks = "1 task" if number == 1 else f"{number} tasks"
        typed = f"{key}={number}" if number else None
        raise _wrong(where, tasks, f"{key}={wanted} asks for {wanted}", typed)


def _check_together(addresses: dict[str, list[str]]) -> None:
    placed = [
        (f"cluster.{role}[{index}]", address, *host_port(address))
        for role, listed in addresses.items()
        for index, address in enumerate(listed)
    ]
    elsewhere = [address for _, address, host, _ in placed if not is_local(host)]
    first: dict[tuple[str, int], str] = {}
    for where, address, host, port in placed:
        if (other := first.setdefault((host.lower(), port), where)) != where:
            raise _wrong(where, address, f"is the address of TF_CONFIG.{other} too")
        if elsewhere and is_local(host):
            problem = "is another machine on each host, and the cluster has other hosts"
            raise _wrong(where, address, f"{problem}: {elsewhere[0]}")


def _own_name(task: Json, addresses: dict[str, list[str]], usable: list[str], strategy: str) -> str:
    role, index = task.get("type"), task.get("index")
    _check_role("task.type", role, role, usable, strategy)
    listed = len(addresses.get(str(role), []))
    if not listed:
        raise _wrong("task.type", role, f'"cluster" lists no {role}')
    if not isinstance(index, int) or isinstance(index, bool):
        raise _wrong("task.index", index, "is not an integer")
    if not 0 <= index < listed:
        raise _wrong("task.index", index, f'"cluster" lists {listed} for {role}')
    return f"{role}-{index}"
