"""What must be the same on all hosts of a job, and what is shown of them."""

from __future__ import annotations

from typing import Any

from dtrain.controller.launchers.agents.host import Host
from dtrain.host.columns import aligned
from dtrain.host.frameworks import Framework

#: Facts that decide what is computed, and what they are called.
_SAME = {"dtrain": "dtrain", "tensorflow": "TensorFlow", "keras": "Keras"}
#: Seconds that a clock may differ: times of events, and of checkpoints, are compared.
CLOCK = 60.0


def problem(facts: dict[str, Any], here: dict[str, Any]) -> tuple[str, str] | None:
    """Return how a host differs from this machine, and what to do; None where it does not.

    Args:
        facts: of the host (:mod:`.facts`).
        here: of this machine.
    """
    difference = next(filter(None, (_other(*same, facts, here) for same in _SAME.items())), None)
    if difference is not None:
        return difference
    if facts.get("code") != here.get("code"):
        return (
            "its code of dtrain is another than this machine's, of the same version",
            "the same checkout on every host",
        )
    off = skew(facts)
    if abs(off) > CLOCK:
        way = "ahead of" if off > 0 else "behind"
        return f"its clock is {abs(off):.0f} s {way} this machine's", "the time by NTP, there"
    return None


def framework_problem(
    framework: Framework, facts: dict[str, Any], here: dict[str, Any]
) -> tuple[str, str] | None:
    """Return how what a job computes with differs on a host, and what to do; None: in nothing."""
    differences = (_other(name, name, facts, here) for name in framework.packages)
    return next(filter(None, differences), None)


def _other(
    key: str, what: str, facts: dict[str, Any], here: dict[str, Any]
) -> tuple[str, str] | None:
    ours, theirs = here.get(key), facts.get(key)
    if ours == theirs:
        return None
    has = f"has no {what}; this machine has {ours}"
    if theirs is not None:
        has = f"has {what} {theirs}, and this machine {ours}"
    return has, f"pip install {key}=={ours}, there"


def skew(facts: dict[str, Any]) -> float:
    """Return by how many seconds the clock of a host was ahead when its greeting came."""
    return float(facts["time"]) - float(facts["came"])


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
        said = problems.get(host.name, "ready")
        rows.append((host.name, str(host.slots), *shown, host.address or "-", said))
    return "\n".join(line.rstrip() for line in aligned(rows))
