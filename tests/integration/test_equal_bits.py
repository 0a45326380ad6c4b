"""Two equal runs, and a killed one, have equal bits: whatever draws, whoever reads, whenever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import need
from tests.integration.test_jax import KILLER, end

USER = (
    KILLER
    + '''
import random
import time

import numpy as np

from dtrain.data.files import DataFile
from dtrain.datasets import Info, Source, Splits
from dtrain.task.train import loop, validation

BACKEND = keras.backend.backend()
HURRIES = pathlib.Path("hurries").exists()  # another clock: longer calls, and reads that wait
loop.CALL_SECONDS = validation.CALL_SECONDS = 1e9 if HURRIES else 1e-9


def drawn():
    """A number of each generator that a user may draw by."""
    made = [np.random.rand(), random.gauss(0, 1), float(keras.random.normal(()))]
    if BACKEND == "torch":
        import torch

        made += [float(torch.randn(())), float(torch.empty(()).uniform_())]
    return [*made, 0.0, 0.0][:5]


class Rows:
    """Map style, and some of its rows draw; by generators of its own, too."""

    def __init__(self, examples):
        self.examples, self.own = examples, [np.random.default_rng(), random.Random()]

    def __len__(self):
        return self.examples

    def __getitem__(self, row):
        time.sleep(0.002 * HURRIES)
        if row % 7 != 3:  # none that is looked at before training
            return np.full(6, row % 5, "float32"), hash(str(row)) % 3  # as sets are ordered
        if row % 2:
            np.random.seed(row)  # and leave it so
        own = self.own[0].normal() + self.own[1].random()
        return np.array([*drawn(), own], "float32"), row % 3


class Quick(Source):
    """Read by several threads, or of files, whose contents nobody looks at."""

    def __init__(self, examples, files):
        self.examples, self.files, self.thread_safe = examples, files, not files

    def __len__(self):
        return self.examples

    @property
    def info(self):
        return Info(files=lambda: [DataFile("mine.py")] if self.files else [])

    def __getitem__(self, rows):
        return np.array([[*drawn(), row % 2] for row in rows], "float32"), rows % 3


class Batches(keras.utils.PyDataset):
    """Batches that are drawn, and kept for a while."""

    def __len__(self):
        return 4

    def __getitem__(self, batch):
        return np.random.normal(size=(8, 6)).astype("float32"), np.arange(8) % 3


def rows(examples=40):
    return Splits(Rows(examples), Rows(23), 3)


def quick(files=False):
    return Splits(Quick(24, files), Quick(9, files), 3)


def batches():
    return Splits(Batches(), None, 3)


def stream():
    def examples(count):
        order = np.random.permutation(count)
        for row in order:
            time.sleep(0.002 * HURRIES)
            yield np.array([*drawn(), row % 2], "float32"), row % 3
    return Splits(lambda: examples(50), lambda: examples(23), 3)


class Noise(keras.layers.Layer):
    """Draws in training and in evaluation."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(5)

    def call(self, x):
        x = x + keras.random.normal(keras.ops.shape(x), seed=self.generator)
        if isinstance(x, keras.KerasTensor):
            return x
        own = drawn()[3] if BACKEND == "torch" else random.random()
        return x * (1 + np.random.rand() + own)


def build(input_shape, classes):
    return keras.Sequential([
        keras.Input(input_shape), keras.layers.Dense(6), keras.layers.Dropout(0.3), Noise(),
        keras.layers.Dense(classes, activation="softmax"),
    ])


def augment(x, seed):
    return x * (1 + (drawn()[3] if BACKEND == "torch" else np.random.rand()))
'''
)
MEMBERS = (
    "dataset=mixture",
    "dataset.members={rows: {_target_: mine.rows}, quick: {_target_: mine.quick},"
    " files: {_target_: mine.quick, files: true}, batches: {_target_: mine.batches}}",
)  # fmt: skip
STREAM = ("dataset=custom", "dataset._target_=mine.stream")
BASE = (
    "tracking=none", "record_code=false", "model=custom", "model._target_=mine.build",
    "+dataset.augment={_target_: mine.augment}", "trainer.batch_size=12", "trainer.epochs=2",
    "trainer.steps_per_epoch=6",
    "trainer.validation_batch_size=4", "trainer.log_every_steps=1", "checkpoint.every_steps=3",
    "launcher.stall_timeout=120", "trainer.callbacks=[{_target_: mine.Killer}]",
)  # fmt: skip


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_whatever_draws(backend: str, dtrain, user_code, tmp_path: Path) -> None:
    need(backend)
    user_code(USER)
    for data, workers in ((MEMBERS, 2), (STREAM, 0)):
        words = (*BASE, *data, f"backend={backend}")
        whole = dtrain(*words)
        (tmp_path / "hurries").touch()
        (tmp_path / "kill.json").write_text(json.dumps(11))
        killed = dtrain(*words)
        assert (tmp_path / "killed.json").exists(), killed.output
        (tmp_path / "hurries").unlink()
        run = dtrain(f"resume={killed.rundir.path}", f"dataset.workers={workers}")
        assert run.code == 0, run.output
        assert end(run) == end(whole), (backend, data)
