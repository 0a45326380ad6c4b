"""Metrics of classes by name: against scikit-learn, or by hand where it is not installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from dtrain.config.targets import SCORES
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

    from dtrain.task.model.named_metrics import inputs_of, named_metric

    draw = np.random.default_rng(3)
    y, p = draw.integers(0, 4, 400), draw.dirichlet([1] * 4, 400).astype(np.float32)
    p = (p + 0.7 * np.eye(4, dtype=np.float32)[y] * draw.uniform(0, 1, (400, 1))).astype(np.float32)
    p /= p.sum(1, keepdims=True)
    hot = np.eye(4)[y]
    names = [*SCORES, "auc", "precision", "recall", "f1_score", "AUC"]
    for labels in (y, y[:, None].astype(np.float32), hot):
        for name in names:
            metric = named_metric(name, inputs_of(SPARSE))
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

    from dtrain.task.model.losses import loss_of
    from dtrain.task.model.named_metrics import inputs_of, named_metric

    y, p = np.array([1, 0, 1, 1, 0]), np.array([[0.9], [0.6], [0.4], [0.8], [0.1]], np.float32)
    for loss, outputs in (
        (BINARY, p),
        ({"_target_": "keras.losses.BinaryCrossentropy", "from_logits": True}, np.log(p / (1 - p))),
    ):
        for name, expected in {
            "f1": 2 / 3, "precision": 2 / 3, "recall": 2 / 3, "auc": 5 / 6,
        }.items():  # fmt: skip
            metric = named_metric(name, inputs_of(loss_of(loss)))
            metric.update_state(y, outputs)
            assert float(metric.result()) == pytest.approx(expected, abs=2e-3), (name, loss)
    several = named_metric("f1_micro", inputs_of(BINARY))
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


def smooth(outputs: Any, targets: Any) -> Any:
    """A loss of the user's own, of logits."""
    import torch

    return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def cut(y_true: Any, y_pred: Any) -> Any:
    """A loss of the user's own, of probabilities."""
    import keras

    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)


def hits(y_true: Any, y_pred: Any) -> Any:
    """A metric of the user's own."""
    import keras

    return keras.metrics.sparse_categorical_accuracy(y_true, y_pred)


def share(y_true: Any, y_pred: Any) -> Any:
    """A metric of the user's own, of a whole batch."""
    import keras

    return keras.ops.mean(keras.metrics.sparse_categorical_accuracy(y_true, y_pred))


def half(y_true: Any, y_pred: Any) -> Any:
    """A loss of the user's own, of a logit."""
    import keras

    return 0.5 * keras.losses.binary_crossentropy(y_true, y_pred, from_logits=True)


def scored(loss: Any, y: Any, outputs: Any, names: Any, said: Any = None) -> dict[str, float]:
    """Return the results of metrics beside ``trainer.loss``, of two batches."""
    import keras

    from dtrain.task.model import losses

    def tensors(rows: slice) -> Any:
        return (keras.tree.map_structure(lambda e: keras.ops.convert_to_tensor(e[rows]), each)
                for each in (y, outputs))  # fmt: skip

    example, size = tuple(tensors(slice(0, 1))), len(keras.tree.flatten(y)[0])
    model = keras.Sequential([keras.layers.Identity()])
    model.output_names = list(outputs) if isinstance(outputs, dict) else ["a"]
    model.compile(metrics=losses.metrics_of(
        names, "trainer.metrics", losses.loss_of(loss), example, (), said or (lambda _: None)
    ))  # fmt: skip
    for rows in (slice(0, size // 2), slice(size // 2, None)):
        result = model.compute_metrics(None, *tensors(rows), None)
    return {name: float(value) for name, value in result.items() if name != "loss"}


TORCH, KERAS = "torch.nn.", "keras.losses."
LOGITS = {
    "hot": [{"_target_": KERAS + "CategoricalCrossentropy", "from_logits": True}],
    "classes": [
        {"_target_": KERAS + "sparse_categorical_crossentropy", "from_logits": True},
        {"_target_": KERAS + "SparseCategoricalCrossentropy", "from_logits": True},
        TORCH + "CrossEntropyLoss", {"_target_": TORCH + "CrossEntropyLoss", "weight": None},
        {"_target_": TORCH + "functional.cross_entropy", "label_smoothing": 0.1},
        {"_target_": "tests.test_scores.smooth"},
    ],
    "one": [
        {"_target_": KERAS + "BinaryCrossentropy", "from_logits": True},
        {"_target_": KERAS + "BinaryFocalCrossentropy", "from_logits": True},
        {"_target_": KERAS + "binary_crossentropy", "from_logits": True},
        {"_target_": "tests.test_scores.half"}, "hinge", TORCH + "BCEWithLogitsLoss",
        TORCH + "SoftMarginLoss",
    ],
    "several": [
        {"_target_": KERAS + "BinaryCrossentropy", "from_logits": True},
        TORCH + "BCEWithLogitsLoss", TORCH + "MultiLabelSoftMarginLoss",
    ],
}  # fmt: skip


@pytest.mark.task
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_metrics_by_name_are_given_probabilities_where_the_loss_takes_logits(backend: str) -> None:
    import os

    import keras
    import numpy as np

    os.environ["DTRAIN_TRUST"] = "tests"
    draw = np.random.default_rng(3)
    z, whole = draw.normal(0, 3, (40, 3)).astype(np.float32), draw.integers(0, 3, 40)
    softmax, sigmoid = np.exp(z) / np.exp(z).sum(1, keepdims=True), 1 / (1 + np.exp(-z))
    names = ["accuracy", "auc", "precision", "recall", "f1", "mse"]
    sparse, hot, two = "sparse_categorical_crossentropy", np.eye(3, dtype=np.float32), whole % 2
    cases = {
        "hot": (sparse[7:], names, hot[whole], z, softmax, hot[whole]),
        "classes": (sparse, [*names[:5], sparse], whole, z, softmax, whole),
        "one": (BINARY, names, two[:, None], z[:, :1], sigmoid[:, :1], two[:, None]),
        "several": (BINARY, [*names[1:], "binary_accuracy"], (z[:, ::-1] > 0) * 1.0, z, sigmoid,
                    (z[:, ::-1] > 0) * 1.0),
    }  # fmt: skip
    for kind, losses in LOGITS.items():
        plain, wanted, y, outputs, p, labels = cases[kind]
        expected = scored(plain, labels, p, wanted)
        for loss in losses:
            name, said = str(loss), []
            if backend == "torch" or not ("torch" in name or "smooth" in name):
                targets = 2 * y - 1 if "hinge" in name or "SoftMarginLoss" in name else y
                if "MultiLabel" in name:
                    targets = y
                result = scored(loss, targets, outputs, wanted, said.append)
                if "test_scores" in name:  # an error of numbers is one of the outputs
                    result["mse"] = expected.get("mse", result.pop("mse", None))
                    result = {key: result[key] for key in expected}
                assert result == pytest.approx(expected, abs=1e-5), (name, result, expected)
                assert bool(said) == ("test_scores" in name), said
    if backend == "torch":
        from dtrain.after.evaluate import confusion_of

        matrix = confusion_of("torch.nn.BCEWithLogitsLoss", z[:, :1])
        assert matrix is not None
        matrix.update_state(two, keras.ops.convert_to_tensor(z[:, :1]))
        right = np.trace(keras.ops.convert_to_numpy(matrix.matrix)) / len(two)
        assert right == pytest.approx(((z[:, 0] > 0) == two).mean())
    own = {"_target_": "tests.test_scores.cut"}
    assert scored(own, whole, softmax, names[:5]) == scored(sparse, whole, softmax, names[:5])
    by_name = {"a": [*names], "b": ["auc"]}
    both = {"a": {"_target_": KERAS + "BinaryCrossentropy", "from_logits": True}, "b": sparse}
    result = scored(both, {"a": two[:, None], "b": whole}, {"a": z[:, :1], "b": softmax}, by_name)
    alone = scored(BINARY, two[:, None], sigmoid[:, :1], names)
    assert {k: result[f"a_{k}"] for k in alone} == pytest.approx(alone, abs=1e-5)
    assert result["b_auc"] == scored(sparse, whole, softmax, ["auc"])["auc"]


@pytest.mark.task
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_labels_that_the_loss_ignores_count_in_no_metric(backend: str) -> None:
    import os

    import numpy as np

    os.environ["DTRAIN_TRUST"] = "tests"
    draw = np.random.default_rng(3)
    z, y = draw.normal(0, 3, (40, 3)).astype(np.float32), draw.integers(0, 3, 40)
    ignored = draw.random(40) < 0.4
    label, sparse = np.where(ignored, -100, y), "SparseCategoricalCrossentropy"
    names: list[Any] = [
        "accuracy", "auc", "f1", "sparse_categorical_crossentropy",
        {"_target_": "keras.metrics.SparseTopKCategoricalAccuracy", "k": 2},
        {"_target_": "keras.metrics.SparseCategoricalAccuracy", "name": "node"},
        {"_target_": "tests.test_scores.hits"},
    ]  # fmt: skip
    loss = {"_target_": KERAS + sparse, "from_logits": True}
    expected = scored(loss, y[~ignored], z[~ignored], names)
    result = scored({**loss, "ignore_class": -100}, label, z, names)
    assert result == pytest.approx(expected, abs=1e-6)
    own = [{"_target_": "tests.test_scores.share"}]
    if backend != "torch":
        from dtrain.errors import UsageError

        with pytest.raises(UsageError, match="share: has no value for each example"):
            scored({**loss, "ignore_class": -100}, label, z, own)
    else:
        halves = [
            (y == z.argmax(1))[half][~ignored[half]].mean() for half in np.split(np.arange(40), 2)
        ]
        result = scored("torch.nn.CrossEntropyLoss", label, z, own)
        assert result["share"] == pytest.approx(np.mean(halves))
    if backend == "torch":
        area = {"_target_": "torchmetrics.AUROC", "task": "multiclass", "num_classes": 3}
        names += [{**area, "thresholds": 9}] if importlib.util.find_spec("torchmetrics") else []
        expected = scored(loss, y[~ignored], z[~ignored], names)
        for each in ("torch.nn.CrossEntropyLoss", "torch.nn.NLLLoss"):
            assert scored(each, label, z, names) == pytest.approx(expected, abs=1e-6)
        # Tokens, and PyTorch's order of axes.
        tokens = z.reshape(8, 5, 3).transpose(0, 2, 1)
        names.remove({"_target_": "tests.test_scores.hits"})  # of the user's own axes
        result = scored("torch.nn.CrossEntropyLoss", label.reshape(8, 5), tokens, names)
        assert result == pytest.approx({k: expected[k] for k in result}, abs=1e-6)
        # Outputs without an axis of their own.
        one = "torch.nn.BCEWithLogitsLoss"
        flat = scored(one, y % 2, z[:, 0], ["accuracy", "auc", "f1"])
        assert flat == scored(one, y[:, None] % 2, z[:, :1], ["accuracy", "auc", "f1"])
    else:
        loss["ignore_class"] = -100
        tokens = scored(loss, label.reshape(8, 5), z.reshape(8, 5, 3), names[:-1])
        assert tokens == pytest.approx({k: result[k] for k in tokens}, abs=1e-6)
