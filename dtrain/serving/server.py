"""Runs the application: the first version, the socket, the signals, the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from dtrain.host import terminal
from dtrain.serving.app import App
from dtrain.serving.channel import Start
from dtrain.serving.follow import Follower, Source
from dtrain.serving.metrics import Metrics
from dtrain.serving.model import Limits, Model
from dtrain.serving.versions import Candidate, Versions

#: Connections at once; each more is answered with 503.
_CONNECTIONS = 1000
_BACKLOG = 1024
#: Seconds that a connection may be idle: longer than clients and proxies keep one to use it again.
_KEEP_ALIVE = 75


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a server serves.

    Attributes:
        name: of the model.
        limits: of requests and batches.
        max_body: bytes of a body.
        token: that requests bring; None where none is asked for.
    """

    name: str
    limits: Limits
    max_body: int = 16 << 20
    token: str | None = None


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: address or name of this machine.
        port: of it; 0 for a free one.

    Raises:
        OSError: it cannot.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made


class Serving:
    """A server.

    Args:
        settings: of it.
        start: starts the process of a version.
        listener: the socket; closed in the end.
        notice: takes a sentence for the user; called by any thread.
    """

    def __init__(
        self,
        settings: Settings,
        start: Start,
        listener: socket.socket,
        notice: Callable[[str], None],
    ):
        self.metrics = Metrics()
        self.versions = Versions(settings.name, start, settings.limits, self.metrics, notice)
        self._app = App(self.versions, self.metrics, settings.token, settings.max_body)
        self._listener, self._notice, self._grace = listener, notice, settings.limits.timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[None] | None = None
        self._server: Any = None
        self._stops = 0

    def run(
        self,
        first: Candidate,
        begun: Callable[[Model], None],
        source: Source | None = None,
        key: str = "",
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve until a signal, or :meth:`stop`.

        Args:
            first: the version to begin with.
            begun: called when it serves.
            source: of newer ones; None: there are none.
            key: of ``first`` in it.
            watch: called once a second.

        Raises:
            Unusable: it cannot serve.
        """
        import uvicorn

        config = uvicorn.Config(
            self._app, log_config=None, access_log=False, lifespan="off", server_header=False,
            ws="none", log_level="critical", limit_concurrency=_CONNECTIONS, backlog=_BACKLOG,
            timeout_graceful_shutdown=math.ceil(self._grace), callback_notify=_calling(watch),
            timeout_notify=1, timeout_keep_alive=_KEEP_ALIVE,
        )  # fmt: skip

        class Server(uvicorn.Server):
            """One that leaves signals alone."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        self._server = Server(config)
        with self._listener, asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            self._loop = runner.get_loop()
            with self._signals():
                runner.run(self._all(first, begun, source, key))

    async def _all(
        self, first: Candidate, begun: Callable[[Model], None], source: Source | None, key: str
    ) -> None:
        loop, follower = asyncio.get_running_loop(), None
        self._work = loop.create_task(self._load(first, begun))
        try:
            with contextlib.suppress(asyncio.CancelledError):
                if self._stops:
                    self._work.cancel()
                await self._work
                if source is not None:
                    follower = Follower(source, key, self.versions, loop, self._notice)
                    follower.start()
                await self._server.serve(sockets=[self._listener])
        finally:
            if follower is not None:
                follower.end()
                await self._joined(follower)
            await self.versions.close()

    async def _load(self, first: Candidate, begun: Callable[[Model], None]) -> None:
        begun(await self.versions.take(first))

    async def _joined(self, follower: threading.Thread) -> None:
        # What it has begun needs this loop to end.
        await asyncio.get_running_loop().run_in_executor(None, follower.join)

    def stop(self) -> None:
        """Take no more requests, answer those that are there, and end; at once the second time."""
        assert self._loop is not None, "runs"
        with contextlib.suppress(RuntimeError):  # it has just ended
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stops += 1
        self._server.should_exit = True
        self._server.force_exit = self._stops > 1
        if self._work is not None and not self._work.done():
            self._work.cancel()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Have signals stop it, where this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in terminal.stops()}
        try:
            for number in before:
                signal.signal(number, lambda *_: self.stop())
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _calling(watch: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        watch()

    return call


def address(listener: socket.socket) -> str:
    """Return the address at which a socket is asked."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def is_local(host: str) -> bool:
    """Say whether only this machine reaches ``host``."""
    return host in ("127.0.0.1", "localhost", "::1") or host.startswith("127.")
