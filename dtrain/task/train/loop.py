"""The outer loop: how many steps a call, and what happens between two calls.

Several tasks may run it side by side. What each could decide otherwise (how many steps fit into a
second, whether it is time to save, whether a stop was requested) is agreed on before each call.

At the end of an epoch the state is saved first and evaluated then: a stop during the validation
leaves it to the resumed run, which begins by it (``pending_validation`` of a checkpoint).
"""

from __future__ import annotations

import bisect
import functools
import math
import time
from collections.abc import Callable

import keras
import numpy as np

from dtrain.errors import NonFiniteLoss
from dtrain.files.fields import Json
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.journal import EARLY, MetricsKind
from dtrain.task.backends.base import Backend, Steps
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.model import finetune, train_state
from dtrain.task.train.callbacks import Callbacks
from dtrain.task.train.recorder import Objective, Records
from dtrain.task.train.snapshots import Saving, Snapshot
from dtrain.task.train.step_schedule import Schedule
from dtrain.task.train.timing import Timing
from dtrain.task.train.validation import CALL_SECONDS, evaluate

#: What begins the names of what a validation finds.
PREFIX = "val_"


class Loop:
    """Trains from a position to the end of the run, or to a request to stop.

    Args:
        model: built in the strategy's scope.
        strategy: what it runs on.
        steps: the compiled functions.
        schedule: when things happen.
        callbacks: Keras callbacks.
        records: what is written.
        objective: says which checkpoint is the best.
        stopping: says whether the user or a scheduler asked this task to stop.
        identity: JSON values to be saved with every checkpoint.
        begun: called once, when there is something that a stop would have to save.
        max_time: of the configuration, for messages.
        until: when the training ends, whatever it has reached, in seconds since 1970.
        epochs_before: of the run that this one forks, as which it shows its own.
    """

    def __init__(
        self, model: keras.Model, strategy: Backend, steps: Steps, schedule: Schedule,
        callbacks: Callbacks, records: Records, objective: Objective, stopping: Callable[[], bool],
        identity: Json, begun: Callable[[], None] = lambda: None,
        max_time: float | str | None = None, until: float = math.inf, epochs_before: int = 0,
    ):  # fmt: skip
        self._model = model
        self._strategy = strategy
        self._steps = steps
        self._schedule = schedule
        self._callbacks = callbacks
        self._records = records
        self._objective = objective
        self._stopping = stopping
        self._saving = Saving(model, strategy, schedule, callbacks, records, identity)
        self._begun = begun
        self._max_time, self._until = max_time, until
        #: What an epoch, or a report, of a fork says besides.
        self._before = {"epochs_before": epochs_before} if epochs_before else {}

        self.step = 0
        self.examples = 0  # that were trained on
        self.evaluated = 0  # examples of the last evaluation
        self.logs: dict[str, float] = {}  # of the last whole epoch
        self.ended: str | None = None  # why, where it is before the last epoch
        self.timing = Timing()
        self._interval, self._epoch = Sums(), Sums()
        #: Results of the epoch that has ended and is to be evaluated.
        self._unvalidated: dict[str, float] | None = None
        self._cut: int | None = None  # step at which a callback has ended the training
        self._noticed: set[str] = set()  # names of logs that a notice was written of
        self._loss: float | None = None  # of the last call
        self._epoch_began = time.monotonic()
        # What the tasks have agreed on for the next call; end: a callback ended the training; over:
        # its time is over.
        self._stop = self._end = self._over = self._save_now = False
        self._look = False  # at what is used, at the next point

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """Train to the end.

        Args:
            checkpoint: where to resume; its arrays are already in the variables.

        Raises:
            NonFiniteLoss: the loss is NaN or infinite.
            CheckpointError: a checkpoint could not be written.
            Interrupted: a stop was asked for; the state is saved, or could not be.
        """
        schedule, hooks = self._schedule, self._callbacks.hooks
        self._model.stop_training = False
        self._callbacks.begin(None if checkpoint is None else checkpoint.meta.get("began"))
        if checkpoint is not None:
            self._restore(checkpoint)
        self._saving.notice_lost()
        if self._unvalidated is not None:
            self._end_epoch((self.step - 1) // schedule.steps_per_epoch, due=True)
        while self.step < schedule.total_steps:
            count = self._consult()
            if self._end:
                self._drain()
                if self._epoch.steps:  # cut short by a callback: it ends as in Keras' fit
                    self._cut = self.step
                    self._end_epoch((self.step - 1) // schedule.steps_per_epoch, due=True)
                self._note_stop((self.step - 1) // schedule.steps_per_epoch)
            if self._end or self._over:
                break
            epoch, before = self.step // schedule.steps_per_epoch, self.step
            if not (self._stop or self._save_now):
                if self.step % schedule.steps_per_epoch == 0:
                    self._enter(epoch + 1)
                    hooks.on_epoch_begin(epoch)
                self._train_until(self._next_boundary(), count)
            if self._stop or self._save_now:
                self._drain()
            advanced = self.step > before
            ended = advanced and self.step % schedule.steps_per_epoch == 0
            due = self._stop or self._save_now or (advanced and schedule.saves(self.step))
            if ended:
                self._end_epoch(epoch, due)
            elif due and self._saving.step != self.step:
                self._save()
            if self._stop and self.step < schedule.total_steps:
                self._saving.interrupt(self.step, None)
        self._drain()
        self._log_interval()  # up to here, where a callback cut it short
        if self._saving.step != self.step:
            self._save()
        self._records.wait()
        if self._over:
            self._end_by_time()
        if self._model.optimizer is not None:
            # As Keras' fit does at its end: with use_ema the model is left with averaged weights.
            with self._strategy.optimizer_scope():
                self._callbacks.leave_swapped()
                self._model.optimizer.finalize_variable_values(finetune.trained(self._model))
        hooks.on_train_end(self.logs)

    def _enter(self, epoch: int) -> None:
        """Freeze and unfreeze what an epoch, from 1, asks for."""
        with self.timing.left_out():
            frozen = self._steps.enter(epoch)
        if frozen:  # other than before: a trace
            self.timing.leave_next_out()
            more = f" and {len(frozen) - 12} more" if len(frozen) > 12 else ""
            self._notice(
                f"finetune.unfreeze: from epoch {epoch} on frozen weights: "
                f"{', '.join(frozen[:12])}{more}"
            )

    def _notice(self, message: str) -> None:
        self._records.event("notice", message=message)

    def _learning_rate(self) -> dict[str, float]:
        """Return the learning rate by its name; nothing without an optimizer."""
        if self._model.optimizer is None:  # which a train_step of its own may do without
            return {}
        return {"learning_rate": float(np.asarray(self._model.optimizer.learning_rate))}

    def _consult(self) -> int:
        """Let one number of steps, and anybody's wish to stop or to save, hold for all tasks."""
        # The first call traces, the second is the first to tell the time of a step: both take one.
        is_timed = self.timing.calls > 1
        count = int(CALL_SECONDS / max(self.timing.step_seconds, 1e-6)) if is_timed else 1
        count = min(count, self._steps.max_steps)
        is_chief = self._records.is_chief
        steps, stop, end, save, over, look = self._strategy.tasks.sum([
            max(1, count) if is_chief else 0,
            self._stopping(),
            self._model.stop_training,
            is_chief and self.step > max(0, self._saving.step) and self._saving.by_time(),
            is_chief and self.timing.calls > 0 and time.time() >= self._until,
            is_chief and self._records.usage_due(),
        ])  # fmt: skip
        self._stop, self._end, self._save_now = stop > 0, end > 0, save > 0
        self._over = over > 0
        self._look = self._look or look > 0
        return int(steps)

    def _next_boundary(self) -> int:
        """Return the next step at which the host has something to do."""
        schedule = self._schedule
        end = schedule.next_end(
            self.step, schedule.steps_per_epoch, schedule.checkpoint_steps,
            None if self._steps.spans_points else schedule.log_every,
            1 if self._callbacks.every_batch else None,
        )  # fmt: skip
        end = min([end, *(step for step in self._records.profile_steps or () if step > self.step)])
        return end

    def _train_until(self, boundary: int, count: int) -> None:
        schedule = self._schedule
        while not (self._stop or self._end or self._over or self._save_now):
            count = min(count, boundary - self.step)
            batch = self.step % schedule.steps_per_epoch
            self._records.profile(self.step)
            if self._callbacks.every_batch:
                self._callbacks.hooks.on_train_batch_begin(batch)
            # Where the state is looked at, no later step may have begun.
            rest = schedule.next_end(self.step, schedule.steps_per_epoch, schedule.checkpoint_steps)
            ahead = rest - self.step - count
            self._train_call(functools.partial(self._steps.train, count, ahead))
            if self._callbacks.every_batch:
                self._callbacks.hooks.on_train_batch_end(batch, self._steps.results(self._epoch))
            if self.step >= boundary:
                return
            count = self._consult()

    def _drain(self) -> None:
        """Take in the steps that have begun already: the state is to be of a whole step."""
        self._train_call(self._steps.drain)

    def _train_call(self, call: Callable[[], Sums]) -> None:
        self.timing.begin()
        sums = call()
        if sums.steps == 0:
            return
        self.timing.end(sums.steps, sums.examples, self._steps.waiting.pop())
        if self.timing.calls == 1:
            if self._strategy.replicas > 1:
                self._strategy.check_copies(self._model)
            self._begun()
        self.examples += sums.examples
        self._loss = self._steps.results(sums).get("loss")
        every, begun, finite = self._schedule.log_every, self.step, sums.steps
        if self._schedule.terminate_on_nan and not math.isfinite(self._loss or 0.0):
            finite = self._finite_steps(sums)
        borders = range(every - begun % every, sums.steps, every)
        for part in sums.split(borders if self._steps.spans_points else ()):
            if self.step + part.steps - begun > finite:
                raise NonFiniteLoss(
                    f"the loss is {self._loss_of(sums, finite + 1)} at step {begun + finite + 1} "
                    f"(trainer.terminate_on_nan=true); a lower optimizer.learning_rate or "
                    f"optimizer.global_clipnorm=1.0 may help; debug=nan names where it begins"
                )
            self.step += part.steps
            self.timing.add_part(part.steps / sums.steps)
            self._interval.add(part)
            self._epoch.add(part)
            if self.step % every == 0 or self.step == self._schedule.total_steps:
                self._log_interval()
        self._report_progress()

    def _loss_of(self, sums: Sums, steps: int) -> float:
        """Return the loss of the first so many steps of a call."""
        return self._steps.results(next(sums.split([steps])))["loss"]

    def _finite_steps(self, sums: Sums) -> int:
        """Return how many steps a call had before its loss was NaN or infinite, which it stays."""
        return bisect.bisect_left(
            range(1, sums.steps + 1), True,
            key=lambda steps: not math.isfinite(self._loss_of(sums, steps)),
        )  # fmt: skip

    def _report_progress(self, evaluated: int = 0) -> None:
        schedule = self._schedule
        report = {
            "step": self.step,
            "total_steps": schedule.total_steps,
            "epoch": (self.step - 1) // schedule.steps_per_epoch + 1,
            "epochs": schedule.epochs,
            "steps_per_epoch": schedule.steps_per_epoch,
            "loss": self._loss,
            "metrics": self.logs,
            "examples_per_second": self.timing.examples_per_second,
            "evaluated": evaluated,
            **self._before,
        }
        self._records.progress(report, self.step in (1, schedule.total_steps))

    def _log_interval(self) -> None:
        if self._interval.examples == 0:
            return
        epoch = (self.step - 1) // self._schedule.steps_per_epoch
        metrics = self._steps.results(self._interval)
        metrics.update(self._learning_rate())
        metrics.update(self.timing.end_interval(self._interval.steps, self._interval.examples))
        used = self._records.usage(self._strategy.tasks, self._look)
        self._look = False
        metrics.update({**self._steps.interval(), **used})
        self._records.point(self.step, epoch + 1, "interval", metrics)
        self._interval = Sums()

    def _end_epoch(self, epoch: int, due: bool) -> None:
        """Record the end of an epoch, evaluate, call the callbacks, and save where it is ``due``.

        Raises:
            Interrupted: a stop was asked for, and the validation is left to the resumed run.
        """
        if self._unvalidated is not None:
            logs = dict(self._unvalidated)
        else:
            logs = self._steps.results(self._epoch)
            numbers = {"epoch_examples": self._epoch.examples, "examples": self.examples}
            counts = {name: float(count) for name, count in numbers.items()}
            self._records.point(self.step, epoch + 1, "epoch", counts)
        validation: dict[str, float] = {}
        if self._schedule.validates(epoch):
            validation = {
                f"{PREFIX}{name}": value for name, value in self._validate(due, logs).items()
            }
            logs.update(validation)
        self._unvalidated, self._epoch = None, Sums()
        # Callbacks of Keras add the learning rate, of which there is a point already.
        written = self._learning_rate() if self._interval.examples == 0 else {}
        was_stopped = self._model.stop_training
        try:
            self._callbacks.hooks.on_epoch_end(epoch, logs)
        finally:  # a callback that raises ends the run, and what was measured is written
            added, ignored = self._callbacks.added(logs)
            new = {k: v for k, v in added.items() if written.get(k) != v}
            if validation or new:
                kind: MetricsKind = "validation" if validation else "callbacks"
                self._records.point(self.step, epoch + 1, kind, {**validation, **new})
            self.logs = {**logs, **added}
        if validation or not self._schedule.validation_examples:
            self._objective.see(self.step, self.logs)
        if not_finite := sorted(set(ignored) - self._noticed):
            self._noticed.update(not_finite)
            message = f"callbacks put into logs what is no finite number: {', '.join(not_finite)}"
            self._notice(f"{message}; it is not recorded")
        self._record_epoch(epoch)
        if self._model.stop_training:
            why = "a callback has ended it" if was_stopped else self._callbacks.why_stopped()
            self._note_stop(epoch, why)
        self._records.epoch_ended(self.step, self._model)
        if due:
            self._save()

    def _record_epoch(self, epoch: int) -> None:
        now = time.monotonic()
        self._records.event(
            "epoch", step=self.step, epoch=epoch + 1, epochs=self._schedule.epochs,
            metrics=self.logs, best=self._objective.improves(self.logs),
            epoch_seconds=round(now - self._epoch_began, 3), **self._before,
        )  # fmt: skip
        self._epoch_began = now

    def _note_stop(self, epoch: int, why: str = "a callback has ended it") -> None:
        before = self._before.get("epochs_before", 0)
        at = f"epoch {epoch + 1 - before} of {self._schedule.epochs - before}"
        self.ended = self.ended or f"{EARLY} at {at}: {why}"

    def _validate(self, due: bool, logs: dict[str, float]) -> dict[str, float]:
        # ORDER: taken before anything of the validation has happened, hooks included: a resumed
        # run does the whole of it.
        snapshot: Snapshot | None = None
        if self._unvalidated is None:
            # The epoch's results are saved, not its sums: its end has the same arrays then, unless
            # a callback changes them, and they need not be written again.
            self._unvalidated, self._epoch = dict(logs), Sums()
            snapshot = self._take()
            if due:
                self._saving.submit(self.step, snapshot)
                snapshot = None
        return self._evaluate(snapshot)

    def _evaluate(self, snapshot: Snapshot | None) -> dict[str, float]:
        """Evaluate; where a stop is asked for, end the run once what was ``taken`` is saved."""
        hooks, sums = self._callbacks.hooks, None
        if not self._stop:
            hooks.on_test_begin()
            with self.timing.left_out():
                sums = evaluate(
                    self._strategy, self._steps, self._schedule, self._records.is_chief,
                    self._stopping, lambda done: self._report_progress(done.examples),
                    hooks if self._callbacks.every_test_batch else None,
                )  # fmt: skip
        if sums is None:
            self._saving.interrupt(self.step, snapshot)
        self.evaluated = sums.examples
        validation = self._steps.results(sums, training=False)
        hooks.on_test_end(validation)
        return validation

    def _end_by_time(self) -> None:
        """Evaluate what was saved when the time was over, and say why the run ends."""
        schedule, done = self._schedule, "saved"
        epoch, inside = divmod(self.step, schedule.steps_per_epoch)
        # At the end of an epoch with a validation there was one.
        due = schedule.validation_examples and (inside or not schedule.validates(epoch - 1))
        if due:
            metrics = {f"{PREFIX}{name}": v for name, v in self._evaluate(None).items()}
            self._records.point(self.step, epoch + bool(inside), "validation", metrics)
            self.logs = {**self.logs, **metrics}
            self._objective.see(self.step, self.logs, whole=False)
            done = "saved and evaluated"
        message = (
            f"trainer.max_time={self._max_time} is over: the run ends at step {self.step} of "
            f"{schedule.total_steps}, {done}; resume=RUN_DIR trains on, for as long again"
        )
        self.ended = f"trainer.max_time={self._max_time} was over"
        self._notice(message)

    def _save(self) -> None:
        """Take a snapshot and have it written while training continues."""
        self._records.wait()  # the one before need not be in memory any more
        self._saving.submit(self.step, self._take())

    def _take(self) -> Snapshot | None:
        """Return a snapshot of everything; None in a task that keeps none."""
        if not self._records.saves:
            if self._strategy.abilities.reads_together:
                # What the chief copies, one variable after the other; nothing is kept.
                for name, variable in train_state.variables(self._model).items():
                    self._strategy.read({name: variable})
            return None
        arrays, sums = train_state.pack_sums(interval=self._interval, epoch=self._epoch)
        meta = {
            **sums,
            "interval_seconds": self.timing.interval_seconds,
            "examples": self.examples,
            "steps": self._steps.summary(),
            "logs": self.logs,
            **({"stopped": self.ended or True} if self._end or self._model.stop_training else {}),
            **self._before,
            "best": self._objective.best,
            "pending_validation": self._unvalidated is not None,
            "objective": self._value(),
            "objective_name": self._objective.name,
            "objective_mode": self._objective.mode,
        }
        meta |= {} if self._unvalidated is None else {"epoch_logs": self._unvalidated}
        return self._saving.take(arrays, meta)

    def _value(self) -> float | None:
        """Return the objective of this very step; None where it is not known."""
        inside = self.step % self._schedule.steps_per_epoch and self.step != self._cut
        if inside or self._unvalidated is not None:
            return None  # the logs are of an earlier step
        return self._objective.value(self.logs, self.timing.examples_per_second)

    def _restore(self, checkpoint: Checkpoint) -> None:
        meta, arrays = checkpoint.meta, checkpoint.arrays
        self.step = self._saving.step = checkpoint.step
        self.logs, self.examples = meta["logs"], meta["examples"]
        self._interval = train_state.unpack_sums("interval", arrays, meta["interval"])
        self.timing.interval_seconds = meta["interval_seconds"]
        self._steps.restore(meta["steps"])
        self._epoch = train_state.unpack_sums("epoch", arrays, meta["epoch"])
        epoch, inside = divmod(self.step, self._schedule.steps_per_epoch)
        self._callbacks.restore(arrays, meta["callbacks"], epoch if inside else None)
        self._objective.restore(meta)
        if stopped := meta.get("stopped"):
            self._model.stop_training = True
            self.ended = stopped if isinstance(stopped, str) else None
            self._notice(f"a callback has ended the training at step {self.step}: it ends there")
        if meta["pending_validation"]:
            # A fork with another loss or other metrics has none.
            self._unvalidated = meta.get("epoch_logs") or self._steps.results(self._epoch)
