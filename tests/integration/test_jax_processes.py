"""JAX and PyTorch in several processes: numbers of one device, deaths, stops, resumed runs."""

from __future__ import annotations

import importlib.util
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtrain.errors import INTERRUPTED
from dtrain.run import checkpoint
from dtrain.run.cluster import Cluster, Task
from tests.conftest import Run
from tests.sampled import sampled
from tests.test_strategies import together

MODEL = '''
import os
import signal

import keras
import numpy as np
from keras import layers

if keras.backend.backend() == "jax":
    from jax import process_index as rank
    from dtrain.task.backends.jax.hardware import Processes
else:
    from torch import distributed
    from dtrain.task.backends.torch.hardware import Processes

    def rank():
        return distributed.get_rank() if distributed.is_initialized() else 0


def smooth(input_shape, classes):
    """Batch statistics and dropout of the global batch, without a kink."""
    return keras.Sequential([
        keras.Input(input_shape),
        layers.Flatten(),
        layers.Dense(16, activation="tanh"),
        layers.BatchNormalization(momentum=0.9),
        # On PyTorch each process draws its own.
        layers.Dropout(0.3 if keras.backend.backend() == "jax" else 0.0),
        layers.Dense(16, activation="gelu"),
        layers.Dense(classes, activation="softmax"),
    ])


class Harm(keras.callbacks.Callback):
    """In the second epoch the worker dies, once; in the third it is asked to stop, once."""

    def on_train_begin(self, logs=None):
        tasks = Processes()
        assert tasks.sum([0.1, 2.0**60 * tasks.rank]) == [0.2, 2.0**60]
        assert tasks.gather(["é" * tasks.rank]) == [[""], ["é"]]
        pieces = [b"abc", b"x" * (5 << 20)]
        assert b"".join(tasks.broadcast(pieces)) == b"".join(pieces * tasks.rank)

    def on_epoch_begin(self, epoch, logs=None):
        number = {1: signal.SIGKILL, 2: signal.SIGTERM}.get(epoch)
        if number and rank() == 1 and not os.path.exists(str(epoch)):
            open(str(epoch), "w").close()
            os.kill(os.getpid(), number)


class Asks(keras.callbacks.Callback):
    """Keras' own evaluation in the middle of a training, of one process and of all."""

    def on_epoch_end(self, epoch, logs=None):
        x, y = np.ones([3, 8, 8, 1], "float32"), np.arange(3)
        logs["asked"] = self.model.evaluate(x, y, verbose=0, return_dict=True)["loss"]
        if rank() == 0:
            self.model.predict(x, verbose=0)
'''
BASE = (
    "tracking=none", "dataset=digits", "model=custom", "model._target_=mine.smooth",
    "trainer.batch_size=32", "trainer.steps_per_epoch=10", "trainer.epochs=5",
    "trainer.log_every_steps=1", "launcher.stall_timeout=120",
)  # fmt: skip


def numbers(run: Run) -> dict[str, dict[int, float]]:
    names = ("loss", "accuracy", "val_loss", "val_accuracy", "asked")
    return {name: run.points(name) for name in names}


def bits(run: Run) -> Any:
    assert run.rundir is not None
    saved, problems = checkpoint.newest(run.rundir.checkpoints)
    assert saved is not None and not problems
    return saved.step, checkpoint.digest(saved.arrays)


#: How two processes begin, and how a fork of theirs goes on, by backend.
PROCESSES = {
    "jax": (["strategy=multiworker", "hardware.hosts=2"], ["strategy=fsdp", "hardware.hosts=2"]),
    "torch": (["strategy=mirrored", "hardware.devices=2"],
              ["strategy=multiworker", "hardware.hosts=2", "hardware.devices=1"]),
}  # fmt: skip


@pytest.mark.parametrize("backend", sampled(PROCESSES, "jax"))
def test_two_processes_are_one_device_whatever_happens_to_them(
    backend: str, dtrain, user_code
) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    user_code(MODEL)
    base, (begin, others) = (*BASE, f"backend={backend}"), PROCESSES[backend]
    asks, harm = (f"trainer.callbacks=[{{_target_:mine.{name}}}]" for name in ("Asks", "Harm"))
    one = dtrain(*base, "strategy=one_device", asks)
    assert one.code == 0, one.output
    two = dtrain(*base, *begin, asks)
    assert two.code == 0, two.output
    expected = numbers(one)
    assert len(expected["loss"]) == 50 and len(expected["asked"]) == 5
    for name, points in numbers(two).items():
        assert points == pytest.approx(expected[name], abs=1e-5), name
    # The validation's 359 examples are no multiple of the batch, nor its rest of the processes.
    assert two.events("end")[0]["evaluated_examples"] == 359

    stopped = dtrain(*base, *begin, harm, "launcher.max_restarts=1")
    assert stopped.code == INTERRUPTED, stopped.output
    assert "worker-0: ended by SIGKILL" in stopped.output
    assert "worker-0 was asked to stop: saving a checkpoint" in stopped.output
    forked = dtrain(*base, *others, f"fork={stopped.rundir.path}")
    assert forked.code == 0 and forked.rundir.model.exists(), forked.output
    resumed = dtrain(f"resume={stopped.rundir.path}")
    assert resumed.code == 0, resumed.output
    assert bits(resumed) == bits(two)
    for name in ("loss", "val_loss"):
        assert resumed.points(name) == two.points(name)
        rest = forked.points(name)
        assert rest == pytest.approx({step: expected[name][step] for step in rest}, abs=1e-5)
    assert 0 < len(rest) < 5


def in_parts(cluster: Cluster, task: Task, devices: list[str]) -> list[float]:
    """Save and restore a model in parts; return shares of its bytes that were held at once."""
    import keras
    import numpy as np

    from dtrain.run.checkpoint import Checkpoint
    from dtrain.task.strategies import FullySharded
    from dtrain.task.train import restore

    keras.utils.set_random_seed(1)
    strategy = FullySharded(devices)
    with strategy.scope():
        layers = [keras.layers.Dense(1024, name=f"layer{number}") for number in range(8)]
        model = keras.Sequential([keras.Input([1024]), *layers])
    variables = {f"model/{variable.path}": variable for variable in model.variables}
    before = strategy.read(variables)
    chief = Checkpoint(1, Path("of the chief"), before, {}) if strategy.tasks.rank == 0 else None
    whole, peaks = sum(array.nbytes for array in before.values()), []

    def measured(call: Callable[[], Any]) -> Any:
        tracemalloc.start()
        value = call()
        peaks.append(tracemalloc.get_traced_memory()[1] / whole)
        tracemalloc.stop()
        return value

    received = measured(lambda: restore.of_chief(strategy, chief))
    for variable in model.variables:
        variable.assign(0 * variable.value)
    measured(lambda: strategy.write(variables, received.arrays))
    after = measured(lambda: strategy.read(variables))
    assert all(np.array_equal(after[name], array) for name, array in before.items())
    assert any(array.any() for array in after.values())
    return peaks


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax")
def test_no_process_holds_all_of_what_is_in_parts() -> None:
    """A matrix is an eighth of the whole; a half of all, its own, a process holds once restored."""
    tasks = [Task("chief", 0, 2), Task("worker", 0, 2)]
    for peaks in together(in_parts, tasks, 4, backend="jax"):
        assert all(peak < most for peak, most in zip(peaks, (0.1, 0.7, 0.3), strict=True)), peaks
