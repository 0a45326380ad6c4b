"""``debug=slow``: what the time of a step is made of, as measured in the training itself."""

from __future__ import annotations

import copy
import dataclasses
import time

from dtrain.config.objective import Mode
from dtrain.debug import findings
from dtrain.run.times import HOST, INPUT
from dtrain.task.train import timing
from dtrain.task.train.loop import Loop
from dtrain.task.train.session import Session
from dtrain.task.train.train import Train

#: Calls of steps that are not measured: they trace, choose how many steps a call has, and open
#: what is written to.
WARM = 3
#: More epochs than there is time for.
_ENDLESS = 10**6

#: What is neither of the parts that are measured.
STEP = "step"
_ABOUT = {
    INPUT: "the step waits for its examples",
    STEP: "the step itself: forward, backward, exchange of gradients, update, metrics",
    HOST: "between two calls of steps: callbacks, points, ends of epochs",
}


class Slow(Train):
    """Trains for some seconds, as it is, without validations and checkpoints.

    Args:
        seconds: that are measured.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._timer: _Timer

    def run(self, session: Session) -> None:
        """Train, and write the table.

        Raises:
            Interrupted: it was asked to stop.
        """
        self._timer = _Timer(session, self._seconds)
        schedule = dataclasses.replace(session.schedule, epochs=_ENDLESS, validation_examples=0)
        config = copy.copy(session.config)
        config.objective, config.objective_mode = "loss", Mode.min
        process = dataclasses.replace(session.process, stop=self._timer)
        # Without a position of a run that is forked: there the rest of an epoch may be short.
        super().run(
            dataclasses.replace(
                session,
                config=config,
                schedule=schedule,
                process=process,
                past=None,
            )
        )

    def begins(self, loop: Loop) -> None:
        """Take note of what measures."""
        self._timer.loop = loop

    def trained(self, session: Session, loop: Loop) -> None:
        """Write where the time went: of a step, and of the start."""
        measured = loop.timing
        steps, speed = measured.measured_steps, measured.examples_per_second
        whole = measured.seconds / steps if steps else 0.0
        rows = [["part of a step", "ms", "share", "what it is"]]
        shares = {**measured.shares, STEP: max(0.0, 1.0 - sum(measured.shares.values()))}
        for name, share in sorted(shares.items(), key=lambda item: -item[1]):
            rows.append([name, f"{1000 * share * whole:.3f}", f"{share:.1%}", _ABOUT[name]])
        rows.append(["a step", f"{1000 * whole:.3f}", "100.0%", f"the mean of {steps:,} steps"])
        rows.append(["", "", "", ""])
        rows.append(["before the first step", "s", "", ""])
        phases = session.process.phases.seconds
        rows += [[name, f"{seconds:.2f}", "", ""] for name, seconds in phases.items()]
        bottleneck = timing.bottleneck(max(measured.seconds, timing.SECONDS), measured.shares)
        summary = f"{speed:,.0f} examples/s; " + (
            bottleneck
            or "most of the time is that of the steps themselves; a profiler shows what they do "
            "(tracking.profile_steps), -m experiment=speed finds faster settings"
        )
        findings.write(
            session.process, summary, rows, (1, 2),
            seconds_per_step=whole, shares=shares, phases=phases,
        )  # fmt: skip


class _Timer:
    """Is asked before each call of steps whether to stop, as a task's signals are.

    Args:
        session: of the training.
        seconds: from the last call that is not measured to the end.
    """

    loop: Loop

    def __init__(self, session: Session, seconds: float):
        self._model, self._asked = session.model, session.process.stop
        self._seconds, self._count, self._deadline = seconds, 0, 0.0

    def __call__(self) -> bool:
        """End the training when the time is over, as a callback does; all tasks agree on it."""
        if self._count == WARM:
            self.loop.timing.restart()
            self._deadline = time.monotonic() + self._seconds
        elif self._count > WARM + 1 and time.monotonic() >= self._deadline:
            self._model.stop_training = True
        self._count += 1
        return bool(self._asked())
