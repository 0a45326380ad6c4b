"""A real SLURM on this machine: a controller, and daemons that each stand for a node.

Needs root, and Debian's slurmctld, slurmd, slurm-client and munge (``make test-slurm``).
It has a configuration, ports, folders and a munge daemon of its own; nothing of the machine's is
touched. It is as quick as a SLURM can be: what was stopped may start again after seconds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NODES = ("n1", "n2", "n10")
#: Seconds after which a node whose daemon is silent is down, and that a job has to end.
TIMEOUT, KILL_WAIT = 10, 20
#: Seconds that SLURM lets a job wait that goes back into the queue, two minutes by default: what is
#: late of the start before would end the new one. A daemon that was restarted ends once more, after
#: ``KILL_WAIT``, whatever has the job's number.
EXPIRE = KILL_WAIT + 25
_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")
_SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

_CONF = """
ClusterName=dtrain
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={expire}
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,batch_sched_delay=1,sched_min_interval=500000
ReturnToService=2
JobRequeue=1
KillWait={wait}
SlurmdTimeout={timeout}
MinJobAge=300
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
{nodes}
PartitionName=ci Nodes={names} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes={names} MaxTime=INFINITE State=UP PriorityTier=10
"""


@functools.cache
def lacking() -> str | None:
    """Return why there can be no SLURM here, None if there can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "a SLURM of the tests' own needs root on Linux"
    missing = [name for name in _PROGRAMS if _program(name) is None]
    return f"there is no {', '.join(missing)} here: make test-slurm" if missing else None


def _program(name: str) -> str | None:
    return shutil.which(name, path=_SEARCHED)


def until(found: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Return what ``found`` returns as soon as that is something."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return value


class Slurm:
    """A cluster.

    Args:
        folder: of its own, which root alone may write.
        names: of the nodes.
        gpus: files that stand for the GPUs of each node.
    """

    def __init__(self, folder: Path, names: tuple[str, ...] = NODES, cpus: int = 2):
        self.folder, self.names = folder, names
        self.conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = _ports(1 + len(names))
        host = socket.gethostname().partition(".")[0]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
            "RealMemory=4000 Gres=gpu:2 State=UNKNOWN"
            for name, port in zip(names, ports[1:], strict=True)
        )
        self.conf.write_text(_CONF.format(
            host=host, port=ports[0], folder=folder, nodes=nodes, names=",".join(names),
            wait=KILL_WAIT, timeout=TIMEOUT, expire=EXPIRE,
        ))  # fmt: skip
        (folder / "gres.conf").write_text(
            f"NodeName={','.join(names)} Name=gpu File=/dev/null,/dev/zero\n"
        )
        (folder / "state").mkdir()
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))},
            "SLURM_CONF": str(self.conf), "PATH": _SEARCHED,
        }  # fmt: skip

    def start(self) -> None:
        """Start all daemons, and wait until the nodes are idle."""
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        words = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid",
                 "log-file": "munge.log", "seed-file": "munge.seed"}  # fmt: skip
        self._run("munged", "--foreground", "--force",
                  *(f"--{k}={self.folder / v}" for k, v in words.items()))  # fmt: skip
        until((self.folder / "munge.socket").exists, "munged does not answer")
        self._run("slurmctld", "-D", "-c", "-f", str(self.conf))
        for name in self.names:
            self.start_node(name)
        until(lambda: self.states() == dict.fromkeys(self.names, "idle"), "the nodes do not come")

    def _run(self, name: str, *words: str, called: str = "") -> None:
        program = _program(name)
        assert program is not None
        with (self.folder / f"{called or name}.out").open("ab") as file:
            self._daemons[called or name] = subprocess.Popen(
                [program, *words], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env=self.environment, start_new_session=True,
            )  # fmt: skip

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        (self.folder / f"spool.{name}").mkdir(exist_ok=True)
        self._run("slurmd", "-D", "-f", str(self.conf), "-N", name, called=name)

    def kill_node(self, name: str) -> None:
        """End the daemon of a node by force; what it has started lives on."""
        self._daemons[name].kill()
        self._daemons.pop(name).wait()

    def call(self, *words: str, cwd: Path | None = None, **environment: str) -> str:
        """Run a command of SLURM's, and return what it printed."""
        done = subprocess.run(
            words, env={**self.environment, **environment}, capture_output=True, text=True,
            check=False, cwd=cwd, timeout=400,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def states(self) -> dict[str, str]:
        """Return the state of each node; of none while the controller does not answer."""
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--partition=ci", "--format=%N %t"],
            env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return dict(line.split() for line in done.stdout.splitlines())

    def job(self, job: str) -> dict[str, str]:
        """Return what ``scontrol`` knows of a job."""
        text = self.call("scontrol", "show", "job", "--oneliner", job)
        return dict(w.split("=", 1) for w in text.split() if "=" in w)

    def jobs(self) -> dict[str, str]:
        """Return the state of each job that has not ended."""
        text = self.call("squeue", "--noheader", "--array", "--format=%i %T")
        return dict(line.split() for line in text.splitlines())

    def processes(self) -> dict[int, str]:
        """Return the processes of jobs, those of SLURM that each step has among them."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (path / "environ").read_bytes()
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                own = f"SLURM_CONF={self.conf}".encode() in environment
                if own and (b"SLURM_JOB_ID=" in environment or words.startswith("slurmstepd")):
                    found[int(path.name)] = words
        return found

    def stop(self) -> None:
        """End all jobs and all daemons."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            for job in self.jobs():
                self.call("scancel", "--signal=KILL", "--full", job)
            self.call("scancel", "--me")
            until(lambda: not self.processes(), "jobs do not end", KILL_WAIT + 20)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()


def _ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def cluster(names: tuple[str, ...] = NODES) -> Iterator[Slurm]:
    """Make a SLURM; afterwards nothing of it is left, processes included."""
    with tempfile.TemporaryDirectory(prefix="dtrain-slurm-") as folder:
        made = Slurm(Path(folder), names)
        try:
            made.start()
            yield made
        finally:
            made.stop()
