"""What leads from a launcher to an agent on a host: two streams of bytes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Protocol

from dtrain.host import python_path, variables

#: Seconds that a command has to end by itself once its input has ended.
_LAST = 5.0
#: Bytes of what a command has printed to standard error that are looked at.
_TAIL = 8192


class Transport(Protocol):
    """Starts one agent (``python -m dtrain.agent``), and reaches its standard input and output.

    Attributes:
        host: what the host is called, in messages.
    """

    host: str

    def open(self) -> tuple[int, int]:
        """Start the agent.

        Returns:
            A descriptor to read its output from, and one to write its input to. They belong to
            the caller, and may block.

        Raises:
            OSError: it cannot be started.
        """

    def why(self) -> str:
        """Return what is known of how it ended, as a clause; empty where nothing is known."""

    def close(self, seconds: float = _LAST) -> None:
        """Let it end, within so many seconds; then end by force what there is of it here."""


class Command:
    """An agent that a command starts: on this machine itself, or by way of ``ssh`` or ``srun``.

    It has a session of its own: Ctrl-C in a terminal is for the launcher to act upon.

    Args:
        host: in messages.
        arguments: of the command.
        environment: of its process, beside that of this one.
    """

    def __init__(self, host: str, arguments: Sequence[str], environment: Mapping[str, str] = {}):
        self.host = host
        self._arguments, self._environment = list(arguments), dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> tuple[int, int]:
        """Start the command."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = process = subprocess.Popen(
            self._arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            env={**variables.copied(), **self._environment},
        )
        assert process.stdin is not None and process.stdout is not None
        found = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdin.close()
        process.stdout.close()
        return found

    @property
    def code(self) -> int | None:
        """The exit code of the command; None while it is alive."""
        return None if self._process is None else self._process.poll()

    def printed(self) -> str:
        """Return the end of what the command has printed to standard error."""
        if self._process is None or self._errors.closed:
            return ""
        size = os.fstat(self._errors.fileno()).st_size
        data = os.pread(self._errors.fileno(), _TAIL, max(0, size - _TAIL))
        return data.decode(errors="replace").strip()

    def why(self) -> str:
        """Return the last line that the command has printed, and its exit code."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its output has ended
                self._process.wait(1.0)
        last = (self.printed().splitlines() or [""])[-1]
        name = os.path.basename(self._arguments[0])
        if self.code in (None, 0):
            return last
        return f"{name} ended with exit code {self.code}" + (f": {last}" if last else "")

    def close(self, seconds: float = _LAST) -> None:
        """Wait for the end of the command, then end it and what it has started here."""
        if self._process is None:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()


class Here(Command):
    """An agent on this machine.

    Args:
        host: in messages.
        environment: as of every command.
    """

    def __init__(self, host: str = "localhost", environment: Mapping[str, str] = {}):
        more = {**python_path.environment(), **environment}
        super().__init__(host, [sys.executable, "-m", "dtrain.agent"], more)
