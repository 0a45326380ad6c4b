"""A process that runs a model, as the server has it: started, asked and ended."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from dtrain.host import frames
from dtrain.serving.problems import Unusable


class Process(Protocol):
    """A process that runs a model."""

    pid: int

    def kill(self) -> None:
        """Have it end at once."""

    def join(self) -> None:
        """Wait for its end."""


#: Starts such a process for the files at a path; returns the socket to ask it by.
Start = Callable[[str, Mapping[str, Any]], tuple[Process, socket.socket]]


class Channel:
    """A process that has loaded a model; made by :meth:`open`.

    Args:
        process: that runs.
        reader, writer: of its socket.
    """

    def __init__(
        self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self._process, self._reader, self._writer = process, reader, writer
        self.pid = process.pid
        #: What it has said of the model, and inputs of one row.
        self.about: dict[str, Any] = {}
        self.example: dict[str, np.ndarray] = {}

    @classmethod
    async def open(
        cls, start: Start, path: str, options: Mapping[str, Any], seconds: float
    ) -> Channel:
        """Start a process, and wait until it has loaded, warmed up and compared the model.

        Args:
            start: starts it.
            path: of the files.
            options: of ``start``.
            seconds: that loading may take.

        Raises:
            Unusable: the model cannot be served; no process is left.
        """
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(None, start, path, options)
        try:
            process, ours = await asyncio.shield(starting)
        except OSError as error:
            raise Unusable(f"its process cannot be started: {error.strerror}") from None
        except asyncio.CancelledError:
            process, ours = await starting  # it begins all the same
            ours.close()
            await _ended(process)
            raise
        made = cls(process, *await asyncio.open_unix_connection(sock=ours, limit=1 << 20))
        try:
            async with asyncio.timeout(seconds):
                made.about, made.example = await made.hear()
        except (EOFError, OSError):
            problem = "its process died while it was loaded"
        except TimeoutError:
            problem = f"it was not loaded within {seconds:g} s"
        except BaseException:
            await made.close()
            raise
        else:
            problem = made.about.get("failed", "")
        if problem:
            await made.close()
            raise Unusable(problem)
        return made

    def say(self, head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Send a message."""
        self._writer.write(frames.packed(head, arrays))

    async def hear(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return its next message.

        Raises:
            EOFError, OSError: it has ended.
        """
        sizes = frames.SIZES.unpack(await self._reader.readexactly(frames.SIZES.size))
        head = await self._reader.readexactly(sizes[0])
        return frames.unpacked(head, await self._reader.readexactly(sizes[1]))

    def kill(self) -> None:
        """Have the process end at once."""
        self._process.kill()

    async def close(self) -> None:
        """End the process, and wait for that."""
        self._writer.close()
        await _ended(self._process)


async def _ended(process: Process) -> None:
    process.kill()
    await asyncio.get_running_loop().run_in_executor(None, process.join)
