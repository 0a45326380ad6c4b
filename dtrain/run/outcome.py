"""How a job ended: its outcome, ``result.json``, and the sentence for what went wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config import objective
from dtrain.config.tree import Config
from dtrain.errors import DamagedFile
from dtrain.files import reading
from dtrain.files.fields import Json, Values
from dtrain.host import terminal
from dtrain.run import checkpoint, schemas
from dtrain.run.cluster import Cluster
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir
from dtrain.run.journal import Follower


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        exit_code: of the command.
        objective: that of the best checkpoint, which is what commands take of the run; None where
            no checkpoint has one, as after a NaN.
        interrupted: the user or a scheduler asked it to stop.
        status: as in ``result.json``.
        seconds: from its start to its end.
        failure: what went wrong, None where nothing did.
        folder: of the job, where it had one.
        pruned: it was stopped because others of its sweep are better.
        objective_name, objective_mode: as in ``result.json``.
        metrics: the last value of each.
    """

    exit_code: int
    objective: float | None = None
    interrupted: bool = False
    status: str = "FAILED"
    seconds: float | None = None
    failure: Failure | None = None
    folder: Path | None = None
    pruned: bool = False
    objective_name: str | None = None
    objective_mode: str | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, result: Values, **course: Any) -> Outcome:
        """Return how a job ended, as its ``result.json`` has it.

        Args:
            result: its contents.
            **course: what the command knows better, or beside it.
        """
        fields = ("status", "exit_code", "objective", "seconds")
        values: Json = {name: result.get(name) for name in fields}
        failure = result.get("failure")
        values["failure"] = None if failure is None else Failure.of(failure)
        values["objective"] = result.get("best_objective", values["objective"])
        name, mode = result.get("objective_name"), result.get("objective_mode")
        if isinstance(name, str) and mode in ("max", "min"):
            values |= {"objective_name": name, "objective_mode": mode}
        metrics = result.get("metrics")
        if isinstance(metrics, dict):
            values["metrics"] = {k: v for k, v in metrics.items() if type(v) in (int, float)}
        return cls(**{**values, **course})


def cause(code: int) -> str | None:
    """Return what ended the process of a task with this exit code; None where it did so itself."""
    if code < 0:
        return f"ended by {terminal.name(-code)}"
    if code == errors.ENDED_EARLY:
        return "its process ended with exit code 0 before the task was done"
    return None


#: Bytes at the end of a log that are looked at, and characters of a line of it.
_LOG_BYTES, _LINE = 1 << 16, 1000
#: Why XLA's C++ half aborts, and how Python's dump of all stacks ends that follows.
_FATAL, _DUMPED = re.compile(r"^F\d{4} \d\d:\d\d:.*?\] (.+)", re.MULTILINE), "Extension modules: "
#: Lines of C++ in a framework, such as ``E0000 00:00:17... cuda_platform.cc:52] ...`` or
#: ``[rank0]:[W1126 13:00:17... ProcessGroupNCCL.cpp:1479] ...``, and those of gRPC and gloo about
#: connections that open, or close when a task ends.
_CHATTER = re.compile(
    r"(?:\[rank\d+\]:)?\[?[IWEF]\d{4} \d\d:\d\d:|WARNING: All log messages before absl"
    r"|\d{4}-\d\d-\d\d .*: [IWEF] "
    r"|Additional GRPC error information from remote|:UNKNOWN:Error received from peer "
    r"|\[Gloo\] Rank \d+ is connected "
)
#: What TensorFlow calls a task.
_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")
#: Events that are asked for when a job has ended: a few of each start.
KEPT = ("start", "objective", "phases", "error", "end", "evaluation", "debug")
#: Of the ``end`` event: what only some strategies report.
ACCOUNTS = ("worker_steps", "staleness", "dropped_gradients")


def said(events: list[Json]) -> str | None:
    """Return what the chief wrote to the journal when it failed."""
    return last(events, "error").get("message")


def without_chatter(text: str) -> list[str]:
    """Return the lines that are not from TensorFlow's C++ half."""
    return [line for line in text.splitlines() if not _CHATTER.match(line)]


def last_lines(log: Path) -> str:
    """Return the last lines of a task's log, of which each is cut where it is too long."""
    try:
        descriptor = reading.open_read(log)
    except FileNotFoundError:
        return "it left no log"
    except (OSError, DamagedFile) as error:
        return f"its log cannot be read ({error})"
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
        text = file.read(_LOG_BYTES).decode(errors="replace")
    lines = without_chatter(text)[-5:]
    if not lines or lines[-1].startswith(_DUMPED):
        lines = _FATAL.findall(text)[-1:] or lines
    return _TASK.sub(
        r"\1-\2",
        "\n".join(line if len(line) <= _LINE else f"{line[: _LINE - 1]}…" for line in lines),
    )


def explained(failure: Failure, cluster: Cluster, rundir: RunDir, events: list[Json]) -> Failure:
    """Return a failure with what its task said last, and where the rest is.

    Args:
        failure: as the supervisor has seen it.
        cluster, rundir, events: of the job.
    """
    assert failure.task is not None
    log = rundir.log(failure.task)
    is_chief = failure.task == cluster.chief.name
    own = said(events) if is_chief else None
    if own is None or not own.startswith(failure.reason or ""):  # else it is the whole of that
        own = failure.reason
    place = failure.place or (last(events, "error").get("place") if own and is_chief else None)
    reason = _TASK.sub(r"\1-\2", own) if own else last_lines(log) or None
    return dataclasses.replace(
        failure, reason=reason, place=place, log=str(log.relative_to(rundir.path))
    )


def last(events: list[Json], kind: str) -> Json:
    """Return the last event of a kind, an empty one where there is none."""
    return next((event for event in reversed(events) if event["event"] == kind), {})


def result(
    config: Config, cluster: Cluster, rundir: RunDir, events: list[Json], **course: Any
) -> Json:
    """Return the contents of ``result.json``, of which ``course`` is what the command knows."""
    end, start = last(events, "end"), last(events, "start")
    epochs, ended = _epochs(rundir)
    reported = schemas.glance(rundir.progress, schemas.Step) or {}
    saved = checkpoint.steps(rundir.checkpoints)  # of a run that was resumed and took no step
    metrics, speed = end.get("metrics", {}), end.get(objective.SPEED)
    name, mode = objective.chosen(events, config.objective, config.objective_mode)
    value = speed if name == objective.SPEED else metrics.get(name)
    return {
        **course,
        "objective": value,
        "objective_name": name,
        "objective_mode": mode,
        "best_objective": end.get("best_objective", value),
        "best_step": end.get("best_step"),
        "best_epoch": _best(ended, name, mode),
        "ended": end.get("ended"),
        "total_steps": start.get("total_steps"),
        "metrics": metrics,
        **({"held_out": end["held_out"]} if "held_out" in end else {}),
        "step": end.get("step", reported.get("step", max(saved, default=0))),
        # Of a chief that was killed the examples of its last whole epoch are known.
        "examples": end.get("examples", epochs[-1][1] if epochs else 0),
        "epoch_examples": [examples for examples, _ in epochs],
        "train_examples": start.get("train_examples"),
        "evaluated_examples": end.get("evaluated_examples", 0),
        objective.SPEED: speed,
        "time_shares": end.get("time_shares", {}),
        "replicas": cluster.replicas,
        "forked_from": config.fork,
        "tasks": len(cluster.tasks),
        "parameters": start.get("parameters"),
        **{name: end[name] for name in ACCOUNTS if name in end},
        "seconds": round(time.time() - course["started"], 3),
    }


def _epochs(rundir: RunDir) -> tuple[list[tuple[int, int]], list[Json]]:
    """Return how many examples each epoch of all starts had, and how many there were by its end;
    and the events of the epochs.

    None of them where the journal cannot be read, at a second try either: the run has ended.
    """
    for _ in range(2):
        with contextlib.suppress(OSError):
            return _read_epochs(rundir)
    return [], []


def _read_epochs(rundir: RunDir) -> tuple[list[tuple[int, int]], list[Json]]:
    ended, counts = [], []
    for event in Follower(rundir.journal).events():
        if event["event"] == "epoch":
            ended.append(event)
        elif event.get("kind", "epoch") == "epoch":
            point = event.get("metrics", {})
            counts.append((point.get("epoch_examples"), point.get("examples")))
    sound = [
        (int(examples), int(whole))
        for examples, whole in counts
        if examples is not None and whole is not None and math.isfinite(examples + whole)
    ]
    return sound, ended


def _best(epochs: list[Json], name: str | None, mode: str | None) -> Json | None:
    """Return which epoch had the best objective, the earliest of equals; None where none has it."""
    sign = -1 if mode == "min" else 1
    scored = [each for each in epochs if math.isfinite(each["metrics"].get(name, math.nan))]
    best = max(scored, key=lambda each: sign * each["metrics"][name], default=None)
    if best is None:
        return None
    kept = ("epoch", "epochs", "epochs_before", "step")
    return {key: best[key] for key in kept if key in best} | {"objective": best["metrics"][name]}
