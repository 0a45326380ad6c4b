"""What the user reads before and after a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from dtrain.controller.resources.devices import Machine
from dtrain.controller.sweep.compose import Draft
from dtrain.controller.sweep.state import Record
from dtrain.controller.sweep.table import columns
from dtrain.host.columns import aligned
from dtrain.run.folder import short
from dtrain.tracking.base import Tracker


def jobs(count: int) -> str:
    """Return so many jobs in words."""
    return f"{count} job" + ("s" if count != 1 else "")


def print_plan(
    drafts: Sequence[Draft], todo: Sequence[Draft], parallel: int, here: Machine
) -> None:
    """Print the jobs, and what each would have.

    Args:
        drafts: all jobs.
        todo: those that would be run.
        parallel: how many at once.
        here: what they share, where the launcher has them on this machine.
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
    for line in aligned([["job", *keys, "state", *head], *rows]):
        print(f"  {line}")
    print("dry_run=true: nothing was started")


def _planned(draft: Draft, share: Machine) -> list[str]:
    assert draft.checked is not None
    planned = draft.plan(share if draft.checked.launcher.shares_machine else None)
    cluster, batch = planned.cluster, draft.config.trainer.batch_size
    kind = cluster.device_kind.upper()
    devices = [f"{task.devices} {kind}" for task in cluster.tasks if task.devices]
    each = f"{batch // cluster.replicas} of {batch}"
    steps = "?" if planned.steps_per_epoch is None else str(planned.steps_per_epoch)
    return [str(len(cluster.tasks)), " + ".join(devices), str(cluster.replicas), each, steps]


def summary(record: Record, tracker: Tracker, shipped: bool) -> list[str]:
    """Return what failed and where its log is, and what to type next.

    Args:
        record: of the sweep.
        tracker: of the sweep.
        shipped: all of it is there.
    """
    data, entries = record.data, record.jobs
    lines = [f"job {e['number']} failed: {_problem(record, e)}" for e in record.failed]
    done = len(entries) - len(record.failed) - len(record.left)
    lines.append(f"{data['status']}: {done} of {jobs(len(entries))} done")
    path = short(record.folder)
    lines.append(f"sweep folder: {path}")
    lines.append(f"see it:  {path}/comparison.html, or tensorboard --logdir {shlex.quote(path)}")
    if not shipped:
        sync = f"python -m dtrain sync {shlex.quote(path)}"
        lines.append(f"tracking: {type(tracker).__name__} has not got everything; type: {sync}")
    elif tracker.address is not None:
        lines.append(f"compare: {tracker.view()}")
    if record.failed or record.left:
        lines.append(f"resume with: python -m dtrain sweep.resume={shlex.quote(path)}")
    return lines


def _problem(record: Record, entry: dict[str, Any]) -> str:
    """Return why a job failed; mostly that says where its log is."""
    if entry["log"] is None or "(log: " in entry["error"]:
        return str(entry["error"])
    return f"{entry['error']} (log: {short(record.folder / entry['log'])})"
