"""A warm process that runs each command in a fork of its own: ``python -m tests.hostile.server``.

A request is one line of JSON on stdin: ``module``, ``arguments``, ``cwd``, ``environment``,
``output`` and ``timeout``. What came of it is one line on stdout. The fork does what
``python -m MODULE ARGUMENTS`` does, in a session of its own, and with bounds that keep an attack
that succeeds from taking the machine: CPU time, memory, size of files.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

#: What every command imports sooner or later. Those that a later dtrain has not are passed over.
WARM = (
    "dtrain.controller.cli",
    "dtrain.tracking",
    "dtrain.compare",
    "dtrain.compare.page",
    "dtrain.controller.commands.checkpoint",
    "dtrain.controller.commands.compare",
    "dtrain.controller.commands.sync",
    "mlflow.entities",
    "mlflow.tracking",
    "mlflow.store.tracking.sqlalchemy_store",
    "hydra.core.plugins",
    "hydra._internal.hydra",
    "matplotlib.backends.backend_svg",
)
CPU_SECONDS = 25
BYTES = 6 << 30  # of address space
FILE_BYTES = 256 << 20
#: Seconds that the processes of a command may outlive it.
ENDS = 5.0


def _child(request: dict[str, Any]) -> None:
    """Become the command; returns or raises as its main module does."""
    os.setsid()
    for limit, value in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    empty = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((empty, output, output)):
        os.dup2(descriptor, number)
    os.closerange(3, 256)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv = [request["module"], *request["arguments"]]
    # What dtrain makes of the current directory, before it imports anything, is for an interpreter
    # of its own to show.
    del sys.path[0]
    with contextlib.suppress(KeyError):
        del sys.modules["__main__"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _session(leader: int) -> list[int]:
    """Return the processes of the session of ``leader`` that are left."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


def _wait(pid: int, timeout: float) -> dict[str, Any]:
    watched = os.pidfd_open(pid)
    began = time.monotonic()
    ended = bool(select.select([watched], [], [], timeout)[0])
    os.close(watched)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    until = time.monotonic() + ENDS
    while (left := _session(pid)) and time.monotonic() < until:
        time.sleep(0.05)  # a server sees by itself that its command is gone
    for each in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "late": not ended,
        "cpu": used.ru_utime + used.ru_stime,
        "megabytes": used.ru_maxrss >> 10,
        "seconds": time.monotonic() - began,
        "left": len(left),
    }


def main() -> None:
    """Answer requests until stdin ends; in a fork, run its command."""
    # As dtrain sets it before it imports MLflow, which begins a thread that reports otherwise.
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    print(json.dumps("ready"), flush=True)
    while line := sys.stdin.readline():
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(request)
            return
        print(json.dumps(_wait(pid, request["timeout"])), flush=True)


if __name__ == "__main__":
    main()
