"""Models of a run that a tracking store is to hold: ``registry.json`` in the run's folder.

It says what is wanted, and nothing of what is there: the store itself is asked for that, so that
nothing is there twice, whichever store it is and whatever was not answered.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Annotated, NamedTuple, TypedDict

from dtrain.files import fields, locks
from dtrain.files.fields import JsonValue
from dtrain.run import evaluations, schemas
from dtrain.run.folder import RunDir, write_json
from dtrain.run.journal import Follower

_PLACE = re.compile(r"exports/(?!\.)[^/]{1,255}/[0-9]{1,18}")
_WEIGHTS = re.compile(r"raw|ema")


class Model(TypedDict):
    """An exported checkpoint that is to be logged.

    Attributes:
        path: of the version, below the run's folder.
        step, digest, weights: of the checkpoint.
        data: a digest of the examples of the run's validation; empty where that is not known.
        names: under which it is to be a version.
    """

    path: Annotated[str, fields.like(_PLACE, "an export of the run")]
    step: schemas.Count
    digest: str
    weights: Annotated[str, fields.like(_WEIGHTS, "raw or ema")]
    data: str
    names: list[str]


class Promotion(TypedDict):
    """An alias that is to name a model, and has not been moved yet.

    Attributes:
        digest, weights: of the model.
        name: of the registered model.
        alias: to be moved.
        condition: as it was typed; empty for none.
    """

    digest: str
    weights: str
    name: str
    alias: str
    condition: str


class Registry(TypedDict):
    """``registry.json``."""

    models: list[Model]
    promotions: list[Promotion]


class Measured(NamedTuple):
    """A metric of a checkpoint.

    Attributes:
        value: of it.
        data: a digest of the examples that it is of.
        time: when it was recorded, milliseconds since the epoch.
    """

    value: float
    data: str
    time: int


def read(rundir: RunDir) -> Registry:
    """Return what a run's folder says is wanted.

    Raises:
        DamagedFile: the file cannot be used.
        OSError: it cannot be read.
    """
    return schemas.read(rundir.registry, Registry) or {"models": [], "promotions": []}


def add(rundir: RunDir, model: Model) -> None:
    """Write down a model; one that is there already gets the names that are new.

    Raises:
        DamagedFile, OSError: the file cannot be used or written.
    """
    with _changing(rundir) as found:
        for each in found["models"]:
            if is_same(each, model):
                each["path"] = model["path"]
                each["names"] += [name for name in model["names"] if name not in each["names"]]
                return
        found["models"].append(model)


def ask(rundir: RunDir, promotion: Promotion) -> None:
    """Write down an alias that is to be moved, in the place of what was to become of it before.

    Raises:
        DamagedFile, OSError: the file cannot be used or written.
    """
    settle(rundir, promotion)
    with _changing(rundir) as found:
        found["promotions"].append(promotion)


def settle(rundir: RunDir, promotion: Promotion) -> None:
    """Take away what was to become of an alias: it was moved, or will not be.

    Raises:
        DamagedFile, OSError: the file cannot be used or written.
    """
    place = (promotion["name"], promotion["alias"])
    with _changing(rundir) as found:
        found["promotions"] = [
            each for each in found["promotions"] if (each["name"], each["alias"]) != place
        ]


@contextlib.contextmanager
def _changing(rundir: RunDir) -> Iterator[Registry]:
    """Let one process at a time change the file; what it has in the end is written."""
    with locks.alone(rundir.path / ".registry.lock"):
        found = read(rundir)
        before = repr(found)
        yield found
        if repr(found) != before:
            write_json(rundir.registry, found, lasting=True)


def is_same(one: JsonValue, other: JsonValue) -> bool:
    """Say whether two models, or a model and a promotion, are of the same weights."""
    return bool((one["digest"], one["weights"]) == (other["digest"], other["weights"]))


def measured(rundir: RunDir, model: Model) -> dict[str, Measured]:
    """Return the metrics of a checkpoint, of which it is known what examples they are of.

    That is the run's validation (``val_accuracy``), of the weights as they were trained, and what
    was evaluated later (``test/accuracy``). What is not a number is left out.

    Raises:
        DamagedFile, OSError: a file of the run cannot be read.
    """
    found: dict[str, Measured] = {}
    data = model["data"] if model["weights"] == "raw" else ""
    for event in Follower(rundir.journal).events() if data else ():
        ends = event.get("kind") in ("validation", "callbacks")
        if event["event"] == "metrics" and ends and event["step"] == model["step"]:
            named, at = event["metrics"].items(), int(event["time"] * 1000)
            found |= {name: Measured(v, data, at) for name, v in named if name.startswith("val_")}
    for each in evaluations.read(rundir):
        if is_same(each, model):
            points = {f"{each['prefix']}/{name}": v for name, v in each["metrics"].items()}
            at = int(each["time"] * 1000)
            found |= {name: Measured(value, each["data"], at) for name, value in points.items()}
    return {
        name: each
        for name, each in found.items()
        if isinstance(each.value, int | float) and math.isfinite(each.value)
    }
