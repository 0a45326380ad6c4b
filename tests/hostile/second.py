"""Commands in forked processes of one server, with faults at any file operation; quick tasks.

As a program it is the server: each line of its input is a command as JSON (:class:`Server`). The
tasks do what ``QUICK`` in the environment says; what fails there fails before they train.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain.errors import TrainingError, UsageError
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir
from tests.quick import TASK, Quick

#: Put before what a task of :mod:`tests.quick` does: the ends before it trains.
EARLY = """
import json, os, signal, sys, time
how = os.environ.get("QUICK", "")
print("the task begins", flush=True)
if how:
    with open(os.path.join(sys.argv[1], "journal.jsonl"), "a") as journal:
        said = [{"event": "notice", "time": 1.5, "message": "the checkpoint was made otherwise"}]
        if how in ("refuse", "crash"):
            kind = "usage" if how == "refuse" else "training"
            said.append({"event": "error", "time": 2, "kind": kind, "message": "mine.small: lost"})
        for event in said:
            journal.write(json.dumps(event) + "\\n")
if how in ("refuse", "exit"):
    os._exit(2)
if how in ("crash", "torn"):
    if how == "torn":
        with open(os.path.join(sys.argv[1], "journal.jsonl"), "a") as journal:
            journal.write('{"event": "star')
    os._exit(1)
if how == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if how in ("SIGINT", "SIGTERM"):
    parent = os.getppid()
    os.kill(parent, getattr(signal, how))
    while os.getppid() == parent:
        time.sleep(0.01)
    os._exit(1)
"""
#: Without the file that it makes in the current directory, for others to wait for.
CODE = EARLY + TASK.replace('Path(f"began-{seed}").touch()', "")


class Fickle(Quick):
    """Its tasks, or itself, fail as ``QUICK`` in the environment says."""

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        """Start the task."""
        how = os.environ.get("QUICK", "")
        if how == "start-usage":
            raise UsageError(
                "seed", "is another one on worker-0", 1, accepted="the same", typed="seed=2"
            )
        if how == "start-training":
            raise TrainingError("there are no 2 free ports")
        if how == "start-os":
            raise OSError(11, "Resource temporarily unavailable")
        if how == "start-bug":
            raise RuntimeError("no such thing")
        self._told = False
        config = RunDir(rundir.path).config.read_text()
        epochs = next(line.split()[1] for line in config.splitlines() if " epochs:" in line)
        with rundir.log("chief-0").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", CODE, str(rundir.path), "1", epochs,
                 os.environ.get("QUICK_LAST", "end"), "max"],
                stdout=log, stderr=log,
            )  # fmt: skip
        return cluster


#: The operations of :mod:`os` at which a command may be hit, beside those of tasks.
OPERATIONS = (
    "open", "write", "pwrite", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir",
    "truncate", "scandir", "lstat", "listdir",
)  # fmt: skip
#: Of them those that a full disk lets fail.
WRITING = ("open", "write", "fsync", "rename", "replace", "mkdir", "truncate")


def _install(at: int, kind: str, counter: str) -> None:
    """Hit this process at its ``at``-th operation on a file of a run, and note how many it did."""
    count = 0
    main = os.getpid()

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            ours = os.getpid() == main and bool(args) and "/project/" in _path(args[0])
            if ours and (kind != "error" or name in WRITING):
                count += 1
                Path(counter).write_text(str(count))
                if count == at and kind == "error":
                    raise OSError(28, os.strerror(28), args[0])
                if count == at:
                    os.kill(main, getattr(signal, kind))
            return real(*args, **kwargs)

        return act

    for name in OPERATIONS:
        setattr(os, name, wrap(name, getattr(os, name)))


def _path(given: Any) -> str:
    return os.fsdecode(os.readlink(f"/proc/self/fd/{given}") if isinstance(given, int) else given)


class Server:
    """Runs commands, each in a process of its own that has all imported."""

    def __init__(self) -> None:
        self.count = 0  # of the operations of the last command that had a fault
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.second"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def __call__(
        self,
        cwd: Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
        fault: tuple[int, str] | None = None,
        absent: tuple[str, ...] = (),
    ) -> tuple[int, str]:
        """Run one command; return its exit code, negative for a signal, and its output."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {
            "cwd": str(cwd), "arguments": arguments, "environment": environment or {},
            "fault": fault, "absent": absent,
        }  # fmt: skip
        print(json.dumps(request), file=self._process.stdin, flush=True)
        code, output, self.count = json.loads(self._process.stdout.readline())
        return code, output

    def close(self) -> None:
        """End the server."""
        self._process.communicate()


def _serve(folder: Path) -> None:
    from dtrain.cli.app import main

    for line in sys.stdin:
        request = json.loads(line)
        output = folder / "output"
        pid = os.fork()
        if pid == 0:
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            code = 99
            try:
                code = _command(main, request, folder)
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        text, count = output.read_text(errors="replace"), int((folder / "count").read_text() or 0)
        print(json.dumps([code, text, count]), flush=True)


def _command(main: Callable[[], int], request: dict[str, Any], folder: Path) -> int:
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    for name in request["absent"]:
        sys.modules[name] = None  # type: ignore[assignment]
    sys.argv = ["dtrain", *request["arguments"]]
    (folder / "count").write_text("0")
    if request["fault"]:
        _install(*request["fault"], str(folder / "count"))
    return main()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        _serve(Path(temporary))
