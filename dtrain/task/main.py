"""One task process: from a run folder to an exit code. Reads top to bottom."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable

from dtrain import errors, secrets
from dtrain.config import targets, tree, trust
from dtrain.config.tree import Config
from dtrain.data import generators
from dtrain.errors import DtrainError, UsageError, refuse
from dtrain.files import writing
from dtrain.host import terminal
from dtrain.run import strategy_plan
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir, read_json
from dtrain.run.journal import Journal
from dtrain.task.aliases import Foreign
from dtrain.task.backends.base import Backend
from dtrain.task.backends.runtime import runtime
from dtrain.task.data import reading
from dtrain.task.model import checks
from dtrain.task.process import own_code, own_logs, signals
from dtrain.task.process.own_mlflow import OwnMLflow
from dtrain.task.process.signals import Stop
from dtrain.task.train import restore
from dtrain.task.train.session import Action, Process, quietly
from dtrain.task.train.timing import Phases

#: What is said of a failure where the user's code uses another framework than the task.
_ANOTHER = (
    "code of yours imports TensorFlow, whose operations do not compute with the tensors of another "
    "backend: use keras.ops, or type backend=tensorflow"
)
#: ``launcher.start_timeout`` of several hosts, where none is given.
_PATIENCE = 600.0
#: What TensorFlow, JAX and PyTorch say where another program listens at the port of a task.
_NO_SERVER = (
    "Could not start gRPC server",
    "Failed to start RPC server",
    "server socket has failed to listen",
)


def run(run_path: str, task_name: str, say: Callable[[str], None] = lambda status: None) -> int:
    """Do the part of one task.

    Args:
        run_path: the run folder, with ``config.yaml`` and ``cluster.json``.
        task_name: which of the tasks of ``cluster.json`` this process is.
        say: reports to the launcher ``joined`` (the cluster is there), ``training`` (there is
            something that a stop has to save), ``stop`` (this task was asked to stop: if it
            serves it cannot do so by itself, and if it trains it may be stuck) and ``failed`` with
            ``reason`` and ``place`` in JSON (:class:`dtrain.run.failure.Failure`).

    Returns:
        The exit code (:mod:`dtrain.errors`).
    """
    phases = Phases()
    generators.watch()  # ORDER: before the user's code is imported
    stop = Stop(tell=lambda: say("stop"))
    stop.install()  # ORDER: before anything that may take long
    rundir = RunDir(run_path)
    config = tree.read(rundir.config)
    generators.run_seed = config.seed
    cluster = Cluster.from_json(read_json(rundir.cluster) or {}, rundir.cluster)
    task = cluster.task(task_name)
    leads, cluster = task == cluster.chief, cluster.of(task)
    journal: Journal | None = None
    ending = contextlib.ExitStack()
    try:
        peer_timeout = config.launcher.peer_timeout if len(cluster.tasks) > 1 else None
        devices = runtime().configure(
            config.hardware, cluster, task, config.trainer.deterministic, peer_timeout
        )
        if task.serves:
            kind: Foreign = trust.locate(config.strategy._target_, "strategy._target_")
            kind.serve(cluster, task, lambda: say("joined"))
            return errors.OK
        past = None
        if leads:
            journal = Journal(rundir.journal)
            if (message := runtime().overlooked(config.hardware, cluster)) is not None:
                journal.write("notice", message=message)
            past = restore.find(rundir, config, journal)
        strategy = _strategy(config, cluster, task, devices)
        say("joined")
        stop.install()  # ORDER: some strategies install TensorFlow's own SIGTERM handler when made
        phases.end("cluster")
        # A process that still imports the user's code comes late to the first collectives.
        patience = config.launcher.start_timeout or _PATIENCE
        strategy.tasks.give_up_after(max(patience, config.launcher.peer_timeout))
        past = restore.of_chief(strategy, past)
        # Actions are imported by their names: what is done with a model knows how to train, and
        # training does not know what is done afterwards.
        action: Action = targets.instantiate(config.action, "action")

        def begun() -> None:
            strategy.tasks.give_up_after(config.launcher.peer_timeout)
            say("training")

        process = Process(rundir, cluster, task, journal, stop, begun, ending, phases)
        ending.enter_context(own_logs.receiving(process.logged))
        ending.enter_context(OwnMLflow(process.logged).watching())
        session = action.assemble(config, strategy, process, past)
        with reading.raising_read_errors(session.inputs), checks.naming_bad_labels():
            action.run(session)
    except DtrainError as error:
        # ORDER: the journal first: what it has is not shown from the log as well.
        _report(journal, error, str(error), say)
        terminal.report(secrets.mask(f"{type(error).__name__}: {error}"))
        return error.exit_code
    # The user's model, data or callback, which may call sys.exit(0), or TensorFlow itself.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and multiprocessing.parent_process() is None:
            raise  # Ctrl-C, in the command's own process
        with contextlib.suppress(OSError):  # on a full disk there is no log
            terminal.report(errors.unstyled(secrets.mask(traceback.format_exc())))
        text = errors.describe(error)
        if any(known in text for known in _NO_SERVER):
            return errors.PORT_TAKEN
        text = errors.unstyled(text)
        notes = list(getattr(error, "__notes__", ()))
        if config.backend != "tensorflow" and "tensorflow" in sys.modules:
            notes.append(_ANOTHER)  # no code of dtrain's imports it there
        _report(journal, error, "; ".join([text, *notes]), say, own_code.place(error))
        return errors.FAILED
    finally:
        ending.close()
        if journal is not None:
            quietly(journal.close)
    return errors.OK


def _strategy(config: Config, cluster: Cluster, task: Task, devices: list[str]) -> Backend:
    """Make the strategy.

    Raises:
        UsageError: its replicas are not those that the batch was divided among.
    """
    strategy: Backend = targets.instantiate(
        strategy_plan.options(config), "strategy", devices=devices, cluster=cluster, task=task
    )
    if strategy.replicas != cluster.replicas:
        plan = "OneReplica" if strategy.replicas == 1 else "PerDevice"
        kind, target = type(strategy).__name__, config.strategy.plan["_target_"]
        problem = f"{kind} has {strategy.replicas} replicas, and the plan has {cluster.replicas}"
        refuse("strategy.plan", problem, target, accepted="a plan of the strategy's own replicas",
               typed=f"strategy.plan._target_=dtrain.task.strategies.plans.{plan}")  # fmt: skip
    return strategy


def _report(
    journal: Journal | None, error: BaseException, message: str, say: Callable[[str], None],
    place: str = "",
) -> None:  # fmt: skip
    kind = "usage" if isinstance(error, UsageError) else "training"
    message = secrets.mask(message)
    # A line that is short enough for a pipe: other tasks than the chief have no journal.
    told = {"reason": message[:500].encode(errors="replace").decode(), "place": place[:300] or None}
    say(f"failed {json.dumps(told, ensure_ascii=False)}")
    if journal is not None and not isinstance(error, errors.Interrupted):
        # On a full disk this fails as well.
        quietly(
            lambda: journal.write("error", kind=kind, message=message[:4000], place=place or None)
        )


def child(
    run_path: str, task_name: str, environment: dict[str, str], say: Callable[[str], None]
) -> None:
    """Run as a forked process: own environment, output to the log, gone with the controller.

    Args:
        run_path, task_name: as of :func:`run`.
        environment: of this process.
        say: reports to the launcher, a status at a time (:func:`run`), and ``started``.
    """
    if (parent := multiprocessing.parent_process()) is not None:
        signals.end_with_the_parent()  # the warm server, which ends with the controller

        def watch() -> None:
            parent.join()
            os._exit(errors.FAILED)

        threading.Thread(target=watch, name="controller-watch", daemon=True).start()
    os.environ.update(environment)
    log = RunDir(run_path).log(task_name)
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = writing.open_append(log)
    terminal.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # asked for by the watchdog, and by whoever is curious
    # Of the server that this process was forked from: a user's pools have Python's default.
    multiprocessing.set_start_method(None, force=True)
    say("started")
    code = run(run_path, task_name, say)
    for process in multiprocessing.active_children():  # a pool that was not closed
        process.terminate()
    terminal.flush()
    # TensorFlow's threads may outlive the interpreter's end and crash it: leave at once.
    os._exit(errors.OF_TASK + code)
