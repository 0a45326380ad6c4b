"""What a report says of examples that were held out, by the task that has the model at hand."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from dtrain.data import nest
from dtrain.data.mixture import Concatenated
from dtrain.data.nest import Nest, Parts, Tensor
from dtrain.data.sources import Source, Splits
from dtrain.data.streams import Stream
from dtrain.files.fields import Json
from dtrain.report import analysis, statistics
from dtrain.report.figures import Figure
from dtrain.report.statistics import HeldOut
from dtrain.run import checkpoint
from dtrain.run.folder import RunDir, write_json
from dtrain.task.backends.base import Forward
from dtrain.task.data import reading
from dtrain.task.model import checks, losses, train_state
from dtrain.task.model.named_metrics import LossInputs, inputs_of
from dtrain.task.train.session import Session, quietly

#: Least seconds that a report may take, and the share of the run's own.
SECONDS, SHARE = 10.0, 0.05
#: Examples that are predicted, at most, and numbers that a model may return for them.
EXAMPLES, NUMBERS = 100_000, 20_000_000
#: Of a probability that a model returns, as in the crossentropies of Keras'.
_LEAST = 1e-7
#: Examples by which the importance of columns is measured.
_PERMUTED = 2000
#: Columns that are shown beside the worst examples, such as an id.
_IDS = 3


class Unsuited(Exception):
    """Why there are no statistics of a model's predictions."""


def write_report(session: Session, rundir: RunDir, word: str | None, seconds: float) -> Json:
    """Write ``report.json`` of a checkpoint, whose weights the model then has; the chief calls it.

    Args:
        session: has the model.
        rundir: of the run.
        word: of :func:`dtrain.run.checkpoint.choose`.
        seconds: that the run took.

    Returns:
        What ``result.json`` has of it.
    """

    def restore() -> int:
        path = checkpoint.choose(rundir.checkpoints, word, session.config.objective_mode)[0]
        restored = checkpoint.load(path)
        train_state.restore_chosen(session.model, session.strategy, restored, "raw")
        return restored.step

    record = describe(session, seconds, restore)
    quietly(lambda: write_json(rundir.report, record))
    names = ("split", "step", "examples", "baseline", "scores")
    return {name: record[name] for name in names} if "scores" in record else {}


def describe(session: Session, seconds: float, restore: Callable[[], int] | None = None) -> Json:
    """Return what a report has of held-out examples; where there is nothing, why.

    Args:
        session: of the chief.
        seconds: that the run took.
        restore: sets the weights of a checkpoint, and returns its step; None: the model has those
            that are meant, and there are no figures.
    """
    try:
        _check(session)
        step = None if restore is None else restore()
        return {"step": step, **_describe(session, seconds, draws=restore is not None)}
    except Unsuited as error:
        return {"notes": [f"No statistics of predictions: {error}."]}
    except Exception as error:  # of the user's model or data, or a damaged checkpoint
        problem = f"no statistics of predictions: {type(error).__name__}: {error}"[:1000]
        session.process.notice(problem)
        return {"notes": [problem]}


def _check(session: Session) -> None:
    """Refuse what cannot be predicted by one task.

    Raises:
        Unsuited: it cannot.
    """
    source, tasks = session.data.splits.validation, len(session.process.cluster.tasks)
    if source is None or isinstance(source, Stream):
        raise Unsuited("no examples were held out" if source is None else "they are of a stream")
    if tasks > 1 and not session.strategy.abilities.predicts_alone:
        raise Unsuited(f"{tasks} processes have trained together; to predict by one: "
                       "python -m dtrain report RUN strategy=one_device")  # fmt: skip
    if checks.stateful_layers(session.model):
        raise Unsuited("the model has layers that keep a state from batch to batch")


def _describe(session: Session, seconds: float, draws: bool) -> Json:
    """Return scores, notes and, where they are drawn, figures.

    Raises:
        Unsuited: there are no statistics of such outputs or targets.
    """
    process, launcher = session.process, session.config.launcher
    allowed = max(SECONDS, SHARE * seconds)
    # Nothing moves meanwhile, and other tasks wait.
    allowed = min(allowed, (launcher.stall_timeout or math.inf) / 2)
    if len(process.cluster.tasks) > 1:
        allowed = min(allowed, launcher.peer_timeout / 2)
    began = time.monotonic()

    def may_go_on(share: float = 1.0) -> bool:
        return time.monotonic() < began + allowed * share and not process.stop()

    splits: Splits = session.data.splits
    source: Any = splits.validation
    of = session.schedule.validation_examples
    forward = _forward(session, source)  # half of the time is for what is made of its outputs
    rows, outputs, targets = _predict(forward, of, lambda: may_go_on(0.5))
    held = _held_out(session, outputs, targets)
    known = _known_targets(splits, held)
    record: Json = {
        "split": "validation", "examples": len(rows), "of": of, "notes": [], "figures": [],
        "baseline": _baseline(held, known),
        "scores": {k: dataclasses.asdict(v) for k, v in statistics.score(held, known).items()},
    }  # fmt: skip
    if len(rows) < of:
        record["notes"].append(f"{len(rows):,} of {of:,} examples, drawn by a seed: at most "
                               f"{EXAMPLES:,}, and as many as there is time for.")  # fmt: skip
    if draws:
        figures = list(analysis.figures(held))
        if splits.columns is not None and not isinstance(source, Concatenated):
            figures += _importance(session, source, rows, held, may_go_on)
        figures.append(_worst(held, source, rows, splits))
        record["figures"] = [each.to_json() for each in figures]
    return record


def _forward(session: Session, source: Source) -> Forward:
    batch = checks.fixed_rows(session.model, session.config) or session.inputs.evaluation_batch
    forward = session.strategy.forward(session.model, source, batch, _columns)
    forward.trace()
    return forward


def _columns(outputs: Nest, parts: Parts) -> dict[str, Tensor]:
    """Return the outputs and the targets of a batch."""
    leaves = [nest.leaves(each) for each in (outputs, parts[1] if len(parts) > 1 else None)]
    if any(len(each) != 1 or each[0] is None for each in leaves):
        raise Unsuited("the model has several outputs, or the examples no or several targets")
    tensors = [keras.ops.convert_to_tensor(each[0]) for each in leaves]
    names = [keras.backend.standardize_dtype(each.dtype) for each in tensors]
    if not all("int" in name or "float" in name or name == "bool" for name in names):
        raise Unsuited(f"outputs are {names[0]}, and targets {names[1]}")
    return {
        title: keras.ops.cast(tensor, "float32") if "float" in name else tensor
        for title, tensor, name in zip(("output", "target"), tensors, names, strict=True)
    }


def _predict(
    forward: Forward, examples: int, may_go_on: Callable[[], bool]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, ascending, with outputs and targets, as many as there is time for."""
    generator = np.random.default_rng(statistics.SEED)
    rows = generator.choice(examples, min(examples, EXAMPLES), replace=False)
    at_once, done = forward.batch * forward.replicas, 0
    parts: list[list[np.ndarray]] = []
    while done < len(rows) and (not parts or may_go_on()):
        chosen = rows[done : done + at_once]
        whole = np.resize(chosen, (forward.replicas, forward.batch)).astype(np.int64)
        numbers = done // forward.batch + np.arange(forward.replicas, dtype=np.int64)
        columns = forward(whole, numbers)
        parts.append([columns[name][: len(chosen)] for name in ("output", "target")])
        done += len(chosen)
        width = max(1, parts[0][0][0].size)
        rows = rows[: max(done, NUMBERS // width)]
    order = np.argsort(rows[:done], kind="stable")
    outputs, targets = (np.concatenate(each)[order] for each in zip(*parts, strict=True))
    return rows[:done][order], outputs, targets


def _held_out(session: Session, outputs: np.ndarray, targets: np.ndarray) -> HeldOut:
    """Return predictions with the meaning that the loss and the targets give them.

    Raises:
        Unsuited: they are neither of one class nor numbers, one row for each example.
    """
    loss: Any = session.model.loss
    splits = session.data.splits
    takes = inputs_of(loss, targets[:1], outputs[:1])
    unsuited = Unsuited(
        f"the outputs are {list(outputs.shape[1:])} for each example, and the targets "
        f"{list(targets.shape[1:])}"
    )
    if outputs.ndim > 2 or targets.ndim > 2 or not np.isfinite(outputs).all():
        raise unsuited
    outputs = outputs.reshape(len(outputs), -1).astype(np.float64)
    targets = targets.reshape(len(targets), -1)
    names = _names(splits, max(2, outputs.shape[1]))
    if losses.is_regression(session.config, splits) or losses.is_of_numbers(loss):
        if outputs.shape != targets.shape:
            raise unsuited
        names = names if outputs.shape[1] > 1 else [""]
        return HeldOut("numbers", outputs, targets.astype(np.float64), names)
    if takes.signed:
        targets = (targets > 0).astype(np.int64)
    is_row = outputs.shape == targets.shape and outputs.shape[1] > 1
    outputs = _probabilities(outputs, takes)
    if is_row and takes.separate:
        raise Unsuited("the targets are several labels")
    classes = targets.argmax(axis=1) if is_row else targets[:, 0].astype(np.int64)
    if classes.min() < 0 or classes.max() >= len(names) or not (is_row or targets.shape[1] == 1):
        raise unsuited
    return HeldOut("classes", outputs, classes, names)


def _probabilities(outputs: np.ndarray, takes: LossInputs) -> np.ndarray:
    """Return probabilities of classes; of one output those of two classes.

    Raises:
        Unsuited: the loss takes probabilities, and they are none.
    """
    alone = outputs.shape[1] == 1 or takes.separate
    are_probabilities = outputs.min() >= 0 and outputs.max() <= 1
    if takes.logits or (takes.logits is None and not are_probabilities):
        if alone:
            outputs = 1 / (1 + np.exp(-np.clip(outputs, -80, 80)))
        else:
            outputs = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    elif not are_probabilities:
        raise Unsuited("the outputs are neither probabilities nor logits")
    else:
        outputs = np.clip(outputs, _LEAST, 1 - _LEAST)
    if outputs.shape[1] == 1:
        return np.concatenate([1 - outputs, outputs], axis=1)
    return outputs if alone else outputs / np.maximum(outputs.sum(axis=1, keepdims=True), 1e-12)


def _names(splits: Splits, width: int) -> list[str]:
    """Return the names of the classes, labels or numbers of an output."""
    names = [str(name) for name in splits.train.info.class_names()]
    if not names and splits.encoding is not None and (target := splits.encoding().target):
        names = list(target.names or target.columns)
    return names if len(names) == width else [str(number) for number in range(width)]


def _known_targets(splits: Splits, held: HeldOut) -> np.ndarray | None:
    """Return the targets of the training, where they are known without its inputs."""
    labels = None if isinstance(splits.train, Stream) else splits.train.info.labels()
    if labels is None or not len(labels):
        return None
    labels = np.asarray(labels).reshape(len(labels), -1)
    if held.kind != "classes":
        return labels if labels.shape[1] == held.outputs.shape[1] else None
    classes = labels.argmax(axis=1) if labels.shape[1] > 1 else labels[:, 0].astype(np.int64)
    return classes[(classes >= 0) & (classes < len(held.names))]  # a loss may ignore others


def _baseline(held: HeldOut, known: np.ndarray | None) -> str:
    """Return a clause that says what the baseline predicts."""
    whose = "held-out" if known is None else "training"
    if held.kind != "classes":
        return f"the mean of the {whose} examples"
    targets = held.targets if known is None else known
    name = held.names[int(np.bincount(targets).argmax())]
    return f"the majority of the {whose} examples, {name}"


def _worst(held: HeldOut, source: Source, rows: np.ndarray, splits: Splits) -> Figure:
    """Return a table of the examples with the largest losses, with what tells them apart."""
    worst = analysis.worst(held)
    head, table = analysis.worst_rows(held, worst.tolist())
    ids = {"example": [source.info.place(int(row)) for row in rows[worst]]}
    left_out = [] if splits.encoding is None else list(splits.encoding().left_out)
    for name in left_out[:_IDS]:
        with contextlib.suppress(Exception):  # of a column that cannot be read by itself
            column = np.asarray(source.info.column(name))[rows[worst]].astype("U")
            ids[name] = column.tolist()
    lines = [[*known, *row] for *known, row in zip(*ids.values(), table, strict=True)]
    return Figure("Worst examples", "table", [*ids, *head], lines,
                  "The held-out examples with the largest losses.")  # fmt: skip


class Rows(Source):
    """Rows in memory, of which others may take the place.

    Args:
        parts: of the rows.
    """

    def __init__(self, parts: Parts):
        self.parts = parts

    def __len__(self) -> int:
        return len(nest.leaves(self.parts[0])[0])

    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Return the rows at ``indices``."""
        return tuple(nest.mapped(lambda leaf: leaf[indices], part) for part in self.parts)


def _importance(
    session: Session, source: Source, rows: np.ndarray, held: HeldOut,
    may_go_on: Callable[[], bool],
) -> Iterator[Figure]:  # fmt: skip
    """Yield how much larger the loss is where a column of a table is exchanged among the rows."""
    at = np.linspace(0, len(rows) - 1, min(len(rows), _PERMUTED)).astype(int)
    x, *others = reading.chosen(source, rows[at])
    columns = _columns_of(x, session.data.splits)
    if not columns:
        return
    table, own, importance = Rows((x, *others)), held.losses()[at].mean(), list[list[Any]]()
    forward = _forward(session, table)
    order = np.random.default_rng(statistics.SEED).permutation(len(at))
    for name, place in columns:
        if not may_go_on():
            break
        exchanged = copy.copy(x)
        if isinstance(place, slice):
            exchanged[:, place] = x[order, place]
        else:
            exchanged[place] = x[place][order]
        table.parts = (exchanged, *others)
        _, outputs, targets = _predict(forward, len(table), lambda: True)
        more = _held_out(session, outputs, targets).losses().mean() - own
        importance.append([name, float(more)])
    if importance:
        what = "squared error" if held.kind == "numbers" else "cross-entropy"
        note = (
            f"How much larger the {what} of {len(at):,} examples is when a column has the values "
            "of other rows."
        )
        if left := ", ".join(name for name, _ in columns[len(importance) :]):
            note += f" There was no time for {left}."
        yield Figure("Importance of columns", "bars", ["column", f"{what} more"],
                     sorted(importance, key=lambda row: -float(row[1])), note)  # fmt: skip


def _columns_of(x: Nest, splits: Splits) -> list[tuple[str, str | slice]]:
    """Return the names of a table's inputs, and where each is."""
    if isinstance(x, dict):
        return [(name, name) for name, leaf in x.items() if isinstance(leaf, np.ndarray)]
    names = list((splits.columns or {}).get("inputs", ()))
    widths = [1] * len(names)
    if splits.encoding is not None:
        features = splits.encoding().features
        names, widths = [each.name for each in features], [each.width for each in features]
    ends = np.cumsum(widths).tolist()
    if getattr(x, "ndim", 0) != 2 or not ends or ends[-1] != x.shape[1]:
        return []
    return [(n, slice(end - width, end)) for n, width, end in zip(names, widths, ends, strict=True)]
