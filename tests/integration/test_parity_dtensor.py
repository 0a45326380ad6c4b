"""The same numbers from a mesh as from one device, whatever the model, as processes."""

from __future__ import annotations

import pytest

from tests.integration.test_parity import BASE, MODEL, agree
from tests.sampled import sampled

MODELS = '''
import keras


def norm(input_shape, classes):
    """Its statistics are those of the global batch: a mesh computes on all of it."""
    layers = keras.layers
    return keras.Sequential([
        keras.Input(input_shape),
        layers.Reshape((8, 8, 1)),
        layers.Conv2D(8, 3, padding="same", use_bias=False),
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(16, activation="relu"),
        layers.Dense(classes, activation="softmax"),
    ])
'''
TEXT = ("dataset=text", "dataset.length=16", "dataset.validation_split=0.015")  # 187 to evaluate
MESHES = {
    "model_parallel 2": ("strategy=model_parallel", "hardware.devices=2"),
    "hybrid 2 x 2": ("strategy=hybrid", "hardware.devices=4"),
}
CASES = {
    "mlp": ("model=mlp",),
    "cnn": (
        "model=cnn",
        "model.filters=[8,8]",
        "model.units=16",
        "model.dropout=0.2",
        "model.l2=1e-3",
    ),
    "batch norm": ("model=custom", "model._target_=mine.norm"),
    "resnet": (
        "model=resnet",
        "model.filters=[4,8]",
        "optimizer=sgd",
        "optimizer.learning_rate=2e-4",
    ),
    "transformer": (
        "model=transformer",
        "model.dropout=0.1",
        "optimizer=adamw",
        "optimizer.global_clipnorm=1",
        *TEXT,
    ),
    # Its embeddings have dense gradients here, which are the same for SGD alone.
    "own train_step": ("model=custom", "model._target_=mine.Own", "optimizer=sgd"),
}


@pytest.mark.parametrize("case", sampled(CASES))
def test_meshes_agree(case: str, dtrain, user_code) -> None:
    user_code(MODEL + MODELS)
    names = ["loss", "accuracy", "val_loss", "val_accuracy"]
    names += ["plain"] if case == "own train_step" else []
    tolerance = 1e-5
    if case == "resnet":  # see test_parity.MODELS
        names, tolerance = ["loss", "val_loss"], 1e-4
    reference = dtrain(*BASE, *CASES[case], "strategy=one_device")
    assert len(reference.points("loss")) == 50, reference.output + reference.log
    for name, overrides in MESHES.items():
        run = dtrain(*BASE, *CASES[case], *overrides)
        assert run.code == 0, name + run.output + run.log
        assert run.events("start")[0]["replicas"] == (2 if name == "hybrid 2 x 2" else 1)
        agree(reference, run, names, tolerance, name)
        for key in ("evaluated_examples", "examples", "step"):
            assert run.result[key] == reference.result[key], (name, key)


def test_the_automatic_rule_parts_a_model_of_ones_own(dtrain, user_code) -> None:
    """The one that trains above."""
    user_code(MODEL)
    run = dtrain(*BASE, *CASES["own train_step"], *MESHES["hybrid 2 x 2"], "dry_run=true")
    words = [line.split() for line in run.output.splitlines()]
    table = ["own/embedding_1/embeddings", "64", "x", "16", "gather", "0", "4,096", "2,048"]
    assert table in words


def test_embeddings_on_a_mesh_are_named(dtrain, user_code) -> None:
    user_code(MODEL)
    words = (*BASE, "model=custom", "model._target_=mine.Own", "trainer.epochs=1")
    run = dtrain(*words, "strategy=model_parallel", "hardware.devices=2", "optimizer=adam")
    [notice] = [e["message"] for e in run.events("notice") if "embeddings" in e["message"]]
    assert "(embedding, embedding_1) are dense on a mesh" in notice


@pytest.mark.faults
def test_a_model_that_nobody_made_for_this(dtrain) -> None:
    """The automatic rule; its 52 convolutions are minutes of DTensor's compiler."""
    case = (
        "model=custom", "model._target_=keras.applications.MobileNetV2", "+model.weights=null",
        "+model.alpha=0.35", "dataset=synthetic", "dataset.shape=[32,32,3]",
        "dataset.examples=64", "dataset.validation_examples=20", "optimizer=sgd",
        "optimizer.learning_rate=0.0001", "trainer.batch_size=16", "trainer.log_every_steps=1",
        "trainer.epochs=1", "tracking=none", "launcher.stall_timeout=550",
    )  # fmt: skip
    reference = dtrain(*case, "strategy=one_device")
    run = dtrain(*case, "strategy=hybrid")
    assert run.code == 0, run.output + run.log
    # Rounding (1e-4 of an activation, behind 50 normalisations) moves one of them over an edge of
    # ReLU6 in a third of the batches, which changes that gradient by a hundredth: so the losses of
    # the first two steps are compared, and those of an evaluation.
    expected, found = reference.points("loss"), run.points("loss")
    assert list(found) == [1, 2, 3, 4]
    assert [found[step] for step in (1, 2)] == pytest.approx([expected[1], expected[2]], rel=1e-4)
    agree(reference, run, ["val_loss"], 1e-4, "hybrid")
    assert run.result["evaluated_examples"] == 20
