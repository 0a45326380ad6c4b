from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.test_callbacks import tiny
from tests.test_steps import BATCH, prepare, settings


class Clock:
    """The time of a test: it goes on when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = time = perf_counter


class Scripted:
    """Stands in for ``Steps``: a step takes ``seconds`` of the clock, the loss is as told.

    ``calls`` are the steps of each call; ``evaluated`` likewise, with the rest.
    """

    def __init__(
        self,
        clock: Clock,
        seconds: float = 0.001,
        loss: Callable[[int], float] = float,
        start: int = 0,
    ):
        self.clock = clock
        self.seconds = seconds
        self.loss = loss
        self.step = start
        self.calls: list[int] = []
        self.evaluated: list[tuple[int, int]] = []

    def train(self, steps: int, ahead: int = 0) -> Any:
        from dtrain.task.steps import Sums

        self.calls.append(steps)
        losses = [self.loss(self.step + i) for i in range(1, steps + 1)]
        self.step += steps
        self.clock.now += steps * self.seconds
        return Sums([], {"loss": sum(losses) * BATCH}, steps * BATCH, steps)

    def settle(self) -> Any:
        from dtrain.task.steps import Sums

        return Sums()

    def interval(self) -> dict[str, float]:
        return {}

    summary = interval

    def restore(self, summary: Any) -> None:
        assert summary == {}

    def evaluate(self, steps: int, rest: int) -> Any:
        from dtrain.task.steps import Sums

        self.evaluated.append((steps, rest))
        self.clock.now += (steps + bool(rest)) * self.seconds
        examples = steps * BATCH + rest
        return Sums([], {"loss": 100.0 * examples}, examples)

    def results(self, sums: Any) -> dict[str, float]:
        return {name: value / sums.examples for name, value in sums.returned.items()}

    @property
    def ends(self) -> list[int]:
        """The steps at which the host was back."""
        return [sum(self.calls[: i + 1]) for i in range(len(self.calls))]


@dataclasses.dataclass
class Trained:
    """One loop and what it wrote."""

    folder: Path
    steps: Any
    model: Any
    loop: Any

    def points(self, name: str) -> dict[int, float]:
        from dtrain import journal

        return {
            e["step"]: e["metrics"][name]
            for e in journal.read(self.folder / "journal.jsonl")
            if e["event"] == "metrics" and name in e["metrics"]
        }

    @property
    def saved(self) -> list[int]:
        from dtrain import checkpoint

        return checkpoint.steps(self.folder / "checkpoints")

    @property
    def newest(self) -> Any:
        from dtrain import checkpoint

        return checkpoint.newest(self.folder / "checkpoints")[0]

    @property
    def progress(self) -> Any:
        from dtrain.rundir import read_json

        return read_json(self.folder / "progress.json")


def looped(
    folder: Path,
    steps: Any = None,
    model: Any = None,
    strategy: Any = None,
    callbacks: Any = (),
    stopping: Callable[[], bool] = lambda: False,
    profile: tuple[int, int] | None = None,
    **schedule: Any,
) -> Trained:
    """Make a loop of 2 epochs of 10 steps that saves nothing but the end."""
    from dtrain.checkpoint import Writer
    from dtrain.journal import Journal
    from dtrain.rundir import RunDir
    from dtrain.task import loop
    from dtrain.task.callbacks import Callbacks
    from dtrain.task.records import Records
    from dtrain.task.strategies import Default
    from dtrain.task.summaries import Summaries

    if isinstance(steps, Scripted):
        loop.time = steps.clock  # this process ends with the test
    plan = loop.Schedule(
        **{
            "epochs": 2,
            "steps_per_epoch": 10,
            "global_batch": BATCH,
            "log_every": 5,
            "validation_examples": 0,
            "validation_freq": 1,
            "checkpoint_epochs": None,
            "checkpoint_steps": None,
            "checkpoint_seconds": None,
            "objective": "loss",
            "terminate_on_nan": True,
            **schedule,
        }
    )
    folder.mkdir(exist_ok=True)
    rundir = RunDir(folder)
    model = tiny() if model is None else model
    made = loop.Loop(
        model,
        Default([]) if strategy is None else strategy,
        steps,
        plan,
        Callbacks(list(callbacks), model, plan.epochs, plan.steps_per_epoch),
        Records(
            rundir,
            Journal(rundir.journal),
            Summaries(rundir.tensorboard, folder / "none", False, profile),
            Writer(rundir.checkpoints, keep=99, best=True, mode="min", saved=lambda step: None),
        ),
        stopping,
        identity={"mark": 7},
    )
    return Trained(folder, steps, model, made)


def recorder() -> Any:
    """A callback that notes its calls."""
    import keras

    class Recorder(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.seen.append(("begin", epoch))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seen.append(("end", epoch, dict(logs)))

        def on_train_end(self, logs: Any = None) -> None:
            self.seen.append(("done", dict(logs)))

    return Recorder()


@pytest.mark.task
def test_the_host_is_back_at_every_boundary(tmp_path: Path) -> None:
    plans: list[tuple[dict[str, Any], tuple[int, int] | None]] = [
        ({"epochs": 3, "steps_per_epoch": 50, "log_every": 20, "checkpoint_steps": 30}, None),
        ({"epochs": 2, "steps_per_epoch": 7, "log_every": 100}, None),
        ({"epochs": 1, "steps_per_epoch": 1000, "log_every": 1000}, None),
        ({"epochs": 2, "steps_per_epoch": 40, "log_every": 40}, (11, 13)),
        ({"epochs": 2, "steps_per_epoch": 5, "log_every": 1}, None),
    ]
    for number, (plan, profile) in enumerate(plans):
        steps = Scripted(Clock())
        trained = looped(tmp_path / str(number), steps, profile=profile, **plan)
        trained.loop.run()
        total = plan["epochs"] * plan["steps_per_epoch"]
        wanted = set(profile or ()) | {total}
        for period in (plan["log_every"], plan["steps_per_epoch"], plan.get("checkpoint_steps")):
            wanted |= set(range(period, total + 1, period)) if period else set()
        assert wanted <= set(steps.ends), plan
        assert trained.loop.step == total == max(steps.ends)
        # A call for each boundary, and one more for the first, which traces, and the second.
        assert len(steps.calls) <= len(wanted) + 2, steps.calls


@pytest.mark.task
def test_points_are_means_over_their_interval(tmp_path: Path) -> None:
    steps = Scripted(Clock(), seconds=0.5)
    trained = looped(tmp_path / "run", steps, log_every=6, validation_examples=19)
    trained.loop.run()
    assert trained.points("loss") == {6: 3.5, 12: 9.5, 18: 15.5, 20: 19.5}
    assert trained.points("learning_rate") == pytest.approx(dict.fromkeys((6, 12, 18, 20), 0.01))
    assert set(trained.points("examples_per_second").values()) == {BATCH / 0.5}
    assert trained.loop.examples_per_second == BATCH / 0.5
    assert trained.points("val_loss") == {10: 100.0, 20: 100.0}
    assert steps.evaluated == [(1, 0), (1, 0), (0, 3)] * 2
    assert trained.loop.logs == {"loss": 15.5, "val_loss": 100.0}
    assert trained.progress["step"] == 20
    assert trained.progress["epoch"] == trained.progress["epochs"] == 2
    assert trained.progress["loss"] == 19.5


@pytest.mark.task
def test_validation_is_sized_by_time_too(tmp_path: Path) -> None:
    steps = Scripted(Clock(), seconds=0.25)
    trained = looped(tmp_path / "run", steps, epochs=1, validation_examples=11 * BATCH)
    trained.loop.run()
    assert steps.evaluated == [(1, 0), (4, 0), (4, 0), (2, 0)]


@pytest.mark.task
def test_validation_every_other_epoch(tmp_path: Path) -> None:
    steps, callback = Scripted(Clock()), recorder()
    plan = {"epochs": 5, "steps_per_epoch": 2, "validation_freq": 2, "validation_examples": 3}
    trained = looped(tmp_path / "run", steps, callbacks=[callback], **plan)
    trained.loop.run()
    assert list(trained.points("val_loss")) == [4, 8]
    assert steps.evaluated == [(0, 3)] * 2
    assert [entry[0] for entry in callback.seen] == ["begin", "end"] * 5 + ["done"]
    ends = [entry[1:] for entry in callback.seen if entry[0] == "end"]
    assert ends[0] == (0, {"loss": 1.5})
    assert ends[1] == (1, {"loss": 3.5, "val_loss": 100.0})
    assert callback.seen[-1] == ("done", {"loss": 9.5})


@pytest.mark.task
def test_batch_hooks_get_the_epoch_so_far(tmp_path: Path) -> None:
    import keras

    seen: list[Any] = []

    class Batches(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append((batch, logs["loss"]))

    steps = Scripted(Clock())
    looped(tmp_path / "run", steps, callbacks=[Batches()], steps_per_epoch=3).loop.run()
    assert steps.calls == [1] * 6
    assert seen == [0, (0, 1.0), 1, (1, 1.5), 2, (2, 2.0), 0, (0, 4.0), 1, (1, 4.5), 2, (2, 5.0)]


@pytest.mark.task
def test_calls_last_about_a_second(tmp_path: Path) -> None:
    for seconds, most in ((0.125, 8), (0.5, 2), (3.0, 1)):
        steps = Scripted(Clock(), seconds)
        plan = {"epochs": 1, "steps_per_epoch": 200, "log_every": 200}
        looped(tmp_path / str(seconds), steps, **plan).loop.run()
        assert steps.calls[0] == 1
        assert set(steps.calls[3:-1]) == {most}


@pytest.mark.task
def test_no_call_of_a_slow_model_lasts_long(tmp_path: Path) -> None:
    steps = Scripted(Clock(), seconds=3.0)
    plan = {"epochs": 1, "steps_per_epoch": 50, "log_every": 50}
    looped(tmp_path / "run", steps, **plan).loop.run()
    assert max(steps.calls) == 1


@pytest.mark.task
def test_a_request_to_stop_saves_and_interrupts(tmp_path: Path) -> None:
    from dtrain.errors import Interrupted

    for after in (0, 1, 7, 13):
        steps, callback = Scripted(Clock(), seconds=1.0), recorder()
        trained = looped(
            tmp_path / str(after), steps, callbacks=[callback], log_every=20,
            stopping=lambda steps=steps, after=after: steps.step >= after,
        )  # fmt: skip
        with pytest.raises(Interrupted) as caught:
            trained.loop.run()
        stopped = trained.loop.step
        assert str(caught.value) == f"stopped at step {stopped}, checkpoint saved"
        # The call that was under way is the last one.
        assert stopped == sum(steps.calls) >= after > sum(steps.calls[:-1]) or stopped == after == 0
        assert trained.saved == [stopped]
        checkpoint = trained.newest
        assert checkpoint.step == stopped
        assert checkpoint.meta["mark"] == 7
        assert checkpoint.meta["epoch"]["examples"] == BATCH * (stopped % 10)
        assert "done" not in [entry[0] for entry in callback.seen]


@pytest.mark.task
def test_a_request_at_the_last_step_changes_nothing(tmp_path: Path) -> None:
    steps, callback = Scripted(Clock()), recorder()
    trained = looped(
        tmp_path / "run", steps, callbacks=[callback], stopping=lambda: steps.step >= 20
    )
    trained.loop.run()
    assert callback.seen[-1][0] == "done"
    assert trained.saved == [20]


@pytest.mark.task
def test_nan_ends_the_run_unless_it_may_go_on(tmp_path: Path) -> None:
    from dtrain.errors import NonFiniteLoss

    for value in (math.nan, math.inf):
        steps = Scripted(Clock(), loss=lambda step, value=value: value if step == 13 else 1.0)
        trained = looped(tmp_path / str(value), steps)
        with pytest.raises(NonFiniteLoss, match=f"{value} at step 15"):
            trained.loop.run()
        assert trained.saved == []
        assert list(trained.points("loss")) == [5, 10]
    steps = Scripted(Clock(), loss=lambda step: math.nan if step == 13 else 1.0)
    trained = looped(tmp_path / "on", steps, terminate_on_nan=False, checkpoint_epochs=1)
    trained.loop.run()
    points = trained.points("loss")
    assert math.isnan(points.pop(15))
    assert points == {5: 1.0, 10: 1.0, 20: 1.0}
    assert trained.newest.meta["objective"] is None, "no number to compare"


@pytest.mark.task
def test_early_stopping_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    import keras

    stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=2)
    steps, callback = Scripted(Clock()), recorder()  # a loss that rises
    trained = looped(tmp_path / "run", steps, callbacks=[stopping, callback], epochs=9)
    trained.loop.run()
    assert trained.loop.step == 30
    assert trained.saved == [30]
    assert callback.seen[-1] == ("done", {"loss": 25.5})
    assert trained.newest.meta["callbacks"][0]["wait"] == 2


@pytest.mark.task
def test_a_run_that_has_stopped_early_is_done_though_asked_to_stop(tmp_path: Path) -> None:
    import keras

    stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=1)
    steps, model = Scripted(Clock()), tiny()  # the request comes with the end of the last epoch
    trained = looped(
        tmp_path / "run", steps, model, callbacks=[stopping], epochs=9,
        stopping=lambda: steps.step >= 20 and model.stop_training,
    )  # fmt: skip
    trained.loop.run()
    assert trained.saved == [20]


@pytest.mark.task
def test_checkpoints_by_epoch_step_and_time(tmp_path: Path) -> None:
    def saved(name: str, **plan: Any) -> list[int]:
        trained = looped(tmp_path / name, Scripted(Clock(), seconds=2.0), **plan)
        trained.loop.run()
        return trained.saved

    assert saved("none") == [20]
    assert saved("epochs", checkpoint_epochs=1) == [10, 20]
    assert saved("every third", epochs=7, checkpoint_epochs=3) == [30, 60, 70]
    assert saved("steps", checkpoint_steps=8) == [8, 16, 20]
    assert saved("both", checkpoint_epochs=1, checkpoint_steps=8) == [8, 10, 16, 20]
    # 2 s a step: 15 s are over at step 8, counted from the last checkpoint, of whatever kind.
    assert saved("time", checkpoint_seconds=15.0, log_every=1) == [8, 16, 20]
    assert saved("mixed", checkpoint_seconds=15.0, checkpoint_epochs=1, log_every=1) == [
        8, 10, 18, 20
    ]  # fmt: skip


@pytest.mark.task
def test_checkpoints_by_time_within_a_long_epoch(tmp_path: Path) -> None:
    plan = {"epochs": 1, "steps_per_epoch": 100, "log_every": 100, "checkpoint_seconds": 15.0}
    trained = looped(tmp_path / "run", Scripted(Clock(), seconds=0.5), **plan)
    trained.loop.run()
    assert len(trained.saved) >= 3


@pytest.mark.task
def test_the_objective_is_that_of_the_very_step(tmp_path: Path) -> None:
    steps = Scripted(Clock())
    trained = looped(
        tmp_path / "run", steps, objective="val_loss", validation_examples=4, validation_freq=2,
        checkpoint_steps=5,
    )  # fmt: skip
    trained.loop.run()
    from dtrain import checkpoint

    found = {
        step: checkpoint.load(trained.folder / "checkpoints" / str(step)).meta["objective"]
        for step in trained.saved
    }
    assert found == {5: None, 10: None, 15: None, 20: 100.0}


@pytest.mark.task
def test_a_resumed_loop_writes_the_points_that_are_missing(tmp_path: Path) -> None:
    from dtrain.errors import Interrupted

    def script(start: int = 0) -> Scripted:
        return Scripted(Clock(), seconds=1.0, loss=lambda step: step**2, start=start)

    plan = {"log_every": 4, "validation_examples": 3}
    whole = looped(tmp_path / "whole", script(), **plan)
    whole.loop.run()
    for stop in (3, 10, 13):  # within an interval; at an epoch's end; within both
        first = script()
        run = looped(
            tmp_path / str(stop), first, stopping=lambda f=first, s=stop: f.step >= s, **plan
        )
        with pytest.raises(Interrupted):
            run.loop.run()
        checkpoint = run.newest
        callback = recorder()
        second = script(checkpoint.step)
        again = looped(run.folder, second, callbacks=[callback], **plan)
        again.loop.run(checkpoint)
        for name in ("loss", "val_loss", "learning_rate"):
            assert again.points(name) == whole.points(name), (stop, name)
        assert again.loop.logs == whole.loop.logs
        assert sum(second.calls) == 20 - checkpoint.step
        begun = [entry[1] for entry in callback.seen if entry[0] == "begin"]
        assert begun == ([1] if checkpoint.step <= 10 else []), "an epoch begins once"


@pytest.mark.task
def test_the_speed_is_right_after_a_resume(tmp_path: Path) -> None:
    from dtrain.errors import Interrupted

    first = Scripted(Clock(), seconds=1.0)
    run = looped(tmp_path / "run", first, log_every=20, stopping=lambda: first.step >= 10)
    with pytest.raises(Interrupted):
        run.loop.run()
    again = looped(run.folder, Scripted(Clock(), seconds=1.0, start=10), log_every=20)
    again.loop.run(run.newest)
    assert again.points("examples_per_second") == {20: BATCH}


@pytest.mark.task
def test_the_last_interval_of_a_run_that_stops_early(tmp_path: Path) -> None:
    import keras

    stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=1)
    trained = looped(
        tmp_path / "run", Scripted(Clock()), callbacks=[stopping], epochs=9, log_every=8
    )
    trained.loop.run()
    assert list(trained.points("loss")) == [8, 16, 20]


@pytest.mark.task
def test_training_for_real_and_going_on(tmp_path: Path) -> None:
    import keras
    import numpy as np

    from dtrain.errors import Interrupted
    from dtrain.task import state

    config = settings(
        optimizer={"_target_": "keras.optimizers.Adam", "learning_rate": 0.05, "use_ema": True}
    )
    plan = {"steps_per_epoch": 6, "log_every": 4, "validation_examples": 21}

    def real(name: str, start: int = 0, stop: int = 99) -> tuple[Trained, Any]:
        keras.utils.clear_session()  # the names of a new process
        model, strategy, steps, _ = prepare("OneDevice", 1, config, start=start)
        trained = looped(
            tmp_path / name, steps, model, strategy, **plan,
            stopping=lambda: model.optimizer.iterations.numpy() >= stop,
        )  # fmt: skip
        return trained, strategy

    whole, _ = real("whole")
    whole.loop.run()
    points = whole.points("loss")
    assert list(points) == [4, 8, 12]
    assert points[12] < points[4]
    assert list(whole.points("val_accuracy")) == [6, 12]

    # The model has its averaged weights, and the checkpoint those that training goes on with.
    kernel, average = (
        next(a for n, a in whole.newest.arrays.items() if part in n and a.shape == (4, 5))
        for part in ("model/", "average")
    )
    np.testing.assert_array_equal(whole.model.get_weights()[0], average)
    assert np.abs(kernel - average).max() > 1e-4

    first, _ = real("parts", stop=1)
    with pytest.raises(Interrupted):
        first.loop.run()
    checkpoint = first.newest
    assert 1 <= checkpoint.step < 12
    second, strategy = real("parts", start=checkpoint.step)
    state.restore(second.model, strategy, checkpoint.arrays)
    second.loop.run(checkpoint)
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert second.points(name) == pytest.approx(whole.points(name), rel=1e-5), name
    for ours, theirs in zip(second.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
