"""Where a run begins, and what of another run's checkpoint still means something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.configs import parsed
from tests.test_steps import prepare, settings

#: Keys of identity.fixed() that leave the position in the data what it is.
ELSEWHERE = (
    "model", "optimizer", "seed", "trainer.loss", "trainer.metrics", "trainer.callbacks",
    "hardware.precision",
)  # fmt: skip
ARRAYS = (
    "model/dense/kernel",
    "optimizer/adam/iteration",
    "optimizer/adam/learning_rate",
    "optimizer/adam/dense_kernel_velocity",
    "sums/epoch/0",
    "callbacks/0/0",
)


def prints(**others: str) -> dict[str, str]:
    """Return fingerprints, those of ``others`` of another configuration."""
    from dtrain.run import identity

    given = {key.replace("__", "."): value for key, value in others.items()}
    assert given.keys() <= set(identity.fixed())
    return dict.fromkeys(identity.fixed(), "same") | given


def saved(**meta: Any) -> Any:
    """Return a checkpoint in the middle of an epoch."""
    import numpy as np

    from dtrain.run.checkpoint import Checkpoint

    position = {
        "config": prints(), "versions": {}, "callbacks": [{"wait": 1}], "logs": {"loss": 1.5},
        "objective": 0.5, "examples": 48, "interval_seconds": 2.5, "steps": {},
        "began": {"values": [], "learning_rate": None},
        "interval": {"returned": {}, "examples": 8}, "epoch": {"returned": {}, "examples": 16},
    }  # fmt: skip
    arrays = {name: np.ones(2) for name in ARRAYS}
    return Checkpoint(6, Path("/runs/a/checkpoints/6"), arrays, {**position, **meta})


@pytest.mark.task
def test_with_nothing_changed_all_is_kept() -> None:
    from dtrain.task.train import restore

    past = saved()
    found, told = restore.adopt(past, prints())
    assert (found.step, found.arrays, found.meta) == (past.step, past.arrays, past.meta)
    assert found.path == past.path
    assert told == "forked from step 6 of /runs/a: continues from there"
    assert restore.has_position(found)


@pytest.mark.task
@pytest.mark.parametrize("key", ["dataset", "trainer__batch_size", "trainer__steps_per_epoch"])
def test_on_other_data_the_weights_alone(key: str) -> None:
    from dtrain.task.train import restore

    past = saved()
    found, told = restore.adopt(past, prints(optimizer="other", **{key: "other"}))
    assert (found.step, list(found.arrays), found.meta) == (0, ["model/dense/kernel"], {})
    name = key.replace("__", ".")
    assert (
        told == f"forked from step 6 of /runs/a: with its weights, at step 0 of other data ({name})"
    )
    assert not restore.has_position(found)
    assert len(past.arrays) == len(ARRAYS) and past.meta["examples"] == 48, "nothing is changed"


@pytest.mark.task
@pytest.mark.parametrize("key", ELSEWHERE)
def test_what_another_configuration_drops(key: str) -> None:
    from dtrain.task.train import restore

    past = saved()
    found, told = restore.adopt(past, prints(**{key: "other"}))
    assert told == f"forked from step 6 of /runs/a: continues from there with other {key}"
    assert (found.step, found.meta["examples"]) == (6, 48)
    dropped = {
        "optimizer": {"optimizer/adam/learning_rate"},
        "trainer.callbacks": {"callbacks/0/0"},
        "trainer.loss": {"sums/epoch/0"},
        "trainer.metrics": {"sums/epoch/0"},
        "model": {"sums/epoch/0"},
    }.get(key, set())
    assert set(ARRAYS) - found.arrays.keys() == dropped
    changed = {name for name in past.meta if past.meta[name] != found.meta.get(name)}
    if "sums/epoch/0" in dropped:
        assert changed == {"interval", "interval_seconds", "epoch", "logs", "objective"}
        assert found.meta["epoch"] == found.meta["interval"] == {"returned": {}, "examples": 0}
        assert (found.meta["logs"], found.meta["objective"]) == ({}, None)
        assert found.meta["interval_seconds"] == 0
    else:
        assert changed == ({"callbacks", "began"} if key == "trainer.callbacks" else set())
        assert found.meta["callbacks"] == ([] if changed else [{"wait": 1}])


@pytest.mark.task
def test_several_changes_at_once() -> None:
    from dtrain.task.train import restore

    found, told = restore.adopt(saved(), prints(optimizer="b", trainer__metrics="b", seed="b"))
    assert told.endswith("continues from there with other optimizer, seed, trainer.metrics")
    assert len(found.arrays) == len(ARRAYS) - 2
    _, told = restore.adopt(saved(), prints(dataset="b", trainer__batch_size="b"))
    assert told.endswith("at step 0 of other data (dataset, trainer.batch_size)")


# --- which checkpoint


def searched(folder: Path, fork: Path | None = None) -> tuple[Any, list[str]]:
    """Return what a run in ``folder`` begins with, and what it tells."""
    from dtrain.run import journal
    from dtrain.run.folder import RunDir
    from dtrain.task.train import restore

    rundir = RunDir(folder)
    rundir.path.mkdir(exist_ok=True)
    writer = journal.Journal(rundir.journal)
    config = parsed({"backend": "tensorflow", "fork": None if fork is None else str(fork)})
    try:
        found = restore.find(rundir, config, writer)
    finally:
        writer.close()
    events = journal.read(rundir.journal)
    rundir.journal.unlink()
    return found, [event["message"] for event in events if event["event"] == "notice"]


def keep(folder: Path, step: int, **meta: Any) -> Path:
    """Save a checkpoint of the configuration that :func:`searched` has."""
    import numpy as np

    from dtrain.run import checkpoint, identity

    about = {"config": identity.fingerprints(parsed({})), **meta}
    checkpoint.save(folder / "checkpoints", step, {"a": np.ones(3)}, about)
    return folder / "checkpoints" / str(step)


@pytest.mark.task
def test_a_run_begins_at_its_own_newest_checkpoint(tmp_path: Path) -> None:
    assert searched(tmp_path / "run") == (None, [])
    first, last = keep(tmp_path / "run", 4), keep(tmp_path / "run", 8)
    found, told = searched(tmp_path / "run")
    assert (found.path, told) == (last, [])
    (last / "state.safetensors").write_bytes(b"")
    found, [told] = searched(tmp_path / "run")
    assert found.path == first
    assert told.startswith(f"passed over a checkpoint: {last}/state.safetensors has 0 bytes")


@pytest.mark.task
def test_a_fork_begins_at_the_origin_until_it_has_its_own(tmp_path: Path) -> None:
    from dtrain.errors import CheckpointError

    pinned = keep(tmp_path / "a", 4)
    keep(tmp_path / "a", 8)  # since
    found, told = searched(tmp_path / "b", pinned)
    assert (found.path, found.step) == (pinned, 4)
    assert told == [f"forked from step 4 of {tmp_path}/a: continues from there"]
    own = keep(tmp_path / "b", 6)
    found, told = searched(tmp_path / "b", pinned)
    assert (found.path, told) == (own, [])
    (pinned / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=f"{pinned}/manifest.json cannot be read"):
        searched(tmp_path / "c", pinned)


@pytest.mark.task
def test_other_versions_are_told(tmp_path: Path) -> None:

    from dtrain.run import identity

    now = identity.versions("tensorflow")
    pinned = keep(tmp_path / "a", 4, versions={**now, "keras": "3.0", "gone": "1"})
    for folder, fork in (("a", None), ("b", pinned)):
        _, told = searched(tmp_path / folder, fork)
        assert told[-2:] == [
            f"the checkpoint was made with keras 3.0, and this is {now['keras']}: "
            "the last digits may differ",
            "the checkpoint was made with gone 1, and this is None: the last digits may differ",
        ]
        assert len(told) == (2 if fork is None else 3)
    keep(tmp_path / "a", 8, versions=now)
    assert searched(tmp_path / "a")[1] == []
    keep(tmp_path / "a", 9, versions=identity.versions("jax"))
    assert searched(tmp_path / "a")[1] == [
        "the checkpoint was made with JAX, and this is TensorFlow: numbers differ by rounding, and "
        "what is drawn (dropout) is drawn anew"
    ]


# --- into the variables

EMA = {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01, "use_ema": True}
SGD = {"_target_": "keras.optimizers.SGD", "learning_rate": 0.1, "momentum": 0.9, "use_ema": True}


def fresh(optimizer: Any = None, **changed: Any) -> tuple[Any, Any, Any]:
    """Return (model, strategy, steps) with the names that they have in a process of their own."""
    import keras

    keras.utils.clear_session()
    given = {"optimizer": optimizer} if optimizer else {}
    return prepare("OneDevice", 1, settings(**given, **changed))[:3]


def snapshot(optimizer: Any = None) -> tuple[Any, Any, Any]:
    """Return (model, strategy, state) after three steps."""
    from dtrain.task.model import train_state

    model, strategy, steps = fresh(optimizer)
    steps.train(3)
    return model, strategy, train_state.snapshot(model, strategy)


def schedule() -> Any:
    """Return that of a run of 10 epochs of 10 steps."""
    from dtrain.task.train.step_schedule import Schedule

    return Schedule(
        epochs=10, steps_per_epoch=10, global_batch=8, log_every=1, validation_examples=0,
        validation_freq=1, checkpoint_epochs=None, checkpoint_steps=None, checkpoint_seconds=None,
        terminate_on_nan=True,
    )  # fmt: skip


def put(arrays: Any, folder: Path, optimizer: Any = None, **changed: Any) -> tuple[Any, Any]:
    """Fork ``arrays``, of step 3, into a new model; return its state before and after."""
    from dtrain.run.checkpoint import Checkpoint
    from dtrain.run.folder import RunDir
    from dtrain.task.model import train_state
    from dtrain.task.train import restore

    model, strategy, _ = fresh(optimizer, **changed)
    before = {n: a.copy() for n, a in train_state.snapshot(model, strategy).items()}
    past = Checkpoint(3, Path("/runs/a/checkpoints/3"), arrays, {})
    restore.restore(past, model, strategy, RunDir(folder), schedule())
    return before, train_state.snapshot(model, strategy)


def averages(model: Any, arrays: Any) -> list[tuple[str, str]]:
    """Return the name of each average in ``arrays`` with that of its weight."""
    found = [name for name in arrays if name.endswith("_average")]
    weights = [f"model/{weight.path}" for weight in model.trainable_variables]
    return list(zip(found, weights, strict=True))


@pytest.mark.task
def test_the_same_optimizer_goes_on(tmp_path: Path) -> None:
    import numpy as np

    _, _, arrays = snapshot()
    _, after = put(arrays, tmp_path)
    assert after.keys() == arrays.keys()
    assert all(np.array_equal(after[name], arrays[name]) for name in arrays)

    less = {name: a for name, a in arrays.items() if not name.endswith("learning_rate")}
    rate = {"_target_": "keras.optimizers.Adam", "learning_rate": 0.5}
    _, after = put(less, tmp_path, rate)
    assert after["optimizer/adam/learning_rate"] == np.float32(0.5)
    assert all(np.array_equal(after[name], arrays[name]) for name in less)


@pytest.mark.task
def test_another_optimizer_begins_at_the_same_iteration(tmp_path: Path) -> None:
    import numpy as np

    model, _, arrays = snapshot()
    before, after = put(arrays, tmp_path, SGD)
    begun = dict(averages(model, after))
    assert len(begun) == 4
    for name, array in after.items():
        if name == "optimizer/sgd/iteration":
            assert array == 3
        else:
            kept = begun.get(name, name)
            expected = arrays[kept] if kept.startswith("model/") else before[name]
            assert np.array_equal(array, expected), name


@pytest.mark.task
def test_from_averages_to_averages_of_another_optimizer(tmp_path: Path) -> None:
    import numpy as np

    model, _, arrays = snapshot(EMA)
    _, after = put(arrays, tmp_path, SGD)
    for name, weight in averages(model, after):
        assert np.array_equal(after[name], arrays[weight]), name


@pytest.mark.task
@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_gradients_that_accumulate_from_now_on(kind: str, tmp_path: Path) -> None:
    """What Keras calls ``iterations`` is no variable then."""
    _, _, arrays = snapshot()
    optimizer = {"_target_": f"keras.optimizers.{kind}", "gradient_accumulation_steps": 2}
    _, after = put(arrays, tmp_path, optimizer)
    assert after[f"optimizer/{kind.lower()}/iteration"] == 3
    assert not any(array.any() for name, array in after.items() if "accumulator" in name)


@pytest.mark.task
def test_averages_begin_at_the_weights_and_go_on(tmp_path: Path) -> None:
    import numpy as np

    model, _, arrays = snapshot()
    _, after = put(arrays, tmp_path, EMA)
    for name, weight in averages(model, after):
        assert np.array_equal(after[name], arrays[weight])
    assert np.array_equal(
        after["optimizer/adam/dense_kernel_velocity"],
        arrays["optimizer/adam/dense_kernel_velocity"],
    )

    _, _, arrays = snapshot(EMA)
    less = {name: a for name, a in arrays.items() if not name.endswith("learning_rate")}
    _, after = put(less, tmp_path, EMA)
    assert all(np.array_equal(after[name], arrays[name]) for name, _ in averages(model, after))


@pytest.mark.task
def test_the_weights_alone_leave_the_optimizer_as_it_is(tmp_path: Path) -> None:
    import numpy as np

    _, _, arrays = snapshot(EMA)
    weights = {name: a for name, a in arrays.items() if name.startswith("model/")}
    before, after = put(weights, tmp_path, EMA)
    for name, array in after.items():
        assert np.array_equal(array, weights.get(name, before[name])), name


@pytest.mark.task
def test_another_model_is_refused(tmp_path: Path) -> None:
    from dtrain.errors import CheckpointError, UsageError
    from dtrain.run.checkpoint import Checkpoint
    from dtrain.run.folder import RunDir
    from dtrain.task.train import restore

    model, strategy, arrays = snapshot()
    for units, problem in (
        ([6], "model/dense/kernel has shape (4, 6) and the checkpoint's (4, 5)"),
        ([5, 5], "model/dense_1/kernel has shape (5, 5) and the checkpoint's (5, 3)"),
        ([], "model/dense/kernel has shape (4, 3) and the checkpoint's (4, 5)"),
    ):
        with pytest.raises(UsageError) as caught:
            put(arrays, tmp_path, model={"_target_": "dtrain.models.mlp", "units": units})
        assert str(caught.value) == (
            f"fork=/runs/a/checkpoints/3: {problem}: it is of another model; accepted: "
            "a checkpoint of a model with the same weights; hint: "
            "python -m dtrain checkpoint /runs/a/checkpoints/3 to see its weights"
        )
    # A run's own checkpoint is not the user's mistake.
    rundir = RunDir(tmp_path)
    with pytest.raises(CheckpointError, match=r"the checkpoint has no .*: it is of another model"):
        past = Checkpoint(3, rundir.checkpoints / "3", {}, {})
        restore.restore(past, model, strategy, rundir, schedule())


@pytest.mark.task
def test_a_fork_that_would_end_where_it_begins() -> None:
    from dtrain.errors import UsageError
    from dtrain.run.checkpoint import Checkpoint
    from dtrain.run.folder import RunDir
    from dtrain.task.train import restore

    past = Checkpoint(100, Path("/runs/a/checkpoints/100"), {}, {})
    with pytest.raises(UsageError) as caught:
        restore.restore(past, None, None, RunDir("/runs/b"), schedule())
    assert str(caught.value) == (
        "trainer.epochs=10: the fork begins after 10 epochs; accepted: 11 or more; "
        "type: trainer.epochs=20"
    )


@pytest.mark.task
def test_a_run_holds_no_file_of_the_checkpoint_that_it_began_with(tmp_path: Path) -> None:
    import numpy as np

    from dtrain.run import checkpoint
    from dtrain.task.train import restore

    arrays = {"model/kernel": np.ones([64, 64]), "sums/epoch": np.arange(3.0)}
    restored = checkpoint.load(checkpoint.save(tmp_path, 1, arrays, {}))
    restore.release(restored)
    assert [*restored.arrays] == ["sums/epoch"]
    assert restored.arrays["sums/epoch"].flags.owndata
