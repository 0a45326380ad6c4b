"""What the user reads before and after a run, and of its evaluations."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from dtrain import errors
from dtrain.config.tree import Config
from dtrain.errors import DamagedFile
from dtrain.files import reading
from dtrain.files.fields import Json
from dtrain.host.terminal import aligned
from dtrain.job import resume
from dtrain.job.plan import Plan
from dtrain.run import checkpoint, failure, journal, progress
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir, short
from dtrain.terminal.progress import View
from dtrain.tracking import shipping
from dtrain.tracking.base import Tracker
from dtrain.tracking.chosen import make_tracker


def print_plan(config: Config, planned: Plan, folder: Path, layouts: Sequence[str] = ()) -> None:
    """Print what would be started, and where results would go.

    Args:
        config: resolved.
        planned: the processes.
        folder: where a new run folder would go.
        layouts: lines about variables or layers, of a strategy that takes the model apart.
    """
    cluster, batch = planned.cluster, config.trainer.batch_size

    def known(value: int | None) -> str:
        return "known once the task has loaded the dataset" if value is None else f"{value:,}"

    rows = {
        "strategy": config.strategy.name,
        "replicas": f"{cluster.replicas}",
        **planned.strategy.rows(cluster),
        "global batch": f"{batch} examples",
        "per-replica batch": f"{batch // cluster.replicas} examples",
        **_updates(config),
        "train examples": known(planned.train_examples),
        "validation examples": known(planned.validation_examples),
        **_validation(config, planned),
        "steps per epoch": known(planned.steps_per_epoch),
        "epochs": f"{config.trainer.epochs}",
        "precision": config.hardware.precision,
        "run folder": config.resume or short(folder),
        "tracking": make_tracker(config).address or "none (journal and TensorBoard)",
    }
    print(f"plan: {config.name}")
    for name, value in rows.items():
        print(f"  {name:<20} {value}")
    for line in [*drawing(cluster, planned.where), *layouts]:
        print(f"  {line}")
    if (here := hosts_here(config, planned)) is not None:
        print(here)
    print("dry_run=true: nothing was started")


def hosts_here(config: Config, planned: Plan) -> str | None:
    """Return a sentence where hosts are asked for, and this machine stands for all of them."""
    hosts, tasks = config.hardware.hosts or 1, planned.cluster.tasks
    placed = any(task.address for task in tasks)
    if hosts == 1 or placed or planned.where != "this machine":
        return None
    return (
        f"hardware.hosts={hosts}: all {len(tasks)} processes are on this machine; to start them on "
        "others: launcher=ssh 'launcher.hosts=[HOST,HOST]'"
    )


def _updates(config: Config) -> dict[str, str]:
    steps = config.optimizer.get("gradient_accumulation_steps")
    examples = config.trainer.batch_size * (steps or 1)
    return {"updates": f"every {steps} steps, of {examples} examples"} if steps else {}


def _validation(config: Config, planned: Plan) -> dict[str, str]:
    if planned.validation_examples == 0:
        return {}
    batch = config.trainer.validation_batch_size or config.trainer.batch_size
    return {"validation batch": f"{batch} examples"}


def drawing(cluster: Cluster, where: str = "this machine") -> list[str]:
    """Return the cluster as lines: who leads, who trains, who serves, where and on what.

    Args:
        cluster: as planned.
        where: tasks without an address are.
    """
    rows = [("task", "does", "devices", "address")]
    for task in cluster.tasks:
        kind = cluster.device_kind.upper() if task.devices else "CPU"
        numbers = range(task.device, task.device + max(1, task.devices))
        devices = ", ".join(f"{kind}:{number}" for number in numbers)
        if task == cluster.chief:
            does = "coordinates" if task.devices == 0 else "trains and records"
        elif task.role == "ps":
            does = "keeps variables"
        else:
            does = "computes gradients" if task.serves else "trains"
        address = task.address or where
        rows.append((task.name, does, devices, address))
    branches = ["  ", *(["├─"] * (len(rows) - 2)), "└─"]
    return [f"{branch} {line}" for branch, line in zip(branches, aligned(rows), strict=True)]


def write_page(view: View, config: Config, rundir: RunDir, result: Json) -> None:
    """Write the page of a run; one that cannot be written is reported.

    Args:
        view: where.
        config: of the run.
        rundir: of it.
        result: of it.
    """
    from dtrain.report import page  # with NumPy

    try:
        page.write(rundir, config, result)
    except Exception as error:  # of a full disk, or a file of the run that something has damaged
        view.message(f"no report: {error}; to try again: python -m dtrain report "
                     f"{shlex.quote(short(rundir.path))}")  # fmt: skip


def print_end(
    view: View,
    config: Config,
    tracker: Tracker,
    rundir: RunDir,
    result: Json,
    lacking: Collection[str] = (),
) -> None:
    """Print how and why the run ended, its best epoch, where it is, and what to type next.

    Args:
        view: where.
        config: of the run.
        tracker: of it.
        rundir: of it.
        result: of it.
        lacking: names of trackers that have not got everything.
    """
    metrics = "  ".join(f"{name} {value:.4g}" for name, value in result["metrics"].items())
    speed = result["examples_per_second"]
    view.detail(
        f"{result['status']}: step {result['step']}"
        + (f", {speed:,.0f} examples/s" if speed else "")
        + (f"  {metrics}" if metrics else "")
    )
    if (error := failure.sentence(result["failure"], rundir.path)) is not None:
        view.detail(f"error: {error}")
    if why := "; ".join(filter(None, (result.get("ended"), _best(result)))):
        view.detail(why)
    path = shlex.quote(short(rundir.path))
    view.detail(f"run folder: {path}")
    if result["status"] == "FINISHED" and rundir.page.exists():
        view.detail(f"report:  {short(rundir.page)}")
    for line in _next(tracker, rundir, path, lacking):
        view.detail(line)
    if (command := _to_go_on(config, rundir, path, result)) is not None:
        view.detail(command)


def _best(result: Json) -> str | None:
    """Return the best epoch in words; a fork counts epochs of its own."""
    best = result.get("best_epoch")
    if best is None:
        return None
    before = best.get("epochs_before", 0)
    at = f"epoch {best['epoch'] - before}"
    if not (result.get("ended") or "").startswith(journal.EARLY):
        at += f" of {best['epochs'] - before}"
    text = f"best {result['objective_name']} {progress.number(best['objective'])} at {at}"
    return text + (" (checkpoint best)" if result.get("best_step") == best["step"] else "")


def _next(tracker: Tracker, rundir: RunDir, path: str, lacking: Collection[str]) -> list[str]:
    """Return at most two lines on how to see a run."""
    sync = f"python -m dtrain sync {path}"
    lines = [f"tracking: {name} has not got everything; type: {sync}" for name in lacking]
    lines += [
        f"compare: {part.view()}"
        for part in tracker.parts
        if part.label not in lacking and part.address is not None
    ]
    if tracker.address is None and shipping.is_store_known(rundir):
        lines.append(f"not tracked; to ship it to MLflow later: {sync}")
    if len(lines) < 2 and rundir.tensorboard.exists():
        lines.insert(0, f"see it:  tensorboard --logdir {path}")
    return lines[:2]


def _to_go_on(config: Config, rundir: RunDir, path: str, result: Json) -> str | None:
    """Return a line with the command that trains on, if there is one."""
    ended, lost = result.get("ended"), (result["failure"] or {}).get("kind") in failure.LOSSES
    if not checkpoint.steps(rundir.checkpoints):
        return None
    if result["exit_code"] == errors.INTERRUPTED or lost:
        return f"resume with: python -m dtrain resume={path}"
    if result["status"] != "FINISHED":
        return None
    if ended is not None and not ended.startswith(journal.EARLY):  # it has used up its time
        return f"train on: python -m dtrain resume={path}"
    whole = result["step"] >= (result.get("total_steps") or 0)
    return f"train on: {resume.to_train_on(config, path, ended is not None, whole)}"


#: Rows of a table of slices, and classes of a matrix, that are printed.
SLICES, CLASSES = 50, 20


def evaluation_lines(events: list[Json], evaluations: Path) -> Iterator[str]:
    """Yield the lines of a report on evaluations.

    Args:
        events: events of :mod:`dtrain.run.evaluations`.
        evaluations: the folder that their folders are in.
    """
    if not events:
        return
    rows = sorted(events, key=lambda each: (each["step"], each["weights"]))
    names = sorted({name for row in rows for name in row["metrics"]})
    head = ["step", "weights", "examples", *names]
    cells = [[str(row["step"]), row["weights"], *_numbers(row, names)] for row in rows]
    yield from aligned([head, *cells], {0, *range(2, len(head))})
    for row in rows:
        if row.get("scores"):
            yield ""
            yield f"step {row['step']}, with 95 % by bootstrap; baseline: {row['baseline']}"
            order = ("value", "low", "high", "baseline")
            scores = [[name, *(number(each[key]) for key in order)]
                      for name, each in row["scores"].items()]  # fmt: skip
            table = aligned([["score", "value", "from", "to", "baseline"], *scores], {1, 2, 3, 4})
            yield from (f"  {line}" for line in table)
        if row.get("slices"):
            yield ""
            yield f"step {row['step']} by {row['by']}:"
            yield from _slices(row, names, evaluations / row["folder"])
        if row.get("confusion"):
            path = evaluations / row["folder"] / row["confusion"]
            yield ""
            yield from _matrix(path, f"step {row['step']}")


def _numbers(row: Json, names: list[str]) -> list[str]:
    """Return how many examples it is of, and their metrics."""
    return [f"{row['examples']:,}", *(number(row["metrics"].get(name)) for name in names)]


def number(value: float | str | None) -> str:
    """Return a metric as it is printed; NaN and infinities may be given by their names."""
    return "-" if value is None else f"{float(value):.6g}"


def _slices(row: Json, names: list[str], folder: Path) -> Iterator[str]:
    head = [row["by"], "examples", *names]
    cells = [[each["value"], *_numbers(each, names)] for each in row["slices"][:SLICES]]
    yield from (f"  {line}" for line in aligned([head, *cells], set(range(1, len(head)))))
    if (left := len(row["slices"]) - SLICES) > 0:
        path = folder / f"slices_{row['step']}.csv"
        yield f"  and {left:,} more in {short(path)}"


def read_matrix(path: Path) -> tuple[list[str], list[list[int]]]:
    """Read a confusion matrix.

    Returns:
        The classes, and for each how many were taken for which.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    text = reading.read_bytes(path).decode()
    head, *rows = csv.reader(io.StringIO(text, newline=""))
    return head[1:], [[int(cell) for cell in row[1:]] for row in rows]


def _matrix(path: Path, title: str) -> Iterator[str]:
    try:
        classes, counts = read_matrix(path)
    except (OSError, ValueError, DamagedFile):  # the folder of an earlier evaluation was removed
        return
    place = short(path.with_suffix(".png"))
    yield f"{title}, true classes (rows) and what they were taken for: {place}"
    if len(classes) <= CLASSES:
        cells = [[name, *map(str, row)] for name, row in zip(classes, counts, strict=True)]
        table = aligned([["", *classes], *cells], set(range(1, len(classes) + 1)))
        yield from (f"  {line}" for line in table)
