"""One task process: from a run folder to an exit code. Reads top to bottom."""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import keras

from dtrain import errors, secrets
from dtrain.config import load, targets
from dtrain.config.schema import Config
from dtrain.errors import DtrainError, UsageError, nearest
from dtrain.files import writing
from dtrain.run import checkpoint, identity, strategy_plan
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir, read_json
from dtrain.run.journal import Journal
from dtrain.task import build, final_model, input_pipeline, restore
from dtrain.task.actions.loop import Loop
from dtrain.task.callbacks import Callbacks, made, shared
from dtrain.task.process import hardware, parent_death, sockets
from dtrain.task.process.signals import Stop
from dtrain.task.recorder import Records, Silence
from dtrain.task.rehearsal import across, metrics
from dtrain.task.step_logs import evaluates, named
from dtrain.task.step_schedule import Schedule, make_schedule
from dtrain.task.strategies import Strategy
from dtrain.task.strategies.base import check_replicas
from dtrain.task.strategies.steps import Steps
from dtrain.task.tensorboard import Summaries

#: Said where there is nothing to evaluate by. Keras' fit is then given no validation data.
NO_VALIDATION = "validation is left out: the model has neither a test_step nor a loss"


def run(run_path: str, task_name: str, say: Callable[[str], None] = lambda word: None) -> int:
    """Do the part of one task.

    Args:
        run_path: the run folder, with ``config.yaml`` and ``cluster.json``.
        task_name: which of the tasks of ``cluster.json`` this process is.
        say: tells the launcher ``joined`` (the cluster is there), ``training`` (there is something
            that a stop has to save) and ``stop`` (this task was asked to stop: if it serves it
            cannot do so by itself, and if it trains it may be stuck).

    Returns:
        The exit code (:mod:`dtrain.errors`).
    """
    stop = Stop(tell=lambda: say("stop"))
    stop.install()  # ORDER: before anything that may take long
    rundir = RunDir(run_path)
    config = load.read(rundir.config)
    cluster = Cluster.from_json(read_json(rundir.cluster) or {}, rundir.cluster)
    task = cluster.task(task_name)
    journal: Journal | None = None
    try:
        _limit_waiting(config, cluster, task)
        devices = hardware.configure(config.hardware, cluster, task, config.trainer.deterministic)
        if task.serves:
            kind: Any = targets.locate(config.strategy._target_, "strategy._target_")
            kind.serve(cluster, task, lambda: say("joined"))
            return errors.OK
        past = None
        if task == cluster.chief:
            journal = Journal(rundir.journal)
            if (message := hardware.overlooked(config.hardware, cluster)) is not None:
                journal.write("notice", message=message)
            past = restore.find(rundir, config, journal)
        strategy = _strategy(config, cluster, task, devices)
        say("joined")
        stop.install()  # ORDER: some strategies install TensorFlow's own SIGTERM handler when made
        past = strategy.broadcast(past)
        train(rundir, config, strategy, past, journal, stop, lambda: say("training"))
    except DtrainError as error:
        print(secrets.mask(f"{type(error).__name__}: {error}"), file=sys.stderr, flush=True)
        _report(journal, error, str(error))
        return error.exit_code
    except Exception as error:  # the person's model, data or callback, or TensorFlow itself
        print(secrets.mask(traceback.format_exc()), file=sys.stderr, flush=True)
        if "Could not start gRPC server" in str(error):
            return errors.PORT_TAKEN
        _report(journal, error, f"{type(error).__name__}: {error}")
        return errors.FAILED
    finally:
        if journal is not None:
            _quietly(journal.close)
    return errors.OK


def _limit_waiting(config: Config, cluster: Cluster, task: Task) -> None:
    """Let no task of several wait for what is lost without end."""
    controller, patience = multiprocessing.parent_process(), config.launcher.peer_timeout
    if controller is None or len(cluster.tasks) == 1:
        return
    if controller.pid is not None:
        parent_death.end_with_a_stopped(controller.pid, patience)
    sockets.give_up_after(patience, cluster, task)


def _strategy(config: Config, cluster: Cluster, task: Task, devices: list[str]) -> Strategy:
    strategy: Strategy = targets.instantiate(
        strategy_plan.options(config), "strategy", devices=devices, cluster=cluster, task=task
    )
    check_replicas(strategy, config, cluster.replicas)
    return strategy


def _report(journal: Journal | None, error: Exception, message: str) -> None:
    kind = "usage" if isinstance(error, UsageError) else "training"
    message = secrets.mask(message)
    if journal is not None and not isinstance(error, errors.Interrupted):
        # On a full disk this fails as well; the exit code and the log still tell.
        _quietly(lambda: journal.write("error", kind=kind, message=message[:4000]))


def _quietly(action: Callable[[], None]) -> None:
    """Do what cannot change how the run has ended: all that counts is saved by now."""
    try:
        action()
    except Exception as error:  # of a full disk: OSError, or TensorFlow's own
        print(secrets.mask(f"{type(error).__name__}: {error}"), file=sys.stderr, flush=True)


def train(
    rundir: RunDir,
    config: Config,
    strategy: Strategy,
    past: checkpoint.Checkpoint | None,
    journal: Journal | None,
    stop: Stop,
    begun: Callable[[], None],
) -> None:
    """Build everything in order, train, and save the final model; without a journal, keep nothing.

    Every task of a cluster that trains does the same here, except for what it writes.
    """
    splits, augment = build.dataset(config)
    schedule = make_schedule(config, len(splits.train), len(splits.validation or ()))
    model = build.model(config, splits, strategy, schedule.total_steps, schedule.steps_per_epoch)
    if splits.validation is not None and not evaluates(model):
        splits = dataclasses.replace(splits, validation=None)
        schedule = dataclasses.replace(schedule, validation_examples=0)
        if journal is not None:
            journal.write("notice", message=f"{NO_VALIDATION} ({type(model).__name__})")
    strategy.gradient_reduction = config.trainer.gradient_reduction.name
    replay = metrics.replayed(model, splits, strategy, build.fixed_rows(model, config))
    told = across.notice(model, strategy, splits.train, config.trainer.batch_size)
    if told is not None and journal is not None:
        journal.write("notice", message=told)
    _check_objective(config, model, schedule)
    if past is not None:
        restore.restore(past, model, strategy, rundir, schedule)
        restore.release(past)
    start = past.step if past else 0
    inputs = input_pipeline.Inputs(
        splits.train, splits.validation, config.trainer.batch_size, config.seed, start, augment,
        config.trainer.validation_batch_size, config.trainer.validation_steps,
    )  # fmt: skip
    steps = strategy.steps(model, inputs, config.hardware.jit_compile, replay)
    if replay is not None and journal is not None:
        for message in replay.notices:
            journal.write("notice", message=message)
    callbacks = Callbacks(
        made(config.trainer.callbacks, rundir.path),
        model,
        schedule.epochs,
        schedule.steps_per_epoch,
        functools.partial(shared, strategy, journal is not None),
    )
    records = _records(rundir, config, journal, past)
    records.event("start", step=start, **derived(model, strategy, schedule, len(splits.train)))
    loop = Loop(
        model, strategy, steps, schedule, callbacks, records, stop,
        identity={
            "seed": config.seed,
            "config": identity.fingerprints(config),
            "versions": identity.versions(),
            "topology": {"strategy": config.strategy.name, "replicas": strategy.replicas},
        },
        begun=begun,
    )  # fmt: skip
    status = "FAILED"
    try:
        loop.run(past if restore.has_position(past) else None)
        final_model.save(model, rundir, records)
        strategy.barrier()  # ORDER: none leaves before the chief is done: it would be missed
        status = "FINISHED"
    except errors.Interrupted:
        strategy.barrier()
        status = "KILLED"
        raise
    finally:
        _quietly(lambda: records.end(status=status, **outcome(loop, steps)))


def _records(
    rundir: RunDir,
    config: Config,
    journal: Journal | None,
    past: checkpoint.Checkpoint | None = None,
) -> Records:
    tracking, saving = config.tracking, config.checkpoint
    steps = tracking.profile_steps
    traced = (steps[0], steps[1]) if steps else None
    if journal is None:
        return Silence(traced)
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
            config.objective_mode.name,
            saved=lambda step: journal.write("checkpoint", step=step, path=f"checkpoints/{step}"),
            before=journal.sync,
            resumed=past.step if past and past.path.parent == rundir.checkpoints else None,
        ),
    )


def _check_objective(config: Config, model: keras.Model, schedule: Schedule) -> None:
    # What a step or a callback of the user's own gives a name to, nobody can know before it ran.
    if build.has_own_step(model) or any(
        not str(node.get("_target_")).startswith("keras.") for node in config.trainer.callbacks
    ):
        return
    known = [name for name, _ in named("", model.get_metrics_result())]
    if schedule.validation_examples:
        known += [f"val_{name}" for name in known]
    if config.objective not in known:
        raise UsageError(
            "objective", config.objective, "is not among the metrics of this run",
            ", ".join(known), f"objective={nearest(config.objective, known) or known[0]}",
        )  # fmt: skip


def derived(
    model: keras.Model, strategy: Strategy, schedule: Schedule, examples: int
) -> dict[str, Any]:
    """Return what the configuration does not say and a record of the run needs."""
    return {
        "replicas": strategy.replicas,
        "global_batch_size": schedule.global_batch,
        "per_replica_batch_size": schedule.global_batch // strategy.replicas,
        "steps_per_epoch": schedule.steps_per_epoch,
        "total_steps": schedule.total_steps,
        "parameters": model.count_params(),
        "train_examples": examples,
        "validation_examples": schedule.validation_examples,
    }


def outcome(loop: Loop, steps: Steps) -> dict[str, Any]:
    """Return the numbers of the ``end`` event."""
    return {
        "step": loop.step,
        "examples": loop.examples,
        "evaluated_examples": loop.evaluated,
        "examples_per_second": round(loop.examples_per_second, 1),
        "metrics": loop.logs,
        **steps.summary(),
    }


def child(
    run_path: str, task_name: str, environment: dict[str, str], say: Callable[[str], None]
) -> None:
    """Run as a forked process: own environment, output to the log, gone with the controller.

    Args:
        run_path, task_name: as of :func:`run`.
        environment: of this process.
        say: tells the launcher one word at a time (:func:`run`), and ``started``.
    """
    _die_with_the_controller()
    os.environ.update(environment)
    log = RunDir(run_path).log(task_name)
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = writing.open_append(log)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # asked for by the watchdog, and by whoever is curious
    say("started")
    code = run(run_path, task_name, say)
    sys.stdout.flush()
    sys.stderr.flush()
    # TensorFlow's threads may outlive the interpreter's end and crash it: leave at once.
    os._exit(code)


def _die_with_the_controller() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent_death.end_with_the_parent()  # the warm server, which ends with the controller

    def watch() -> None:
        parent.join()
        os._exit(errors.FAILED)

    threading.Thread(target=watch, name="controller-watch", daemon=True).start()
