"""Training: the loop over epochs and steps, its records, and the final model."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import keras

from dtrain import errors
from dtrain.config import objective as metrics
from dtrain.config.objective import AUTO, ORDER, SPEED
from dtrain.config.tree import Config
from dtrain.data.streams import examples_in
from dtrain.errors import DtrainError
from dtrain.files.fields import Json
from dtrain.run import checkpoint, identity
from dtrain.run.folder import RunDir, read_json
from dtrain.run.journal import Journal
from dtrain.task.backends.base import Steps
from dtrain.task.backends.step_logs import has_own, named
from dtrain.task.data import data_identity
from dtrain.task.data.dataset import Data
from dtrain.task.model import finetune
from dtrain.task.train import restore, timing
from dtrain.task.train.callbacks import Callbacks, made, numbers
from dtrain.task.train.final_test import Test, load_test, run_test
from dtrain.task.train.held_out import write_report
from dtrain.task.train.loop import Loop
from dtrain.task.train.recorder import NullRecords, Objective, Records
from dtrain.task.train.session import Action, Process, Session, quietly
from dtrain.task.train.snapshots import save_model
from dtrain.task.train.step_schedule import Schedule, end_of_time
from dtrain.task.train.tensorboard import Summaries


class Train(Action):
    """Trains to the end of the last epoch, and saves the final model."""

    #: Names of the run's metrics, as far as ``objective=auto`` can be chosen among them before
    #: the first step.
    _names: Sequence[str] = ()

    _test: Test | None = None

    def loaded(self, config: Config, data: Data) -> Data:
        """Read the test examples, too: what is wrong with them is refused before training.

        A test split that no key names is left out, with a notice, where it cannot be read.
        """
        try:
            self._test = load_test(config, data)
        except DtrainError as error:
            if config.dataset.get("test") is not None:
                raise
            notice = f"the dataset's test examples are left out: {error}"
            return dataclasses.replace(data, notices=(*data.notices, notice))
        if self._test is not None:
            self.test_record = self._test.data.identity["validation"]
        return data

    def check(self, config: Config, model: keras.Model, schedule: Schedule) -> None:
        """Refuse an objective that no metric of the run is.

        Raises:
            UsageError: naming it.
        """
        # What a step or a callback of the user's own names, is not known before it ran.
        if has_own(model, "train_step", "compute_metrics"):
            return
        trainer = config.trainer
        names = [name for name, _ in named("", model.get_metrics_result())]
        if schedule.validation_examples:
            names += [f"val_{name}" for name in names]
        names += trainer.log
        self._names = names
        if any(not str(each.get("_target_")).startswith("keras.") for each in
               trainer.callbacks):  # fmt: skip
            self._names = [name for name in names if name == ORDER[0]]  # one of theirs may be it
            return
        for key, name in metrics.monitored(trainer.callbacks, trainer.early_stopping):
            metrics.check(key, name, names, "learning_rate")
        metrics.check("objective", config.objective, names, AUTO, SPEED)

    def run(self, session: Session) -> None:
        """Train; a task without a journal keeps nothing.

        Raises:
            Interrupted: it was asked to stop, and a checkpoint is saved.
        """
        began, held_out, tested = time.monotonic(), dict[str, Any](), dict[str, float]()
        config, strategy, process = session.config, session.strategy, session.process
        model, schedule, steps, past = session.model, session.schedule, session.steps, session.past
        records = make_records(process.rundir, config, process.journal, past)
        objective = Objective(
            config.objective, config.objective_mode, records, past.meta if past else None
        )
        objective.choose(self._names)
        nodes = [*config.trainer.callbacks, *_early_stopping(config, objective, schedule)]
        callbacks = Callbacks(
            [*made(nodes, process.rundir.path), *session.callbacks],
            model,
            schedule.epochs,
            schedule.steps_per_epoch,
            lambda own: strategy.tasks.gather(own)[0],
            logged=process.logged.take,
        )
        if nodes:
            strategy.answer_locally(model)
        # What the configuration does not say and a record of the run needs.
        derived = {
            "replicas": strategy.replicas,
            "global_batch_size": schedule.global_batch,
            "per_replica_batch_size": schedule.global_batch // strategy.replicas,
            "steps_per_epoch": schedule.steps_per_epoch,
            "total_steps": schedule.total_steps,
            "parameters": model.count_params(),
            "train_examples": examples_in(session.inputs.train),
            "validation_examples": schedule.validation_examples,
            **objective.fields(),
        }
        if config.trainer.loss == AUTO and isinstance(model.loss, str):
            derived["trainer.loss"] = model.loss  # which of its values auto is
        records.event("start", step=past.step if past else 0, **derived)
        steps.waiting.traced = functools.partial(process.phases.end, "trace")
        loop = Loop(
            model, strategy, steps, schedule, callbacks, records, objective, process.stop,
            identity={
                "seed": config.seed,
                "config": identity.fingerprints(config),
                "versions": identity.versions(config.backend),
                "data": session.data.identity,
                "evaluated": data_identity.evaluated(config, session.data.identity),
                "topology": {"strategy": config.strategy.name, "replicas": strategy.replicas},
            },
            begun=functools.partial(_begun, process, model, steps),
            max_time=config.trainer.max_time,
            until=end_of_time(config.trainer.max_time, process.rundir),
            epochs_before=_epochs_before(past, process, schedule),
        )  # fmt: skip
        if records.is_chief:
            process.logged.begin(records, process.rundir, lambda: loop.step)
        status, measured = "FAILED", loop.timing
        try:
            loop.run(past if restore.has_position(past) else None)
            if rest := numbers(process.logged.take()):  # of on_train_end
                records.point(loop.step, schedule.epochs, "callbacks", rest)
            process.notice(timing.described(measured.seconds, measured.shares))
            with strategy.whole(model):
                save_model(model, process.rundir, records)
            tested = self._run_test(session)
            if config.report and records.is_chief:
                seconds = time.monotonic() - began
                held_out = write_report(session, process.rundir, None, seconds)
            strategy.tasks.barrier()  # ORDER: none leaves before the chief is done
            status = "FINISHED"
        except errors.Interrupted:
            strategy.tasks.barrier()
            status = "KILLED"
            raise
        finally:
            quietly(
                lambda: records.end(
                    status=status,
                    step=loop.step,
                    examples=loop.examples,
                    evaluated_examples=loop.evaluated,
                    examples_per_second=round(measured.examples_per_second, 1),
                    time_shares={name: round(each, 3) for name, each in measured.shares.items()},
                    metrics={**loop.logs, **tested},
                    **({"held_out": held_out} if held_out else {}),
                    **({"ended": loop.ended} if loop.ended is not None else {}),
                    **steps.summary(),
                )
            )

    def _run_test(self, session: Session) -> dict[str, float]:
        """Return the metrics of the test examples; what has no test is trained all the same.

        Raises:
            Exception: of one of several tasks. The others wait for its part of their sums, and
                would take the next one that it sends.
        """
        try:
            return {} if self._test is None else run_test(session, self._test)
        except Exception as error:  # of the user's metrics or data, or a stop
            if session.strategy.tasks.size > 1 and not isinstance(error, errors.Interrupted):
                raise
            session.process.notice(f"the test examples are not evaluated: {error}"[:1000])
            return {}


def _early_stopping(config: Config, objective: Objective, schedule: Schedule) -> list[Json]:
    """Return the callback of ``trainer.early_stopping`` as a node, if there is one."""
    value = config.trainer.early_stopping
    if value is None:
        return []
    name, mode = objective.name, objective.mode
    # Of a model whose metrics are known after the first epoch alone no objective is chosen yet.
    if name in (None, SPEED):
        name, mode = "val_loss" if schedule.validation_examples else "loss", "min"
    return [metrics.stopping(value, str(name), str(mode))]


def _epochs_before(
    past: checkpoint.Checkpoint | None, process: Process, schedule: Schedule
) -> int:  # fmt: skip
    """Return how many epochs of the run that it forks a run goes on from, 0 of one that is none."""
    if past is None or not restore.has_position(past):
        return 0
    if past.path.parent == process.rundir.checkpoints:
        return int(past.meta.get("epochs_before", 0))
    before, epochs = past.step // schedule.steps_per_epoch, schedule.epochs
    if before:
        process.notice(
            f"epochs are counted from here: epoch 1 of {epochs - before} is epoch {before + 1} of "
            f"trainer.epochs={epochs}"
        )
    return before


def _begun(process: Process, model: keras.Model, steps: Steps) -> None:
    """Take note that the first step has run.

    Raises:
        UsageError: it has changed what is frozen.
    """
    if (schedule := finetune.schedule_of(model)) is not None:
        schedule.check()
    if names := steps.unsaved():
        process.notice(
            f"the training step assigns {', '.join(names[:5])}, and no attribute of a layer leads "
            "there: no checkpoint has it, and a resumed run begins with its first value; "
            "self.add_weight(..., trainable=False) of a layer is saved"
        )
    process.phases.end("first_step")
    if process.journal is not None:
        process.journal.write("phases", seconds=process.phases.seconds)
    process.begun()


def make_records(
    rundir: RunDir, config: Config, journal: Journal | None,
    past: checkpoint.Checkpoint | None = None,
) -> Records:  # fmt: skip
    """Return what records a run; without a journal, what records nothing.

    Args:
        rundir: of the run.
        config: of it.
        journal: of it.
        past: the checkpoint that it is resumed from, or that it forks.
    """
    tracking, saving = config.tracking, config.checkpoint
    steps = tracking.profile_steps
    traced = (steps[0], steps[1]) if steps else None
    if journal is None:
        return NullRecords(traced)
    meta = past.meta if past else {}
    mode = meta.get("objective_mode") if config.objective_mode == "auto" else None
    name = meta.get("objective_name") if config.objective == AUTO else config.objective
    return Records(
        rundir,
        journal,
        Summaries(
            rundir.tensorboard,
            rundir.journal,
            tracking.histograms,
            traced,
            (read_json(rundir.command) or {}).get("sweep"),
        ),
        checkpoint.Writer(
            rundir.checkpoints,
            saving.keep,
            saving.best,
            mode or config.objective_mode,
            saved=lambda step: journal.write("checkpoint", step=step, path=f"checkpoints/{step}"),
            before=journal.sync,
            resumed=past.step if past and past.path.parent == rundir.checkpoints else None,
            objective=name,
        ),
    )
