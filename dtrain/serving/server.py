"""The process that serves: loads a version, and others that the command sends, and runs uvicorn.

The command and this process exchange JSON objects over a pipe. For each ``{"path", "version"}`` the
process sends what it knows of the loaded model, or ``{"failed": ...}``. The end of the pipe is the
request to stop.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import uvicorn

from dtrain.errors import DtrainError
from dtrain.serving.app import Current, application
from dtrain.serving.batching import Batcher
from dtrain.serving.options import Options
from dtrain.serving.signature import Signature

#: Seconds that an idle connection is kept: longer than clients and proxies do.
_KEEP_ALIVE = 75
_SWITCH = 0.001  # seconds, in place of 5 ms: threads that load or compute hold up requests less


def _next(
    load: Callable[[str], Any], options: Options, link: Connection, serves: Signature | None
) -> tuple[str, Batcher] | None:
    """Load the version that the command asks for, and try it; None where it cannot serve.

    Raises:
        EOFError, OSError: the command wants the end, or has ended.
    """
    asked = json.loads(link.recv_bytes())
    try:
        model = load(asked["path"])
        signature = Signature.of(model.about)
        if serves not in (None, signature):
            raise DtrainError(f"it is {signature}, and what serves is {serves}")
    except Exception as error:  # of a library, about a model that it cannot run
        link.send_bytes(json.dumps({"failed": str(error)}).encode())
        return None
    link.send_bytes(json.dumps({**model.about, "signature": str(signature)}).encode())
    return asked["version"], Batcher(model, signature, options)


def _end_if_it_hangs(current: Current, seconds: float) -> None:
    """End the process when a batch takes so long; the command starts another."""
    while True:
        time.sleep(seconds / 4)
        began = current.serves[1].began
        if began is not None and time.monotonic() - began > seconds:
            print(f"a batch does not end within {seconds:g} s", file=sys.stderr, flush=True)
            os._exit(1)


def run(
    load: Callable[[str], Any], options: Options, token: str | None, link: Connection,
    listener: socket.socket,
) -> None:  # fmt: skip
    """Serve until the end of ``link``.

    Args:
        load: loads an exported model: of its path, a function with an ``about``.
        options: of the command, with a name.
        token: that requests bring; None or empty: requests need none.
        link: to the command.
        listener: a socket that listens.
    """
    sys.setswitchinterval(_SWITCH)
    if (first := _next(load, options, link, None)) is None:
        return
    current = Current(str(options.name), first)
    server = uvicorn.Server(uvicorn.Config(
        application(current, token, int(options.max_body_mb * (1 << 20))), log_config=None,
        log_level="error", access_log=False, lifespan="off", ws="none", server_header=False,
        timeout_keep_alive=_KEEP_ALIVE, timeout_graceful_shutdown=math.ceil(options.timeout),
    ))  # fmt: skip

    def follow() -> None:
        try:
            while True:
                if newer := _next(load, options, link, current.serves[1].signature):
                    current.serves = newer  # the old one answers what it has
        except (EOFError, OSError):
            server.should_exit = True

    watch = threading.Thread(target=_end_if_it_hangs, args=(current, options.timeout / 2))
    for thread in (threading.Thread(target=follow), watch):
        thread.daemon = True
        thread.start()
    server.run([listener])
