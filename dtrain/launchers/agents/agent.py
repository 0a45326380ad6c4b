"""The agent: starts tasks on its host, and ends them with the connection to its launcher.

It is two processes. One does the work, in a process group with everything that it starts; the
other waits for its end, however that comes, and ends what is left of the group.

It takes one message at a time from standard input (:mod:`.stream`), and the end of it, or silence
for ``peer_timeout``, is the order to end at once. Standard output carries messages and nothing
else: what prints there, by whatever mistake, writes to standard error.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import Any

from dtrain import errors
from dtrain.errors import DtrainError
from dtrain.files.fields import Json
from dtrain.host import terminal
from dtrain.launchers import facts
from dtrain.launchers.agents import mirror
from dtrain.launchers.agents.stream import DATA, Message, Stream
from dtrain.launchers.local import Local
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir, read_json

#: Seconds between two looks at the tasks, and between two looks at which are stopped.
TURN, LOOK = 0.1, 1.0
#: Seconds of silence of the launcher, until it has said how long it may be silent.
PATIENCE = 45.0
#: Seconds that the agent has to end in order once its launcher is gone.
LAST = 3.0


class Tasks(Local):
    """The tasks of one host, which share it."""

    def __init__(self) -> None:
        super().__init__(grace_seconds=0, start_timeout=0, stall_timeout=None, max_restarts=0)
        self._own: list[Task] = []

    def ports(self, count: int) -> list[int]:
        """Return free ports, held until the tasks have ended."""
        self._ports.release()
        return self._ports.take(count)

    def begin(self, rundir: RunDir, cluster: Cluster, names: list[str]) -> None:
        """Start the tasks called ``names``."""
        self._rundir, self._cluster = rundir, cluster
        self._own = [task for task in cluster.tasks if task.name in names]
        self._started = {}
        for task in self._own:
            self._start(task)

    def _first_gpu(self, task: Task) -> int:
        return sum(each.devices for each in self._own[: self._own.index(task)])

    @property
    def live(self) -> list[str]:
        """The tasks that were started and have not ended."""
        return [name for name, started in self._started.items() if not started.ended]


class Agent:
    """One connection to a launcher.

    Args:
        reader, writer: descriptors of it.
    """

    def __init__(self, reader: int, writer: int):
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._tasks = Tasks()
        self._patience = PATIENCE
        self._open: facts.Doors | None = None
        self._own: mirror.Own | None = None  # where the launcher's folder is not to be seen
        self._mirror: mirror.Mirror | None = None
        self._tree: mirror.Folder | None = None
        self._packed = bytearray()  # what has come of the working tree
        self._looked = 0.0
        self._frozen: set[str] = set()
        self._asked = False  # a signal asked this host's tasks to stop
        self._stream = Stream(reader, writer, self._hear)

    def _hear(self, message: Message) -> None:
        if message["kind"] == "gone":  # whatever the main thread is at
            self._limit(LAST)
        self._inbox.put(message)

    @staticmethod
    def _limit(seconds: float) -> None:
        """End all within so many seconds: a file system, or a connection, may hang for ever."""
        timer = threading.Timer(seconds, end_the_group)
        timer.daemon = True
        timer.start()

    def run(self) -> int:
        """Do what comes, until the end."""
        for number in terminal.STOPS:
            signal.signal(number, self._ask)
        self._stream.send("hello", **facts.found())
        try:
            while self._stream.silent() < self._patience:
                with contextlib.suppress(queue.Empty):
                    message = self._inbox.get(timeout=TURN)
                    if message["kind"] in ("gone", "over"):
                        return errors.OK
                    self._do(message)
                self._look()
            return errors.FAILED
        finally:
            self._limit(2 * LAST)
            self._tasks.kill()
            self._stream.flush(LAST)
            if self._mirror is not None:
                self._mirror.close()
            if self._own is not None:
                self._own.remove()
            if self._tree is not None:
                os.chdir("/")
                self._tree.remove()

    def _ask(self, *_: object) -> None:
        self._asked = True

    def _do(self, message: Message) -> None:
        kind = message.pop("kind")
        action = getattr(self, f"_on_{kind}", None)
        try:
            if action is None:
                raise DtrainError(f"the agent of dtrain knows nothing of {kind!r}")
            action(**message)
        except DtrainError as error:
            self._stream.send("problem", of=kind, message=str(error), code=error.exit_code)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            said = f"{place}{error.strerror or error}"
            self._stream.send("problem", of=kind, message=said, code=errors.FAILED)
        except Exception as error:  # a mistake in dtrain, or a launcher of another version
            traceback.print_exc()
            said = f"{type(error).__name__}: {error}"
            self._stream.send("problem", of=kind, message=said, code=errors.FAILED)

    def _on_greet(self, peer_timeout: float, variables: dict[str, str]) -> None:
        self._patience = float(peer_timeout)
        os.environ.update(variables)

    def _on_tree(self, last: bool, data: bytes = b"") -> None:
        """Take the launcher's working tree in: tasks look for code there."""
        self._packed += data
        if len(self._packed) > mirror.MOST + DATA:
            raise DtrainError("a working tree came that is too large")
        if last:
            self._tree = mirror.Folder("tree")
            mirror.unpack(bytes(self._packed), self._tree.path)
            os.chdir(self._tree.path)
            self._stream.send("tree")

    def _on_modules(self, names: list[str]) -> None:
        self._stream.send("modules", found=facts.modules(names))

    def _on_prepare(self, environment: dict[str, str]) -> None:
        # A thread: the server answers nothing while it imports, and others may.
        cluster = Cluster((), "cpu", 1, environment)
        threading.Thread(target=self._tasks.prepare, args=(cluster,), daemon=True).start()

    def _on_ports(self, count: int, secret: str) -> None:
        if self._open is not None:
            self._open.close()
        ports = self._tasks.ports(count)
        self._open = facts.Doors(ports, secret)
        self._stream.send("ports", ports=ports)

    def _on_reach(self, addresses: list[str], secret: str, seconds: float) -> None:
        def look() -> None:
            self._stream.send("reach", found=facts.tried(addresses, secret, seconds))

        threading.Thread(target=look, daemon=True).start()

    def _on_look(self, run: str, job: str) -> None:
        """Say whether the launcher's run folder is here; make one of this host's own if not."""
        shared = (read_json(RunDir(run).cluster) or {}).get("job") == job
        if not shared:
            self._own = mirror.Own(job)
        self._stream.send("look", shared=shared)

    def _on_change(self, **part: Any) -> None:
        """Take a file of the launcher's run folder in."""
        if self._own is None:
            raise DtrainError("a file came, and no folder is made for it")
        self._own.take(mirror.of_message(**part))

    def _on_start(
        self, run: str, tasks: list[str], cluster: Json, variables: dict[str, str]
    ) -> None:
        os.environ.update(variables)
        # ORDER: the ports have to be free when TensorFlow takes them.
        if self._open is not None:
            self._open.close()
        rundir = RunDir(run) if self._own is None else self._own.rundir
        rundir.logs.mkdir(exist_ok=True)
        if self._own is not None:
            self._mirror = mirror.Mirror(rundir, self._stream)
        self._tasks.begin(rundir, Cluster.from_json(cluster), tasks)
        self._stream.send("begun")

    def _on_again(self, task: str) -> None:
        self._tasks.start_again(task)

    def _on_stop(self) -> None:
        self._tasks.stop()

    def _on_end(self, task: str) -> None:
        self._tasks.end(task)

    def _on_dump(self) -> None:
        self._tasks.dump()

    def _on_kill(self) -> None:
        self._tasks.kill()
        self._look()
        self._send_after("killed")

    def _send_after(self, kind: str, **fields: Any) -> None:
        """Send a message after all that the tasks have written."""
        if self._mirror is None:
            self._stream.send(kind, **fields)
        else:
            self._mirror.after(lambda: self._stream.send(kind, **fields))

    def _look(self) -> None:
        """Pass on what the tasks report."""
        for name, event in self._tasks.poll(0):
            if event == "ended":
                code = self._tasks.exit_codes()[name]
                self._send_after("event", task=name, event=event, code=code)
            else:
                self._stream.send("event", task=name, event=event)
        if self._asked and self._tasks.live:
            self._asked = False
            self._stream.send("event", task=self._tasks.live[0], event="stop")
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            frozen = self._tasks.frozen()
            if frozen != self._frozen:
                self._frozen = frozen
                self._stream.send("frozen", tasks=sorted(frozen))


def end_the_group() -> None:
    """End this process and all that it has started, at once."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> int:
    """Be the agent of the launcher at standard input and output; return the exit code."""
    reader, writer = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    worker = os.fork()
    if worker:
        os.close(reader)
        os.close(writer)
        return _guard(worker)
    os.setpgid(0, 0)
    code = errors.FAILED
    try:
        code = Agent(reader, writer).run()
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def _guard(worker: int) -> int:
    """Wait for the end of the process ``worker``, and end what is left of its group."""
    for number in terminal.STOPS:  # what asks to stop is for the tasks
        signal.signal(number, lambda *_: None)
    with contextlib.suppress(OSError):  # it has done so itself
        os.setpgid(worker, worker)
    _, status = os.waitpid(worker, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
