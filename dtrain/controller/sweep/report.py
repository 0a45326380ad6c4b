"""What a person reads before and after a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from dtrain.controller.plan import Machine
from dtrain.controller.progress import clock
from dtrain.controller.report import short
from dtrain.controller.sweep.compose import Draft
from dtrain.controller.sweep.record import Record
from dtrain.controller.sweep.table import columns, number


def jobs(count: int) -> str:
    """Return so many jobs in words."""
    return f"{count} job" + ("s" if count != 1 else "")


def lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as plain lines."""
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return ["  ".join(f"{c:<{w}}" for c, w in zip(r, widths, strict=True)).rstrip() for r in table]


def print_plan(
    drafts: Sequence[Draft], todo: Sequence[Draft], parallel: int, here: Machine
) -> None:
    """Print the jobs, and what each would have.

    Args:
        drafts: all jobs.
        todo: those that would be run.
        parallel: how many at once.
        here: what they share.
    """
    print(f"sweep: {jobs(len(drafts))}, {len(todo)} to be run, {parallel} at a time")
    share = Machine(here.gpus, here.cores // parallel)
    keys = columns([draft.differs for draft in drafts])
    head = ["processes", "devices", "replicas", "batch each", "steps/epoch"]
    rows = []
    for draft in drafts:
        state, planned = "finished", [""] * len(head)
        if draft in todo:
            state = "goes on" if draft.config.resume else "new"
            planned = _planned(draft, share)
        words = [draft.differs.get(key, "") for key in keys]
        rows.append([str(draft.number), *words, state, *planned])
    for line in lines(["job", *keys, "state", *head], rows):
        print(f"  {line}")
    print("dry_run=true: nothing was started")


def _planned(draft: Draft, share: Machine) -> list[str]:
    planned = draft.plan(share)
    cluster, batch = planned.cluster, draft.config.trainer.batch_size
    kind = cluster.device_kind.upper()
    devices = [f"{task.devices} {kind}" for task in cluster.tasks if task.devices]
    each = f"{batch // cluster.replicas} of {batch}"
    steps = "?" if planned.steps_per_epoch is None else str(planned.steps_per_epoch)
    return [str(len(cluster.tasks)), " + ".join(devices), str(cluster.replicas), each, steps]


def summary(record: Record) -> list[str]:
    """Return how every job ended, what failed and where its log is, and what was best."""
    data, entries = record.data, record.jobs
    keys = columns([entry["differs"] for entry in entries])
    rows = []
    for entry in entries:
        words = [entry["differs"].get(key, "") for key in keys]
        status = "pruned" if entry.get("pruned") else entry["status"]
        time = "" if entry["seconds"] is None else clock(entry["seconds"])
        rows.append([str(entry["number"]), *words, status, number(entry["objective"]), time])
    told = lines(["job", *keys, "status", data["objective"], "time"], rows)
    told += [f"job {e['number']} failed: {_problem(record, e)}" for e in record.failed]
    if data["best"] is not None:
        best = next(entry for entry in entries if entry["number"] == data["best"])
        words = [f"{key}={value}" for key, value in best["differs"].items()]
        value = f"{data['objective']} {number(best['objective'])}"
        told.append(" ".join(["best: job", f"{best['number']},", value, *words]))
    done = len(entries) - len(record.failed) - len(record.left)
    told.append(f"{data['status']}: {done} of {jobs(len(entries))} done")
    path = short(record.folder)
    told.append(f"sweep folder: {path}")
    if record.failed or record.left:
        told.append(f"go on with: python -m dtrain sweep.resume={shlex.quote(path)}")
    return told


def _problem(record: Record, entry: dict[str, Any]) -> str:
    """Return why a job failed; mostly that says where its log is."""
    if entry["log"] is None or "(log: " in entry["error"]:
        return str(entry["error"])
    return f"{entry['error']} (log: {short(record.folder / entry['log'])})"
