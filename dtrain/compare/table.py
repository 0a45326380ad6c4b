"""The comparison as a table: for a terminal, for the page, and as CSV."""

from __future__ import annotations

import dataclasses
from typing import Any

from dtrain.compare.comparison import Comparison
from dtrain.compare.load import METRICS, Run
from dtrain.config.objective import SPEED
from dtrain.errors import printable
from dtrain.files.fields import Json
from dtrain.files.writing import csv_text
from dtrain.host.terminal import aligned

#: Columns of what was evaluated after training.
EVALUATED = 6
_LINE = 1000  # characters of what is said of a run


@dataclasses.dataclass
class Column:
    """A column of the table.

    Attributes:
        head: its name.
        values: of each run; None where it has none.
        format: of numbers; None where the values are text.
        width: of a cell, in characters; what is longer is cut.
    """

    head: str
    values: list[Any]
    format: str | None = None
    width: int = 40

    def cells(self) -> list[str]:
        """Return the values as they are shown."""
        return [self._cell(value) for value in self.values]

    def _cell(self, value: object) -> str:
        if value is None:
            return "-"
        if self.format is not None:
            return format(value, self.format) if value else "0"
        text = " ".join(str(value).split())
        return text if len(text) <= self.width else f"{text[: self.width - 1]}…"


def columns(found: Comparison) -> list[Column]:
    """Return the columns: what a run is, how fast it was, how good, how far from the baseline."""
    runs = found.runs

    def metric(name: str) -> Column:
        return Column(name, [run.metrics.get(name) for run in runs], "#.4g")

    # The objective is that of the best checkpoint, and the others are the last.
    shown = [name for name in (found.metric, f"val_{found.metric}") if name != found.objective]
    result = [
        Column("run", [run.name for run in runs], width=1000),
        *(Column(key, [run.value(key) for run in runs]) for key in found.keys),
        Column("status", [run.status for run in runs]),
        Column("replicas", [run.replicas for run in runs], "d"),
        Column("examples/s", [run.speed for run in runs], ",.0f"),
        Column("efficiency", [found.efficiency.get(run.name) for run in runs], ".2f"),
        *(metric(name) for name in shown),
    ]
    if found.objective != SPEED:  # which has a column already
        head = found.objective or "objective"
        result.append(Column(head, [run.objective for run in runs], "#.4g"))
    result += [metric(name) for name in _evaluated(found)]
    result += [
        Column("difference", [_largest(found, run) for run in runs], ".1e"),
        Column("seconds", [run.seconds for run in runs], ",.1f"),
        Column("marks", [_marks(found, run) or None for run in runs]),
    ]
    always = ("run", "status", *found.keys)
    return [c for c in result if c.head in always or any(v is not None for v in c.values)]


def _evaluated(found: Comparison) -> list[str]:
    """Return the names of what was evaluated after training: ``test/accuracy``."""
    wanted = (found.metric, (found.objective or "").removeprefix("val_"))
    names = {name for run in found.runs for name in run.metrics}
    return sorted(n for n in names if "/" in n and n.rpartition("/")[2] in wanted)[:EVALUATED]


def _largest(found: Comparison, run: Run) -> float | None:
    if run.name in found.baselines:
        return None
    return max(found.differences.get(run.name, {}).values(), default=None)


def _marks(found: Comparison, run: Run) -> str:
    marks = {"best": run is found.best, "baseline": run.name in found.baselines}
    return " ".join(mark for mark, marked in marks.items() if marked)


def remarks(found: Comparison) -> list[str]:
    """Return what has to be said below the table."""
    lines = []
    if found.best is not None:
        lines.append(
            f"best: {found.best.name}, {found.objective} {found.best.objective:.4g} ({found.mode})"
        )
    for each in found.repeats:
        which = "".join(f"{key}={value} " for key, value in each.values.items())
        lines.append(
            f"mean: {which}{found.objective} {each.mean:.4g} with a standard deviation of "
            f"{each.deviation:.2g} ({each.runs} runs that differ in {' and '.join(each.keys)})"
        )
    if found.baselines:
        lines.append(
            f"difference: the largest, relative, of {found.metric} at a common step from that of"
            f" {' or '.join(found.baselines)}"
        )
    if found.efficiency:
        lines.append(
            "efficiency: examples/s of a replica, over those of the run with the fewest replicas"
        )
    problems = ((run.name, (run.problem or "").splitlines()) for run in found.runs)
    lines += [f"{name}: {problem[0][:_LINE]}" for name, problem in problems if problem]
    return lines + found.notes


def text(found: Comparison) -> list[str]:
    """Return the lines for a terminal."""
    parts = columns(found)
    right = {index for index, column in enumerate(parts) if column.format is not None}
    rows = zip(*([column.head, *column.cells()] for column in parts), strict=True)
    return [*aligned(list(rows), right), "", *map(printable, remarks(found))]


def runs_csv(found: Comparison) -> str:
    """Return one line for each run, with all that is known of it in full precision."""
    metrics = sorted({name for run in found.runs for name in run.metrics})[:METRICS]
    rows = [_row(found, run, metrics) for run in found.runs]
    return csv_text([rows[0].keys(), *(row.values() for row in rows)])


def _row(found: Comparison, run: Run, metrics: list[str]) -> Json:
    row = {
        "run": run.name,
        **{key: run.value(key) for key in found.keys},
        "status": run.status,
        "replicas": run.replicas,
        "examples_per_second": run.speed,
        "efficiency": found.efficiency.get(run.name),
        "objective": run.objective,
        "difference": _largest(found, run),
        "seconds": run.seconds,
        "marks": _marks(found, run),
        "problem": run.problem,
        "source": run.source,
    }
    # The metric examples_per_second is of the last interval; that of the whole run is there.
    return row | {name: run.metrics.get(name) for name in metrics if name not in row}


def curves_csv(found: Comparison) -> str:
    """Return one line for each point of each metric of each run."""
    rows = (
        (run.name, step, metric, value)
        for run in found.runs
        for metric, points in run.curves.items()
        for step, value in points.items()
    )
    return csv_text([("run", "step", "metric", "value"), *rows])
