"""Callbacks with state of many kinds, each of which decides numbers of the training."""

from __future__ import annotations

import dataclasses
import enum
import threading
from typing import Any

import keras
import numpy as np


class Setting(keras.callbacks.Callback):
    """Changes weights after each step, by what :meth:`number` returns."""

    def number(self, logs: Any) -> float:
        raise NotImplementedError

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        bias = self.model.trainable_variables[-1]
        bias.assign(bias + 0.01 * (self.number(logs) % 7))


class Private(Setting):
    """A number and a dictionary that no attribute without an underscore leads to."""

    total, kind = 0.0, np.float32  # of the class, until it is added to

    def __init__(self) -> None:
        super().__init__()
        self._best, self._seen = np.inf, {"waits": [], "last": None}

    def number(self, logs: Any) -> float:
        self._best = min(self._best, logs["loss"])
        self._seen["last"] = (logs["loss"], {"in": {len(self._seen["waits"])}})
        self._seen["waits"].append(self.kind(logs["loss"]))
        self.total += self._best
        return float(self.total + sum(self._seen["waits"]) + len(self._seen["last"][1]["in"]))


class Averaging(keras.callbacks.Callback):
    """Stochastic weight averaging by hand: its averages are the model at the end."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.mean, self.best = None, np.full(3, np.nan)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        new = self.model.get_weights()
        self.mean = (
            new if self.mean is None else [0.5 * a + b for a, b in zip(self.mean, new, strict=True)]
        )

    def on_train_end(self, logs: Any = None) -> None:
        self.model.set_weights(self.mean)


@dataclasses.dataclass
class Record:
    loss: float
    before: Any = None


class Phase(enum.Enum):
    FIRST, LAST = 1, 2


class Records(Setting):
    """Objects of a class beside it, in a list that each epoch makes, with what nothing can keep."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.records: list[Record] = []
        self.lock = threading.Lock()

    def number(self, logs: Any) -> float:
        with self.lock:
            self.records.append(Record(logs["loss"], self.records[-1:]))
        return sum(each.loss for each in self.records)


class Teacher(Setting):
    """A model, a metric, a seed and a generator of its own."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.teacher = keras.models.clone_model(self.model)
        self.teacher.set_weights(self.model.get_weights())
        self.metric, self.seed = keras.metrics.Mean(), keras.random.SeedGenerator(3)
        self.draws, self.shift = np.random.default_rng(4), keras.ops.zeros(2)

    def number(self, logs: Any) -> float:
        pairs = zip(self.teacher.get_weights(), self.model.get_weights(), strict=True)
        self.teacher.set_weights([0.9 * a + 0.1 * b for a, b in pairs])
        self.metric.update_state(logs["loss"])
        self.shift = self.shift + float(self.metric.result())
        drawn = keras.random.uniform([], seed=self.seed) + self.draws.random()
        return float(drawn + self.shift[0] + np.sum(self.teacher.get_weights()[0]))


class Schedule:
    """A function of epochs that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int, rate: float) -> float:
        self.calls += 1
        return rate * (1 - 0.1 * self.calls)


class Says(Private):
    """One that says itself what is kept."""

    kind = float

    def get_state(self) -> Any:
        return {"total": self.total, "best": self._best, "waits": self._seen["waits"]}

    def set_state(self, state: Any) -> None:
        self.total, self._best = state["total"], state["best"]
        self._seen = {"waits": state["waits"], "last": None}


class Writes(keras.callbacks.Callback):
    def __init__(self, path: str):
        super().__init__()
        self._path, self.phase = path, "first"


class Rate(keras.callbacks.Callback):
    """Changes the rate; as it looks at each step, each is a call."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.factor == 1:
            return
        rate = float(np.asarray(self.model.optimizer.learning_rate))
        self.model.optimizer.learning_rate = self.factor * rate


def made(group: str) -> list[Any]:
    own = keras.callbacks
    if group == "swap":
        return [own.SwapEMAWeights(swap_on_epoch=True)]
    if group == "stopping":
        return [own.EarlyStopping("loss", patience=1, restore_best_weights=True, mode="max")]
    if group in ("rate", "steps"):
        return [Rate(1.1 if group == "rate" else 1)]
    return [
        Private(), Averaging(), Records(), Teacher(), Says(), own.LearningRateScheduler(Schedule()),
        own.ReduceLROnPlateau("loss", patience=0, factor=0.7, min_delta=9),
    ]  # fmt: skip
