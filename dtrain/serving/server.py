"""The process that serves: loads a version, and others that the command sends, and runs uvicorn.

The command and this process exchange JSON objects over a pipe. For each ``{"path", "version"}`` the
process sends what it knows of the loaded model, or ``{"failed": ...}``. The end of the pipe is the
request to stop.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import hmac
import html
import ipaddress
import json
import math
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

import pydantic_core
import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.security import HTTPBearer
from prometheus_client import Counter, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from dtrain.errors import DtrainError, printable
from dtrain.files.fields import Json
from dtrain.serving.batching import Batcher
from dtrain.serving.options import ServeOptions
from dtrain.serving.signature import InferRequest, Invocation, Signature, labels, model_inputs

#: Seconds that an idle connection is kept: longer than clients and proxies do.
_KEEP_ALIVE = 75
_SWITCH = 0.001  # seconds, in place of 5 ms: threads that load or compute hold up requests less
_HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}
_HEAD = 1 << 16  # bytes of the headers of a request, at most
_NAMED = 32  # columns that the header of unknown categories names: proxies take a few kilobytes
_BEARER = HTTPBearer(auto_error=False)
_HEALTH = ("/v2/health/live", "/v2/health/ready", "/ping")
_OPEN = (*_HEALTH, "/", "/docs", "/docs/oauth2-redirect", "/openapi.json")  # without a token
_SECONDS = Histogram("dtrain_request_seconds", "Answered requests.", ["version"])
_REFUSED = Counter("dtrain_refused_requests", "Refused requests.", ["status"])


@dataclasses.dataclass
class Current:
    """The model that serves now: its version, with its queue; changed in place."""

    name: str
    serves: tuple[str, Batcher]


class Doorkeeper:
    """Refuses a request by its headers, before its body is read and parsed.

    Args:
        app: the application.
        token: that requests bring; None or empty: requests need none.
        host: address that is listened at. Where others cannot reach it, and there is no token, a
            browser on this machine could be made to ask under a name of an attacker's.
    """

    def __init__(self, app: ASGIApp, token: str | None, host: str):
        self._app, self._expected = app, f"Bearer {token}".encode() if token else b""
        self._local = not token and _is_local(f"[{host}]" if ":" in host else host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers, error = dict(scope.get("headers", ())), None
        name = headers.get(b"host", b"localhost").decode("latin-1")
        if self._local and not _is_local(name):
            error = HTTPException(
                400, f"this server is not called {name[:60]!r}: ask for localhost, or serve with a "
                "token in DTRAIN_SERVE_TOKEN",
            )  # fmt: skip
        elif self._expected and scope["path"] not in _OPEN:
            value = headers.get(b"authorization", b"")
            if not hmac.compare_digest(value[:7].title() + value[7:], self._expected):
                error = HTTPException(401, "a token is required: Authorization: Bearer TOKEN")
        answer = self._app if error is None else await _refused(Request(scope), error)
        await answer(scope, receive, send)


def _is_local(name: str) -> bool:
    """Say whether a Host header names this machine by a loopback address."""
    try:
        name = urlsplit(f"//{name}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


# Which class uvicorn's name stands for depends on what is installed: no type says it.
class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Closes a connection whose request has more bytes of headers than :data:`_HEAD`."""

    _head = 0

    def data_received(self, data: bytes) -> None:
        """Take in what has arrived."""
        last = self.cycle
        is_body = last is not None and last.more_body
        super().data_received(data)
        self._head = 0 if is_body or self.cycle is not last else self._head + len(data)
        if self._head > _HEAD:
            self.transport.close()


class PatientServer(uvicorn.Server):
    """Closes connections that do not send what they begin, and ends with an event loop that hangs.

    Args:
        config: of the server.
        timeout: seconds that a request has to arrive.
        silence: seconds without a turn of the loop after which the process ends, whatever it does
            (:mod:`faulthandler` waits outside of Python); the command starts another.
    """

    def __init__(self, config: uvicorn.Config, timeout: float, silence: float):
        super().__init__(config)
        self._timeout, self._silence = timeout, silence
        self._arriving: dict[Any, float] = {}  # connections and their last requests, since when

    async def on_tick(self, counter: int) -> bool:
        """Do what is done ten times a second."""
        if counter % 10 == 0:
            faulthandler.dump_traceback_later(self._silence, file=2, exit=True)
            now, before = time.monotonic(), self._arriving
            connections: Any = list(self.server_state.connections)
            self._arriving = {
                (each, each.cycle): before.get((each, each.cycle), now)
                for each in connections
                if getattr(each, "timeout_keep_alive_task", each) is None
                and (each.cycle is None or each.cycle.response_complete or each.cycle.more_body)
            }
            for (each, _), since in self._arriving.items():
                if now - since > self._timeout:
                    each.transport.close()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is there."""
        faulthandler.cancel_dump_traceback_later()
        await super().shutdown(sockets)


def application(current: Current, token: str | None, max_body: int, host: str) -> FastAPI:
    """Return the application.

    Args:
        current: what serves.
        token: that requests bring; None: requests need none.
        max_body: bytes of a body.
        host: address that is listened at.
    """
    app = FastAPI(
        title=f"dtrain serve: {current.name}", docs_url=None, redoc_url=None,
        max_body_size=max_body,
        redirect_slashes=False,  # it would be to what the Host header says
    )  # fmt: skip
    app.add_middleware(Doorkeeper, token=token, host=host)

    async def predicted(body: InferRequest | Invocation) -> Response:
        began, (version, batcher) = time.perf_counter(), current.serves
        signature = batcher.signature
        try:
            columns = body.columns(signature)
            inputs, unknown = model_inputs(columns, signature), signature.unknown(columns)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise HTTPException(400, f"the values cannot be read: {error}") from None
        tensors = await batcher.infer(inputs)
        outputs = {spec.name: tensors[spec.name] for spec in signature.outputs}
        answer = body.answer(outputs, labels(outputs, signature.classes))
        if isinstance(body, InferRequest):
            answer = {"model_name": current.name, "model_version": version, **answer}
        _SECONDS.labels(version).observe(time.perf_counter() - began)
        headers = {"x-model-version": version}
        if unknown:
            some = dict(list(unknown.items())[:_NAMED])
            headers["x-unknown-categories"] = json.dumps(some)
        content = pydantic_core.to_json(answer, inf_nan_mode="constants")
        return Response(content, 200, headers, "application/json")

    def check(model: str) -> None:
        if model != current.name:
            problem = f"there is no model {model[:60]!r}: {current.name!r} is served"
            raise HTTPException(404, problem)

    async def infer(model: str, body: InferRequest) -> Response:
        check(model)
        return await predicted(body)

    async def invocations(body: Invocation) -> Response:
        return await predicted(body)

    async def metadata(model: str) -> Json:
        check(model)
        version, batcher = current.serves
        specs = {"inputs": batcher.signature.inputs, "outputs": batcher.signature.outputs}
        return {
            "name": model, "versions": [version], "platform": batcher.signature.platform,
            **{role: [spec.metadata for spec in each] for role, each in specs.items()},
        }  # fmt: skip

    async def ready(model: str) -> Json:
        check(model)
        return {"name": model, "ready": True}

    async def metrics() -> Response:
        return Response(generate_latest(), media_type="text/plain")

    async def live() -> Json:
        return {"live": True, "ready": True}

    async def server() -> Json:
        return {"name": "dtrain", "extensions": []}

    own: Json = {"dependencies": [Depends(_BEARER)]} if token else {}  # for the page alone
    app.add_api_route("/invocations", invocations, methods=["POST"], **own)
    app.add_api_route("/v2/models/{model}/infer", infer, methods=["POST"], **own)
    app.add_api_route("/v2/models/{model}", metadata, **own)
    app.add_api_route("/v2/models/{model}/ready", ready, **own)
    app.add_api_route("/v2", server, **own)
    app.add_api_route("/metrics", metrics, **own)
    for path in _HEALTH:
        app.add_api_route(path, live)
    app.add_api_route("/", lambda: RedirectResponse("/docs"), include_in_schema=False)
    app.add_api_route("/docs", lambda: _page(app.openapi()), include_in_schema=False)
    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _refused)
    return app


def _page(api: Json) -> HTMLResponse:
    """Return what an OpenAPI document says as a page that needs nothing of a network."""
    title, text = html.escape(api["info"]["title"]), ""
    for path, methods in api["paths"].items():
        for method, about in methods.items():
            details = html.escape(json.dumps(about, indent=1))
            head = f"<b>{method.upper()}</b> {html.escape(path)}"
            text += f"<details><summary>{head}</summary><pre>{details}</pre></details>"
    schemas = html.escape(json.dumps(api.get("components", {}).get("schemas", {}), indent=1))
    return HTMLResponse(
        f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1>{text}"
        f"<h2>Schemas</h2><pre>{schemas}</pre>"
        '<p>For tools such as swagger: <a href="/openapi.json">/openapi.json</a></p>'
    )


async def _refused(request: Request, error: Any) -> Response:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        status, text = 400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    else:
        status = getattr(error, "status_code", 500)
        text = printable(str(getattr(error, "detail", type(error).__name__)))
    _REFUSED.labels(status).inc()
    content = pydantic_core.to_json({"error": text})
    return Response(content, status, _HEADERS.get(status), "application/json")


def _next(
    load: Callable[[str], Any], options: ServeOptions, link: Connection, serves: Signature | None
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


def run(
    load: Callable[[str], Any], options: ServeOptions, token: str | None, link: Connection,
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
    server = PatientServer(uvicorn.Config(
        application(current, token, int(options.max_body_mb * (1 << 20)), options.host),
        log_config=None, log_level="error", access_log=False, lifespan="off", ws="none",
        server_header=False, http=BoundedProtocol, timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(options.timeout),
        # A body may take a second a megabyte to parse; a look at the loop is due each second.
    ), options.timeout, max(10.0, options.timeout + options.max_body_mb))  # fmt: skip

    def follow() -> None:
        try:
            while True:
                if newer := _next(load, options, link, current.serves[1].signature):
                    current.serves = newer  # the old one answers what it has
        except (EOFError, OSError):
            server.should_exit = True

    threading.Thread(target=follow, daemon=True).start()
    server.run([listener])
