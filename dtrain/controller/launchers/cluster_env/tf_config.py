"""TF_CONFIG, TensorFlow's way to show each process of a cluster where all of them are."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
from typing import Any

from dtrain.controller.launchers.cluster_env.base import Started
from dtrain.errors import UsageError, nearest
from dtrain.run.cluster import Cluster, Task

#: Hosts that mean "this machine" on every machine, besides 127.x.
_HERE = ("localhost", "localhost.localdomain", "ip6-localhost", "::1", "0.0.0.0", "::")
_CLUSTER = '"cluster": {"chief": ["host1:2222"], "worker": ["host2:2222"]}'
_TASK = '"task": {"type": "worker", "index": 0}'
_EXAMPLE = f"export TF_CONFIG='{{{_CLUSTER}, {_TASK}}}'"


class TFConfig:
    """The cluster environment of TensorFlow: Kubernetes' training operator, Vertex AI, shells."""

    def started(self) -> Started | None:
        """Return what ``TF_CONFIG`` speaks of, None where it is not set or empty.

        Raises:
            UsageError: it is no JSON of a cluster and a task.
        """
        return started(os.environ.get("TF_CONFIG"))

    def find(self, planned: Cluster, strategy: str, on_hosts: bool) -> tuple[Cluster, Task]:
        """Find the planned cluster, and this command's task in it, in ``TF_CONFIG``.

        Args:
            planned, strategy, on_hosts: as of :func:`read`.

        Raises:
            UsageError: TF_CONFIG is wrong in itself, or is not the cluster that was planned.
        """
        return read(os.environ.get("TF_CONFIG"), planned, strategy, on_hosts)


def started(text: str | None) -> Started | None:
    """Return how many tasks a cluster has.

    The rest is for :func:`read`, which knows what was planned.

    Args:
        text: value of the environment variable; None where it is not set.

    Raises:
        UsageError: it is not empty, and no JSON of a cluster and a task.
    """
    if text is None or not text.strip():
        return None
    value = _parse(text)
    task, listed = value["task"], value["cluster"]
    counts = {role: len(each) for role, each in listed.items() if isinstance(each, list)}
    addresses = tuple(str(address) for each in counts for address in listed[each])
    leads = "chief" if counts.get("chief") else "worker"
    is_first = (task.get("type"), task.get("index")) == (leads, 0)
    return Started("TF_CONFIG", 0 if is_first else 1, len(addresses), addresses=addresses)


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
        raise UsageError(
            "strategy", strategy, "is one process and has no use for a cluster",
            "with launcher=env: one of several tasks; with launcher=local: any",
            "strategy=multiworker, or launcher=local",
        )  # fmt: skip
    value = _parse(text)
    usable = list(dict.fromkeys(["chief", "worker", *(task.role for task in planned.tasks)]))
    addresses: dict[str, list[str]] = {}
    for role, listed in value["cluster"].items():
        if listed == []:
            continue
        _check_role(f"TF_CONFIG.cluster.{role}", role, listed, usable, strategy)
        addresses[role] = _addresses(f"TF_CONFIG.cluster.{role}", listed)
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


def is_local(host: str) -> bool:
    """Say whether ``host`` means the machine that asks, whichever it is."""
    return host.lower() in _HERE or host.startswith("127.")


def _parse(text: str | None) -> dict[str, Any]:
    if text is None or not text.strip():
        raise UsageError(
            "TF_CONFIG", "" if text is not None else "(not set)",
            "the environment says nothing of the cluster that launcher=env is to join",
            "TensorFlow's JSON, or RANK, WORLD_SIZE and MASTER_ADDR, on every host; or "
            "launcher=local",
            _EXAMPLE,
        )  # fmt: skip
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            "TF_CONFIG", _short(text),
            f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno} "
            f"(character {error.pos})",
            "JSON, its names in double quotes, the whole in single quotes for the shell", _EXAMPLE,
        ) from None  # fmt: skip
    if not isinstance(value, dict):
        raise UsageError("TF_CONFIG", _short(text), "is not a JSON object",
                         "an object with cluster and task", _EXAMPLE)  # fmt: skip
    for part, example in (("cluster", _CLUSTER), ("task", _TASK)):
        if part not in value:
            raise UsageError("TF_CONFIG", _short(text), f'has no "{part}"',
                             "an object with cluster and task", example)  # fmt: skip
        if not isinstance(value[part], dict):
            raise UsageError(f"TF_CONFIG.{part}", json.dumps(value[part]), "is not a JSON object",
                             "an object", example)  # fmt: skip
    return value


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def _check_role(key: str, role: Any, value: Any, usable: list[str], strategy: str) -> None:
    if role in usable:
        return
    instead = "chief" if role == "master" else nearest(str(role), usable) or "worker"
    problem, hint = "is no role of a task", f'"{instead}"'
    if role == "master":
        problem = "is an old name of the role: name it chief"
    elif role == "evaluator":
        problem = "dtrain evaluates in the training loop itself"
        if key.startswith("TF_CONFIG.cluster"):
            problem = f"an evaluator is not part of TensorFlow's cluster, and {problem}"
        hint = "TF_CONFIG without the evaluator; python -m dtrain evaluate RUN follow=true"
    elif role == "ps":
        problem, hint = f"strategy={strategy} has no use for parameter servers", "strategy=ps"
    raise UsageError(key, value if isinstance(value, str) else json.dumps(value), problem,
                     f"the roles {', '.join(usable)}", hint)  # fmt: skip


def _addresses(key: str, listed: Any) -> list[str]:
    if not isinstance(listed, list):
        raise UsageError(key, json.dumps(listed), "is not a list of addresses",
                         "a list of host:port", '["host1:2222", "host2:2222"]')  # fmt: skip
    for index, address in enumerate(listed):
        try:
            host_port(address if isinstance(address, str) else "")
        except ValueError as error:
            raise UsageError(
                f"{key}[{index}]", address if isinstance(address, str) else json.dumps(address),
                str(error), "host:port, the port 1 to 65535, an IPv6 address in brackets",
                '"host1:2222"',
            ) from None  # fmt: skip
    return listed


def _check_numbers(addresses: dict[str, list[str]], planned: Cluster) -> None:
    chiefs, workers = len(addresses.get("chief", [])), len(addresses.get("worker", []))
    if chiefs > 1:
        raise UsageError("TF_CONFIG.cluster.chief", f"{chiefs} tasks", "a cluster has one chief",
                         "one address, the others being workers",
                         f'"chief": ["{addresses["chief"][0]}"]')  # fmt: skip
    if not any(task.role == "ps" for task in planned.tasks):
        _check_number("", chiefs + workers, "hardware.hosts", len(planned.tasks))
        return
    if not chiefs:
        raise UsageError("TF_CONFIG.cluster", ", ".join(addresses), "has no chief, and of a "
                         "cluster with parameter servers the chief is the one that leads",
                         "chief, worker and ps", '"chief": ["host1:2222"]')  # fmt: skip
    for role, key in (("worker", "strategy.workers"), ("ps", "strategy.servers")):
        wanted = sum(task.role == role for task in planned.tasks)
        _check_number(role, len(addresses.get(role, [])), key, wanted)


def _check_number(role: str, found: int, key: str, wanted: int) -> None:
    if found != wanted:
        raise UsageError(
            f"TF_CONFIG.cluster.{role}" if role else "TF_CONFIG.cluster",
            "1 task" if found == 1 else f"{found} tasks", f"{key}={wanted} asks for {wanted}",
            f"{key}={found}, or a cluster of {wanted}" if found else f"{wanted}",
            f"{key}={found}" if found else f'"{role or "worker"}": ["host2:2222"]',
        )  # fmt: skip


def _check_together(addresses: dict[str, list[str]]) -> None:
    placed = [
        (f"TF_CONFIG.cluster.{role}[{index}]", address, *host_port(address))
        for role, listed in addresses.items()
        for index, address in enumerate(listed)
    ]
    seen: dict[tuple[str, int], str] = {}
    for key, address, host, port in placed:
        if other := seen.get((host.lower(), port)):
            raise UsageError(key, address, f"is the address of {other} too",
                             "an address of its own for each task",
                             f'"{address.removesuffix(str(port))}{port % 65535 + 1}"')  # fmt: skip
        seen[host.lower(), port] = key
    elsewhere = [address for _, address, host, _ in placed if not is_local(host)]
    for key, address, host, port in placed:
        if elsewhere and is_local(host):
            raise UsageError(
                key, address,
                f"is another machine on each host, and the cluster has other hosts: {elsewhere[0]}",
                "names that every host can reach", f'"host1:{port}"',
            )  # fmt: skip


def _own_name(
    task: dict[str, Any], addresses: dict[str, list[str]], usable: list[str], strategy: str
) -> str:
    role, index = task.get("type"), task.get("index")
    _check_role("TF_CONFIG.task.type", role, role, usable, strategy)
    listed = len(addresses.get(str(role), []))
    if not listed:
        raise UsageError("TF_CONFIG.task.type", role, f'"cluster" lists no {role}',
                         f"the roles {', '.join(addresses)}",
                         f'"{next(iter(addresses))}"')  # fmt: skip
    accepted = f"0 to {listed - 1}" if listed > 1 else "0"
    if not isinstance(index, int) or isinstance(index, bool):
        raise UsageError("TF_CONFIG.task.index", json.dumps(index), "is not an integer",
                         accepted, '"index": 0')  # fmt: skip
    if not 0 <= index < listed:
        raise UsageError("TF_CONFIG.task.index", index, f'"cluster" lists {listed} for {role}',
                         accepted, f'"index": {listed - 1}')  # fmt: skip
    return f"{role}-{index}"
