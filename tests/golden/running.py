"""Runs commands in this process, as the suite does, each case in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from dtrain.host import forkserver
from tests import warm

#: The same in the suite and by the command. The number of threads may change bits.
ENVIRONMENT = {
    **warm.ENVIRONMENT,
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "COLUMNS": "100",
    "LINES": "40",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "DTRAIN_TRUST": "tests,mine",
    # A user's home may have one, and doctor says so.
    "DTRAIN_CLUSTER_KEY": "5eed" * 16,
}
_OTHERS = ("DTRAIN_ENV", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "FORCE_COLOR", "TF_CONFIG")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a new folder the current one, whose path is always as long; it is removed again."""
    base, before, path = Path(tempfile.mkdtemp(prefix="golden-")), Path.cwd(), list(sys.path)
    work = base / "work"
    work.mkdir()
    own = {"XDG_STATE_HOME": str(base / "state"), "DTRAIN_CACHE": str(base / "cache")}
    with mock.patch.dict(os.environ, {**ENVIRONMENT, **own}):
        for name in _OTHERS:
            os.environ.pop(name, None)
        for environment in warm.ENVIRONMENTS.values():  # of a server that lasts for all cases
            warm.warm(environment)
        os.chdir(work)
        sys.path.insert(0, str(work))  # as `python -m` has it
        try:
            yield work
        finally:
            os.chdir(before)
            sys.path[:] = path
            sys.modules.pop("mine", None)
            shutil.rmtree(base, ignore_errors=True)


def captured(call: Callable[[], int]) -> tuple[int, str]:
    """Return what ``call`` returns, and all that it prints, in order, by whatever way."""
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [os.dup(number) for number in (1, 2)]
        streams = [
            io.TextIOWrapper(io.FileIO(file.fileno(), "w", closefd=False), "utf-8") for _ in kept
        ]
        try:
            for number, stream in enumerate(streams, 1):
                os.dup2(file.fileno(), number)
                stream.reconfigure(write_through=True)
            with mock.patch("sys.stdout", streams[0]), mock.patch("sys.stderr", streams[1]):
                code = call()
        finally:
            for number, stream in enumerate(streams, 1):
                stream.close()
                os.dup2(kept[number - 1], number)
                os.close(kept[number - 1])
        file.seek(0)
        return code, file.read().decode(errors="replace")


def command(words: list[str]) -> tuple[int, str]:
    """Run ``python -m dtrain`` with some words; return its exit code and what it prints."""
    from dtrain.__main__ import main

    def call() -> int:
        try:
            return main()
        except SystemExit as end:
            return int(end.code or 0) if not isinstance(end.code, str) else 1

    with mock.patch("sys.argv", ["dtrain", *words]):
        return captured(call)


def line(text: str) -> tuple[int, str]:
    """Run a line of a table.

    Args:
        text: words as a shell has them. ``kill=STEP`` or ``stop=STEP`` in front has a task of a
            run kill or stop itself after that step (:class:`tests.golden.user.Kill`).
    """
    words = shlex.split(text)
    order = Path("kill")
    kind, _, step = words[0].partition("=")
    if kind in ("kill", "stop"):
        order.write_text(f"{step} {int(signal.SIGKILL if kind == 'kill' else signal.SIGTERM)}")
        words = words[1:]
    try:
        return command(words)
    finally:
        order.unlink(missing_ok=True)


def ready() -> None:
    """Import TensorFlow in the server from which tasks are forked, before anything is timed."""
    with mock.patch.dict(os.environ, ENVIRONMENT):
        forkserver.ready(warm.ENVIRONMENT)
