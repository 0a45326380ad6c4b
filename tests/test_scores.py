"""Metrics of classes by name: against scikit-learn, or by hand where it is not installed."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.config.names import SCORES
from tests.conftest import Commands
from tests.test_steps import prepare, settings

SPARSE, BINARY = "sparse_categorical_crossentropy", "binary_crossentropy"


def by_hand(name: str, y: Any, p: Any) -> float:
    """Return a score of scikit-learn's definition, computed from counts and pairs."""
    import numpy as np

    score, _, average = name.partition("_")
    if score == "auc":
        columns = (
            [(y.ravel(), p.ravel())] if average == "micro" else list(zip(y.T, p.T, strict=True))
        )
        pairs = [np.subtract.outer(each[t > 0], each[t == 0]) for t, each in columns]
        return float(np.mean([((d > 0) + (d == 0) / 2).mean() for d in pairs]))
    taken = np.eye(p.shape[1])[p.argmax(1)]
    counts = [(taken * y).sum(0), taken.sum(0), y.sum(0)]
    hits, predicted, real = [c.sum(keepdims=True) if average == "micro" else c for c in counts]
    precision, recall = hits / np.maximum(predicted, 1), hits / np.maximum(real, 1)
    f1 = 2 * hits / np.maximum(predicted + real, 1)
    found = {"precision": precision, "recall": recall, "f1": f1}[score]
    return float(np.average(found, weights=real if average == "weighted" else None))


@pytest.mark.task
def test_scores_of_whole_labels_are_those_of_scikit_learn() -> None:
    import keras
    import numpy as np

    from dtrain.task.model import losses

    draw = np.random.default_rng(3)
    y, p = draw.integers(0, 4, 400), draw.dirichlet([1] * 4, 400).astype(np.float32)
    p = (p + 0.7 * np.eye(4, dtype=np.float32)[y] * draw.uniform(0, 1, (400, 1))).astype(np.float32)
    p /= p.sum(1, keepdims=True)
    hot = np.eye(4)[y]
    names = [*SCORES, "auc", "precision", "recall", "f1_score", "AUC"]
    for labels in (y, y[:, None].astype(np.float32), hot):
        for name in names:
            metric = losses.metric_named(name, SPARSE)
            assert metric.name == name and type(metric).__module__.startswith("keras.")
            for rows in (slice(0, 150), slice(150, 400)):
                metric.update_state(labels[rows], p[rows])
            found = float(metric.result())
            if name in ("precision", "recall", "auc", "AUC"):  # as Keras says of one-hot targets
                plain = keras.metrics.get(name)
                plain.update_state(hot, p)
                assert found == pytest.approx(float(plain.result()), rel=1e-6), name
            else:
                tolerance = 2e-3 if name.startswith("auc") else 1e-5  # 200 thresholds
                expected = by_hand({"f1_score": "f1"}.get(name, name), hot, p)
                assert found == pytest.approx(expected, abs=tolerance), name


@pytest.mark.task
def test_by_hand_is_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    import numpy as np

    draw = np.random.default_rng(3)
    y, p = draw.integers(0, 4, 90), draw.dirichlet([1] * 4, 90)
    hot = np.eye(4)[y]
    for name in SCORES:
        score, _, average = name.partition("_")
        if score == "auc":
            expected = sklearn.roc_auc_score(hot, p, average=average)
        else:
            function = getattr(sklearn, f"{score}_score")
            expected = function(y, p.argmax(1), average=average or "macro")
        assert by_hand(name, hot, p) == pytest.approx(expected), name


@pytest.mark.task
def test_one_output_and_several_labels_have_a_threshold() -> None:
    import numpy as np

    from dtrain.task.model import losses

    y, p = np.array([1, 0, 1, 1, 0]), np.array([[0.9], [0.6], [0.4], [0.8], [0.1]], np.float32)
    for loss, outputs in (
        (BINARY, p),
        ({"_target_": "keras.losses.BinaryCrossentropy", "from_logits": True}, np.log(p / (1 - p))),
    ):
        for name, expected in {
            "f1": 2 / 3, "precision": 2 / 3, "recall": 2 / 3, "auc": 5 / 6,
        }.items():  # fmt: skip
            metric = losses.metric_named(name, loss)
            metric.update_state(y, outputs)
            assert float(metric.result()) == pytest.approx(expected, abs=2e-3), (name, loss)
    several = losses.metric_named("f1_micro", BINARY)
    several.update_state(
        np.array([[1, 1, 0], [0, 1, 1]]), np.array([[0.9, 0.8, 0.2], [0.1, 0.7, 0.4]])
    )
    assert float(several.result()) == pytest.approx(6 / 7, abs=1e-5)


@pytest.mark.task(devices=2)
def test_on_replicas_and_after_a_rest_of_examples() -> None:
    trainer = {"loss": SPARSE, "metrics": ["accuracy", "AUC", "f1", "recall_macro", "auc_macro"]}
    values = []
    for kind, devices in (("OneDevice", 1), ("Mirrored", 2)):
        _, _, steps, _ = prepare(kind, devices, settings(trainer=trainer))
        rest = divmod(21, steps.evaluation_examples)
        train, held = (steps.results(sums) for sums in (steps.train(5), steps.evaluate(*rest)))
        values.append({**train, **{f"val_{name}": value for name, value in held.items()}})
    assert {"f1", "AUC", "val_recall_macro", "val_auc_macro"} <= values[0].keys()
    for name, value in values[0].items():
        assert values[1][name] == pytest.approx(value, rel=1e-5), (name, value, values[1][name])


def test_a_run_that_is_resumed_and_evaluated(dtrain: Commands, quick: tuple[str, ...]) -> None:
    metrics = "trainer.metrics=[accuracy,AUC,f1,{_target_: keras.metrics.Precision, top_k: 1}]"
    whole = dtrain(*quick, metrics, "objective=val_f1")
    assert whole.code == 0, whole.output + whole.log
    first = dtrain(*quick, metrics, "objective=val_f1", "trainer.epochs=1")
    again = dtrain(f"resume={first.rundir.path}", "trainer.epochs=2")
    assert again.code == 0, again.output + again.log
    for name in ("AUC", "f1", "val_AUC", "val_f1", "precision"):
        assert again.points(name)[8] == whole.points(name)[8], name
    import zipfile

    with zipfile.ZipFile(whole.rundir.model) as archive:
        assert b"dtrain" not in archive.read("config.json")  # Keras alone can load it
