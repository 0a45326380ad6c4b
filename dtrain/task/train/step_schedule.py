"""When things happen in a run, in steps."""

from __future__ import annotations

import dataclasses
import math
import os

from dtrain.config.node import seconds
from dtrain.config.tree import Config
from dtrain.data.prepare import evaluated
from dtrain.errors import refuse
from dtrain.run.folder import RunDir

#: Points of training metrics in a run, about, where ``trainer.log_every_steps`` is null.
DEFAULT_POINTS = 200


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When things happen. Steps are counted from 0 over the whole run.

    Attributes:
        epochs: of the run.
        steps_per_epoch: steps between two ends of an epoch.
        global_batch: examples a step.
        log_every: steps between two points of the journal.
        validation_examples: that a validation evaluates; 0 for no validation.
        validation_freq: epochs between two validations.
        checkpoint_epochs, checkpoint_steps, checkpoint_seconds: intervals between two
            checkpoints; None for none of that kind.
        terminate_on_nan: end the run when the loss is not finite.
    """

    epochs: int
    steps_per_epoch: int
    global_batch: int
    log_every: int
    validation_examples: int
    validation_freq: int
    checkpoint_epochs: int | None
    checkpoint_steps: int | None
    checkpoint_seconds: float | None
    terminate_on_nan: bool

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.epochs * self.steps_per_epoch

    def saves(self, step: int) -> bool:
        """Say whether a checkpoint is due at ``step``, by epochs or by steps."""
        epochs = (self.checkpoint_epochs or 0) * self.steps_per_epoch
        return any(period and step % period == 0 for period in (epochs, self.checkpoint_steps))

    def validates(self, epoch: int) -> bool:
        """Say whether ``epoch`` ends with a validation."""
        return self.validation_examples > 0 and (epoch + 1) % self.validation_freq == 0

    def next_end(self, step: int, *periods: int | None) -> int:
        """Return the first step after ``step`` at which one of ``periods`` ends, or the run."""
        ends = [(step // period + 1) * period for period in periods if period]
        return min([*ends, self.total_steps])


def make_schedule(
    config: Config, examples: int | None, validation_examples: int | None
) -> Schedule:
    """Work out the numbers of steps.

    Args:
        config: of the run.
        examples: to train on; None where that is not known.
        validation_examples: to evaluate on; None where that is not known.

    An epoch is ``examples // batch_size`` steps unless ``trainer.steps_per_epoch`` says otherwise.
    What does not fill its last batch opens the next epoch: nothing is dropped.

    Raises:
        UsageError: ``tracking.profile_steps`` is outside of the run, or ``validation_steps`` of
            the validation.
    """
    trainer, saving = config.trainer, config.checkpoint
    per_epoch = trainer.steps_per_epoch or max(1, (examples or 0) // trainer.batch_size)
    total = trainer.epochs * per_epoch
    trace = config.tracking.profile_steps
    if trace and trace[1] > total:  # of a dataset whose length the plan did not know
        refuse("tracking.profile_steps", f"the run has {total:,} steps", list(trace),
               accepted="a first and a last step of the run",
               typed="tracking.profile_steps=null")  # fmt: skip
    return Schedule(
        epochs=trainer.epochs,
        steps_per_epoch=per_epoch,
        global_batch=trainer.batch_size,
        log_every=trainer.log_every_steps or -(-total // DEFAULT_POINTS),
        validation_examples=evaluated(trainer, validation_examples),
        validation_freq=trainer.validation_freq,
        checkpoint_epochs=saving.every_epochs,
        checkpoint_steps=saving.every_steps,
        checkpoint_seconds=saving.every_seconds,
        terminate_on_nan=trainer.terminate_on_nan,
    )


def end_of_time(value: float | str | None, rundir: RunDir) -> float:
    """Return when a training ends, whatever it has reached, in seconds since 1970.

    The command that has begun, or resumed, the run has written the configuration, once: tasks that
    are restarted have what is left of its time.

    Args:
        value: ``trainer.max_time``.
        rundir: of the run.
    """
    limit = seconds(value)
    return math.inf if limit is None else os.stat(rundir.config).st_mtime + limit
