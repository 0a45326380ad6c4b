"""Where the time of a training goes: the names of the parts, and of their metrics.

``input``  a step waits for its examples
``host``   between two calls of steps: callbacks, points, checkpoints, agreement of tasks

``step``   the rest: forward, backward, exchange of gradients, update, metrics

A metric of one of the first two is the seconds of a step. Two runs of the same have other values
there: they are of the machine and the moment, and not of what was trained.
"""

from __future__ import annotations

INPUT, HOST, STEP = "input", "host", "step"


def metric(part: str) -> str:
    """Return the name of the metric of a part."""
    return f"{part}_seconds"


#: Of the points of an interval.
TIMES = ("examples_per_second", metric(INPUT), metric(HOST))


def shown(name: str) -> str:
    """Return what trackers and TensorBoard call a metric: times stand in a folder of their own."""
    return f"time/{name}" if name in TIMES else name


def is_of_the_machine(name: str) -> bool:
    """Whether a metric says how fast it went, or what was used, and nothing of the model."""
    return name in TIMES or name.startswith("system/")
