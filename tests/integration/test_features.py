"""What a user can say in YAML or on the command line, run for real."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dtrain.run import checkpoint
from tests.conftest import QUICK
from tests.sampled import sampled, thinned

USER = '''
import keras
import numpy as np
from dtrain.datasets import Source, Splits

BATCHES = []


class Own(Source):
    """A source of a user's own, in NumPy."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, indices):
        x = np.stack([np.full(8, i % 4, np.float32) for i in indices])
        return x, (indices % 4).astype(np.int64)


def load(n):
    return Splits(Own(n), Own(10), classes=4)


class Batches(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        BATCHES.append((batch, round(logs["loss"], 3)))

    def on_train_end(self, logs=None):
        print("batches", len(BATCHES), [b for b, _ in BATCHES])


class Modules(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        import sys
        print("modules", sorted({m.split(".")[0] for m in sys.modules} & {"hydra", "mlflow"}))


class Rate(keras.callbacks.Callback):
    """Halves the rate, as ReduceLROnPlateau does, and stops, as EarlyStopping does."""

    def on_epoch_end(self, epoch, logs=None):
        assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(logs)
        self.model.optimizer.learning_rate = 0.5 * float(self.model.optimizer.learning_rate)
        self.model.stop_training = epoch == 2
'''


def test_a_task_imports_neither_hydra_nor_mlflow(dtrain, user_code) -> None:
    user_code(USER)
    run = dtrain(*QUICK, "trainer.callbacks=[{_target_:mine.Modules}]")
    assert "modules []" in run.log


def test_batch_hooks_are_called_for_every_batch(dtrain, user_code) -> None:
    user_code(USER)
    run = dtrain(*QUICK, "trainer.callbacks=[{_target_:mine.Batches}]")
    assert "batches 8 [0, 1, 2, 3, 0, 1, 2, 3]" in run.log


def test_callbacks_change_the_rate_and_stop(dtrain, user_code) -> None:
    user_code(USER)
    words = ("strategy=mirrored", "trainer.epochs=9", "trainer.callbacks=[{_target_:mine.Rate}]")
    run = dtrain(*QUICK, *words)
    assert run.code == 0, run.output
    assert run.result["step"] == 3 * 4
    rates = run.points("learning_rate")
    assert rates[4] == pytest.approx(0.001)
    assert rates[8] == pytest.approx(0.0005)


def test_keras_callbacks(dtrain, tmp_path: Path) -> None:
    run = dtrain(
        *QUICK, "trainer.epochs=30", "optimizer.learning_rate=1e-9", "objective=val_loss",
        "objective_mode=min",
        "trainer.callbacks=["
        "{_target_:keras.callbacks.EarlyStopping,monitor:val_accuracy,patience:3},"
        "{_target_:keras.callbacks.ReduceLROnPlateau,monitor:val_accuracy,patience:2},"
        "{_target_:keras.callbacks.ModelCheckpoint,filepath:best.keras,save_best_only:true}]",
    )  # fmt: skip
    assert run.code == 0, run.output
    assert run.result["step"] == 4 * 4  # the first epoch is the best, three more do not improve
    assert (run.rundir.path / "callbacks" / "best.keras").exists()
    assert not (tmp_path / "best.keras").exists()


def test_checkpoints_keep_the_newest_and_the_best(dtrain) -> None:
    run = dtrain(
        *QUICK, "trainer.epochs=6", "checkpoint.keep=2", "optimizer.learning_rate=1e-9",
        "objective=val_loss", "objective_mode=min",
    )  # fmt: skip
    kept = set(checkpoint.steps(run.rundir.checkpoints))
    assert kept == {20, 24, run.result["best_step"]}
    every = dtrain(*QUICK, "checkpoint.every_epochs=null", "checkpoint.every_steps=3")
    assert checkpoint.steps(every.rundir.checkpoints) == [3, 6, 8]


def test_own_dataset(dtrain, user_code) -> None:
    user_code(USER)
    base = [a for a in QUICK if not a.startswith("dataset")]
    run = dtrain(*base, "dataset=custom", "dataset._target_=mine.load", "+dataset.n=128")
    assert run.code == 0, run.output
    assert run.events("start")[0]["validation_examples"] == 10


OPTIONS = [
    ["hardware.precision=mixed_bfloat16"],
    ["hardware.precision=mixed_float16", "strategy=mirrored"],
    ["hardware.jit_compile=true", "strategy=one_device"],
    ["optimizer.use_ema=true", "strategy=mirrored"],
    ["optimizer.gradient_accumulation_steps=2", "strategy=one_device"],
    ["optimizer=adamw", "optimizer.global_clipnorm=1.0", "optimizer/schedule=warmup"],
    ["optimizer=sgd", "optimizer.clipvalue=0.5", "optimizer/schedule=cosine"],
    ["hardware=cpu", "hardware.intra_op_threads=1", "hardware.inter_op_threads=1"],
    ["launcher=local", "trainer.validation_freq=2"],
]


@pytest.mark.parametrize("arguments", thinned(OPTIONS, 4), ids=lambda arguments: arguments[0])
def test_options_train(arguments: list[str], dtrain) -> None:
    run = dtrain(*QUICK, "trainer.epochs=10", "optimizer.learning_rate=0.05", *arguments)
    assert run.code == 0, run.output + run.log
    loss = run.points("loss")
    assert loss[max(loss)] < 0.7 * loss[1]


def test_schedules_move_the_rate(dtrain) -> None:
    warmup = dtrain(*QUICK, "optimizer/schedule=warmup", "optimizer.learning_rate=0.1")
    rates = warmup.points("learning_rate")
    assert rates[2] == pytest.approx(0.05)
    assert rates[8] == pytest.approx(0.1)
    cosine = dtrain(*QUICK, "optimizer/schedule=cosine", "optimizer.learning_rate=0.1")
    rates = cosine.points("learning_rate")
    assert rates[4] == pytest.approx(0.05)
    assert rates[8] == pytest.approx(0.0, abs=1e-6)


def test_validation_freq(dtrain) -> None:
    run = dtrain(*QUICK, "trainer.epochs=4", "trainer.validation_freq=2")
    assert list(run.points("val_loss")) == [8, 16]


@pytest.mark.faults
def test_an_applications_model_on_an_image_folder(dtrain, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name, level in (("dark", 40), ("light", 200)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(20):
            pixels = generator.integers(level - 30, level + 30, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{i}.png")
    run = dtrain(
        "dataset=image_folder", "dataset.path=images", "dataset.size=[32,32]", "tracking=none",
        "dataset.augment={_target_:dtrain.augment.shift_flip,pixels:2,flip:true}",
        "model=custom", "model._target_=keras.applications.MobileNetV2", "+model.weights=null",
        "+model.alpha=0.35", "trainer.batch_size=8", "trainer.epochs=1",
    )  # fmt: skip
    assert run.code == 0, run.output + run.log
    assert run.events("start")[0]["validation_examples"] == 8
    assert run.result["step"] == 4


def test_csv_and_npz(dtrain, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((200, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    names = np.array(["no", "yes"])[y]
    lines = [f"{a},{b},{c},{n}" for (a, b, c), n in zip(x, names, strict=True)]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,c,answer", *lines]))
    np.savez(tmp_path / "data.npz", x=x, y=y)
    for name in ("csv", "npz"):
        run = dtrain(
            "tracking=none", "model=mlp", f"dataset={name}", f"dataset.path=data.{name}",
            "trainer.epochs=15", "trainer.batch_size=16", "optimizer.learning_rate=0.01",
        )  # fmt: skip
        assert run.code == 0, run.output
        assert run.result["objective"] > 0.9


def test_tables_in_columns(dtrain, tmp_path: Path) -> None:
    """Of several files, with targets that are words; the last of them of CSV, by the cache."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(0)
    for part in range(2):
        x = generator.standard_normal((100, 3)).astype(np.float32)
        names = np.array(["no", "yes"])[(x[:, 0] > 0).astype(int)]
        vector = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 3)
        table = pa.table({"x": vector, "answer": names})
        pq.write_table(table, f"{part}.parquet", row_group_size=30)
        with pa.ipc.new_file(f"{part}.arrow", table.schema) as writer:
            writer.write_table(table)
        lines = [f"{a},{b},{c},{n}" for (a, b, c), n in zip(x, names, strict=True)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["a,b,c,answer", *lines]))
    for name in ("parquet", "arrow", "csv"):
        columns = [] if name == "csv" else ["dataset.target=answer"]
        run = dtrain(
            "tracking=none", "model=mlp", f"dataset={name}", f"dataset.path=*.{name}", *columns,
            "trainer.epochs=15", "trainer.batch_size=16", "optimizer.learning_rate=0.01",
        )  # fmt: skip
        assert run.code == 0, run.output
        assert run.events("start")[0]["validation_examples"] == 40
        assert run.result["objective"] > 0.9


def test_a_transformer_learns_a_text(dtrain) -> None:
    words = (
        "tracking=none", "dataset=text", "dataset.length=32", "dataset.validation_split=0.02",
        "model=transformer", "model.width=32", "model.blocks=1", "optimizer.learning_rate=0.01",
        "trainer.batch_size=32", "trainer.steps_per_epoch=150", "trainer.epochs=2",
        "objective=val_loss", "objective_mode=min",
    )  # fmt: skip
    planned = dtrain(*words, "dry_run=true").output.splitlines()
    assert {"  train examples       6,126", "  validation examples  125"} <= set(planned)
    run = dtrain(*words)
    assert run.code == 0, run.output + run.log
    assert run.result["objective"] == min(run.points("val_loss").values())
    assert run.result["evaluated_examples"] == 125
    # More than the character before tells, and not more than there is (tests/test_text.py).
    assert 0.26 < run.result["objective"] < 1.78


def test_dry_run_starts_nothing(dtrain, tmp_path: Path) -> None:
    run = dtrain("strategy=mirrored", "hardware.devices=4", "dry_run=true")
    assert run.code == 0
    for part in ("replicas             4", "per-replica batch    16", "steps per epoch      22",
                 "CPU:3", "sqlite:///", "nothing was started"):  # fmt: skip
        assert part in run.output
    assert not list(tmp_path.iterdir())


def test_a_directory_of_ones_own(dtrain, user_code, tmp_path: Path) -> None:
    user_code(USER)
    (tmp_path / "mine" / "dataset").mkdir(parents=True)
    (tmp_path / "mine" / "dataset" / "constant.yaml").write_text("_target_: mine.load\nn: 64\n")
    (tmp_path / "mine" / "experiment").mkdir()
    (tmp_path / "mine" / "experiment" / "small.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - override /dataset: constant\n  - override /model: mlp\n"
        "name: small\ntrainer: {epochs: 1, batch_size: 16}\n"
    )
    run = dtrain("--config-dir", "mine", "experiment=small", "tracking=none")
    assert run.code == 0, run.output
    assert run.result["step"] == 4
    assert run.rundir.path.name.endswith("_small")
    bad = dtrain("--config-dir", "mine", "dataset=constnat")
    assert "type: dataset=constant" in bad.output


@pytest.mark.parametrize("strategy", sampled(["one_device", "multiworker"], "one_device"))
def test_deterministic_operations(strategy: str, dtrain) -> None:
    words = (
        *QUICK, f"strategy={strategy}", "model=cnn", "dataset.shape=[8,8,1]", "model.dropout=0.3",
        "trainer.deterministic=true", "trainer.epochs=1",
    )  # fmt: skip
    ends = []
    for _ in range(2):
        run = dtrain(*[word for word in words if not word.startswith("model.units")])
        assert run.code == 0, run.output
        assert run.points("loss") and not run.points("input_seconds"), "there is no clock"
        assert run.points("host_seconds")
        ends.append(checkpoint.load(run.rundir.checkpoints / "4"))
    assert checkpoint.digest(ends[0].arrays) == checkpoint.digest(ends[1].arrays)
    assert run.events("start")[0]["replicas"] == (2 if strategy == "multiworker" else 1)


HABITS = '''
import keras
import mlflow
import numpy as np

COUNT = keras.Variable(0.0, trainable=False, name="of_the_module")


class Counting(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            COUNT.assign_add(1.0)
        return x


def model(input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), Counting(), keras.layers.Dense(64)])


def load():
    """One shuffle, of which each pass has another order."""
    import tensorflow as tf

    x = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    shuffled = tf.data.Dataset.from_tensor_slices((x, np.arange(64))).shuffle(64, seed=1).batch(8)
    return shuffled, shuffled


def label(y_true, y_pred):
    return keras.ops.mean(keras.ops.cast(y_true, "float32"))


class Timed(keras.callbacks.Callback):
    """As a time limit: its clock begins with each start."""

    def on_train_begin(self, logs=None):
        self.started = int(open("clock").read())

    def on_epoch_end(self, epoch, logs=None):
        mlflow.log_metric("started", self.started)

    def on_train_end(self, logs=None):
        mlflow.log_metric("ended", self.started)
'''


def test_what_users_write_as_for_fit(dtrain, user_code, tmp_path: Path) -> None:
    """Notices are in the run; MLflow's numbers are its own; a clock is that of this start.

    The second validation has the order of the second, though a run was resumed before it.
    """
    user_code(HABITS)
    Path("clock").write_text("1")
    run = dtrain(
        *(word for word in QUICK if not word.startswith(("model", "dataset"))), "trainer.epochs=1",
        "model=custom", "model._target_=mine.model", "trainer.callbacks=[{_target_:mine.Timed}]",
        "dataset=custom", "dataset._target_=mine.load", "trainer.metrics=[{_target_:mine.label}]",
        "trainer.steps_per_epoch=2", "trainer.validation_steps=1",
    )  # fmt: skip
    assert run.code == 0, run.output + run.log
    said = " ".join(event["message"] for event in run.events("notice"))
    assert "the training step assigns of_the_module" in said
    assert "SparseCategoricalCrossentropy,from_logits:true" in said
    Path("clock").write_text("2")
    again = dtrain(f"resume={run.rundir.path}", "trainer.epochs=3")
    assert again.code == 0, again.output + again.log
    assert list(again.points("started").values()) == [1, 2, 2]
    assert list(again.points("ended").values()) == [1, 2]
    assert len(set(again.points("val_label").values())) == 3
    assert not {"mlruns", "mlflow.db"} & {each.name for each in tmp_path.iterdir()}
