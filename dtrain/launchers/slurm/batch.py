"""What the batch script of a job runs: the step, from its start to its end, and perhaps once more.

``python -m dtrain.launchers.slurm.batch RUN_DIR -- COMMAND...`` starts the command,
passes SLURM's warning before the time limit on, and puts the job back into the queue where the run
is to continue: after exit code 75, and where its processes died.

A run belongs to the start of a job that is noted in its ``slurm.json``. Where a node is lost, SLURM
starts the job once more while processes of the start before may still be at work on it: they see
the note, and end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dtrain import errors
from dtrain.files import reading, writing
from dtrain.files.fields import Json
from dtrain.host.terminal import say
from dtrain.launchers.slurm import client
from dtrain.run import schemas
from dtrain.run.failure import LOSSES
from dtrain.run.folder import RunDir, read_json, write_json

#: The folder that a command in a step works for; its first task leaves its exit code there.
RUN = "DTRAIN_SLURM_RUN"
START, EXIT = "slurm.json", "slurm.exit"
#: Seconds that processes of an earlier start have to end.
_PATIENCE = 180.0
#: Seconds between two looks at which start the run belongs to, and at what is waited for.
_LOOK, _INTERVAL = 5.0, 0.5
#: Seconds that a job which was put back into the queue is waited for to be ended.
_ENDING = 60.0
#: What SLURM says of a job that is in the queue.
_WAITS = "pending"
#: States in which a job that was stopped is to continue, unless SLURM sees to that itself.
_CONTINUES = ("RUNNING", "COMPLETING", "FAILED", "TIMEOUT", "NODE_FAIL", "STOPPED", "SIGNALING")


def own() -> str:
    """Return the number of this job; of an array that of the element."""
    array, element = (os.environ.get(f"SLURM_ARRAY_{n}_ID") for n in ("JOB", "TASK"))
    return f"{array}_{element}" if array and element else os.environ.get("SLURM_JOB_ID", "?")


def _start() -> Json:
    return {"job": own(), "restart": int(os.environ.get("SLURM_RESTART_COUNT") or 0)}


# Around the step


def main(folder: Path, command: Sequence[str]) -> int:
    """Run the command once, and return the exit code of the batch script.

    Args:
        folder: of the run.
        command: with its arguments.
    """
    warned, terminated = threading.Event(), threading.Event()
    # ORDER: first of all: the signals would end a program that does not expect them.
    signal.signal(signal.SIGUSR2, lambda *_: warned.set())
    # SLURM sends it to the steps as well: they are not to get it twice.
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    limit = int(os.environ.get(client.LIMIT, "5"))
    idle = begin(folder, time.time())
    if idle > limit:
        say(
            f"started {idle} times since the last checkpoint: not again "
            f"(launcher.max_requeues={limit})"
        )
        return errors.FAILED
    if not wait_for(folder):
        return errors.FAILED
    code = carry(folder, command, warned)
    # Of a job that was cancelled SLURM's state says "completing" and no more, but SIGTERM comes
    # unwarned. Where it is preempted, or a node is lost, SLURM itself puts it back into the queue.
    cancelled = terminated.is_set() and not warned.is_set()
    if cancelled or not continues(folder, code) or not _requeue():
        return errors.FAILED if code is None else code
    # SLURM ends this process: if it ended by itself, the job might be over before that.
    deadline = time.monotonic() + _ENDING
    while time.monotonic() < deadline:
        time.sleep(_INTERVAL)
    return errors.INTERRUPTED


def begin(folder: Path, now: float) -> int:
    """Note which start the run belongs to from now on.

    Returns:
        How many starts before this one have brought no new checkpoint.
    """
    latest = _latest(folder)
    before = read_json(folder / START) or {}
    idle = before.get("idle", 0) + 1 if "idle" in before and before.get("latest") == latest else 0
    if before.get("job") != own():
        idle = 0  # the user has submitted it anew
    note = {**_start(), "latest": latest, "idle": idle, "time": round(now, 3),
            "past": _result(folder).get("started")}  # fmt: skip
    write_json(folder / START, note, lasting=True)
    writing.remove(folder / EXIT)
    return idle


def _result(folder: Path) -> Json:
    return dict(schemas.glance(RunDir(folder).result, schemas.Result) or {})


def _note(folder: Path, job: str) -> Json | None:
    """Return what the last start has noted; None where that is another job's, or cannot be read."""
    try:
        note = read_json(folder / START) or {}
    except (OSError, errors.DamagedFile):
        return None
    return note if note.get("job") == job else None


def result(folder: Path, job: str) -> Json | None:
    """Return how the last start of a run ended; None where it has left nothing.

    A start that fails before it trains leaves the result of the one before it in its place.

    Args:
        folder: of the run.
        job: whose start it is to be.
    """
    note, record = _note(folder, job), _result(folder)
    if note is None or not record or record.get("started") == note.get("past"):
        return None
    return record


def _latest(folder: Path) -> str:
    """Return what changes with every checkpoint."""
    with contextlib.suppress(OSError):
        path = folder / "checkpoints" / "latest"
        return reading.read_bytes(path, 100).decode(errors="replace").strip()
    return ""


def wait_for(folder: Path) -> bool:
    """Wait until no process of an earlier start is at work in the folder; say whether that came."""
    deadline, announced = time.monotonic() + _PATIENCE, False
    while RunDir(folder).is_locked():
        if time.monotonic() > deadline:
            say(f"process {RunDir(folder).holder()} is still at work in {folder}")
            return False
        if not announced:
            announced = True
            say("an earlier start of the job is still at work: waiting for its end")
        time.sleep(_INTERVAL)
    return True


def carry(folder: Path, command: Sequence[str], warned: threading.Event) -> int | None:
    """Run the command; return what its first task ended with, None where it was killed.

    Args:
        folder: of the run.
        command: with its arguments.
        warned: set when SLURM is about to end the job.
    """
    environment = {**os.environ, RUN: str(folder)}
    process = subprocess.Popen(list(command), env=environment)
    passed = False
    while process.poll() is None:
        if warned.is_set() and not passed:
            passed = True
            say("SLURM ends the job soon: saving")
            process.send_signal(signal.SIGUSR2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_INTERVAL)
    return left(folder)


def left(folder: Path, job: str | None = None) -> int | None:
    """Return the exit code that the first task has left; None where it was killed.

    Args:
        folder: of the run.
        job: whose task it is to be: one that dies early leaves the code of another job there.
    """
    if job is not None and _note(folder, job) is None:
        return None
    try:
        text = reading.read_bytes(folder / EXIT, 100).decode(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.lstrip("-").isdecimal() else None


def continues(folder: Path, code: int | None) -> bool:
    """Say whether a run that ended so is to continue: it was asked to stop, or lost a process."""
    if code == errors.FAILED:
        failure = (result(folder, own()) or {}).get("failure")
        return failure is not None and failure["kind"] in LOSSES
    return code is None or code == errors.INTERRUPTED


def _requeue() -> bool:
    """Put this job back into the queue, if it is not there already; say whether it is."""
    job = own()
    try:
        state = client.queue(f"--jobs={job}")
        if state and state[0].state not in _CONTINUES:
            return False
        client.requeue(job)
    except client.Refused as error:
        if _WAITS not in str(error):  # SLURM sees to it itself
            say(f"job {job} cannot be started again: {error}")
            return False
    say(f"job {job} goes back into the queue: it continues from its last checkpoint")
    return True


# In the step


@contextlib.contextmanager
def in_step() -> Iterator[list[int]]:
    """Do, around a command in a step, what the batch script relies on.

    The first task leaves its exit code in the folder, for which the command puts it into the list
    that is yielded, and the others end after it. It ends at once when the run belongs to another
    start.
    """
    run = os.environ.pop(RUN, None)
    codes: list[int] = []
    if run is None:
        yield codes
        return
    folder = Path(run)
    if os.environ.get("SLURM_PROCID", "0") != "0":
        yield codes
        _wait_for_first(folder)
        return
    over = threading.Event()
    threading.Thread(target=_guard, args=(folder, over), name="start", daemon=True).start()
    try:
        yield codes
    finally:
        over.set()
        for code in codes:
            with contextlib.suppress(OSError):
                writing.write_bytes(folder / EXIT, f"{code}\n".encode())


def _wait_for_first(folder: Path) -> None:
    """Wait for the end of the first task, to which srun sends SIGTERM when another one fails."""
    deadline = time.monotonic() + _PATIENCE
    while left(folder) is None and time.monotonic() < deadline:
        time.sleep(_INTERVAL)


def _guard(folder: Path, over: threading.Event) -> None:
    """End this process when the run belongs to another start; its tasks end with it."""
    mine = _start()
    while not over.wait(_LOOK):
        try:
            note = read_json(folder / START) or mine
        except (OSError, errors.DamagedFile):  # of a network's disk: later
            continue
        if {name: note.get(name) for name in mine} != mine:
            say("the job was started once more elsewhere: this start ends")
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[3:]))
