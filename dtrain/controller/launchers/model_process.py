"""Starts the process of a server: forked from one that may import its framework."""

from __future__ import annotations

import functools
import os
import socket
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from dtrain.host.forkserver import Process
from dtrain.serving.options import Options


def _enter(
    options: Options, token: str | None, link: Connection, listener: socket.socket,
    output: Connection, pipe: Any,
) -> None:  # fmt: skip
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    from dtrain.export import served
    from dtrain.serving import server
    from dtrain.task import backends
    from dtrain.task.process import signals

    signals.end_with_the_parent()
    pipe.close()
    sys.stdout = sys.stderr = os.fdopen(os.dup(output.fileno()), "a", buffering=1)
    backends.module("exported").configure(options.threads)
    load = functools.partial(served.Served, max_batch=options.max_batch)
    server.run(load, options, token, link, listener)
    os._exit(0)


class ModelProcess(Process):
    """One process, and the end of the pipe that it is asked by: :attr:`link`.

    Args:
        environment: that its framework is imported with.
        options, token, listener: of :func:`dtrain.serving.server.run`.

    Raises:
        OSError: the system starts no more processes.
    """

    def __init__(
        self, environment: dict[str, str], options: Options, token: str | None,
        listener: socket.socket,
    ):  # fmt: skip
        self.link, theirs = Pipe()
        with theirs, Connection(os.dup(2), readable=False) as output:
            arguments = (options, token, theirs, listener, output)
            super().__init__(environment, "server", _enter, arguments, environment)
