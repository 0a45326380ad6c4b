"""Statistics of predictions for examples that were held out: scores, curves, calibration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

#: Resamples of a bootstrap, examples of each, at most, and their seed.
RESAMPLES, RESAMPLED, SEED = 1000, 5000, 0
#: Bins of a calibration.
BINS = 10
#: Probabilities by which a temperature is fitted.
_FITTED = 200_000
_LEAST = 1e-300  # of a probability whose logarithm is taken
Statistics = Callable[[np.ndarray], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Predictions for examples that were held out.

    Attributes:
        kind: what the targets are: one of several classes, or numbers.
        outputs: float64 ``[n, k]``: probabilities of classes, or numbers.
        targets: int64 ``[n]`` of classes, else ``[n, k]``.
        names: of the ``k`` columns.
    """

    kind: Literal["classes", "numbers"]
    outputs: np.ndarray
    targets: np.ndarray
    names: list[str]

    def losses(self) -> np.ndarray:
        """Return the loss of each example: cross-entropy, or the largest squared error."""
        if self.kind == "numbers":
            return ((self.outputs - self.targets) ** 2).max(axis=1)
        return _cross_entropies(self.outputs, self.targets)


@dataclasses.dataclass(frozen=True)
class Score:
    """A score, with the bounds that 95 % of the resamples are in, and what a baseline has.

    Attributes:
        value, low, high: of the model.
        baseline: of a model that predicts the same for every example.
    """

    value: float
    low: float
    high: float
    baseline: float


def score(held: HeldOut, known: np.ndarray | None) -> dict[str, Score]:
    """Return the scores of a model, by name.

    Args:
        held: what it has predicted.
        known: targets by which the baseline predicts: the share of each class, or the mean
            of the numbers; None: those that were held out.
    """
    targets = held.targets if known is None else known
    if held.kind == "classes":
        counts = np.bincount(targets, minlength=len(held.names))[: len(held.names)]
        constant = counts / max(1, counts.sum())
    else:
        constant = targets.mean(axis=0)
    same = dataclasses.replace(held, outputs=np.broadcast_to(constant, held.outputs.shape))
    values, baseline = (_statistics(each)(np.ones(len(held.outputs))) for each in (held, same))
    scores = {}
    for name, deviations in bootstrap(held).items():
        low, high = (values[name] + deviations).tolist()
        scores[name] = Score(values[name], low, high, baseline[name])
    return scores


def bootstrap(held: HeldOut) -> dict[str, np.ndarray]:
    """Return by how much the scores of 95 % of the resamples differ, the lowest and the highest.

    Of more than :data:`RESAMPLED` examples so many are resampled, and the differences are made
    smaller as the square root of the number of examples is larger.
    """
    generator, examples = np.random.default_rng(SEED), len(held.outputs)
    size = min(examples, RESAMPLED)
    chosen = generator.choice(examples, size, replace=False) if size < examples else slice(None)
    part = dataclasses.replace(held, outputs=held.outputs[chosen], targets=held.targets[chosen])
    statistics = _statistics(part)
    own, resampled = statistics(np.ones(size)), list[Mapping[str, float]]()
    for _ in range(RESAMPLES):
        draws = generator.integers(size, size=size)
        resampled.append(statistics(np.bincount(draws, minlength=size).astype(float)))
    return {
        name: (np.nanpercentile([each[name] for each in resampled], [2.5, 97.5]) - value)
        * (size / examples) ** 0.5
        for name, value in own.items()
    }


def _statistics(held: HeldOut) -> Statistics:
    """Return what computes the scores, given how often each example counts."""
    if held.kind == "numbers":
        return _of_numbers(held)
    losses = _cross_entropies(held.outputs, held.targets)
    correct = (held.outputs.argmax(axis=1) == held.targets).astype(float)
    both = len(held.names) == 2 and len(np.unique(held.targets)) == 2
    area = _weighted_area(held.outputs[:, 1], held.targets == 1) if both else None

    def of_classes(counts: np.ndarray) -> dict[str, float]:
        whole = counts.sum()
        scores = {
            "accuracy": float(counts @ correct / whole), "log_loss": float(counts @ losses / whole)
        }  # fmt: skip
        if area is not None:
            scores["auc"] = area(counts)
        return scores

    return of_classes


def _of_numbers(held: HeldOut) -> Statistics:
    errors, targets = held.outputs - held.targets, held.targets
    columns = np.concatenate([np.abs(errors), errors**2, targets, targets**2], axis=1)

    def of_numbers(counts: np.ndarray) -> dict[str, float]:
        absolute, squared, mean, square = np.split(counts @ columns / counts.sum(), 4)
        variances = square - mean**2
        shares = np.where(variances > 0, 1 - squared / np.where(variances > 0, variances, 1), 0.0)
        return {
            "mae": float(absolute.mean()), "rmse": float(np.sqrt(squared.mean())),
            "r2": float(shares.mean()),
        }  # fmt: skip

    return of_numbers


def _cross_entropies(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return -np.log(np.clip(outputs[np.arange(len(targets)), targets], _LEAST, 1))


def _weighted_area(scores: np.ndarray, positive: np.ndarray) -> Callable[[np.ndarray], float]:
    """Return what computes the area under the ROC curve, given how often each example counts."""
    order = np.argsort(scores, kind="stable")
    firsts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))  # of examples that are alike
    is_positive = positive[order]

    def area(counts: np.ndarray) -> float:
        counts = counts[order]
        positives = np.add.reduceat(counts * is_positive, firsts)
        negatives = np.add.reduceat(counts * ~is_positive, firsts)
        below = np.cumsum(negatives) - negatives
        pairs = positives.sum() * negatives.sum()
        return float(positives @ (below + negatives / 2) / pairs) if pairs else float("nan")

    return area


def roc(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return false and true positive rates at every threshold, and the area below."""
    true, false = _counts_above(scores, positive)
    rates = false / max(1, false[-1]), true / max(1, true[-1])
    return *rates, _weighted_area(scores, positive)(np.ones(len(scores)))


def precision_recall(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return recall and precision at every threshold, and the average precision."""
    true, false = (each[1:] for each in _counts_above(scores, positive))
    recall, precision = true / max(1, true[-1]), true / (true + false)
    return recall, precision, (np.diff(recall, prepend=0) * precision).sum()


def _counts_above(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many are above each threshold, from none to all, true and false ones."""
    order = np.argsort(-scores, kind="stable")
    lasts = np.flatnonzero(np.diff(scores[order], append=np.inf))
    true = np.cumsum(positive[order])[lasts]
    return np.insert(true, 0, 0), np.insert(1 + lasts - true, 0, 0)


def confusion(held: HeldOut) -> np.ndarray:
    """Return how many of each class (rows) were taken for which (columns)."""
    size = len(held.names)
    cells = held.targets * size + held.outputs.argmax(axis=1)
    return np.bincount(cells, minlength=size * size).reshape(size, size)


def scaled(outputs: np.ndarray, temperature: float) -> np.ndarray:
    """Return probabilities whose logits are divided by a temperature."""
    logits = np.log(np.clip(outputs, _LEAST, 1)) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def fit_temperature(held: HeldOut) -> float:
    """Return the temperature with the least cross-entropy, from 0.05 to 20, to one part in 100."""
    most = max(100, _FITTED // held.outputs.shape[1])
    outputs, targets = held.outputs[:most], held.targets[:most]
    low, high = 0.05, 20.0
    for _ in range(2):
        tried = np.geomspace(low, high, 30)
        losses = [_cross_entropies(scaled(outputs, each), targets).mean() for each in tried]
        best = int(np.argmin(losses))
        low, high = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
    return float(tried[best])


def calibration(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return mean confidence and accuracy in bins of the confidence, and their mean difference.

    Args:
        outputs: probabilities of classes, ``[n, k]``.
        targets: int64 ``[n]``.
    """
    confidence, correct = outputs.max(axis=1), outputs.argmax(axis=1) == targets
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    counts, sums, hits = (
        np.bincount(bins, weights, BINS) for weights in (None, confidence, correct)
    )
    full = counts > 0
    means, shares = sums[full] / counts[full], hits[full] / counts[full]
    return means, shares, float(np.abs(means - shares) @ counts[full] / len(targets))
