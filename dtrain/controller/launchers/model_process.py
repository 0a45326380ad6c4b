"""Starts the processes that run a served model, each of a process that may import TensorFlow."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from dtrain.host.forkserver import Process


def _enter(path: str, options: dict[str, Any], given: Connection, pipe: Any) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    from dtrain.task.served import child

    child(path, options, given, pipe)


class ModelProcess:
    """One process, and the end of the socket that it is asked by: :attr:`socket`.

    Args:
        environment: that TensorFlow is imported with.
        path: of the SavedModel.
        options: of :func:`dtrain.task.served.child`.

    Raises:
        OSError: the system starts no more processes.
    """

    def __init__(self, environment: dict[str, str], path: str, options: Mapping[str, Any]):
        self.socket, theirs = socket.socketpair()
        try:
            with Connection(theirs.detach()) as given:
                arguments = (path, dict(options), given)
                self._process = Process(environment, "model", _enter, arguments, environment)
        except OSError:
            self.socket.close()
            raise
        self.pid = self._process.pid

    def kill(self) -> None:
        """Have it end at once."""
        self._process.signal(signal.SIGKILL)

    def join(self) -> None:
        """Wait for its end."""
        self._process.join()
