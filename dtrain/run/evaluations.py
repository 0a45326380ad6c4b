"""What was evaluated of a run after it was trained: ``evaluations.jsonl`` in its folder.

One line for each checkpoint, weights and data, in the form of the journal's: ``step`` and
``digest`` of the checkpoint, ``weights`` (``raw`` or ``ema``), ``data`` (a digest of the examples),
``examples`` (how many were evaluated), ``declared`` (a hash of what computes the metrics),
``prefix``, ``metrics`` by name. It is appended by the chief of a command that evaluates; several
commands may do so at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator

from dtrain.errors import DamagedFile
from dtrain.files.fields import Json
from dtrain.run import schemas
from dtrain.run.folder import RunDir
from dtrain.run.journal import Follower, Journal

EVENT = "evaluation"
#: What makes two evaluations the same one.
KEY = ("digest", "weights", "data", "examples", "declared")


def read(rundir: RunDir) -> list[Json]:
    """Return the evaluations of a run, the oldest first; damaged lines are passed over.

    Raises:
        DamagedFile: the file is no regular one.
        OSError: it cannot be read.
    """
    return [event for event in Follower(rundir.evaluated).events() if _is_sound(event)]


def _is_sound(event: Json) -> bool:
    """Say whether an event is an evaluation as dtrain writes it: it may come from elsewhere."""
    try:
        for each in event.get("slices", ()):  # where NaN is its name, as in all the journal
            each["metrics"] = {name: float(value) for name, value in each["metrics"].items()}
        schemas.check(event, schemas.Evaluation, "")
    except (DamagedFile, AttributeError, KeyError, TypeError, ValueError):
        return False
    return bool(event["event"] == EVENT)


def append(rundir: RunDir, **fields: object) -> None:
    """Add an evaluation, on the disk when this returns.

    Raises:
        OSError: it cannot be written.
    """
    with _alone(rundir):
        journal = Journal(rundir.evaluated)
        try:
            journal.write(EVENT, **fields)
        finally:
            journal.close()


@contextlib.contextmanager
def _alone(rundir: RunDir) -> Iterator[None]:
    """Let no other command write: it would take a line that is half written for a torn one."""
    descriptor = os.open(rundir.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def find(known: list[Json], key: Json) -> Json | None:
    """Return the last of ``known`` that is the evaluation that ``key`` says; None for none.

    Args:
        known: of :func:`read`.
        key: what :data:`KEY` names.
    """
    return next((e for e in reversed(known) if all(e.get(n) == key[n] for n in KEY)), None)


def as_points(events: Iterable[Json]) -> Iterator[Json]:
    """Yield evaluations as metric points of the journal, their names as ``test/accuracy``."""
    for event in events:
        if _is_sound(event):
            named = {f"{event['prefix']}/{name}": value for name, value in event["metrics"].items()}
            yield {**event, "event": "metrics", "metrics": named}
