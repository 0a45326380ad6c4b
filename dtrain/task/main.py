"""One task process: from a run folder to an exit code. Reads top to bottom."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from typing import Any

import keras
from omegaconf import DictConfig, OmegaConf

from dtrain import checkpoint, errors, targets
from dtrain.cluster import Cluster, Task
from dtrain.errors import DtrainError, UsageError, nearest
from dtrain.journal import Journal
from dtrain.rundir import RunDir, read_json
from dtrain.task import build, hardware, pipeline, state
from dtrain.task.callbacks import Callbacks
from dtrain.task.loop import Loop
from dtrain.task.schedule import Schedule, make_schedule
from dtrain.task.steps import Steps
from dtrain.task.strategies import Strategy
from dtrain.task.summaries import Summaries


class Stop:
    """Remembers that SIGTERM asked this process to stop."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        """Say whether it did."""
        return self._asked

    def install(self) -> None:
        """Take SIGTERM over; Ctrl-C is the controller's to see and to pass on as SIGTERM."""
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        self._asked = True


def run(run_path: str, task_name: str) -> int:
    """Do the part of one task.

    Args:
        run_path: the run folder, with ``config.yaml`` and ``cluster.json``.
        task_name: which of the tasks of ``cluster.json`` this process is.

    Returns:
        The exit code (:mod:`dtrain.errors`).
    """
    rundir = RunDir(run_path)
    config = OmegaConf.load(rundir.config)
    assert isinstance(config, DictConfig)
    cluster = Cluster.from_json(read_json(rundir.cluster) or {})
    task = next(task for task in cluster.tasks if task.name == task_name)
    stop = Stop()
    stop.install()
    journal: Journal | None = None
    try:
        past, problems = checkpoint.newest(rundir.checkpoints)
        journal = Journal(rundir.journal)
        for problem in problems:
            journal.write("notice", message=f"passed over a checkpoint: {problem}")
        train(rundir, config, cluster, task, past, journal, stop)
    except DtrainError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        _report(journal, error, str(error))
        return error.exit_code
    except Exception as error:  # the person's model, data or callback, or TensorFlow itself
        traceback.print_exc()
        _report(journal, error, f"{type(error).__name__}: {error}")
        return errors.FAILED
    finally:
        if journal is not None:
            _quietly(journal.close)
    return errors.OK


def _report(journal: Journal | None, error: Exception, message: str) -> None:
    kind = "usage" if isinstance(error, UsageError) else "training"
    if journal is not None and not isinstance(error, errors.Interrupted):
        # On a full disk this fails as well; the exit code and the log still tell.
        _quietly(lambda: journal.write("error", kind=kind, message=message[:4000]))


def _quietly(action: Any) -> None:
    try:
        action()
    except OSError as error:
        print(error, file=sys.stderr)


def train(
    rundir: RunDir,
    config: DictConfig,
    cluster: Cluster,
    task: Task,
    past: checkpoint.Checkpoint | None,
    journal: Journal,
    stop: Stop,
) -> None:
    """Build everything in order, train, and save the final model."""
    devices = hardware.configure(config.hardware, cluster, task)
    strategy: Strategy = targets.instantiate(
        {"_target_": config.strategy._target_}, "strategy", devices=devices
    )
    stop.install()  # ORDER: some strategies install TensorFlow's own SIGTERM handler when made
    batch = config.trainer.batch_size

    splits, augment = build.dataset(config)
    schedule = make_schedule(config, len(splits.train), len(splits.validation or ()))
    model = build.model(config, splits, strategy, schedule.total_steps, schedule.steps_per_epoch)
    _check_objective(config, model, schedule)
    if past is not None:
        state.restore(model, strategy, past.arrays)

    train_iterator = strategy.iterate(
        lambda first, local: pipeline.training(
            splits.train,
            global_batch=batch,
            replicas=strategy.replicas,
            first_replica=first,
            local_replicas=local,
            start_step=past.step if past else 0,
            seed=config.seed,
            augment=augment,
        )
    )
    validation = splits.validation
    evaluation_iterator = None
    if validation is not None:
        evaluation_iterator = strategy.iterate(
            lambda first, local: pipeline.evaluation(
                validation,
                global_batch=batch,
                replicas=strategy.replicas,
                first_replica=first,
                local_replicas=local,
            )
        )
    steps = Steps(
        model, strategy, batch, train_iterator, evaluation_iterator, config.hardware.jit_compile
    )
    callbacks = Callbacks(
        [
            targets.instantiate(targets.plain(node), f"trainer.callbacks[{index}]")
            for index, node in enumerate(config.trainer.callbacks)
        ],
        model,
        schedule.epochs,
        schedule.steps_per_epoch,
    )
    tracking = config.tracking
    summaries = Summaries(
        rundir.tensorboard,
        rundir.journal,
        tracking.histograms,
        tuple(tracking.profile_steps) if tracking.profile_steps else None,
    )
    writer = checkpoint.Writer(
        rundir.checkpoints,
        config.checkpoint.keep,
        config.checkpoint.best,
        config.objective_mode,
        saved=lambda step: journal.write("checkpoint", step=step, path=f"checkpoints/{step}"),
    )
    journal.write("start", step=past.step if past else 0, **derived(model, strategy, schedule))
    loop = Loop(
        model, strategy, steps, schedule, callbacks, rundir, journal, summaries, writer, stop,
        identity={"seed": config.seed, "replicas": strategy.replicas},
    )  # fmt: skip
    status = "FAILED"
    try:
        loop.run(past)
        _save_model(model, rundir, journal)
        status = "FINISHED"
    except errors.Interrupted:
        status = "KILLED"
        raise
    finally:
        _quietly(lambda: journal.write("end", status=status, **outcome(loop, writer, batch)))
        summaries.close()


def _save_model(model: keras.Model, rundir: RunDir, journal: Journal) -> None:
    try:
        model.save(rundir.model)
    except (NotImplementedError, TypeError, ValueError) as error:
        # A person's class without get_config: the training is not to be lost for that.
        rundir.model.unlink(missing_ok=True)
        model.save_weights(rundir.weights)
        journal.write(
            "notice",
            message=f"saved {rundir.weights.name}, not {rundir.model.name}: "
            f"{' '.join(str(error).split())[:200]}",
        )


def _check_objective(config: DictConfig, model: keras.Model, schedule: Schedule) -> None:
    if build.has_own_step(model):
        return  # it may return names that nobody can know before it ran
    known = list(model.get_metrics_result())
    if schedule.validation_examples:
        known += [f"val_{name}" for name in known]
    if config.objective not in known:
        raise UsageError(
            "objective", config.objective, "is not among the metrics of this run",
            ", ".join(known), f"objective={nearest(config.objective, known) or known[0]}",
        )  # fmt: skip


def derived(model: keras.Model, strategy: Strategy, schedule: Schedule) -> dict[str, Any]:
    """Return what the configuration does not say and a record of the run needs."""
    return {
        "replicas": strategy.replicas,
        "global_batch_size": schedule.global_batch,
        "per_replica_batch_size": schedule.global_batch // strategy.replicas,
        "steps_per_epoch": schedule.steps_per_epoch,
        "total_steps": schedule.total_steps,
        "parameters": model.count_params(),
        "validation_examples": schedule.validation_examples,
    }


def outcome(loop: Loop, writer: checkpoint.Writer, batch: int) -> dict[str, Any]:
    """Return the numbers of the ``end`` event."""
    best = writer.best_step()
    return {
        "step": loop.step,
        "examples": loop.step * batch,
        "examples_per_second": round(loop.examples_per_second, 1),
        "metrics": loop.logs,
        "best_step": best,
        "best_objective": None if best is None else writer.objectives[best],
    }


def child(run_path: str, task_name: str, environment: dict[str, str]) -> None:
    """Run as a forked process: own environment, output to the log, gone with the controller."""
    _die_with_the_controller()
    os.environ.update(environment)
    log = RunDir(run_path).log(task_name)
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable()
    code = run(run_path, task_name)
    sys.stdout.flush()
    sys.stderr.flush()
    # TensorFlow's threads may outlive the interpreter's end and crash it: leave at once.
    os._exit(code)


def _die_with_the_controller() -> None:
    import multiprocessing
    import threading

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(errors.FAILED)

    threading.Thread(target=watch, name="controller-watch", daemon=True).start()
