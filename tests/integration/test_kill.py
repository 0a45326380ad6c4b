"""Killed at any moment and resumed, a run ends with the bits of one that was not.

Real processes and SIGKILL: a task at a random step, at a random operation inside a save, or at a
random moment. 2 runs here, 72 by ``make test-faults``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dtrain.run import checkpoint, journal
from dtrain.run.times import is_of_the_machine
from tests.conftest import Run
from tests.integration.test_failures import processes, until

USER = '''
import functools
import json
import multiprocessing
import os
import pathlib
import signal
import threading
import time

import keras
from keras import layers

from dtrain import datasets

ORDER = pathlib.Path("kill.json")
STOP = pathlib.Path("stop.json")
left = {}  # by moment


def me():
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task")
    return f"{task['type']}-{task['index']}" if task else "chief-0"


def wanted(moment):
    """Return what stop.json orders for a moment of this task, if it does."""
    try:
        order = json.loads(STOP.read_text())
    except FileNotFoundError:
        return None
    return order if order["moment"] == moment else None


def at(moment):
    """Ask for a stop as stop.json says, once, at the count-th such moment."""
    order = wanted(moment)
    if order is None or order["task"] != me():
        return
    left[moment] = left.get(moment, order["count"]) - 1
    if left[moment]:
        return
    STOP.rename("stopped.json")
    os.kill(order["pid"] or os.getpid(), order["signal"])
    if order["hang"]:
        threading.Event().wait()
    asked = signal.getsignal(signal.SIGUSR2).__self__
    while order["heard"] and not asked():  # the controller passes it on
        time.sleep(0.01)


def counted(moment, function):
    def call(*arguments, **options):
        at(moment)
        return function(*arguments, **options)
    return call


@functools.wraps(datasets.synthetic)
def data(**options):
    if multiprocessing.parent_process() is not None:  # a task
        from dtrain.task.model import train_state as state

        state._problem = counted("restoring", state._problem)
        at("dataset")
    return datasets.synthetic(**options)


@keras.saving.register_keras_serializable("mine")
class Traced(layers.Layer):
    """Nothing, but that it is traced."""

    def call(self, x, training=None):
        if not isinstance(x, keras.KerasTensor) and training:
            at("trace")
        return x


def build(input_shape, classes, synchronized=True):
    """Everything that has a state: dropout, batch normalisation."""
    at("model")
    return keras.Sequential([
        keras.Input(input_shape),
        Traced(),
        layers.Conv2D(4, 3),
        layers.BatchNormalization(momentum=0.9, synchronized=synchronized),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(classes, activation="softmax"),
    ])


def die():
    ORDER.rename("killed.json")
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


class Killer(keras.callbacks.Callback):
    """Kills its task as ``kill.json`` says, or stops it as ``stop.json`` says, once."""

    def __init__(self):
        super().__init__()
        self.stops()
        try:
            order = json.loads(ORDER.read_text())
        except FileNotFoundError:
            return
        mine = order["task"] == me()
        if "step" in order:
            steps = order["step"]

            def count(batch, logs=None):
                if self.model.optimizer.iterations == steps and mine:
                    die()

            # A hook for each batch makes calls of one step, in all tasks; elsewhere there is none.
            self.on_train_batch_end = count
        elif mine:
            self.inside(order["operation"])

    def stops(self):
        from dtrain.task.backends.tensorflow.parameter_server.steps import CoordinatedSteps
        from dtrain.task.backends.tensorflow.steps import Steps

        if wanted("training"):
            self.on_train_batch_end = lambda batch, logs=None: at("training")
        for kind in (Steps, CoordinatedSteps):
            kind.evaluate = counted("validation", kind.evaluate)
        keras.Model.save = counted("saving the model", keras.Model.save)
        if wanted("saving"):
            for name in ("open", "write", "fsync", "mkdir", "rename", "replace"):
                setattr(os, name, self.of_the_writer(getattr(os, name)))

    def of_the_writer(self, function):
        def call(*arguments, **options):
            if threading.current_thread().name == "checkpoint":
                at("saving")
            return function(*arguments, **options)
        return call

    def on_train_end(self, logs=None):
        at("the end")

    def inside(self, left):
        """Die at the left-th file operation of the thread that saves."""
        lock = [left]

        def counted(function):
            def call(*arguments, **options):
                if threading.current_thread().name == "checkpoint":
                    lock[0] -= 1
                    if lock[0] == 0:
                        die()
                return function(*arguments, **options)
            return call

        for name in ("open", "write", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir"):
            setattr(os, name, counted(getattr(os, name)))
'''
BASE = (
    "tracking=none",
    "model=custom",
    "model._target_=mine.build",
    "dataset=synthetic",
    "dataset._target_=mine.data",
    "dataset.shape=[8,8,1]",
    "dataset.examples=250",  # passes do not end with epochs
    "dataset.validation_examples=50",
    "dataset.classes=4",
    "+dataset.augment={_target_:dtrain.augment.shift_flip,pixels:1,flip:true}",
    "optimizer.use_ema=true",
    "trainer.batch_size=24",
    "trainer.epochs=4",
    "trainer.log_every_steps=7",
    "trainer.callbacks=[{_target_:keras.callbacks.ReduceLROnPlateau,monitor:val_loss,patience:1,"
    "min_delta:1},{_target_:mine.Killer}]",
    "checkpoint.every_steps=3",
    "checkpoint.keep=2",
    "launcher.stall_timeout=120",
)
STEPS = 40
STRATEGIES = {
    "one_device": ("strategy=one_device",),
    "mirrored": ("strategy=mirrored", "hardware.devices=2"),
    "multiworker": ("strategy=multiworker", "hardware.hosts=2"),
}
#: Undisturbed runs of this process, by strategy: their state, and their seconds of training.
undisturbed: dict[str, tuple[Any, float]] = {}


def state(run: Run) -> Any:
    """Return SHA-256 over every array at the end, all else that was saved, and the curves."""
    found = checkpoint.load(run.rundir.checkpoints / str(STEPS))
    of_this_run = ("interval_seconds", "mlflow_run_id", "steps")  # which worker did what
    meta = {key: value for key, value in found.meta.items() if key not in of_this_run}
    assert {"optimizer/adam/iteration", "callbacks"} <= {*found.arrays, *meta}
    assert any("seed_generator" in name for name in found.arrays)
    assert any(name.endswith("_average") for name in found.arrays)
    points = [
        (e["step"], {k: v for k, v in e["metrics"].items() if not is_of_the_machine(k)})
        for e in run.events("metrics")
    ]
    return checkpoint.digest(found.arrays), meta, points


def seconds(run: Run) -> float:
    """Return how long training took."""
    return run.events("end")[0]["time"] - run.events("start")[0]["time"]


class AtARandomMoment(threading.Thread):
    """Kills a task some time after training has begun, if it is still there."""

    def __init__(self, folder: Path, task: str, delay: float):
        super().__init__(daemon=True)
        self._folder, self._task, self._delay = folder, task, delay
        self.done = threading.Event()
        self.start()

    def _begun(self) -> bool:
        return self.done.is_set() or any(
            event["event"] == "start"
            for path in self._folder.glob("outputs/*/*/journal.jsonl")
            for event in journal.read(path)
        )

    def run(self) -> None:
        until(self._begun, lambda: "no start", 60)
        time.sleep(self._delay)  # the moment is what is tried
        found = processes(self._folder).get(self._task)
        if found is not None and not self.done.is_set():
            os.kill(found, signal.SIGKILL)


def kill(how: str, strategy: str, draw: random.Random, dtrain: Any, folder: Path) -> Run:
    """Start a run that is killed; return it."""
    tasks = ["chief-0", "worker-0"] if strategy == "multiworker" else ["chief-0"]
    task = draw.choice(tasks)
    thread = None
    if how == "moment":
        thread = AtARandomMoment(folder, task, draw.uniform(0, undisturbed[strategy][1]))
    elif how == "step":
        order = {"task": task, "step": draw.randint(1, STEPS - 1)}
    else:
        order = {"task": "chief-0", "operation": draw.randint(1, 150)}
    if thread is None:
        (folder / "kill.json").write_text(json.dumps(order))
    run = dtrain(*BASE, *STRATEGIES[strategy])
    if thread is not None:
        thread.done.set()
        thread.join()
    else:
        assert (folder / "killed.json").exists(), (order, run.output)
        assert run.code == 1, run.output
    return run


def campaign() -> list[Any]:
    """Return (strategy, how, seed): 2 for ``make test``, 72 for the campaign."""
    hows = ("step", "save", "moment")
    short = [("one_device", "save", 0), ("multiworker", "moment", 0)]
    long = [(s, h, seed) for s in STRATEGIES for h in hows for seed in range(100, 108)]
    return [pytest.param(*each, id="-".join(map(str, each))) for each in short] + [
        pytest.param(*each, id="-".join(map(str, each)), marks=pytest.mark.faults) for each in long
    ]


@pytest.mark.parametrize(("strategy", "how", "seed"), campaign())
def test_the_bits_are_those_of_an_undisturbed_run(
    strategy: str, how: str, seed: int, dtrain, user_code, tmp_path: Path
) -> None:
    user_code(USER)
    if strategy not in undisturbed:
        whole = dtrain(*BASE, *STRATEGIES[strategy])
        assert whole.code == 0, whole.output
        undisturbed[strategy] = state(whole), seconds(whole)
        os.rename("outputs", "whole")
    draw = random.Random(f"{strategy} {how} {seed}")
    killed = kill(how, strategy, draw, dtrain, tmp_path)
    saved = checkpoint.steps(killed.rundir.checkpoints)
    about = f"resumed from {saved}\n{killed.output}"
    resumed = killed if killed.code == 0 else dtrain(f"resume={killed.rundir.path}")
    assert resumed.code == 0, about + resumed.output
    assert state(resumed) == undisturbed[strategy][0], about
    assert resumed.result["examples"] == STEPS * 24
    assert resumed.result["epoch_examples"] == [240] * 4
    left = {path.name for path in resumed.rundir.checkpoints.iterdir()}
    assert left >= {str(STEPS), "latest"}
    assert len(left) <= 4, "the newest two, the best, the pointer"
