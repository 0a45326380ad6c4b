"""What is reported of runs side by side: what differs, the best, how they scale; and the table."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import shlex
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dtrain.compare.load import KEYS as READ
from dtrain.compare.load import METRICS, Run, kind, number
from dtrain.config import overrides
from dtrain.config.objective import AUTO, SPEED
from dtrain.errors import UsageError, nearest, printable, refuse
from dtrain.files.fields import Json
from dtrain.files.writing import csv_text
from dtrain.host.terminal import aligned
from dtrain.run import times

#: What decides the number of replicas; all else has to be equal where speeds are compared.
_SCALE = ("strategy", "hardware.devices", "hardware.hosts")
_BATCH = "trainer.batch_size"
#: Keys by which one experiment is repeated: on other folds of the data, with other random numbers.
_REPEATS = ("dataset.fold", "dataset.split_seed", "seed")
#: Keys that are shown at most.
KEYS = 40
_TARGET = "._target_"
#: It follows from the strategy, and what it makes of the devices is a column: the replicas.
_PLAN = "strategy.plan"


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Runs of one experiment that differ in its folds or seeds alone.

    Attributes:
        values: of the keys in which it differs from other experiments that are compared.
        keys: in which its runs differ.
        runs: how many, 2 or more.
        mean: of the objective.
        deviation: standard deviation of the objective, of a sample (``n - 1``).
    """

    values: dict[str, str | None]
    keys: list[str]
    runs: int
    mean: float
    deviation: float


@dataclasses.dataclass
class Comparison:
    """Runs, and what was found by comparing them.

    Attributes:
        runs: in order.
        keys: of the configuration, that distinguish the runs.
        metric: of the curves, and of the difference from the baseline.
        sweep: ``sweep.json``, where the runs are the jobs of one.
        objective, mode: the name of the objective and ``max`` or ``min``; None where runs disagree.
        best: the run with the best objective.
        baselines: names of the runs that others are compared with.
        differences: by run name and step, ``|value - base| / |base|``; infinite where one
            of the two is no number.
        efficiency: by run name, examples a second of each replica over those of a replica of the
            run with the fewest (of several a baseline, else the fastest), of runs that differ in
            strategy and replicas alone.
        repeats: means over folds and seeds.
        notes: what is missing, and why.
    """

    runs: list[Run]
    keys: list[str]
    metric: str
    sweep: Json | None = None
    objective: str | None = None
    mode: str | None = None
    best: Run | None = None
    baselines: list[str] = dataclasses.field(default_factory=list)
    differences: dict[str, dict[int, float]] = dataclasses.field(default_factory=dict)
    efficiency: dict[str, float] = dataclasses.field(default_factory=dict)
    repeats: list[Repeats] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def places(self) -> dict[str, int]:
        """Where each run stands among :attr:`runs`, by its name."""
        return {run.name: index for index, run in enumerate(self.runs)}

    def labels(self) -> list[str]:
        """Return each run's name with what it has of its own."""
        return [" ".join([r.name, *(r.value(key) or "-" for key in self.keys)]) for r in self.runs]


def compare(
    runs: Sequence[Run],
    sweep: Json | None = None,
    baseline: str | None = None,
    metric: str | None = None,
) -> Comparison:
    """Compare runs.

    Args:
        runs: with names of their own.
        sweep: ``sweep.json``, where they are the jobs of one.
        baseline: a run's name, folder or id, or KEY=VALUE of its configuration: of several runs
            that have it, each other run is compared with the one that is like it else. That of
            the sweep by default, of which it is only noted when it is none of the runs.
        metric: of the curves, and of the difference from the baseline; ``loss`` by default, or
            what there is.

    Raises:
        UsageError: no run has the metric, or no one run is the baseline, or no other run has a
            point of the metric where the baseline has one.
    """
    keys = list(dict.fromkeys(key for run in runs for key in run.differs)) or differing_keys(runs)
    names = sorted({name for run in runs for name in run.curves})
    if metric is not None and metric not in names and names:
        refuse("metric", "no run has it", metric, accepted=", ".join(names),
               hint=f"metric={nearest(metric, names) or 'NAME'}")  # fmt: skip
    own = [name for name in names if not times.is_of_the_machine(name)] or names
    usual = "loss" if "loss" in names or not names else own[0]
    found = Comparison(list(runs), keys[:KEYS], metric or usual, sweep)
    if len(keys) > KEYS:
        found.notes.append(f"{len(keys):,} keys differ: the first {KEYS} are shown")
    _judge(found)
    if baseline is not None:
        _against(found, baseline)
    elif sweep is not None and sweep.get("baseline"):
        try:
            _against(found, sweep["baseline"])
        except UsageError as error:  # a job failed: the rest of the table is worth having
            found.notes.append(f"no difference from a baseline: {error}")
    _scale(found)
    _repeat(found)
    return found


def _common_value(values: Iterable[str | None]) -> str | None:
    present = {value for value in values if value not in (None, AUTO)}
    return present.pop() if len(present) == 1 else None


def _judge(found: Comparison) -> None:
    found.objective = _common_value(run.config.get("objective") for run in found.runs)
    found.mode = _common_value(run.config.get("objective_mode") for run in found.runs)
    if found.sweep and found.sweep.get("objective") and found.sweep.get("objective_mode"):
        found.objective, found.mode = found.sweep["objective"], found.sweep["objective_mode"]
        for run in found.runs:  # one of them may have chosen another for itself
            if run.config.get("objective") not in (None, AUTO, found.objective):
                run.objective = run.metrics.get(found.sweep["objective"])
    if found.objective is None or found.mode is None:
        found.notes.append("no best run: not all have the same objective and objective_mode")
        return
    ended = [run for run in found.runs if run.status == "FINISHED"] or found.runs
    values = [(run.objective, run) for run in ended if is_finite(run.objective)]
    if values:
        better: Callable[..., Any] = max if found.mode == "max" else min
        _, found.best = better(values, key=lambda each: each[0])
    else:
        found.notes.append(f"no best run: none has ended with a number for {found.objective}")


def is_finite(value: float | None) -> bool:
    """Say whether there is a number that is neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def _scale(found: Comparison) -> None:
    alike: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    keys = [key for key in differing_keys(found.runs) if not _scales(key) and key != _BATCH]
    for run in found.runs:
        if run.replicas and run.speed and 0 < run.speed / run.replicas < math.inf:
            alike.setdefault(tuple((key, run.value(key) or "") for key in keys), []).append(run)
    for runs in alike.values():
        # The batch of all, or of each replica, stays the same: strong and weak scaling.
        per_replica = {(number(run.value(_BATCH)) or 0) / (run.replicas or 1) for run in runs}
        together: dict[str | None, list[Run]] = {}
        for run in runs:
            batch = None if len(per_replica) == 1 else run.value(_BATCH)
            together.setdefault(batch, []).append(run)
        for group in together.values():
            if len({run.replicas for run in group}) > 1:
                found.efficiency.update(_efficiency(group, found.baselines))
    if not found.efficiency and len({run.replicas for run in found.runs if run.replicas}) > 1:
        found.notes.append("no scaling efficiency: no runs differ in the number of replicas alone")


def _repeat(found: Comparison) -> None:
    if found.objective is None:
        return
    differing = differing_keys(found.runs)
    others = [key for key in differing if key not in _REPEATS]
    groups: dict[tuple[str | None, ...], list[Run]] = {}
    for run in found.runs:
        if run.status == "FINISHED" and is_finite(run.objective):
            groups.setdefault(tuple(run.value(key) for key in others), []).append(run)
    for values, runs in groups.items():
        keys = [key for key in _REPEATS if len({run.value(key) for run in runs}) > 1]
        if keys:
            numbers = [run.objective or 0.0 for run in runs]
            found.repeats.append(Repeats(
                dict(zip(others, values, strict=True)), keys, len(runs),
                statistics.fmean(numbers), statistics.stdev(numbers),
            ))  # fmt: skip


def _scales(key: str) -> bool:
    return key in _SCALE or key.startswith("strategy.")


def _efficiency(group: Sequence[Run], baselines: list[str]) -> dict[str, float]:
    each = {run.name: (run.speed or 0.0) / (run.replicas or 1) for run in group}
    fewest = [run for run in group if run.replicas == min(r.replicas or 1 for r in group)]
    # Of several with the fewest, the fastest: whoever else is chosen flatters the others.
    base = max(each[r.name] for r in [r for r in fewest if r.name in baselines] or fewest)
    return {name: speed / base for name, speed in each.items()}


def _against(found: Comparison, word: str) -> None:
    bases = _choose(found, word)
    without = []
    differences: dict[str, dict[int, float]] = {}
    for run in found.runs:
        base = bases.get(run.name)
        points = run.curves.get(found.metric, {})
        curve = base.curves.get(found.metric, {}) if base else {}
        common = sorted(points.keys() & curve.keys())
        if common:
            differences[run.name] = {s: _difference(points[s], curve[s]) for s in common}
        else:
            without.append(run.name)
    names = list(dict.fromkeys(base.name for base in bases.values()))
    if not differences.keys() - set(names):
        refuse("baseline", f"no other run has {found.metric} at a step of {', '.join(names)}",
               word, hint="trainer.log_every_steps=N, the same for all of them")  # fmt: skip
    found.baselines, found.differences = names, differences
    if without:
        found.notes.append(
            f"no difference of {', '.join(without)}: {found.metric} at no step of the baseline's"
        )


def _difference(value: float, base: float) -> float:
    if math.isfinite(value) and math.isfinite(base):
        return abs(value - base) / abs(base) if base else (math.inf if value else 0.0)
    return 0.0 if str(value) == str(base) else math.inf


def _choose(found: Comparison, word: str) -> dict[str, Run]:
    """Return the run that each is compared with, by its name, of those that ``word`` names.

    Raises:
        UsageError: it names none, or several of which none is like another run else.
    """
    _, key, value = overrides.parse(word)
    sources = (word, str(Path(word).resolve()) if "\0" not in word else word)
    matches = [run for run in found.runs if run.name == word or run.source in sources]
    if value is not None and not matches:
        matches = [run for run in found.runs if _equal(run.value(key), value)]
    if len(matches) == 1:
        return {run.name: matches[0] for run in found.runs}
    others = [each for each in found.keys if each != key and not each.startswith(f"{key}.")]
    groups: dict[tuple[str | None, ...], list[Run]] = {}
    for match in matches:
        groups.setdefault(tuple(match.value(k) for k in others), []).append(match)
    bases = {}
    for run in found.runs:
        alike = groups.get(tuple(run.value(k) for k in others), [])
        if len(alike) == 1:
            bases[run.name] = alike[0]
    if any(base.name != name for name, base in bases.items()):
        return bases
    names = [run.name for run in matches or found.runs]
    refuse("baseline", f"{len(matches) or 'no'} runs match", word,
           accepted=f"{', '.join(names[:10])}{', ...' * (len(names) > 10)}; or KEY=VALUE of one "
           "alone", typed=f"baseline={shlex.quote(names[0])}")  # fmt: skip


def _equal(text: str | None, wanted: str) -> bool:
    if text is None:
        return False
    return text == wanted or (number(text) is not None and number(text) == number(wanted))


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """Return the keys, and the groups, of which not all runs have the same.

    Where groups hold different things, such as two optimizers, the group is named; their keys are
    compared among the runs that have the same thing there. Names, folders and tracking are not.
    """
    known = [run.config for run in runs if run.config]
    every = dict.fromkeys(key for config in known for key in config)
    every = dict.fromkeys(itertools.islice(every, READ))
    groups = [key.removesuffix(_TARGET) for key in every if key.endswith(_TARGET)]
    groups = [group for group in groups if group != _PLAN]
    keys = [g for g in groups if len({kind(config, g) for config in known} - {None}) > 1]
    for key in every:
        if not _distinguishes(key) or key in groups or key.removesuffix(".name") in groups:
            continue
        around = [group for group in groups if key.startswith(f"{group}.")]
        alike: dict[tuple[str | None, ...], set[str]] = {}
        for config in known:
            if key in config:
                kinds = tuple(kind(config, group) for group in around)
                alike.setdefault(kinds, set()).add(config[key])
        if any(len(values) > 1 for values in alike.values()):
            keys.append(key)
    return keys


def _distinguishes(key: str) -> bool:
    # Without a dot there are names and folders, and what MLflow has of the plan.
    group, _, rest = key.partition(".")
    if not rest:
        return key == "seed"
    return group not in ("tracking", "sweep") and not key.endswith(_TARGET)


# --- the table: for a terminal, for the page, and as CSV

#: Columns of what was evaluated after training.
EVALUATED = 6
_LINE = 1000  # characters of what is said of a run
#: Columns that a narrow terminal does without, one after the other; the page and the CSV have all.
SPARE = ("replicas", "examples/s", "seconds", "loss", "difference", "efficiency")


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

    def room(self) -> int:
        """Return the characters that it takes in a line, with the space to the next."""
        return max(map(len, [self.head, *self.cells()])) + 2

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
    return lines + found.notes


def failures(found: Comparison) -> list[str]:
    """Return a line for each run that failed, with its reason."""
    problems = [(run.name, " ".join((run.problem or "").split())) for run in found.runs]
    return [f"{name}: {problem[:_LINE]}" for name, problem in problems if problem]


def text(found: Comparison) -> list[str]:
    """Return the lines for a terminal, but for those of :func:`failures`."""
    parts, left_out = columns(found), []
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for head in SPARE:
        if room is not None and sum(each.room() for each in parts) > room:
            left_out += [each.head for each in parts if each.head == head]
            parts = [each for each in parts if each.head != head]
    notes = [f"not shown, for want of room: {', '.join(left_out)}"] if left_out else []
    right = {index for index, column in enumerate(parts) if column.format is not None}
    rows = zip(*([column.head, *column.cells()] for column in parts), strict=True)
    return [*aligned(list(rows), right), "", *notes, *map(printable, remarks(found))]


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
