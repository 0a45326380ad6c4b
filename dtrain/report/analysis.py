"""From predictions for held-out examples to the figures of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dtrain.report import statistics
from dtrain.report.figures import Figure, line
from dtrain.report.statistics import HeldOut

#: Classes of a confusion matrix, and those that have a curve of their own.
_MATRIX, _CURVES = 100, 8
#: Points of a cloud, and bins of a histogram.
_CLOUD, _BINS = 500, 24
#: Worst examples that are shown.
WORST = 20


def figures(held: HeldOut) -> Iterator[Figure]:
    """Yield the figures that the kind of the targets allows."""
    if held.kind == "numbers":
        yield from _residuals(held)
        return
    if len(held.names) <= _MATRIX:
        counts = statistics.confusion(held).tolist()
        rows = [[name, *row] for name, row in zip(held.names, counts, strict=True)]
        yield Figure("Confusion matrix", "matrix", ["", *held.names], rows,
                     "Rows: true classes; the colour is the share of a row.")  # fmt: skip
    yield from _curves(held)
    yield _calibration(held)


def _curves(held: HeldOut) -> Iterator[Figure]:
    """Yield curves of the classes with the most examples, each against the rest; of two one."""
    counts = np.bincount(held.targets, minlength=len(held.names))
    order = [1] if len(counts) == 2 else np.argsort(-counts, kind="stable")[:_CURVES].tolist()
    of_roc, of_precision = [], []
    for at in order:
        if counts[at] in (0, len(held.targets)):
            continue
        name, scores, truths = held.names[at], held.outputs[:, at], held.targets == at
        false, true, area = statistics.roc(scores, truths)
        of_roc += line(f"{name}: AUC {area:.3f}", false, true)
        recall, precision, average = statistics.precision_recall(scores, truths)
        of_precision += line(f"{name}: average precision {average:.3f}", recall, precision)
    if of_roc:
        yield Figure("ROC", "lines", ["class", "false positive rate", "true positive rate"], of_roc,
                     diagonal=True)  # fmt: skip
        yield Figure("Precision and recall", "lines", ["class", "recall", "precision"],
                     of_precision)  # fmt: skip


def _calibration(held: HeldOut) -> Figure:
    temperature = statistics.fit_temperature(held)
    mended = statistics.scaled(held.outputs, temperature)
    rows, errors = [], []
    for name, outputs in (("as trained", held.outputs), (f"temperature {temperature:.3g}", mended)):
        confidence, accuracy, error = statistics.calibration(outputs, held.targets)
        rows += line(name, confidence, accuracy)
        errors.append(error)
    note = (
        f"Expected calibration error {errors[0]:.3f}; with logits divided by the temperature "
        f"{temperature:.3g} (fitted to these examples by cross-entropy) {errors[1]:.3f}."
    )
    return Figure("Calibration", "lines", ["outputs", "confidence", "accuracy"], rows, note,
                  diagonal=True)  # fmt: skip


def _residuals(held: HeldOut) -> Iterator[Figure]:
    errors = held.outputs - held.targets
    chosen = np.random.default_rng(statistics.SEED).permutation(len(errors))[:_CLOUD]
    for at, name in enumerate(held.names[:4]):
        ending = "" if len(held.names) == 1 else f": {name}"
        pairs = zip(held.targets[chosen, at], held.outputs[chosen, at], strict=True)
        rows = [["", float(true), float(predicted)] for true, predicted in pairs]
        yield Figure(f"Predictions{ending}", "points", ["", "true", "predicted"], rows,
                     diagonal=True)  # fmt: skip
        counts, edges = np.histogram(errors[:, at], _BINS)
        middles = (edges[1:] + edges[:-1]) / 2
        note = f"Mean {errors[:, at].mean():.4g}, standard deviation {errors[:, at].std():.4g}."
        yield Figure(f"Residuals{ending}", "lines", ["", "predicted less true", "examples"],
                     line("", middles, counts), note)  # fmt: skip


def worst(held: HeldOut) -> np.ndarray:
    """Return the examples with the largest losses, the worst first."""
    return np.argsort(-held.losses(), kind="stable")[:WORST]


def worst_rows(held: HeldOut, rows: Sequence[int]) -> tuple[list[str], list[list[object]]]:
    """Return a table of examples: what they are, what was predicted, and the loss."""
    losses = held.losses()
    if held.kind == "classes":
        best = held.outputs.argmax(axis=1)
        return ["true", "predicted", "probability", "loss"], [
            [held.names[held.targets[i]], held.names[best[i]], float(held.outputs[i, best[i]]),
             float(losses[i])] for i in rows
        ]  # fmt: skip
    head = [f"{word} {name}".strip() for name in held.names for word in ("true", "predicted")]
    pairs = np.stack([held.targets, held.outputs], axis=2).reshape(len(losses), -1)
    return [*head, "loss"], [[*map(float, pairs[i]), float(losses[i])] for i in rows]
