"""The statistics of a report beside scikit-learn's, and its page."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from dtrain.report import analysis, page, statistics
from dtrain.report.figures import Figure
from dtrain.report.statistics import HeldOut
from dtrain.run import evaluations
from dtrain.run.folder import read_json


def of_classes(classes: int, examples: int = 400, ties: bool = False) -> HeldOut:
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(examples, classes))
    logits = logits.round() if ties else logits
    noisy = logits + generator.normal(size=logits.shape)
    powers = np.exp(3 * logits)  # too sure of itself
    names = [f"class {n}" for n in range(classes)]
    return HeldOut("classes", powers / powers.sum(1, keepdims=True), noisy.argmax(1), names)


@pytest.mark.parametrize("ties", [False, True])
def test_curves_and_scores_are_those_of_scikit_learn(ties: bool) -> None:
    from sklearn import metrics

    held = of_classes(2, ties=ties)
    scores, truths = held.outputs[:, 1], held.targets == 1
    held_scores = statistics.score(held, None)
    assert held_scores["accuracy"].value == metrics.accuracy_score(truths, scores > 0.5)
    assert held_scores["log_loss"].value == pytest.approx(metrics.log_loss(truths, held.outputs))
    assert held_scores["auc"].value == pytest.approx(metrics.roc_auc_score(truths, scores))
    false, true, area = statistics.roc(scores, truths)
    assert np.trapezoid(true, false) == pytest.approx(area)
    *_, average = statistics.precision_recall(scores, truths)
    assert average == pytest.approx(metrics.average_precision_score(truths, scores))
    np.testing.assert_array_equal(
        statistics.confusion(held), metrics.confusion_matrix(truths, scores > 0.5)
    )


def test_numbers_are_scored_beside_their_mean() -> None:
    from sklearn import metrics

    generator = np.random.default_rng(2)
    true = generator.normal(size=(300, 2))
    held = HeldOut("numbers", true + generator.normal(scale=0.5, size=true.shape), true, ["a", "b"])
    held_scores = statistics.score(held, np.zeros([5, 2]))
    assert held_scores["rmse"].value == pytest.approx(np.sqrt(((held.outputs - true) ** 2).mean()))
    assert held_scores["r2"].value == pytest.approx(metrics.r2_score(true, held.outputs))
    assert held_scores["mae"].baseline == pytest.approx(np.abs(true).mean())  # of the mean, 0
    assert held_scores["r2"].low < held_scores["r2"].value < held_scores["r2"].high


def test_an_interval_holds_the_true_score_and_is_the_same_again() -> None:
    generator, held = np.random.default_rng(3), []
    for _ in range(40):
        targets = (generator.random(200) < 0.8).astype(int)
        outputs = np.full([200, 2], [0.4, 0.6])
        held.append(statistics.score(HeldOut("classes", outputs, targets, ["no", "yes"]), None))
    inside = [s["accuracy"].low <= 0.8 <= s["accuracy"].high for s in held]
    assert sum(inside) >= 34  # 95 % of 40 are 38
    again = statistics.score(of_classes(3), None)
    assert again == statistics.score(of_classes(3), None)
    assert again["accuracy"].baseline == pytest.approx(
        np.bincount(of_classes(3).targets).max() / 400
    )


def test_the_baseline_is_the_majority_of_the_training() -> None:
    held = HeldOut("classes", np.full([4, 2], 0.5), np.array([0, 1, 1, 1]), ["no", "yes"])
    assert statistics.score(held, np.array([0, 0, 1]))["accuracy"].baseline == 0.25


def test_a_temperature_mends_outputs_that_are_too_sure() -> None:
    held = of_classes(4, 3000)
    temperature = statistics.fit_temperature(held)
    mended = statistics.scaled(held.outputs, temperature)
    before, after = (
        statistics.calibration(each, held.targets)[2] for each in (held.outputs, mended)
    )
    assert temperature > 1.5 and after < before / 2

    def loss(temperature: float) -> float:
        outputs = statistics.scaled(held.outputs, temperature)
        return float(-np.log(outputs[np.arange(3000), held.targets]).mean())

    assert loss(temperature) == pytest.approx(min(map(loss, np.linspace(1, 6, 500))), abs=1e-3)


@pytest.mark.parametrize(
    ("held", "titles"),
    [
        (of_classes(2), ["Confusion matrix", "ROC", "Precision and recall", "Calibration"]),
        (
            HeldOut("numbers", np.zeros([9, 1]), np.arange(9.0)[:, None], [""]),
            ["Predictions", "Residuals"],
        ),
    ],
)  # fmt: skip
def test_figures_are_of_the_kind_of_the_targets(held: HeldOut, titles: list[str]) -> None:
    figures = list(analysis.figures(held))
    assert [each.title for each in figures] == titles
    for figure in figures:
        drawn = page._figure(Figure(**figure.to_json()))
        assert "nan" not in drawn
        assert drawn.count("<svg") == (figure.kind in ("lines", "points"))
        assert len(figure.csv().splitlines()) == len(figure.rows) + 1


def test_the_worst_examples_come_first() -> None:
    held = HeldOut("classes", np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 0, 1]),
                   ["no", "yes"])  # fmt: skip
    worst = analysis.worst(held)
    assert worst.tolist() == [1, 2, 0]
    _, rows = analysis.worst_rows(held, worst.tolist())
    assert rows[0][:3] == ["no", "yes", 0.8]


def test_a_name_of_a_class_is_no_html() -> None:
    name = "<script>alert(1)</script>"
    held = HeldOut("classes", of_classes(2).outputs, of_classes(2).targets, [name, f"{name}2"])
    for figure in analysis.figures(held):
        assert "<script" not in page._figure(figure)


def test_axes_are_logarithmic_over_two_decades_and_a_constant_has_a_place() -> None:
    from dtrain.report import svg

    def labels(values: list[float]) -> list[str]:
        rows = [["a", n, value] for n, value in enumerate(values)]
        drawn = svg.draw(Figure("x", "lines", ["", "step", "y"], rows, mark=(1, "best")))
        return re.findall(r'text-anchor="end">([^<]*)', drawn)

    assert labels([1, 10, 1000, 5000]) == ["1", "10", "100", "1000"]
    assert "0.001" in labels([0.001, 0.001])
    assert svg.draw(Figure("x", "lines", ["", "step", "y"], [["a", 0, None]])) == ""


#: A model that does something before it predicts, which a training alone does not.
MODEL = """
import os, pathlib, signal
import keras

class Net(keras.Sequential):
    def predict_step(self, data):
        {first}
        return super().predict_step(data)

def build(input_shape, classes):
    return Net([keras.Input(input_shape), keras.layers.Dense(classes, activation="softmax")])
"""
OWN = ("model=custom", "model._target_=mine.build")


def _quick(quick: tuple[str, ...]) -> list[str]:
    return [w for w in quick if not w.startswith(("report=", "model"))]


def test_a_training_writes_its_report(dtrain: Any, quick: tuple[str, ...]) -> None:
    run = dtrain(*_quick(quick), "model=mlp", "model.units=[4]")
    assert run.code == 0, run.output
    held = run.result["held_out"]
    best = run.result["best_objective"]
    assert held["scores"]["accuracy"]["value"] == pytest.approx(best)
    assert held["step"] == run.result["best_step"] and held["examples"] == 50
    text = run.rundir.page.read_text()
    for title in (
        "Confusion matrix",
        "Calibration",
        "Worst examples",
        "learning rate",
        f"best {best:.4g}",
    ):
        assert title in text
    assert "report.html" in run.output
    assert not re.search(r'(src|href)="(?!data:)', text)  # it loads nothing


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_run_whose_report_cannot_be_made_is_finished(
    backend: str, dtrain: Any, on_torch: Any, quick: tuple[str, ...], user_code: Any
) -> None:
    user_code(MODEL.format(first="raise RuntimeError('no predictions here')"))
    run = on_torch(*_quick(quick), *OWN, "trainer.epochs=1", f"backend={backend}")
    assert run.code == 0 and run.result["status"] == "FINISHED", run.output
    assert "no statistics of predictions: RuntimeError: no predictions here" in run.output
    assert "Curves" in run.rundir.page.read_text() and "held_out" not in run.result


def test_a_run_that_is_killed_while_it_reports_is_finished_when_resumed(
    dtrain: Any, quick: tuple[str, ...], user_code: Any, tmp_path: Any
) -> None:
    marker = tmp_path / "killed"
    user_code(MODEL.format(first=f"path = pathlib.Path({str(marker)!r})\n"
              "        if not path.exists():\n"
              "            path.touch()\n"
              "            os.kill(os.getpid(), signal.SIGKILL)"))  # fmt: skip
    run = dtrain(*_quick(quick), *OWN, "trainer.epochs=1")
    assert run.code == 1 and not run.rundir.page.exists()
    again = dtrain(f"resume={run.rundir.path}")
    assert again.code == 0 and again.result["status"] == "FINISHED", again.output
    assert "Confusion matrix" in again.rundir.page.read_text()
    assert again.result["step"] == 4 and again.result["held_out"]["examples"] == 50


def test_the_command_writes_it_anew_and_evaluate_prints_a_baseline(
    on_torch: Any, quick: tuple[str, ...], user_code: Any
) -> None:
    """Of a PyTorch module whose outputs are logits, which two processes have trained together."""
    user_code(
        "import torch\n"
        "def build(input_shape, classes):\n"
        "    return torch.nn.Linear(input_shape[0], classes)\n"
    )
    run = on_torch(
        *_quick(quick), *OWN, "report=false", "backend=torch", "optimizer=custom",
        "optimizer._target_=torch.optim.SGD", "optimizer.learning_rate=0.1",
        "trainer.loss=torch.nn.CrossEntropyLoss", "strategy=mirrored", "hardware.devices=2",
    )  # fmt: skip
    assert run.code == 0 and not run.rundir.page.exists(), run.output
    path = str(run.rundir.path)
    assert on_torch("report", path).code == 0
    assert "Calibration" in run.rundir.page.read_text()
    scores = read_json(run.rundir.report)["scores"]
    step = run.result["best_step"]
    assert scores["log_loss"]["value"] == pytest.approx(run.points("val_loss")[step], rel=1e-5)
    printed = on_torch("evaluate", path).output
    assert "baseline: the majority of the training examples" in printed
    [evaluation] = evaluations.read(run.rundir)
    assert evaluation["scores"]["log_loss"]["value"] == pytest.approx(
        evaluation["metrics"]["loss"], rel=1e-5
    )


TABLE = """
import numpy as np
from dtrain import datasets

def data():
    x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    return {split: (x[rows], y[rows]) for split, rows in (
        ("train", slice(0, 40)), ("validation", slice(40, 50)), ("test", slice(50, 60)))}
"""


def test_a_test_split_is_evaluated_once_with_the_best_checkpoint(
    dtrain: Any, on_torch: Any, user_code: Any
) -> None:
    user_code(TABLE)
    words = ["tracking=none", "report=false", "model=mlp", "model.units=[4]", "trainer.epochs=3",
             "dataset=custom", "dataset._target_=mine.data", "trainer.batch_size=20"]  # fmt: skip
    run = dtrain(*words)
    assert run.code == 0, run.output
    [evaluation] = evaluations.read(run.rundir)
    assert evaluation["step"] == run.result["best_step"] and evaluation["examples"] == 10
    assert run.result["metrics"]["test/accuracy"] == evaluation["metrics"]["accuracy"]
    assert f"test/accuracy {evaluation['metrics']['accuracy']:.4g}" in run.output
    again = dtrain(f"resume={run.rundir.path}", "trainer.epochs=4")
    last = evaluations.read(run.rundir)[-1]
    assert last["step"] == again.result["best_step"]
    assert again.result["metrics"]["test/loss"] == last["metrics"]["loss"]


def test_a_file_of_tests_is_refused_before_training_and_evaluate_knows_the_rest(
    on_torch: Any, tmp_path: Any
) -> None:
    generator = np.random.default_rng(0)
    for name in ("train", "test"):
        values = generator.normal(size=(80, 2))
        lines = [f"{a},{b},c{i},{'yes' if a > b else 'no'}" for i, (a, b) in enumerate(values)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,id,y", *lines]))
    words = ["tracking=none", "report=true", "model=mlp", "model.units=[4]", "trainer.epochs=2",
             "dataset=csv", "dataset.path=train.csv", "dataset.target=y"]  # fmt: skip
    wrong = on_torch(*words, "dataset.test=none.csv")
    assert wrong.code == 2 and "dataset.test=none.csv: there is no such file" in wrong.output
    run = on_torch(*words, "dataset.test=test.csv")
    assert run.code == 0, run.output
    metrics = run.result["metrics"]
    text = run.rundir.page.read_text()
    assert "Importance of columns" in text and "train.csv, line " in text
    record = read_json(run.rundir.report)
    [worst] = [each for each in record["figures"] if each["title"] == "Worst examples"]
    assert worst["head"][:2] == ["example", "id"] and re.fullmatch(r"c\d+", worst["rows"][0][1])
    [bars] = [each for each in record["figures"] if each["kind"] == "bars"]
    assert {row[0] for row in bars["rows"]} == {"a", "b"}
    printed = on_torch("evaluate", str(run.rundir.path)).output
    assert "was evaluated already on this data (test in" in printed
    assert f"{metrics['test/loss']:.6g}" in printed


def test_the_interval_of_many_examples_is_that_of_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = of_classes(2, 20_000)
    few = statistics.score(held, None)
    monkeypatch.setattr(statistics, "RESAMPLED", 20_000)
    for name, all_of_them in statistics.score(held, None).items():
        width = all_of_them.high - all_of_them.low
        assert few[name].high - few[name].low == pytest.approx(width, rel=0.15)
