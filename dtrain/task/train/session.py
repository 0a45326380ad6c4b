"""What a task does (:class:`Action`), and what it works with: model, inputs and steps."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import keras

from dtrain import secrets
from dtrain.config import targets
from dtrain.config.node import to_plain
from dtrain.config.tree import Config
from dtrain.data.failures import before_training
from dtrain.data.prepare import check_batch
from dtrain.data.sources import Splits
from dtrain.files.fields import Json
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir
from dtrain.run.journal import Journal
from dtrain.run.samples import read_encoding, write_encoding
from dtrain.task.aliases import Nest
from dtrain.task.backends.base import Backend, Steps
from dtrain.task.backends.step_logs import evaluates
from dtrain.task.data import data_identity, dataset
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import build, checks, finetune, initial, losses
from dtrain.task.process.own_logs import OwnLogs
from dtrain.task.train import restore
from dtrain.task.train.step_schedule import Schedule, make_schedule
from dtrain.task.train.timing import Phases
from dtrain.task.train.validation import WITHOUT_LOSS


@dataclasses.dataclass(frozen=True)
class Process:
    """The process of a task, as an action sees it.

    Attributes:
        rundir: the run folder.
        cluster: all tasks.
        task: this one.
        journal: of the run; None in a task that is not the chief, which writes nothing.
        stop: says whether the task was asked to stop.
        begun: called when there is something that a stop has to save.
        ending: what is to be ended with the task's part in the run.
        phases: takes note of how long the start takes.
        logged: what the user's code logs.
    """

    rundir: RunDir
    cluster: Cluster
    task: Task
    journal: Journal | None
    stop: Callable[[], bool]
    begun: Callable[[], None]
    ending: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    phases: Phases = dataclasses.field(default_factory=Phases)
    logged: OwnLogs = dataclasses.field(default_factory=OwnLogs)

    @property
    def is_chief(self) -> bool:
        """Whether this task writes the run's files."""
        return self.journal is not None

    def notice(self, message: str | None) -> None:
        """Write a sentence for the user to the journal, if there is one and this is the chief."""
        if message is not None:
            self.event("notice", message=message)

    def event(self, kind: str, /, **fields: object) -> None:
        """Write an event to the journal, if this is the chief."""
        if self.journal is not None:
            self.journal.write(kind, **fields)


@dataclasses.dataclass(frozen=True)
class Session:
    """One task of a run, ready for its action.

    Attributes:
        config: of the run.
        strategy: runs the steps.
        process: of the task.
        past: the checkpoint whose state the model has; None where it is new.
        model: compiled and built.
        schedule: how many steps, and when what happens.
        inputs: the data, as it is read.
        data: what it is.
        steps: the compiled functions that train and evaluate.
        callbacks: of the action, behind those of the configuration.
    """

    config: Config
    strategy: Backend
    process: Process
    past: Checkpoint | None
    model: keras.Model
    schedule: Schedule
    inputs: Inputs
    data: dataset.Data
    steps: Steps
    callbacks: tuple[keras.callbacks.Callback, ...] = ()


class Action(ABC):
    """Does the work of a run; ``action._target_`` names the class.

    Its constructor takes the other keys of the group. Every task of a cluster that trains makes
    one and calls the same methods at the same points.
    """

    #: Whether it trains. One that does not needs no training input, no optimizer's state, and no
    #: rehearsal of the training step.
    trains = True
    #: The run whose model is used; None: that of the process.
    of_run: RunDir | None = None
    #: What the test examples are, of :func:`data_identity.records`; None: it has none.
    test_record: Json | None = None

    # An optional hook: it has no body and is not abstract.
    def check(self, config: Config, model: keras.Model, schedule: Schedule) -> None:  # noqa: B027
        """Refuse what this action cannot do, before anything is restored.

        Raises:
            UsageError: naming the key.
        """

    def metrics(self, config: Config, predicted: Nest) -> list[keras.metrics.Metric]:
        """Return metrics to compile the model with, beside those of the configuration.

        Args:
            config: of the run, with its loss and metrics settled.
            predicted: what the model returns for an example.
        """
        return []

    def loaded(self, config: Config, data: dataset.Data) -> dataset.Data:
        """Return the examples as the model is to be built for them."""
        return data

    def arranged(self, inputs: Inputs, data: dataset.Data) -> Inputs:
        """Return the input as this action reads it."""
        return inputs

    def assemble(
        self, config: Config, strategy: Backend, process: Process, past: Checkpoint | None
    ) -> Any:
        """Return what :meth:`run` works with; by default a session that has steps.

        It has ``inputs``: where an example that cannot be read is looked for.

        Args:
            config: of the run.
            strategy: as it was made.
            process: of the task.
            past: the checkpoint to restore, of this run or another one.

        Raises:
            UsageError: model, data, strategy and checkpoint do not go together.
        """
        return assemble(config, strategy, process, past, self)

    @abstractmethod
    def run(self, session: Any) -> None:
        """Do it.

        Args:
            session: of :meth:`assemble`.

        Raises:
            Interrupted: it was asked to stop, and has saved what is needed to resume.
        """


def assemble(
    config: Config, strategy: Backend, process: Process, past: Checkpoint | None, action: Action
) -> Session:
    """Build everything in order; every task of a cluster that trains does the same here.

    Args:
        config: of the run.
        strategy: as it was made.
        process: of the task.
        past: the checkpoint to restore, of this run or another one.
        action: what is to be done.

    Raises:
        UsageError: model, data, strategy and checkpoint do not go together.
    """
    groups = ("model", "dataset", "action", *(("optimizer", "trainer") if action.trains else ()))
    targets.check_arguments({name: to_plain(getattr(config, name)) for name in groups})
    encoding = read_encoding(action.of_run or process.rundir)
    data = action.loaded(config, dataset.load(config, action.trains, encoding))
    process.phases.end("data")
    with before_training(config.dataset):
        splits, trains, start = data.splits, action.trains, past.step if past else 0
        if trains:
            # The command could not know how many examples a dataset of the user's own has.
            examples, _ = dataset.lengths(splits)
            check_batch(config.trainer.batch_size, strategy.replicas, examples)
        tell_apart(data, action.test_record, strategy, process, past)
        process.ending.enter_context(data.pool)  # its readers start while the model is built
        schedule = make_schedule(config, *dataset.lengths(splits))
        model = build.model(
            config, splits, strategy, schedule.total_steps, schedule.steps_per_epoch,
            trains, action.metrics, process.notice,
        )  # fmt: skip
        if trains:
            process.notice(losses.targets_notice(config, splits))
            if process.is_chief:
                write_encoding(process.rundir, losses.encoding(config, splits))
        if splits.validation is not None and not evaluates(model):
            data = data.without_validation()
            splits = data.splits
            schedule = dataclasses.replace(schedule, validation_examples=0)
            process.notice(f"validation is left out: {WITHOUT_LOSS} ({type(model).__name__})")
        fixed = checks.fixed_rows(model, config)
        batch = config.trainer.batch_size if trains else None
        for message in strategy.notices(model, splits, fixed, batch, config.seed):
            process.notice(message)
        action.check(config, model, schedule)
        if past is not None:
            if initial.is_initial(past):
                process.notice(initial.load(past, model, strategy, config.init.rules))
            else:
                restore.restore(past, model, strategy, process.rundir, schedule)
            restore.release(past)
        if trains:
            finetune.begin(model, config, strategy, start, schedule.steps_per_epoch)
        process.phases.end("build")
        data.pool.ready()
        inputs = Inputs(
            splits.train if trains else None, splits.validation, config.trainer.batch_size,
            config.seed, start, data.augment, config.trainer.validation_batch_size,
            config.trainer.validation_steps, data.order,
            validations=_validations(schedule, past) if trains else 0,
        )  # fmt: skip
        inputs = action.arranged(inputs, data)
        steps = strategy.steps(model, inputs, config.hardware.jit_compile or config.trainer.compile)
        steps.log(config.trainer.log)
        steps.waiting.measured = not config.trainer.deterministic  # ORDER: before a step is traced
        process.phases.end("steps")
        return Session(config, strategy, process, past, model, schedule, inputs, data, steps)


def untrained(config: Config, splits: Splits, strategy: Backend) -> keras.Model:
    """Build the model of a run as it is used after the training; its weights are as new.

    Args:
        config: of the run.
        splits: what it is built on.
        strategy: has the variables.

    Raises:
        UsageError: model and data do not fit.
    """
    schedule = make_schedule(config, *dataset.lengths(splits))
    steps = schedule.total_steps, schedule.steps_per_epoch
    return build.model(config, splits, strategy, *steps, trains=False)


def _validations(schedule: Schedule, past: Checkpoint | None) -> int:
    """Return how many validations a run has behind it where it continues."""
    if past is None:
        return 0
    ended = sum(map(schedule.validates, range(past.step // schedule.steps_per_epoch)))
    return max(0, ended - bool(past.meta.get("pending_validation")))


def tell_apart(
    data: dataset.Data, test: Json | None, strategy: Backend, process: Process,
    past: Checkpoint | None,
) -> None:  # fmt: skip
    """Record what the data is, and compare it with that of the other hosts and of the run before.

    What a run is tested on may have changed since, and not differ among its hosts.

    Raises:
        UsageError: it is other data.
    """
    several = sum(not task.serves for task in process.cluster.tasks) > 1
    own = data.identity if test is None else {**data.identity, "test": test}
    data_identity.check_hosts(own, strategy.tasks, process.cluster)
    stream = data_identity.check_stream(data.splits, not several)
    notices = [*data.notices, stream]
    if process.journal is not None:
        process.journal.write("data", **data.identity)
        forked = past is not None and past.path.parent != process.rundir.checkpoints
        accepted = data.options.accept_changes
        notices.append(data_identity.check_past(data.identity, past, accepted, forked))
    for message in notices:
        process.notice(message)


def quietly(action: Callable[[], None]) -> None:
    """Do what cannot change how the run has ended: all that counts is saved by now."""
    try:
        action()
    except Exception as error:  # of a full disk: OSError, or TensorFlow's own
        print(secrets.mask(f"{type(error).__name__}: {error}"), file=sys.stderr, flush=True)
