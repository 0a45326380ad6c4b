"""The process that serves: loads a version, and others that the command sends, and runs uvicorn.

The command and this process exchange JSON objects over a pipe. For each ``{"path", "version"}`` the
process sends what it knows of the loaded model, or ``{"failed": ...}``. The end of the pipe is the
request to stop.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import math
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Annotated, Any

import pydantic_core
import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import Counter, Histogram, generate_latest
from starlette.exceptions import HTTPException

from dtrain.errors import DtrainError, printable
from dtrain.serving.batching import Batcher
from dtrain.serving.options import Options
from dtrain.serving.protocols import InferRequest, Invocation
from dtrain.serving.signature import Signature, labels, model_inputs

#: Seconds that an idle connection is kept: longer than clients and proxies do.
_KEEP_ALIVE = 75
_SWITCH = 0.001  # seconds, in place of 5 ms: threads that load or compute hold up requests less
_HEADERS = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}
_BEARER = HTTPBearer(auto_error=False)
_SECONDS = Histogram("dtrain_request_seconds", "Answered requests.", ["version"])
_REFUSED = Counter("dtrain_refused_requests", "Refused requests.", ["status"])


@dataclasses.dataclass
class Current:
    """The model that serves now: its version, with its queue; changed in place."""

    name: str
    serves: tuple[str, Batcher]


def application(current: Current, token: str | None, max_body: int) -> FastAPI:
    """Return the application.

    Args:
        current: what serves.
        token: that requests bring; None: requests need none.
        max_body: bytes of a body.
    """
    app = FastAPI(title=f"dtrain serve: {current.name}", redoc_url=None, max_body_size=max_body)
    expected = (token or "").encode()

    async def authorize(
        given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    ) -> None:
        if given is None or not hmac.compare_digest(given.credentials.encode(), expected):
            raise HTTPException(401, "a token is required: Authorization: Bearer TOKEN")

    async def predicted(body: InferRequest | Invocation) -> Response:
        began, (version, batcher) = time.perf_counter(), current.serves
        signature = batcher.signature
        columns = body.columns(signature)
        tensors = await batcher.infer(model_inputs(columns, signature))
        outputs = {spec.name: tensors[spec.name] for spec in signature.outputs}
        answer = body.answer(outputs, labels(outputs, signature.classes))
        if isinstance(body, InferRequest):
            answer = {"model_name": current.name, "model_version": version, **answer}
        _SECONDS.labels(version).observe(time.perf_counter() - began)
        headers = {"x-model-version": version}
        if unknown := signature.unknown(columns):
            headers["x-unknown-categories"] = json.dumps(unknown)
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

    async def metadata(model: str) -> dict[str, Any]:
        check(model)
        version, batcher = current.serves
        specs = {"inputs": batcher.signature.inputs, "outputs": batcher.signature.outputs}
        return {
            "name": model, "versions": [version], "platform": batcher.signature.platform,
            **{role: [spec.metadata for spec in each] for role, each in specs.items()},
        }  # fmt: skip

    async def ready(model: str) -> dict[str, Any]:
        check(model)
        return {"name": model, "ready": True}

    async def metrics() -> Response:
        return Response(generate_latest(), media_type="text/plain")

    async def live() -> dict[str, Any]:
        return {"live": True, "ready": True}

    async def server() -> dict[str, Any]:
        return {"name": "dtrain", "extensions": []}

    own: Any = {"dependencies": [Depends(authorize)]} if token else {}
    app.add_api_route("/invocations", invocations, methods=["POST"], **own)
    app.add_api_route("/v2/models/{model}/infer", infer, methods=["POST"], **own)
    app.add_api_route("/v2/models/{model}", metadata, **own)
    app.add_api_route("/v2/models/{model}/ready", ready, **own)
    app.add_api_route("/v2", server, **own)
    app.add_api_route("/metrics", metrics, **own)
    for path in ("/v2/health/live", "/v2/health/ready", "/ping"):
        app.add_api_route(path, live)
    app.add_api_route("/", lambda: RedirectResponse("/docs"), include_in_schema=False)
    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _refused)
    return app


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

    threading.Thread(target=follow, daemon=True).start()
    server.run([listener])
