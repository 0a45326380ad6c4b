"""An actor of Ray's that starts an agent, and passes on what that reads and writes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any

from dtrain.errors import TrainingError
from dtrain.host import python_path

#: Bytes of a message between an actor and this process.
_PIECE = 1 << 20
#: Seconds that a call of an actor has which is there.
_CALL = 30.0


class Actor:
    """What leads to an agent: an actor that has started it.

    Args:
        ray: the module, connected.
        group: the placement group.
        number: of the place in it.
        cpus, gpus: of the place.
    """

    def __init__(self, ray: Any, group: Any, number: int, cpus: float, gpus: int):
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._ray = ray
        self.host = f"place {number}"
        self.node = ""
        self._why = ""
        self._ended = threading.Event()
        self._actor = (
            ray.remote(_bridge())
            .options(
                num_cpus=cpus,
                num_gpus=gpus,
                max_concurrency=4,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
            )
            .remote()
        )

    def locate(self, seconds: float) -> None:
        """Wait until the actor is there.

        Raises:
            TrainingError: it does not come.
        """
        try:
            self.node, name = self._ray.get(self._actor.where.remote(), timeout=seconds)
        except Exception as error:  # of Ray's many
            raise TrainingError(f"{self.host}: its actor does not start ({brief(error)})") from None
        self.host = f"{name} ({self.host})"

    def open(self) -> tuple[int, int]:
        """Start the agent; return descriptors of its output and its input."""
        environment = python_path.environment()
        try:
            self._ray.get(
                self._actor.open.remote(sys.executable, environment, os.getcwd()), timeout=_CALL
            )
        except Exception as error:  # of Ray's many
            raise OSError(f"its agent does not start ({brief(error)})") from None
        reader, out = os.pipe()
        into, writer = os.pipe()
        for work, end in ((self._read, out), (self._write, into)):
            threading.Thread(target=work, args=(end,), name="ray-pipe", daemon=True).start()
        return reader, writer

    def _read(self, out: int) -> None:
        try:
            while data := self._ray.get(self._actor.read.remote()):
                left = memoryview(data)
                while left:
                    left = left[os.write(out, left) :]
        except OSError:  # nothing here reads any more
            pass
        except Exception as error:  # of Ray's many: the actor, its node, or the cluster is gone
            self._why = f"its actor is gone: {brief(error)}"
        finally:
            os.close(out)

    def _write(self, into: int) -> None:
        try:
            while data := os.read(into, _PIECE):
                self._ray.get(self._actor.write.remote(data))
            self._ray.get(self._actor.end.remote())
        except Exception as error:  # of Ray's many: what reads says it, too
            self._why = self._why or f"its actor is gone: {brief(error)}"
        finally:
            os.close(into)
            self._ended.set()

    def why(self) -> str:
        """Return what is known of how it ended."""
        if self._why:
            return self._why
        with contextlib.suppress(Exception):  # of Ray's many
            code, said = self._ray.get(self._actor.close.remote(1.0), timeout=_CALL)
            last = (said.strip().splitlines() or [""])[-1]
            return f"its agent ended with exit code {code}" + (f": {last}" if last else "")
        return ""

    def close(self, seconds: float = 5.0) -> None:
        """Let the agent end, within so many seconds; then end its actor."""
        self._ended.wait(seconds)
        with contextlib.suppress(Exception):  # of Ray's many: it is gone
            if not self._why:
                self._ray.get(self._actor.close.remote(seconds), timeout=seconds + 1.0)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


def brief(error: Exception) -> str:
    """Return one of Ray's errors in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    known = [line for line in lines if line.startswith(("The actor", "The node", "Actor"))]
    return (known or lines or [type(error).__name__])[0][:300]


def _bridge() -> type:
    """Return the class of the actors, which is sent along: it needs nothing but Python there."""

    class Bridge:
        """Starts an agent, and passes on what it reads and writes."""

        def where(self) -> tuple[str, str]:
            """Return the address of the node, and its name."""
            import socket

            import ray.util

            return str(ray.util.get_node_ip_address()), socket.gethostname()

        def open(self, python: str, environment: dict[str, str], folder: str) -> None:
            """Start the agent, in the folder of the command where it is there."""
            import os
            import subprocess
            import sys
            import tempfile

            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
            self._process: Any = subprocess.Popen(
                [python if os.path.exists(python) else sys.executable, "-m", "dtrain.agent"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0,
                cwd=folder if os.path.isdir(folder) else None,
                env={**os.environ, **environment}, start_new_session=True,
            )  # fmt: skip

        def read(self) -> bytes:
            """Return the next bytes of its output, none at the end."""
            import os

            return os.read(self._process.stdout.fileno(), 1 << 20)

        def write(self, data: bytes) -> None:
            """Write to its input; once it has ended, nowhere."""
            import os

            left = memoryview(data)
            try:
                while left:
                    left = left[os.write(self._process.stdin.fileno(), left) :]
            except (BrokenPipeError, ValueError):
                pass

        def end(self) -> None:
            """End its input, which is the order to end."""
            self._process.stdin.close()

        def close(self, seconds: float) -> tuple[int, str]:
            """Wait for its end; return its exit code and the end of what it has printed."""
            import os
            import signal
            import subprocess

            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._errors.seek(max(0, os.fstat(self._errors.fileno()).st_size - 8192))
            return self._process.returncode, self._errors.read().decode(errors="replace")

    return Bridge
