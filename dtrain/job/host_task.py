"""A command that stands for one task of a cluster and is not the chief's (``launcher=env``)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
import time
from pathlib import Path

from dtrain import errors, secrets
from dtrain.config import schema, tree
from dtrain.config.tree import Config
from dtrain.errors import DamagedFile, refuse
from dtrain.files import reading, writing
from dtrain.job.run import JobSpec
from dtrain.job.supervisor import FROZEN_SECONDS, INTERVAL, Signals
from dtrain.launchers import Env
from dtrain.launchers.rendezvous.messages import BEAT
from dtrain.launchers.rendezvous.sides import Peer, Place
from dtrain.run import outcome
from dtrain.run.cluster import Cluster, Task
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, read_json, short, write_json, write_text
from dtrain.run.outcome import Outcome, cause

#: Seconds that a task has, after the job has failed elsewhere, to write why to its log.
_LAST_WORDS = 5.0
#: What TensorFlow calls its own sign of life to the chief, in errors of one that came too late.
HEARTBEAT = "CoordinationService/Heartbeat"


def run(spec: JobSpec) -> Outcome:
    """Meet the chief, and run this host's task to its end.

    Args:
        spec: of the job; its launcher is an :class:`Env`.

    Raises:
        UsageError: the chief has another configuration, or runs another run than is resumed here.
        TrainingError: it did not come.
    """
    launcher: Env = spec.launcher
    cluster, chosen = spec.cluster, spec.folder if spec.chosen else None
    task = launcher.own(cluster)
    peer = launcher.peer(cluster)
    chief = f"the chief at {peer.address}"
    failure: Failure | None = None
    with Signals() as signals:
        try:
            _say(f"{task.name}: looking for {chief}")
            place = peer.meet(launcher.start_timeout, lambda text: _say(f"{task.name}: {text}"))
            cluster = launcher.placed(cluster, place)
            chief = f"the chief at {peer.address}"
            rundir = _folder(spec.config, cluster, place, chosen)
            launcher.start_own(rundir, dataclasses.replace(cluster, job=place.job))
            signals.started = True
            _say(f"{task.name}: started; its log is {short(rundir.log(task.name))}")
            failure = _follow(task, launcher, peer, signals)
        except KeyboardInterrupt:
            return Outcome(errors.FAILED)
        finally:
            signals.started = True
            silent = peer.silent(3 * BEAT)
            launcher.kill()
            ended = peer.ended()
            own = launcher.exit_codes().get(task.name)
            if own is None or ended is not None:
                peer.close()
    own = errors.FAILED if own is None else own
    code = own if own >= 0 and not task.serves else errors.FAILED if ended is None else ended
    code = errors.FAILED if code == errors.ENDED_EARLY else code
    if code == errors.FAILED:
        if failure is None and peer.reason is not None:
            failure = Failure("lost", task.name, peer.reason)
        if failure is None:
            lines = secrets.mask(outcome.last_lines(rundir.log(task.name)))
            if (how := cause(own)) and ended is None:  # else this command has ended it
                failure = Failure("died", task.name, f"{how}: {lines}".rstrip(": "))
            else:
                lines = lines or f"the job has failed, and {chief} says why"
                failure = Failure("failed", task.name, lines)
        if silent and ended is None:
            failure = dataclasses.replace(failure, silent=(chief,))
        elif HEARTBEAT in str(failure.reason):  # the service is the chief's
            reason = f"{failure.reason}; {chief} did not answer in time"
            failure = dataclasses.replace(failure, reason=reason)
        _say(failure.sentence())
    peer.close(code, failure)
    if code == errors.USAGE:
        with contextlib.suppress(ValueError):  # it was there before
            writing.discard(rundir.path)
    _say(f"{task.name}: ended with exit code {code}")
    return Outcome(code)


def _follow(task: Task, launcher: Env, peer: Peer, signals: Signals) -> Failure | None:
    """Return when the own task has ended, or is to be; with the reason, if it is known here."""
    asked, deadline, frozen, begun = False, math.inf, 0.0, False
    failure: Failure | None = None  # of which the task has told
    while True:
        statuses = {status for _, status in launcher.poll(INTERVAL)}
        for status in statuses:
            if status.startswith("failed "):
                reason = json.loads(status[7:])
                failure = Failure("failed", task.name, reason.get("reason"), reason.get("place"))
        if "ended" in statuses:
            return failure
        begun = begun or "training" in statuses
        if signals.count > 1:
            return Failure("failed", task.name, "stopped at once")
        if not asked and (signals.count or "stop" in statuses):  # Ctrl-C reaches the task, too
            asked = True
            _say(f"{task.name}: asked to stop: the chief saves a checkpoint")
            peer.ask_to_stop()
            launcher.stop()
        now = time.monotonic()
        if (code := peer.ended()) is not None:
            if task.serves or not begun:  # nothing of it is still wanted
                return None
            patience = _LAST_WORDS if code == errors.FAILED else launcher.grace_seconds
            deadline = min(deadline, now + patience)
        if now > deadline:
            return None
        frozen = (frozen or now) if launcher.frozen() else 0.0
        if frozen and now - frozen >= FROZEN_SECONDS:
            return Failure("frozen", task.name, f"was stopped (SIGSTOP) for {FROZEN_SECONDS:g} s")


def _folder(config: Config, cluster: Cluster, place: Place, chosen: Path | None = None) -> RunDir:
    """Return the run's folder: the chief's where the disk is shared, else one of this host's own.

    What is not of this run, by the random name that the chief has given it, is left as it is.

    Raises:
        UsageError: this host resumes another run than the chief.
    """
    if config.resume is not None:
        rundir = RunDir(config.resume)
        if _job(rundir) != place.job:
            refuse("resume", "is not the run that the chief is at", config.resume,
                   accepted="the same run on every host",
                   hint="the command without resume=")  # fmt: skip
    else:
        path = chosen or Path(config.output_dir) / place.day / place.name
        rundir = RunDir(path) if _job(RunDir(path)) == place.job else RunDir.create(path)
    rundir.logs.mkdir(exist_ok=True)
    if not _is_current(rundir, config, cluster):  # it is new, or left by an earlier start
        write_text(rundir.config, tree.to_yaml(config))
        write_json(rundir.cluster, {**cluster.to_json(), "job": place.job})
    return rundir


def _job(rundir: RunDir) -> str | None:
    """Return the random name of the run that a folder is of, None if it has none."""
    try:
        job = (reading.read_json(rundir.cluster) or {}).get("job")
    except (OSError, DamagedFile):
        return None
    return job if isinstance(job, str) and job else None


def _is_current(rundir: RunDir, config: Config, cluster: Cluster) -> bool:
    if not rundir.config.is_file():
        return False
    # The chief's own differ in what is of a host (its paths, its devices), never in these.
    here, planned = tree.read(rundir.config), read_json(rundir.cluster)
    if planned is None or Cluster.from_json(planned).spec() != cluster.spec():
        return False
    alike = schema.having("data", "numbers", "length")
    return all(tree.select(here, key) == tree.select(config, key) for key in alike)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
