"""Models of the zoo are killed while they train, and end with the bits of an undisturbed run.

What each adds to a plain model must be in the checkpoint: a second optimizer's slots, seeds that a
step draws from, trackers, weights that are not trained. ``make test-faults`` runs all of them, and
each model of the zoo once by the command.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.run import checkpoint
from dtrain.run.times import is_of_the_machine
from tests.conftest import Run
from tests.integration.test_kill import STRATEGIES
from tests.sampled import sampled
from tests.test_zoo import NAMES, declared

USER = '''
import json
import os
import pathlib
import signal
import threading

import keras

ORDER = pathlib.Path("kill.json")


def me():
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task")
    return f"{task['type']}-{task['index']}" if task else "chief-0"


class Killer(keras.callbacks.Callback):
    """Kills the task that kill.json names after the step that it names, once.

    It counts by itself: of several optimizers none may be that of ``compile``.
    """

    def __init__(self):
        super().__init__()
        try:
            order = json.loads(ORDER.read_text())
        except FileNotFoundError:
            return
        steps = 0

        def count(batch, logs=None):
            nonlocal steps
            steps += 1
            if order == {"task": me(), "step": steps}:
                ORDER.rename("killed.json")
                os.kill(os.getpid(), signal.SIGKILL)
                threading.Event().wait()

        # A hook for each batch makes calls of one step, in all tasks; elsewhere there is none.
        self.on_train_batch_end = count
'''
STEPS, PER_EPOCH = 32, 8
BASE = (
    "tracking=none",
    "dataset=custom",
    "model=custom",
    "optimizer=sgd",
    "optimizer.learning_rate=0.02",
    f"trainer.epochs={STEPS // PER_EPOCH}",
    "trainer.batch_size=12",
    "trainer.log_every_steps=5",
    "trainer.callbacks=[{_target_:mine.Killer}]",
    "checkpoint.every_steps=3",
    "checkpoint.keep=2",
    "launcher.stall_timeout=120",
)
CLASSES = ("trainer.loss=sparse_categorical_crossentropy", "trainer.metrics=[accuracy]")
#: By model its data and overrides, and parts of names that its checkpoints have.
MODELS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "gan": (
        "alone",
        (),
        ("^optimizer/d_optimizer/.*momentum", "^optimizer/g_optimizer/.*momentum",
         "^optimizer/g_optimizer/.*iteration", "seed_generator"),
    ),
    "sam": ("points", CLASSES, ("^optimizer/.*momentum", "^optimizer/.*iteration")),
    "vae": ("alone", (), ("^optimizer/.*momentum", "seed_generator")),
    "unet": ("masks", (), ("^optimizer/.*momentum", "^model/.*conv2d_transpose")),
    # The teacher, which has no slots, and the student, which has.
    "distiller": ("points", CLASSES, ("^model/dense.*kernel", "^optimizer/.*momentum")),
    # An optimizer that holds two.
    "grouped_optimizers": (
        "points", (), ("^optimizer/groups/0/1/.*momentum", "^optimizer/groups/1/1/.*iteration")
    ),
}  # fmt: skip
FEW = [("sam", "mirrored")]


def overrides(model: str, strategy: str) -> tuple[str, ...]:
    data, own, _ = MODELS[model]
    return (
        *BASE,
        *own,
        *STRATEGIES[strategy],
        f"model._target_=tests.zoo.{model}.model",
        f"dataset._target_=tests.zoo.data.{data}",
    )


def state(run: Run) -> tuple[Any, Any, Any]:
    """Return the bits of every array at the end, all else that was saved, and the curves."""
    found = checkpoint.load(run.rundir.checkpoints / str(STEPS))
    of_this_run = ("interval_seconds", "mlflow_run_id", "steps")
    meta = {key: value for key, value in found.meta.items() if key not in of_this_run}
    points = [
        (e["step"], {k: v for k, v in e["metrics"].items() if not is_of_the_machine(k)})
        for e in run.events("metrics")
    ]
    return {k: (v.dtype.str, v.tobytes()) for k, v in found.arrays.items()}, meta, points


@pytest.mark.parametrize(
    ("model", "strategy"), sampled([(m, s) for m in MODELS for s in STRATEGIES], *FEW)
)
def test_a_killed_model_ends_with_the_same_bits(
    model: str, strategy: str, dtrain, user_code, tmp_path: Path, monkeypatch
) -> None:
    user_code(USER)
    monkeypatch.setenv("DTRAIN_TRUST", "mine,tests")
    of = overrides(model, strategy)
    whole = dtrain(*of)
    assert whole.code == 0, whole.output
    draw = random.Random(f"{model} {strategy}")
    # In an epoch, when a checkpoint has been written and trackers have begun to add up.
    step = draw.choice([n for n in range(9, STEPS) if n % PER_EPOCH > 3])
    task = draw.choice(["chief-0", "worker-0"] if strategy == "multiworker" else ["chief-0"])
    (tmp_path / "kill.json").write_text(json.dumps({"task": task, "step": step}))
    killed = dtrain(*of)
    assert (tmp_path / "killed.json").exists(), killed.output
    assert killed.code == 1, killed.output
    # Killed as it wrote one it may have left that too, which does not count yet.
    saved, _ = checkpoint.newest(killed.rundir.checkpoints)
    assert saved is not None and 0 < saved.step <= step
    arrays = saved.arrays
    for name in MODELS[model][2]:
        kept = [of_one for of_one in arrays if re.search(name, of_one)]
        assert kept, (name, sorted(arrays))
        assert any(arrays[of_one].any() for of_one in kept), f"{name}: all zeros after training"
    resumed = dtrain(f"resume={killed.rundir.path}")
    assert resumed.code == 0, resumed.output
    assert resumed.events("start")[-1]["step"] == saved.step
    for run in (whole, resumed):
        assert run.rundir.model.exists() or run.rundir.weights.exists()
    expected, found = state(whole), state(resumed)
    assert found[0].keys() == expected[0].keys()
    assert [name for name, bits in expected[0].items() if found[0][name] != bits] == []
    assert found[1:] == expected[1:]
    assert resumed.result["epoch_examples"] == [PER_EPOCH * 12] * (STEPS // PER_EPOCH)


def typed(value: Any) -> str:
    """Return a value as an override has it."""
    if isinstance(value, dict):
        items = ",".join(f"{key}:{typed(item)}" for key, item in value.items())
        return f"{{{items}}}"
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    return str(value)


@pytest.mark.parametrize("model", sampled(NAMES))
def test_every_model_trains_by_the_command(model: str, dtrain, monkeypatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tests")
    trainer = declared(model, "TRAINER", {})
    run = dtrain(
        *(each for each in BASE if not each.startswith(("trainer.callbacks", "trainer.epochs"))),
        *(f"trainer.{key}={typed(value)}" for key, value in trainer.items()),
        *STRATEGIES["mirrored"],
        "trainer.epochs=2",
        "objective=loss",
        f"model._target_=tests.zoo.{model}.model",
        f"dataset._target_=tests.zoo.data.{declared(model, 'DATA', 'points')}",
    )
    if (refusal := declared(model, "REFUSED", {}).get("mirrored 4")) is not None:
        assert run.code == 2 and refusal in run.output, run.output
        return
    assert run.code == 0, run.output
    assert run.result["step"] == 2 * PER_EPOCH
    assert run.rundir.model.exists() or run.rundir.weights.exists()


@pytest.fixture
def busy() -> Iterator[None]:
    """Keep the cores busy, so that threads overtake each other otherwise each time."""
    spin = "import time\nwhile time.monotonic() < {until}: pass"
    others = [
        subprocess.Popen([sys.executable, "-c", spin.format(until=time.monotonic() + 600)])
        for _ in range(2)
    ]
    yield
    for other in others:
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    ("model", "strategy"), sampled([(m, s) for m in NAMES[::6] for s in ("one_device", "mirrored")])
)
def test_bits_do_not_depend_on_threads(model: str, strategy: str, dtrain, busy, monkeypatch):
    monkeypatch.setenv("DTRAIN_TRUST", "tests")
    refusals = declared(model, "REFUSED", {})
    if strategy == "mirrored" and ("mirrored" in refusals or "mirrored 4" in refusals):
        pytest.skip("refused, as test_every_model_trains_by_the_command sees")
    trainer = declared(model, "TRAINER", {})
    epochs = 25 if model == "gan" else 60  # which is not finite any more after 29
    of = (
        *(each for each in BASE if not each.startswith(("trainer.callbacks", "trainer.epochs"))),
        *(f"trainer.{key}={typed(value)}" for key, value in trainer.items()),
        *STRATEGIES[strategy],
        f"trainer.epochs={epochs}",
        "trainer.log_every_steps=100",
        "checkpoint.every_steps=1000",
        "objective=loss",
        f"model._target_=tests.zoo.{model}.model",
        f"dataset._target_=tests.zoo.data.{declared(model, 'DATA', 'points')}",
    )
    first, second = dtrain(*of), dtrain(*of)
    assert first.code == second.code == 0, first.output
    bits = [
        {name: array.tobytes() for name, array in found.arrays.items()}
        for run in (first, second)
        for found in [checkpoint.load(run.rundir.checkpoints / str(epochs * PER_EPOCH))]
    ]
    assert [name for name in bits[0] if bits[0][name] != bits[1][name]] == []
