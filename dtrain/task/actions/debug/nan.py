"""``debug=nan``: the training as it is, with probes that find the first value not finite."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
import tensorflow as tf

from dtrain.config.schema import Config
from dtrain.errors import CheckFailed
from dtrain.run.checkpoint import Checkpoint
from dtrain.task import restore
from dtrain.task.actions.train import Train
from dtrain.task.debugging import findings, first
from dtrain.task.debugging.probes import Count, Probe, Probes
from dtrain.task.session import Process, Session
from dtrain.task.strategies import Strategy

#: Probes that a report names behind the first one.
OTHERS = 20
#: From here on is the order of weights, which are looked at behind all that is in the step.
WEIGHTS = 10**9


class Nan(Train):
    """Trains until a loss, a gradient or a weight is not finite, and names where that began.

    Args:
        steps: after which it ends; None: those of the training.
    """

    def __init__(self, steps: int | None = None):
        self._steps, self._probes = steps, Probes()

    def assemble(
        self, config: Config, strategy: Strategy, process: Process, past: Checkpoint | None
    ) -> Session:
        """Return the session of a training, whose loss may be what it is."""
        process.ending.enter_context(self._probes.installed())
        session: Session = super().assemble(config, strategy, process, past)
        # What is not finite is found here, and named.
        schedule = dataclasses.replace(session.schedule, terminate_on_nan=False)
        return dataclasses.replace(session, schedule=schedule)

    def run(self, session: Session) -> None:
        """Train, with a look at all probes after each step.

        Raises:
            CheckFailed: a value is not finite, naming it.
            Interrupted: it was asked to stop.
        """
        self._probes.of_step(session.model)
        watch = Watch(session, self._probes, self._steps)
        super().run(dataclasses.replace(session, callbacks=(*session.callbacks, watch)))
        watch.passed()


class Watch(keras.callbacks.Callback):
    """Looks at the probes after each step, together with the other tasks.

    Args:
        session: of the training.
        probes: of its steps.
        steps: after which the training ends.
    """

    def __init__(self, session: Session, probes: Probes, steps: int | None):
        super().__init__()
        self._session, self._probes, self._steps = session, probes, steps
        self._harmless: dict[tuple[str, str], str] = {}
        past = session.past  # of a run that is forked: its training continues
        self._begun = self._done = past.step if past and restore.has_position(past) else 0

    def get_state(self) -> None:
        """Return nothing: a check is not resumed."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Look at the weights that the training begins with."""
        if self._weights():
            self._judge(self._weights(), self._begun)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Look at what the step has left."""
        self._done += 1
        counts = {**self._probes.take(), **self._weights()}
        loss = (logs or {}).get("loss")
        lost = loss is not None and not math.isfinite(loss)
        self._judge(counts, self._done, lost)
        if self._steps is not None and self._done - self._begun >= self._steps:
            self.model.stop_training = True

    def passed(self) -> None:
        """Report that all was finite."""
        summary = (
            f"all losses, gradients and weights are finite in {self._done - self._begun:,} steps"
        )
        if self._harmless:
            places = "; ".join(list(self._harmless.values())[:3])
            summary += f"; not finite, and without an effect on them: {places}"
        findings.write(self._session.process, summary, steps=self._done - self._begun)

    def _judge(self, counts: dict[Probe, Count], step: int, lost: bool = False) -> None:
        scaled = isinstance(self.model.optimizer, keras.optimizers.LossScaleOptimizer)
        found = first.bad(counts)
        serious = bool(first.is_serious(counts, not scaled) or lost)
        strategy = self._session.strategy
        if strategy.all_reduce_numbers([serious])[0]:
            self._raise(counts, step)
        for probe in found:
            self._harmless.setdefault((probe.kind, probe.path), first.where(probe))

    def _raise(self, counts: dict[Probe, Count], step: int) -> None:
        """Name the first of the probes of all tasks.

        Raises:
            CheckFailed: always.
        """
        own = first.of(counts, self._harmless) if first.bad(counts) else None
        probe, count, replicas = self._agreed(own, counts)
        if probe is None or count is None:
            message = f"the loss is not finite at step {step}, and what is computed in it is"
            raise CheckFailed(message, "look at what the step returns as its loss")
        begun = f"at step {step}" if step > self._begun else "before the first step"
        several = f" on {replicas}" if self._session.strategy.replicas > 1 else ""
        parts = [f"{first.described(probe, count)} {begun}{several}"]
        if (given := first.given(probe, counts)) is not None:
            parts.append(given)
        rest = {each.order: each for each in first.bad(counts) if each.order > probe.order}
        rows = [["after it", "NaN", "infinite", "of values"]]
        for each in list(rest.values())[:OTHERS]:
            found = counts[each]
            rows.append([first.where(each), *map(str, (found.nan, found.infinite, found.size))])
        where = {"step": step, "kind": probe.kind, "path": probe.path}
        findings.write(self._session.process, None, rows if rest else (), (1, 2, 3), **where)
        self._session.strategy.barrier()  # ORDER: none leaves before all know it
        raise CheckFailed("; ".join(parts), first.hint(probe))

    def _agreed(
        self, own: Probe | None, counts: dict[Probe, Count]
    ) -> tuple[Probe | None, Count | None, str]:
        """Return the first probe of all tasks, as this task knows it, and the replicas it is on."""
        strategy, cluster = self._session.strategy, self._session.process.cluster
        tasks = [task for task in cluster.tasks if not task.serves]
        size, at = strategy.replicas, tasks.index(self._session.process.task)
        orders = [0.0] * len(tasks)
        orders[at] = 0.0 if own is None else own.order + 1.0
        known = [order for order in strategy.all_reduce_numbers(orders) if order]
        if not known:
            return None, None, ""
        order = int(min(known)) - 1
        here = [probe for probe in counts if probe.order == order]
        if order >= WEIGHTS:  # they are the same on all replicas
            return (here[0], counts[here[0]], "all replicas") if here else (None, None, "")
        # What it has counted, and on which replicas: zeros where it is finite.
        table = [0.0] * (3 * size)
        for probe in here:
            if (count := counts[probe]).bad:
                table[3 * probe.replica : 3 * probe.replica + 3] = [
                    count.nan, count.infinite, count.size
                ]  # fmt: skip
        found = strategy.all_reduce_numbers(table)
        bad = [r for r in range(size) if found[3 * r] + found[3 * r + 1]]
        replica = bad[0]
        nan, infinite, values = map(round, found[3 * replica : 3 * replica + 3])
        which = "all replicas" if len(bad) == size else f"replica {', '.join(map(str, bad))}"
        return here[0], Count(nan, infinite, values, 0.0), f"{which} of {size}"

    def _weights(self) -> dict[Probe, Count]:
        """Return the weights, and slots of optimizers, that are not finite."""
        found: dict[Probe, Count] = {}
        optimizer = self.model.optimizer
        kept = [] if optimizer is None else optimizer.variables
        for number, variable in enumerate([*self.model.variables, *kept]):
            value = tf.convert_to_tensor(variable.value)
            if not value.dtype.is_floating:
                continue
            nan = int(tf.math.count_nonzero(tf.math.is_nan(value)))
            infinite = int(tf.math.count_nonzero(tf.math.is_inf(value)))
            if nan + infinite:
                shape = " x ".join(map(str, variable.shape))
                probe = Probe(WEIGHTS + number, first.WEIGHT, variable.path, shape, 0)
                found[probe] = Count(nan, infinite, int(tf.size(value)), 0.0)
        return found
