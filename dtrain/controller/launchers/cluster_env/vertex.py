"""A custom job of Vertex AI, by its variable ``CLUSTER_SPEC``.

https://cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-spec-format
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from dtrain.controller.launchers.cluster_env.base import Ranked, Started
from dtrain.controller.launchers.cluster_env.tf_config import host_port
from dtrain.errors import UsageError

_KEY = "CLUSTER_SPEC"


class Vertex(Ranked):
    """A replica of a worker pool is a command of the job: the pools in order, the first leads."""

    name = "a custom job of Vertex AI"

    def started(self) -> Started | None:
        """Return the replicas of the job, None if this command is not one of them."""
        return read(os.environ)


def read(environ: Mapping[str, str]) -> Started | None:
    """Return the replicas of which one has this environment.

    Raises:
        UsageError: the variable is not as Vertex AI sets it.
    """
    text = environ.get(_KEY, "")
    if not text.strip():
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(text, "is not JSON") from None
    pools, task = (value.get(k) if isinstance(value, dict) else None for k in ("cluster", "task"))
    if not isinstance(pools, dict) or not isinstance(task, dict):
        raise _wrong(text, 'has no "cluster" and "task"')
    addresses: list[str] = []
    rank = None
    for name in sorted(pools, key=_number_of):
        if task.get("type") == name and _is_index(task.get("index"), pools[name]):
            rank = len(addresses) + int(task["index"])
        addresses += _addresses(text, pools[name])
    if rank is None:
        raise _wrong(text, f'"task" is none of "cluster": {json.dumps(task)[:80]}')
    return Started("Vertex AI", rank, len(addresses), addresses=tuple(addresses))


def _number_of(pool: str) -> tuple[int, str]:
    """Return what pools are ordered by: ``workerpool10`` comes after ``workerpool2``."""
    found = re.search(r"(\d{1,9})$", pool)
    return (int(found[1]) if found else -1, pool)


def _is_index(index: Any, pool: Any) -> bool:
    known = str(index).isdecimal() and not isinstance(index, bool) and isinstance(pool, list)
    return known and int(index) < len(pool)


def _addresses(text: str, pool: Any) -> list[str]:
    if not isinstance(pool, list):
        raise _wrong(text, "a pool is no list of addresses")
    for address in pool:
        try:
            host_port(str(address))
        except ValueError as error:
            raise _wrong(text, f"{str(address)[:80]} {error}") from None
    return [str(address) for address in pool]


def _wrong(text: str, problem: str) -> UsageError:
    short = text if len(text) <= 60 else f"{text[:57]}..."
    return UsageError(
        _KEY, short, problem, "what Vertex AI sets; or launcher=local, for this command alone",
        "launcher=local",
    )  # fmt: skip
