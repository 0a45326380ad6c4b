"""SLURM's own commands, of which each runs as the user: sbatch, squeue, scontrol, scancel."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import threading
import time
from pathlib import Path

from dtrain.errors import UsageError

#: Names of the batch script in the folder of a run or a sweep, by which a job is known again, and
#: of what it prints, in that of the run.
SCRIPT, LOG = "slurm.sh", "slurm.log"
#: Variable of the batch script: starts without a new checkpoint, after which the job ends.
LIMIT = "DTRAIN_SLURM_REQUEUES"
#: States of a job that has ended for good; whatever else there is may come to an end.
ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
)  # fmt: skip
#: Seconds that a command of SLURM may take: a controller that is busy answers late.
_PATIENCE = 60.0
#: Seconds between two questions to the controller, which all users share.
_PAUSE = 2.0
#: What squeue prints of a job; the path stands last, as it may hold anything.
_FORMAT = "%i|%T|%N|%r|%o"
_GONE = "Invalid job id specified"


class Refused(Exception):
    """SLURM has refused a command. The text is its own, in one line."""


@dataclasses.dataclass(frozen=True)
class QueuedJob:
    """A job, or an element of an array, as the queue has it.

    Attributes:
        id: ``12`` or, of an array, ``12_3``.
        state: ``PENDING``, ``RUNNING``...
        nodes: where it is, as SLURM writes lists of nodes; empty before it runs.
        reason: why it waits, or how it ended.
        script: the batch script that was submitted.
    """

    id: str
    state: str
    nodes: str
    reason: str
    script: str

    @property
    def ended(self) -> bool:
        """Whether it will not run any more."""
        return self.state in ENDED

    @property
    def text(self) -> str:
        """Its state in words."""
        if self.state == "PENDING":
            return "waits" + (f" ({self.reason})" if self.reason not in ("None", "") else "")
        if self.state == "RUNNING":
            return f"runs on {self.nodes}"
        return self.state.lower().replace("_", " ")


def run(*words: str) -> str:
    """Run a command of SLURM's and return what it printed.

    Args:
        words: the command.

    Raises:
        Refused: it is not here, does not answer, or ended with an error.
    """
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", check=False,
            timeout=_PATIENCE, stdin=subprocess.DEVNULL, env=_environment(words[0]),
        )  # fmt: skip
    except FileNotFoundError:
        raise Refused(f"there is no {words[0]} on this machine") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"{words[0]} did not answer within {_PATIENCE:g} s") from None
    if done.returncode:
        printed = " ".join((done.stderr or done.stdout).split())
        raise Refused(re.sub(r"^\w+: (error: )?", "", printed) or f"exit code {done.returncode}")
    return done.stdout


def _environment(command: str) -> dict[str, str]:
    """Return the environment: what a user has set for sbatch would win over the script."""
    if command != "sbatch":
        return dict(os.environ)
    # Of an allocation around this command, too: the job that is submitted is none of its steps.
    kept = ("SLURM_CONF", "SBATCH_EXPORT")
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(("SLURM_", "SBATCH_"))
    }


def submit(script: Path) -> str:
    """Submit a batch script; return the number of the job.

    Raises:
        Refused: SLURM does not take it.
    """
    return run("sbatch", "--parsable", str(script)).strip().split(";")[0]


def queue(*options: str) -> list[QueuedJob]:
    """Return jobs of this user, those too that have ended lately; each element of an array apart.

    Raises:
        Refused: the queue cannot be read.
    """
    try:
        text = run(
            "squeue", f"--user={os.getuid()}", "--noheader", "--array", "--states=all",
            f"--format={_FORMAT}", *options,
        )  # fmt: skip
    except Refused as error:
        if _GONE in str(error):
            return []
        raise
    rows = (line.split("|", 4) for line in text.splitlines())
    return [QueuedJob(*row) for row in rows if len(row) == 5]


def of_script(script: Path) -> list[QueuedJob]:
    """Return the jobs of a batch script that have not ended.

    Raises:
        UsageError: the queue cannot be read.
    """
    try:
        return [job for job in queue() if job.script == str(script) and not job.ended]
    except Refused as error:
        raise UsageError("launcher", f"SLURM does not answer: {error}", "slurm",
                         typed="launcher=auto") from None  # fmt: skip


def requeue(job: str) -> None:
    """Put a job back into the queue.

    Raises:
        Refused: it may not be, or is there already.
    """
    run("scontrol", "requeue", job)


def cancel(*jobs: str) -> None:
    """Cancel jobs; each is asked to stop first, and has the ``KillWait`` of its cluster for that.

    Raises:
        Refused: they cannot be cancelled.
    """
    run("scancel", *jobs)


class JobQueue:
    """Looks at jobs for several threads of a command, by one question to the controller.

    Attributes:
        problem: why the queue cannot be read; None while it can.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked_at = 0.0
        self._jobs: dict[str, QueuedJob] = {}
        self._numbers: set[str] = set()
        self._reported: str | None = None
        self.problem: str | None = None

    def add(self, job: str) -> None:
        """Ask for this job, too."""
        with self._lock:
            self._numbers.add(job.partition("_")[0])
            self._asked_at = 0.0

    def state(self, job: str) -> QueuedJob | None:
        """Return a job as it was a moment ago.

        Returns:
            None where SLURM knows nothing of it any more. While the controller does not answer,
            what it said last: :attr:`problem` says why.
        """
        with self._lock:
            if time.monotonic() - self._asked_at >= _PAUSE:
                self._ask()
            return self._jobs.get(job)

    def news(self) -> str | None:
        """Return a sentence when the queue cannot be read, and when it can again: each once."""
        with self._lock:
            if self.problem == self._reported:
                return None
            self._reported = self.problem
            if self.problem is None:
                return "SLURM answers again"
            return f"SLURM does not answer ({self.problem}); it is asked again every {_PAUSE:g} s"

    def _ask(self) -> None:
        try:
            jobs = queue(f"--jobs={','.join(sorted(self._numbers))}")
            self._jobs, self.problem = {each.id: each for each in jobs}, None
        except Refused as error:
            self.problem = str(error)
        self._asked_at = time.monotonic()


#: Of this process.
watch = JobQueue()
