from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.test_callbacks import tiny
from tests.test_steps import BATCH, prepare, settings
from tests.thread_tasks import thread_tasks, together


class Clock:
    """The time of a test: it goes on when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = time = perf_counter


class Waited:
    """Seconds that a test says the last call has waited for its input."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def pop(self) -> dict[str, float]:
        return {"input": self.seconds}


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
        spans_points: bool = True,
    ):
        self.clock = clock
        self.seconds = seconds
        self.loss = loss
        self.step = start
        self.spans_points = spans_points
        self.calls: list[int] = []
        self.evaluated: list[tuple[int, int]] = []
        self.waiting = Waited()

    max_steps = 10**6
    evaluation_batch = evaluation_examples = BATCH

    def train(self, steps: int, ahead: int = 0) -> Any:
        import numpy as np

        from dtrain.task.backends.metric_sums import Sums

        self.calls.append(steps)
        losses = [self.loss(self.step + i) for i in range(1, steps + 1)]
        self.step += steps
        self.clock.now += steps * self.seconds
        returned = {"loss": np.array(losses) * BATCH}
        return Sums.of_steps([np.ones((steps, 2))], returned, steps * BATCH, steps)

    def enter(self, epoch: int) -> list[str]:
        return []  # as without finetune.unfreeze

    def drain(self) -> Any:
        from dtrain.task.backends.metric_sums import Sums

        return Sums()

    def interval(self) -> dict[str, float]:
        return {}

    summary = interval

    def restore(self, summary: Any) -> None:
        assert summary == {}

    def evaluate(self, steps: int, rest: int) -> Any:
        from dtrain.task.backends.metric_sums import Sums

        self.evaluated.append((steps, rest))
        self.clock.now += (steps + bool(rest)) * self.seconds
        examples = steps * BATCH + rest
        return Sums([], {"loss": 100.0 * examples}, examples)

    def results(self, sums: Any, training: bool = True) -> dict[str, float]:
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
        from dtrain.run import journal

        return {
            e["step"]: e["metrics"][name]
            for e in journal.read(self.folder / "journal.jsonl")
            if e["event"] == "metrics" and name in e["metrics"]
        }

    @property
    def saved(self) -> list[int]:
        from dtrain.run import checkpoint

        return checkpoint.steps(self.folder / "checkpoints")

    @property
    def newest(self) -> Any:
        from dtrain.run import checkpoint

        return checkpoint.newest(self.folder / "checkpoints")[0]

    @property
    def progress(self) -> Any:
        from dtrain.run.folder import read_json

        return read_json(self.folder / "progress.json")


def looped(
    folder: Path,
    steps: Any = None,
    model: Any = None,
    strategy: Any = None,
    callbacks: Any = (),
    stopping: Callable[[], bool] = lambda: False,
    profile: tuple[int, int] | None = None,
    is_chief: bool = True,
    share: Any = dict,
    objective: str = "loss",
    **schedule: Any,
) -> Trained:
    """Make a loop of 2 epochs of 10 steps that saves nothing but the end."""
    from dtrain.run.checkpoint import Writer
    from dtrain.run.folder import RunDir
    from dtrain.run.journal import Journal
    from dtrain.task.strategies import Default
    from dtrain.task.train import loop, snapshots, timing, validation
    from dtrain.task.train.callbacks import Callbacks
    from dtrain.task.train.recorder import NullRecords, Objective, Records
    from dtrain.task.train.tensorboard import Summaries

    if isinstance(steps, Scripted):
        for module in (timing, snapshots, validation):
            module.time = steps.clock  # this process ends with the test
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
            "terminate_on_nan": True,
            **schedule,
        }
    )
    folder.mkdir(exist_ok=True)
    rundir = RunDir(folder)
    model = tiny() if model is None else model
    records = NullRecords(profile)
    if is_chief:
        records = Records(
            rundir,
            Journal(rundir.journal),
            Summaries(rundir.tensorboard, folder / "none", False, profile),
            Writer(rundir.checkpoints, keep=99, best=True, mode="min", saved=lambda step: None),
        )
    made = loop.Loop(
        model,
        Default([]) if strategy is None else strategy,
        steps,
        plan,
        Callbacks(list(callbacks), model, plan.epochs, plan.steps_per_epoch, share),
        records,
        Objective(objective, "auto", records),
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
@pytest.mark.parametrize("spans", [True, False])
def test_the_host_is_back_at_every_boundary(tmp_path: Path, spans: bool) -> None:
    plans: list[tuple[dict[str, Any], tuple[int, int] | None]] = [
        ({"epochs": 3, "steps_per_epoch": 50, "log_every": 20, "checkpoint_steps": 30}, None),
        ({"epochs": 2, "steps_per_epoch": 7, "log_every": 100}, None),
        ({"epochs": 1, "steps_per_epoch": 1000, "log_every": 1000}, None),
        ({"epochs": 2, "steps_per_epoch": 40, "log_every": 40}, (11, 13)),
        ({"epochs": 2, "steps_per_epoch": 5, "log_every": 1}, None),
    ]
    for number, (plan, profile) in enumerate(plans):
        steps = Scripted(Clock(), spans_points=spans)
        trained = looped(tmp_path / str(number), steps, profile=profile, **plan)
        trained.loop.run()
        total = plan["epochs"] * plan["steps_per_epoch"]
        wanted = set(profile or ()) | {total}
        logged = None if spans else plan["log_every"]
        for period in (logged, plan["steps_per_epoch"], plan.get("checkpoint_steps")):
            wanted |= set(range(period, total + 1, period)) if period else set()
        assert wanted <= set(steps.ends), plan
        assert trained.loop.step == total == max(steps.ends)
        # A call for each boundary, and one more for the first, which traces, and the second.
        assert len(steps.calls) <= len(wanted) + 2, steps.calls


@pytest.mark.task
@pytest.mark.parametrize(("spans", "seconds"), [(True, 0.125), (True, 0.5), (False, 0.5)])
def test_points_are_means_over_their_interval(tmp_path: Path, spans: bool, seconds: float) -> None:
    steps = Scripted(Clock(), seconds, spans_points=spans)
    trained = looped(tmp_path / "run", steps, log_every=6, validation_examples=19)
    trained.loop.run()
    assert trained.points("loss") == {6: 3.5, 12: 9.5, 18: 15.5, 20: 19.5}
    assert trained.points("learning_rate") == pytest.approx(dict.fromkeys((6, 12, 18, 20), 0.01))
    assert set(trained.points("examples_per_second").values()) == {BATCH / seconds}
    assert trained.loop.timing.examples_per_second == BATCH / seconds
    assert trained.points("val_loss") == {10: 100.0, 20: 100.0}
    assert steps.evaluated == [(1, 0), (1, 0), (0, 3)] * 2
    assert trained.loop.logs == {"loss": 15.5, "val_loss": 100.0}
    assert trained.progress["step"] == 20
    assert trained.progress["epoch"] == trained.progress["epochs"] == 2
    assert trained.progress["loss"] == 19.5


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
def test_nan_ends_the_run_unless_it_may_go_on(tmp_path: Path) -> None:
    import numpy as np

    from dtrain.errors import NonFiniteLoss
    from dtrain.task.backends.metric_sums import Sums

    class WithGap(Scripted):
        """Has a metric that is NaN before the loss is, and after it all is NaN."""

        def train(self, steps: int, ahead: int = 0) -> Any:
            first, sums = self.step + 1, super().train(steps, ahead)
            (states, returned), last = sums._steps(), self.step + 1
            gaps = [math.nan if step == 11 else 0.0 for step in range(first, last)]
            returned = {**returned, "gap": np.array(gaps)}
            return Sums.of_steps(states, returned, sums.examples, steps)

    for value in (math.nan, math.inf):
        for every, written in ((5, [5, 10]), (1, [*range(1, 13)])):
            losses = {13: value, 14: math.nan}
            steps = WithGap(Clock(), loss=lambda step, losses=losses: losses.get(step, 1.0))
            trained = looped(tmp_path / f"{value}-{every}", steps, log_every=every)
            with pytest.raises(NonFiniteLoss, match=f"loss is {value} at step 13"):
                trained.loop.run()
            assert trained.saved == []
            assert list(trained.points("loss")) == written
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
    trained = looped(tmp_path / "run", steps, callbacks=[stopping, callback], epochs=9, log_every=8)
    trained.loop.run()
    assert trained.loop.step == 30
    assert trained.saved == [30]
    assert list(trained.points("loss")) == [8, 16, 24, 30], "the last interval is a shorter one"
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
def test_the_objective_is_that_of_the_very_step(tmp_path: Path) -> None:
    steps = Scripted(Clock())
    trained = looped(
        tmp_path / "run", steps, objective="val_loss", validation_examples=4, validation_freq=2,
        checkpoint_steps=5,
    )  # fmt: skip
    trained.loop.run()
    from dtrain.run import checkpoint

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
def test_averages_inside_a_loss_scale_optimizer(tmp_path: Path) -> None:
    import keras
    import numpy as np

    keras.config.set_dtype_policy("mixed_float16")
    averaging = {"_target_": "keras.optimizers.Adam", "learning_rate": 0.05, "use_ema": True}
    model, strategy, steps, _ = prepare("OneDevice", 1, settings(optimizer=averaging))
    looped(tmp_path, steps, model, strategy, steps_per_epoch=6).loop.run()
    average = next(v for v in model.optimizer.variables if "average" in v.path)
    np.testing.assert_array_equal(model.get_weights()[0], average.numpy())


@pytest.mark.task
def test_training_for_real_and_going_on(tmp_path: Path) -> None:
    import keras
    import numpy as np

    from dtrain.errors import Interrupted
    from dtrain.task.model import train_state

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

    # The model has its averaged weights, and the checkpoint those that training continues with.
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
    train_state.restore(second.model, strategy, checkpoint.arrays)
    second.loop.run(checkpoint)
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert second.points(name) == pytest.approx(whole.points(name), rel=1e-5), name
    for ours, theirs in zip(second.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


# -- a stop during a validation ------------------------------------------------------------------


def changing() -> Any:
    """A callback with a state that every hook of an epoch's end changes, and the model with it."""
    import keras

    class Changing(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seen = 0.0

        def on_test_begin(self, logs: Any = None) -> None:
            self.seen = 2 * self.seen + 1

        def on_test_end(self, logs: Any = None) -> None:
            self.seen = 2 * self.seen + 3

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seen += logs["val_loss"] + logs["loss"]
            kernel = self.model.trainable_variables[0]
            kernel.assign(kernel + self.seen)

    return Changing()


class Watched(Scripted):
    """Steps of which an evaluation has the loss of its position."""

    def evaluate(self, steps: int, rest: int) -> Any:
        from dtrain.task.backends.metric_sums import Sums

        sums = super().evaluate(steps, rest)
        return Sums([], {"loss": 3.0 * sum(map(sum, self.evaluated))}, sums.examples)


def ended(trained: Trained) -> Any:
    """All that there is at the end: points, arrays to the bit, values, which is the best."""
    from dtrain.run import checkpoint

    last = trained.newest
    meta = {k: v for k, v in last.meta.items() if k != "interval_seconds"}
    points = [trained.points(name) for name in ("loss", "val_loss", "epoch_examples", "examples")]
    objectives = {
        step: checkpoint.load(trained.folder / "checkpoints" / str(step)).meta["objective"]
        for step in trained.saved
    }
    logs = trained.loop.logs
    return (last.step, checkpoint.digest(last.arrays), meta, points, logs), objectives


@pytest.mark.task
@pytest.mark.parametrize("due", [True, False])
def test_a_validation_that_a_stop_ends_is_done_by_the_resumed_run(
    tmp_path: Path, due: bool
) -> None:
    """Whenever it comes, with the numbers of a run that was not stopped."""
    import keras

    from dtrain.errors import Interrupted
    from dtrain.run import journal
    from dtrain.task.model import train_state

    plan = {
        "validation_examples": 3 * BATCH + 1,
        "objective": "val_loss",
        "checkpoint_epochs": 1 if due else None,
        "log_every": 4,
    }
    plan["checkpoint_steps"] = None if due else 20

    def looping(name: str, start: int = 0, stop: tuple[int, int] = (99, 99)) -> Trained:
        keras.utils.clear_session()  # the names of a new process
        keras.utils.set_random_seed(1)
        steps = Watched(Clock(), seconds=1.0, start=start)
        return looped(
            tmp_path / name, steps, callbacks=[changing()], **plan,
            stopping=lambda: (steps.step, len(steps.evaluated)) >= stop,
        )  # fmt: skip

    whole = looping("whole")
    whole.loop.run()
    assert whole.steps.evaluated == [(1, 0), (1, 0), (1, 0), (0, 1)] * 2
    assert whole.newest.meta["pending_validation"] is False
    for stop in [(10, n) for n in range(4)] + [(20, n) for n in range(4, 8)]:
        parts = looping(f"{stop}", stop=stop)
        with pytest.raises(Interrupted, match=f"stopped at step {stop[0]}, checkpoint saved"):
            parts.loop.run()
        assert len(parts.steps.evaluated) == stop[1], "it is left at the next call"
        assert list(parts.points("val_loss")) == ([10] if stop[0] == 20 else [])
        past = parts.newest
        assert (past.step, past.meta["pending_validation"]) == (stop[0], True)
        assert past.meta["objective"] is None
        parts.loop._records.event(journal.RESUMED, step=past.step, validated=False)
        resumed = looping(f"{stop}", start=past.step)
        if stop[0] == 20:
            resumed.steps.evaluated[:] = [(1, 0), (1, 0), (1, 0), (0, 1)]  # of the epoch before
        train_state.restore(resumed.model, resumed.loop._strategy, past.arrays)
        resumed.loop.run(past)
        (found, objectives), (expected, best) = ended(resumed), ended(whole)
        assert found == expected, stop
        assert {step: objectives[step] for step in best} == best, stop
        assert set(objectives) == {*best, stop[0]}, "what was left open is saved when it is done"
    # Saved, but not yet told of: killed between the validation and the checkpoint that has it.
    parts = looping("killed", stop=(10, 2))
    with pytest.raises(Interrupted):
        parts.loop.run()
    parts.loop._records.point(10, 1, "validation", {"val_loss": 77.0})
    parts.loop._records.event(journal.RESUMED, step=10, validated=False)
    assert parts.points("val_loss") == {}
    assert parts.points("epoch_examples") == {10: 10.0 * BATCH}


@pytest.mark.task
def test_the_state_is_on_its_way_to_the_disk_before_the_validation(tmp_path: Path) -> None:
    from dtrain.run import checkpoint

    seen: list[Any] = []

    class Looking(Scripted):
        def evaluate(self, steps: int, rest: int) -> Any:
            trained.loop._records.wait()
            found = trained.newest
            arrays = found.path / "state.safetensors"
            seen.append((found.step, found.meta["pending_validation"], arrays.stat().st_ino))
            return super().evaluate(steps, rest)

    trained = looped(
        tmp_path / "run", Looking(Clock()), validation_examples=3, checkpoint_epochs=1,
        objective="val_loss",
    )  # fmt: skip
    trained.loop.run()
    assert [each[:2] for each in seen] == [(10, True), (20, True)]
    for step, _, file in seen:
        found = checkpoint.load(trained.folder / "checkpoints" / str(step))
        assert (found.meta["pending_validation"], found.meta["objective"]) == (False, 100.0)
        assert (found.path / "state.safetensors").stat().st_ino == file, "they are written once"


@pytest.mark.task
def test_a_stop_during_the_last_validation_leaves_it_too(tmp_path: Path) -> None:
    from dtrain.errors import Interrupted

    steps, callback = Scripted(Clock()), recorder()
    trained = looped(
        tmp_path / "run", steps, callbacks=[callback], validation_examples=3,
        stopping=lambda: steps.step >= 20,
    )  # fmt: skip
    with pytest.raises(Interrupted, match="stopped at step 20, checkpoint saved"):
        trained.loop.run()
    assert (trained.saved, len(steps.evaluated)) == ([20], 1)
    assert "done" not in [entry[0] for entry in callback.seen]
    second = Scripted(Clock(), start=20)
    again = looped(trained.folder, second, callbacks=[callback], validation_examples=3)
    again.loop.run(trained.newest)
    assert (second.calls, second.evaluated) == ([], [(0, 3)])
    assert again.points("val_loss") == {10: 100.0, 20: 100.0}
    assert callback.seen[-1][0] == "done"


@pytest.mark.task
def test_a_fork_that_has_no_validation_any_more(tmp_path: Path) -> None:
    from dtrain.errors import Interrupted

    first, callback = Scripted(Clock()), recorder()
    run = looped(tmp_path / "run", first, validation_examples=3, stopping=lambda: first.step >= 10)
    with pytest.raises(Interrupted):
        run.loop.run()
    past = run.newest
    assert past.meta["pending_validation"]
    second = Scripted(Clock(), start=10)
    again = looped(tmp_path / "fork", second, callbacks=[callback], checkpoint_epochs=1)
    again.loop.run(past)
    assert [entry[:2] for entry in callback.seen[:-1]] == [("end", 0), ("begin", 1), ("end", 1)]
    assert callback.seen[0][2] == {"loss": 5.5}
    assert again.newest.meta["pending_validation"] is False


@pytest.mark.task
@pytest.mark.parametrize("earlier", [True, False])
def test_a_stop_of_a_state_that_cannot_be_saved_says_so(tmp_path: Path, earlier: bool) -> None:
    from dtrain.errors import Interrupted, NothingSaved

    model, steps = tiny(), Scripted(Clock(), seconds=1.0)
    if earlier:  # a layer of that name, and not what an object holds
        model.trainable_variables[0]._path = "objects/kernel"

    def stopping() -> bool:
        if steps.step == 13:
            kernel = model.trainable_variables[0]
            kernel.assign(kernel * math.nan)
        return steps.step >= 13

    trained = looped(
        tmp_path / "run", steps, model, stopping=stopping, terminate_on_nan=False,
        checkpoint_epochs=1 if earlier else None,
    )  # fmt: skip
    with pytest.raises(Interrupted) as caught:
        trained.loop.run()
    name = f"model/{model.trainable_variables[0].path}"
    reason = f"{name} is not finite"
    if earlier:
        assert str(caught.value) == (
            f"stopped at step 13, not saved: {reason}; the last checkpoint is of step 10"
        )
        assert (caught.value.exit_code, trained.saved) == (75, [10])
    else:
        assert type(caught.value) is NothingSaved
        assert str(caught.value) == f"stopped at step 13, nothing saved: {reason}"
        assert (caught.value.exit_code, trained.saved) == (1, [])


# -- several tasks -------------------------------------------------------------------------------


@pytest.mark.task
def test_saving_as_often_as_can_be_still_trains(tmp_path: Path) -> None:
    for validation in (0, 3):
        steps, callback = Scripted(Clock(), seconds=0.25), recorder()
        trained = looped(
            tmp_path / str(validation), steps, callbacks=[callback], log_every=20,
            checkpoint_seconds=0.0, validation_examples=validation,
        )  # fmt: skip
        trained.loop.run()
        assert steps.ends[-1] == 20
        assert trained.saved == steps.ends, "once after each call, and not before the first"
        kinds = [entry[:2] for entry in callback.seen[:-1]]
        assert kinds == [("begin", 0), ("end", 0), ("begin", 1), ("end", 1)]


@pytest.mark.task
def test_two_tasks_side_by_side_do_the_same(tmp_path: Path) -> None:
    """A fast chief and a slow worker, with a stop for either and an end by either."""
    import threading

    from dtrain.errors import Interrupted
    from dtrain.task.strategies import Default

    CASES = [("stop", {"stop": 12}), ("end", {"end": 0})]

    class OwnClock(Clock):
        """A clock for each thread."""

        def __init__(self) -> None:
            self._local = threading.local()

        @property
        def now(self) -> float:
            return getattr(self._local, "now", 0.0)

        @now.setter
        def now(self, value: float) -> None:
            self._local.now = value

    def both(name: str, by: int = 1, stop: int = 99, end: int = 99) -> list[tuple[Trained, Any]]:
        clock, found, tasks = OwnClock(), [], thread_tasks(2)
        for index, seconds in enumerate((0.3, 2.0)):
            steps, model, strategy = Scripted(clock, seconds), tiny(), Default([])
            strategy.tasks = tasks[index]
            found.append(looped(
                tmp_path / f"{name}-{by}-{index}", steps, model, strategy, is_chief=index == 0,
                stopping=lambda steps=steps, i=index: i == by and steps.step >= stop,
                checkpoint_seconds=2.0, validation_examples=5 * BATCH + 1,
                callbacks=[ending(end if index == by else 99)], log_every=7,
            ))  # fmt: skip

        def run(index: int) -> str:
            try:
                found[index].loop.run()
            except Interrupted as error:
                return str(error)[:20]
            return "done"

        return list(zip(found, together(lambda: run(0), lambda: run(1)), strict=True))

    def ending(epoch: int) -> Any:
        import keras

        class Ending(keras.callbacks.Callback):
            def on_epoch_end(self, at: int, logs: Any = None) -> None:
                self.model.stop_training = at == epoch

        return Ending()

    cases = [("whole", {}), *((n, o | {"by": by}) for by in (0, 1) for n, o in CASES)]
    for name, options in cases:
        (chief, first), (worker, second) = both(name, **options)
        assert chief.steps.calls == worker.steps.calls, name
        assert chief.steps.evaluated == worker.steps.evaluated, name
        assert chief.loop.step == worker.loop.step, name
        assert first == second, name
        assert chief.saved[-1] == chief.loop.step
        if name == "whole":
            assert (chief.loop.step, first) == (20, "done")
        if name == "stop":
            assert 12 <= chief.loop.step < 20
            assert first == f"stopped at step {chief.loop.step}, "[:20]
        if name == "end":
            assert (chief.loop.step, first) == (10, "done")


# -- steps that overlap --------------------------------------------------------------------------


class Overlapping(Scripted):
    """Steps of which up to 3 more are begun, and end after those that were asked for."""

    in_flight = 0

    def __init__(self, clock: Clock, **options: Any):
        super().__init__(clock, **options)
        self.begun: list[int] = []
        self.settled: list[int] = []

    def train(self, steps: int, ahead: int = 0) -> Any:
        assert ahead >= 0
        sums = super().train(steps)
        self.in_flight = min(3, ahead)
        self.begun.append(self.step + self.in_flight)
        return sums

    def drain(self) -> Any:
        from dtrain.task.backends.metric_sums import Sums

        waiting, self.in_flight = self.in_flight, 0
        if not waiting:
            return Sums()
        self.settled.append(self.step + waiting)
        sums = Scripted.train(self, waiting)
        self.calls.pop()
        return sums

    def evaluate(self, steps: int, rest: int) -> Any:
        assert self.in_flight == 0, "the state changes while it is evaluated"
        return super().evaluate(steps, rest)


@pytest.mark.task
def test_a_stop_takes_in_the_steps_that_have_begun(tmp_path: Path) -> None:
    from dtrain.errors import Interrupted

    for after, stopped in ((1, 4), (5, 8), (8, 10), (16, 19)):
        steps = Overlapping(Clock(), seconds=1.0)
        trained = looped(
            tmp_path / str(after), steps, log_every=20, validation_examples=9,
            stopping=lambda steps=steps, after=after: steps.step >= after,
        )  # fmt: skip
        with pytest.raises(Interrupted, match=f"stopped at step {stopped}, "):
            trained.loop.run()
        assert (steps.settled, steps.step) == ([stopped], stopped)
        assert trained.loop.step == stopped
        assert trained.saved == [stopped]
        meta = trained.newest.meta
        assert meta["examples"] == trained.loop.examples == stopped * BATCH
        assert meta["epoch"]["examples"] == BATCH * (stopped % 10)  # of a whole one the results
        assert meta["interval"]["examples"] == BATCH * stopped
        # Where what was begun ends the epoch, its validation is left to the resumed run.
        assert meta["pending_validation"] == (stopped == 10)
        assert list(trained.points("epoch_examples")) == ([10] if stopped >= 10 else [])
        assert list(trained.points("val_loss")) == ([10] if stopped > 10 else [])


@pytest.mark.task
def test_no_step_begins_before_the_state_is_looked_at(tmp_path: Path) -> None:
    steps = Overlapping(Clock())
    trained = looped(
        tmp_path / "run", steps, log_every=4, checkpoint_steps=6, validation_examples=9,
        checkpoint_epochs=1,
    )  # fmt: skip
    trained.loop.run()
    assert trained.saved == [6, 10, 12, 18, 20]
    assert steps.settled == [], "there is nothing left to wait for"
    for end, begun in zip(steps.ends, steps.begun, strict=True):
        assert begun <= min(rest for rest in (6, 10, 12, 18, 20) if rest >= end)
    # At a point of the journal alone nobody waits.
    assert any(begun > end for end, begun in zip(steps.ends, steps.begun, strict=True))
    assert trained.points("loss") == {4: 2.5, 8: 6.5, 12: 10.5, 16: 14.5, 20: 18.5}


@pytest.mark.task
def test_a_save_by_time_takes_in_the_steps_that_have_begun(tmp_path: Path) -> None:
    steps = Overlapping(Clock(), seconds=1.0)
    plan = {"epochs": 1, "steps_per_epoch": 20, "log_every": 20, "checkpoint_seconds": 5.0}
    trained = looped(tmp_path / "run", steps, **plan)
    trained.loop.run()
    assert trained.saved == [8, 16, 20]
    assert steps.settled == [8, 16]
    assert trained.points("loss") == {20: 10.5}


@pytest.mark.task
def test_a_callback_that_ends_the_run_takes_in_the_steps_that_have_begun(tmp_path: Path) -> None:
    import keras

    class Third(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 2

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            ends.append((epoch, logs["val_loss"]))

    ends: list[Any] = []
    steps = Overlapping(Clock())
    plan: Any = {"log_every": 20, "validation_examples": BATCH, "objective": "val_loss"}
    trained = looped(tmp_path / "run", steps, callbacks=[Third()], **plan)
    trained.loop.run()
    assert trained.loop.step == steps.step == 6
    assert trained.saved == [6]
    assert trained.points("loss") == {6: 3.5}
    # As in Keras' fit the epoch ends there: with a validation, and for the callbacks.
    [value] = trained.points("val_loss").values()
    assert ends == [(0, value)] and trained.newest.meta["objective"] == value


class Dropping(Scripted):
    """Steps that use 3 examples fewer than a batch, and tell of it."""

    restored: Any = None

    def train(self, steps: int, ahead: int = 0) -> Any:
        from dtrain.task.backends.metric_sums import Sums

        sums = super().train(steps)
        examples = sums.examples - 3 * steps
        returned = {"loss": sums.returned["loss"] / sums.examples * examples}
        return Sums([], returned, examples, steps)

    def interval(self) -> dict[str, float]:
        return {"dropped": float(self.step)}

    def summary(self) -> dict[str, Any]:
        return {"lost": {"worker-0": self.step}}

    def restore(self, summary: Any) -> None:
        self.restored = summary


@pytest.mark.task
def test_only_the_examples_that_were_used_are_counted(tmp_path: Path) -> None:
    from dtrain.errors import Interrupted

    first = Dropping(Clock(), seconds=0.5, spans_points=False)
    run = looped(tmp_path / "run", first, log_every=10, stopping=lambda: first.step >= 14)
    with pytest.raises(Interrupted):
        run.loop.run()
    used = BATCH - 3
    assert run.loop.step == 14
    assert run.loop.examples == 14 * used
    assert run.loop.timing.examples_per_second == used / 0.5
    assert run.points("dropped") == {10: 10.0}
    assert run.points("loss") == {10: 5.5}
    assert run.points("examples_per_second") == {10: used / 0.5}
    checkpoint = run.newest
    assert checkpoint.meta["examples"] == 14 * used
    assert checkpoint.meta["steps"] == {"lost": {"worker-0": 14}}

    second = Dropping(Clock(), seconds=0.5, start=14, spans_points=False)
    again = looped(run.folder, second, log_every=10)
    again.loop.run(checkpoint)
    assert second.restored == {"lost": {"worker-0": 14}}
    assert again.loop.examples == 20 * used
    assert again.points("loss") == {10: 5.5, 20: 15.5}


@pytest.mark.task
def test_the_loss_that_is_shown_is_that_of_training(tmp_path: Path) -> None:
    steps = Scripted(Clock(), seconds=2.0)
    seen: list[Any] = []
    trained = looped(tmp_path / "run", steps, validation_examples=3 * BATCH + 1)
    trained.loop._records.progress = lambda report, always: seen.append(report)
    trained.loop.run()
    assert [report["loss"] for report in seen if not report["evaluated"]] == [
        float(step) for step in range(1, 21)
    ]
    during = [(r["step"], r["loss"], r["evaluated"]) for r in seen if r["evaluated"]]
    # Validation is told of too: a job that evaluates for long does not stand still.
    assert during == [(step, float(step), BATCH * part) for step in (10, 20) for part in (1, 2, 3)]


# -- what callbacks make of the logs -------------------------------------------------------------


def writing(values: Callable[[int, dict[str, Any]], dict[str, Any]]) -> Any:
    """A callback that puts ``values`` into the logs of an epoch."""
    import keras

    class Writing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs.update(values(epoch, logs))

    return Writing()


def events(trained: Trained, kind: str) -> list[Any]:
    from dtrain.run import journal

    return [e for e in journal.read(trained.folder / "journal.jsonl") if e["event"] == kind]


@pytest.mark.task
def test_what_a_callback_adds_to_the_logs_is_recorded(tmp_path: Path) -> None:
    import numpy as np
    import tensorflow as tf

    steps, seen = Scripted(Clock()), recorder()

    def values(epoch: int, logs: dict[str, Any]) -> dict[str, Any]:
        return {
            "val_loss": logs["val_loss"] - 1,
            "gap": np.float32(0.5 + epoch),
            "val_gap": tf.constant(2),
            "flag": True,
            "loss": logs["loss"],
        }

    trained = looped(
        tmp_path / "run", steps, callbacks=[writing(values), seen], validation_examples=4,
        objective="gap",
    )  # fmt: skip
    trained.loop.run()
    assert trained.points("gap") == {10: 0.5, 20: 1.5}
    assert trained.points("val_gap") == {10: 2.0, 20: 2.0}
    assert trained.points("flag") == {10: 1.0, 20: 1.0}
    assert trained.points("val_loss") == {10: 99.0, 20: 99.0}
    written = [e["metrics"] for e in events(trained, "metrics")]
    assert sum("val_loss" in metrics for metrics in written) == 2, "one point an epoch"
    assert trained.points("loss") == {5: 3.0, 10: 8.0, 15: 13.0, 20: 18.0}, "of the intervals"
    assert trained.loop.logs == {
        "loss": 15.5, "val_loss": 99.0, "gap": 1.5, "val_gap": 2.0, "flag": 1.0
    }  # fmt: skip
    assert trained.newest.meta["objective"] == 1.5
    assert seen.seen[1][2]["gap"] == 0.5, "a later callback sees it"
    assert events(trained, "notice") == []


@pytest.mark.task
def test_what_is_no_finite_number_is_noticed_once_and_not_recorded(tmp_path: Path) -> None:
    values = {"text": "3", "nan": math.nan, "rows": [1.0, 2.0], "none": None, 7: 1.0, "loss": None}
    seen = recorder()
    trained = looped(
        tmp_path / "run", Scripted(Clock()), callbacks=[writing(lambda *_: values), seen]
    )
    trained.loop.run()
    [notice] = events(trained, "notice")
    assert notice["message"] == (
        "callbacks put into logs what is no finite number: 7, loss, nan, none, rows, text; "
        "it is not recorded"
    )
    assert trained.loop.logs == {"loss": 15.5}, "what was measured stays"
    assert seen.seen[1][2]["text"] == "3", "later callbacks see it, as under fit"
    assert set().union(*(e["metrics"] for e in events(trained, "metrics"))) == {
        "loss", "learning_rate", "examples_per_second", "input_seconds", "host_seconds",
        "epoch_examples", "examples",
    }  # fmt: skip


@pytest.mark.task
@pytest.mark.parametrize(("every", "steps"), [(5, [5, 10, 15, 20]), (7, [7, 10, 14, 20])])
def test_a_learning_rate_in_the_logs_makes_no_second_point(
    tmp_path: Path, every: int, steps: list[int]
) -> None:
    import keras

    # Keras' own: ReduceLROnPlateau reads the rate in a way that NumPy 2 warns of.
    warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
    kinds = keras.callbacks
    callbacks = [
        kinds.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
        kinds.ReduceLROnPlateau("loss", patience=0, factor=0.5),
    ]
    trained = looped(tmp_path / "run", Scripted(Clock()), callbacks=callbacks, log_every=every)
    trained.loop.run()
    found = [e["step"] for e in events(trained, "metrics") if "learning_rate" in e["metrics"]]
    assert found == steps
    assert trained.points("learning_rate")[10] == pytest.approx(0.1)
    assert trained.loop.logs["learning_rate"] == pytest.approx(0.05)


@pytest.mark.task
def test_later_callbacks_monitor_what_an_earlier_one_added(tmp_path: Path) -> None:
    import keras

    warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
    kinds = keras.callbacks
    stopping = kinds.EarlyStopping("gap", patience=1, mode="min")
    reducing = kinds.ReduceLROnPlateau("gap", patience=1, factor=0.5, mode="min")
    gaps = [3.0, 2.0, 2.5, 2.6, 1.0]
    added = writing(lambda epoch, _: {"gap": gaps[epoch]})
    trained = looped(
        tmp_path / "run", Scripted(Clock()), callbacks=[added, reducing, stopping], epochs=5
    )
    trained.loop.run()
    assert trained.loop.step == 30
    assert trained.points("gap") == {10: 3.0, 20: 2.0, 30: 2.5}


@pytest.mark.task
def test_a_resumed_run_knows_what_was_added(tmp_path: Path) -> None:
    def run(first: bool, checkpoint: Any = None) -> Trained:
        steps = Scripted(Clock(), start=0 if first else 10)
        trained = looped(
            tmp_path / "run", steps, callbacks=[writing(lambda e, _: {"gap": float(e)})],
            checkpoint_epochs=1, epochs=1 if first else 2, objective="gap",
        )  # fmt: skip
        trained.loop.run(checkpoint)
        return trained

    first = run(True)
    assert first.newest.meta["logs"]["gap"] == first.newest.meta["objective"] == 0.0
    second = run(False, first.newest)
    assert second.points("gap") == {10: 0.0, 20: 1.0}
    assert len([e for e in events(second, "metrics") if "gap" in e["metrics"]]) == 2
    assert second.newest.meta["objective"] == 1.0


@pytest.mark.task
def test_a_callback_that_raises_leaves_what_was_measured(tmp_path: Path) -> None:
    import keras

    class Raising(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise KeyError("mine")

    callbacks = [writing(lambda *_: {"gap": 1.0}), Raising(), writing(lambda *_: {"late": 1.0})]
    trained = looped(
        tmp_path / "run", Scripted(Clock()), callbacks=callbacks, validation_examples=4
    )
    with pytest.raises(KeyError, match="mine"):
        trained.loop.run()
    assert (trained.points("val_loss"), trained.points("gap")) == ({10: 100.0}, {10: 1.0})
    assert trained.points("late") == {}


@pytest.mark.task
def test_an_objective_that_no_epoch_has_is_noticed_once(tmp_path: Path) -> None:
    trained = looped(
        tmp_path / "run", Scripted(Clock()), objective="val_los", validation_examples=4,
        validation_freq=2, epochs=4,
    )  # fmt: skip
    trained.loop.run()
    [notice] = events(trained, "notice")
    assert notice["message"] == (
        "objective=val_los is not among the metrics of this run (loss, val_loss); no checkpoint "
        "is kept as the best"
    )


@pytest.mark.task
def test_all_tasks_have_the_numbers_of_the_chief(tmp_path: Path) -> None:
    """The chief alone adds one, and of another each task has its own."""
    from dtrain.task.strategies import Default

    def values(index: int) -> Any:
        def of(epoch: int, logs: Any) -> dict[str, Any]:
            alone = {"other": 1.0} if index else {"chief": 0.1 * epoch, "näme": 1e-300}
            return {"seconds": 1.0 / (3 + index), "nan": math.nan, **alone}

        return of

    clock, found, seen = Clock(), [], [recorder(), recorder()]
    for tasks in thread_tasks(2):
        strategy, index = Default([]), tasks.rank
        strategy.tasks = tasks
        found.append(looped(
            tmp_path / str(index), Scripted(clock), tiny(), strategy, is_chief=index == 0,
            callbacks=[writing(values(index)), seen[index]],
            share=lambda own, tasks=tasks: tasks.gather(own)[0],
        ))  # fmt: skip
    together(*[each.loop.run for each in found])
    ends = [[entry for entry in each.seen if entry[0] == "end"] for each in seen]
    assert str(ends[0]) == str(ends[1]), "NaN is not equal to itself"
    last = ends[1][-1][2]
    assert (last["chief"], last["seconds"], last["näme"]) == (0.1, 1.0 / 3, 1e-300)
    assert "other" not in last
    assert found[0].points("chief") == {10: 0.0, 20: 0.1}


@pytest.mark.task
def test_callbacks_see_what_they_see_under_fit(tmp_path: Path) -> None:
    """All hooks with their logs, of the same callback; the referee is Keras."""
    import keras
    import numpy as np

    from tests.test_steps import in_order

    class Noting(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

    def noting(name: str) -> Any:
        def hook(self: Any, *given: Any, logs: Any = None) -> None:
            *index, last = given if given else (None,)
            if not isinstance(last, dict):
                index, last = list(given), logs
            self.seen.append((name, index, dict(last or {})))

        return hook

    kinds = ("begin", "end")
    for name in (
        *(f"on_train_{k}" for k in kinds), *(f"on_epoch_{k}" for k in kinds),
        *(f"on_test_{k}" for k in kinds), *(f"on_train_batch_{k}" for k in kinds),
        *(f"on_test_batch_{k}" for k in kinds),
    ):  # fmt: skip
        setattr(Noting, name, noting(name))

    keras.utils.clear_session()
    model, strategy, steps, splits = prepare("OneDevice", 1)
    ours, theirs = Noting(), Noting()
    looped(
        tmp_path / "run", steps, model, strategy, callbacks=[ours], steps_per_epoch=6,
        validation_examples=21,
    ).loop.run()  # fmt: skip

    keras.utils.clear_session()
    other, *_ = prepare("OneDevice", 1)
    x, y = in_order(splits.train, 12)
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    held = tf.data.Dataset.from_tensor_slices(splits.validation[np.arange(21)]).batch(BATCH)
    other.fit(
        data, epochs=2, steps_per_epoch=6, validation_data=held, verbose=0, shuffle=False,
        callbacks=[theirs],
    )  # fmt: skip
    assert [entry[:2] for entry in ours.seen] == [entry[:2] for entry in theirs.seen]
    for (name, index, mine), (_, _, expected) in zip(ours.seen, theirs.seen, strict=True):
        assert mine == pytest.approx(expected, rel=1e-5), (name, index)
