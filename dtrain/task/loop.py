"""The outer loop: how many steps a call, and what happens between two calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from dtrain.checkpoint import Checkpoint, Writer
from dtrain.errors import Interrupted, NonFiniteLoss
from dtrain.journal import Journal
from dtrain.rundir import RunDir, write_json
from dtrain.task import state
from dtrain.task.callbacks import Callbacks
from dtrain.task.schedule import Schedule
from dtrain.task.steps import Steps, Sums
from dtrain.task.strategies import Strategy
from dtrain.task.summaries import Summaries

#: The host is back from TensorFlow at least this often, in seconds.
CALL_SECONDS = 1.0
#: The progress file is written at most this often, in seconds.
PROGRESS_SECONDS = 0.25


class Loop:
    """Trains from a position to the end of the run, or to a request to stop.

    Args:
        model: built in the strategy's scope.
        strategy: what it runs on.
        steps: the compiled functions.
        schedule: when things happen.
        callbacks: Keras callbacks.
        rundir: where the progress file goes.
        journal: gets every point and event.
        summaries: TensorBoard.
        writer: saves checkpoints.
        stopping: says whether somebody asked the run to stop.
        identity: JSON values to be saved with every checkpoint.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: Strategy,
        steps: Steps,
        schedule: Schedule,
        callbacks: Callbacks,
        rundir: RunDir,
        journal: Journal,
        summaries: Summaries,
        writer: Writer,
        stopping: Callable[[], bool],
        identity: dict[str, Any],
    ):
        self._model = model
        self._strategy = strategy
        self._steps = steps
        self._schedule = schedule
        self._callbacks = callbacks
        self._rundir = rundir
        self._journal = journal
        self._summaries = summaries
        self._writer = writer
        self._stopping = stopping
        self._identity = identity

        self.step = 0
        self.logs: dict[str, float] = {}  # of the last whole epoch
        self._interval = Sums()
        self._epoch = Sums()
        self._calls = 0
        self._step_seconds = 0.0  # of the last call
        self._train_seconds = 0.0
        self._train_examples = 0
        self._interval_seconds = 0.0
        self._progress_at = 0.0
        self._checkpoint_at = time.monotonic()
        self._saved_step = 0

    @property
    def examples_per_second(self) -> float:
        """Throughput of training itself, all replicas together, the first call left out."""
        return self._train_examples / self._train_seconds if self._train_seconds else 0.0

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """Train to the end.

        Args:
            checkpoint: where to go on; its arrays are already in the variables.

        Raises:
            NonFiniteLoss: the loss is NaN or infinite.
            CheckpointError: a checkpoint could not be written.
            Interrupted: a stop was asked for; the state is saved.
        """
        schedule, hooks = self._schedule, self._callbacks.hooks
        self._model.stop_training = False
        hooks.on_train_begin()
        if checkpoint is not None:
            self._restore(checkpoint)
        while self.step < schedule.total_steps and not self._model.stop_training:
            epoch = self.step // schedule.steps_per_epoch
            if self.step % schedule.steps_per_epoch == 0:
                hooks.on_epoch_begin(epoch)
            before = self.step
            self._train_until(min(self._next_boundary(), schedule.total_steps))
            advanced = self.step > before  # not so where the request to stop came first
            ended = advanced and self.step % schedule.steps_per_epoch == 0
            if self.step % schedule.log_every == 0 or self.step == schedule.total_steps:
                self._log_interval(epoch)
            if ended:
                self._end_epoch(epoch)
            stopping = self._stopping()
            if stopping or (advanced and self._checkpoint_due(ended, epoch)):
                self._save()
            done = self.step == schedule.total_steps or self._model.stop_training
            if stopping and not done:
                self._writer.wait()
                raise Interrupted(f"stopped at step {self.step}, checkpoint saved")
        # What a callback cut short: the interval up to here.
        self._log_interval((self.step - 1) // schedule.steps_per_epoch)
        if self._saved_step != self.step:
            self._save()
        self._writer.wait()
        if getattr(self._model.optimizer, "use_ema", False):
            # As Keras' fit does at its end: the model is left with its averaged weights.
            with self._strategy.engine.scope():
                self._model.optimizer.finalize_variable_values(self._model.trainable_variables)
        hooks.on_train_end(self.logs)

    def _next_boundary(self) -> int:
        """Return the next step at which somebody wants the host to be back."""
        schedule = self._schedule
        periods = [schedule.log_every, schedule.steps_per_epoch, schedule.checkpoint_steps]
        if self._callbacks.every_batch:
            periods.append(1)
        ends = [(self.step // period + 1) * period for period in periods if period]
        trace = self._summaries.profile_steps or ()
        return min(ends + [step for step in trace if step > self.step])

    def _train_until(self, boundary: int) -> None:
        while self.step < boundary and not self._stopping():
            # The first call traces the function, the second is the first to tell the time of a
            # step: both take one step, so that a slow model does not keep the host away.
            count = 1 if self._calls < 2 else int(CALL_SECONDS / max(self._step_seconds, 1e-6))
            self._train_call(min(max(1, count), boundary - self.step))
            if self._checkpoint_by_time():
                return

    def _train_call(self, count: int) -> None:
        schedule, hooks = self._schedule, self._callbacks.hooks
        batch = self.step % schedule.steps_per_epoch
        self._summaries.profile(self.step)
        if self._callbacks.every_batch:
            hooks.on_train_batch_begin(batch)
        begin = time.perf_counter()
        sums = self._steps.train(count)
        seconds = time.perf_counter() - begin
        self._calls += 1
        self._step_seconds = seconds / count
        if self._calls > 1:
            self._train_seconds += seconds
            self._train_examples += sums.examples
        self._interval_seconds += seconds
        self.step += count
        self._interval.add(sums)
        self._epoch.add(sums)
        logs = self._steps.results(sums)
        if schedule.terminate_on_nan and not math.isfinite(logs.get("loss", 0.0)):
            raise NonFiniteLoss(
                f"the loss is {logs['loss']} at step {self.step} (trainer.terminate_on_nan=true); "
                f"a lower optimizer.learning_rate or optimizer.global_clipnorm=1.0 may help"
            )
        if self._callbacks.every_batch:
            hooks.on_train_batch_end(batch, self._steps.results(self._epoch))
        self._report_progress(logs)

    def _report_progress(self, logs: dict[str, float]) -> None:
        now = time.monotonic()
        last = self.step in (1, self._schedule.total_steps)
        if now - self._progress_at < PROGRESS_SECONDS and not last:
            return
        self._progress_at = now
        schedule = self._schedule
        write_json(
            self._rundir.progress,
            {
                "step": self.step,
                "total_steps": schedule.total_steps,
                "epoch": (self.step - 1) // schedule.steps_per_epoch + 1,
                "epochs": schedule.epochs,
                "steps_per_epoch": schedule.steps_per_epoch,
                "loss": logs.get("loss"),
                "metrics": self.logs,
                "examples_per_second": self.examples_per_second,
                "time": time.time(),
            },
        )

    def _log_interval(self, epoch: int) -> None:
        if self._interval.examples == 0:
            return
        metrics = self._steps.results(self._interval)
        metrics["learning_rate"] = float(np.asarray(self._model.optimizer.learning_rate))
        metrics["examples_per_second"] = self._interval.examples / self._interval_seconds
        self._point(epoch, metrics)
        self._interval, self._interval_seconds = Sums(), 0.0

    def _point(self, epoch: int, metrics: dict[str, float]) -> None:
        self._journal.write("metrics", step=self.step, epoch=epoch + 1, metrics=metrics)
        self._summaries.scalars(self.step, metrics)

    def _end_epoch(self, epoch: int) -> None:
        schedule = self._schedule
        logs = self._steps.results(self._epoch)
        self._epoch = Sums()
        if schedule.validation_examples and (epoch + 1) % schedule.validation_freq == 0:
            validation = {f"val_{name}": value for name, value in self._validate().items()}
            self._point(epoch, validation)
            logs.update(validation)
        self.logs = logs
        self._callbacks.hooks.on_epoch_end(epoch, logs)
        self._summaries.weights(self.step, self._model)
        self._summaries.flush()

    def _validate(self) -> dict[str, float]:
        """Evaluate every validation example once."""
        hooks, schedule = self._callbacks.hooks, self._schedule
        hooks.on_test_begin()
        full, rest = divmod(schedule.validation_examples, schedule.global_batch)
        sums, done, count = Sums(), 0, 1
        while done < full:
            count = min(count, full - done)
            begin = time.perf_counter()
            sums.add(self._steps.evaluate(count, 0))
            seconds = (time.perf_counter() - begin) / count
            done += count
            count = max(1, int(CALL_SECONDS / max(seconds, 1e-3)))
        if rest:
            sums.add(self._steps.evaluate(0, rest))
        logs = self._steps.results(sums)
        hooks.on_test_end(logs)
        return logs

    def _checkpoint_due(self, epoch_ended: bool, epoch: int) -> bool:
        schedule = self._schedule
        epochs = schedule.checkpoint_epochs
        if epoch_ended and epochs and (epoch + 1) % epochs == 0:
            return True
        if schedule.checkpoint_steps and self.step % schedule.checkpoint_steps == 0:
            return True
        return self._checkpoint_by_time()

    def _checkpoint_by_time(self) -> bool:
        interval = self._schedule.checkpoint_seconds
        return interval is not None and time.monotonic() - self._checkpoint_at >= interval

    def _save(self) -> None:
        """Take a snapshot and have it written while training goes on."""
        self._checkpoint_at = time.monotonic()
        self._saved_step = self.step
        interval_arrays, interval = state.pack_sums("interval", self._interval)
        epoch_arrays, epoch = state.pack_sums("epoch", self._epoch)
        callback_arrays, callbacks = self._callbacks.state()
        meta = {
            **self._identity,
            "interval": interval,
            "interval_seconds": self._interval_seconds,
            "epoch": epoch,
            "callbacks": callbacks,
            "logs": self.logs,
            "objective": self._objective(),
        }
        arrays = state.snapshot(self._model, self._strategy)
        if not self._schedule.terminate_on_nan and not _finite(arrays):
            self._journal.write("notice", message=f"no checkpoint at step {self.step}: not finite")
            return
        arrays |= interval_arrays | epoch_arrays | callback_arrays
        self._writer.submit(self.step, arrays, meta)

    def _objective(self) -> float | None:
        if self.step % self._schedule.steps_per_epoch:
            return None  # the logs are of an earlier step
        value = self.logs.get(self._schedule.objective)
        return value if value is not None and math.isfinite(value) else None

    def _restore(self, checkpoint: Checkpoint) -> None:
        meta, arrays = checkpoint.meta, checkpoint.arrays
        self.step = self._saved_step = checkpoint.step
        self.logs = meta["logs"]
        self._interval = state.unpack_sums("interval", arrays, meta["interval"])
        self._interval_seconds = meta["interval_seconds"]
        self._epoch = state.unpack_sums("epoch", arrays, meta["epoch"])
        self._callbacks.restore(arrays, meta["callbacks"])


def _finite(arrays: dict[str, np.ndarray]) -> bool:
    return all(np.all(np.isfinite(a)) for a in arrays.values() if a.dtype.kind == "f")
