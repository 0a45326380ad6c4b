"""The web application: FastAPI's routes, the token, errors, and counts for Prometheus."""

from __future__ import annotations

import dataclasses
import hmac
import time
from typing import Annotated, Any

import pydantic_core
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import Counter, Histogram, generate_latest
from starlette.exceptions import HTTPException

from dtrain.serving.batching import Batcher
from dtrain.serving.protocols import InferRequest, Invocation
from dtrain.serving.signature import RequestError, labels, model_inputs

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
            raise RequestError(401, "a token is required: Authorization: Bearer TOKEN")

    async def predicted(body: InferRequest | Invocation) -> Response:
        began, (version, batcher) = time.perf_counter(), current.serves
        signature = batcher.signature
        tensors = await batcher.infer(model_inputs(body.columns(signature), signature))
        outputs = {spec.name: tensors[spec.name] for spec in signature.outputs}
        answer = body.answer(outputs, labels(outputs, signature.classes))
        if isinstance(body, InferRequest):
            answer = {"model_name": current.name, "model_version": version, **answer}
        _SECONDS.labels(version).observe(time.perf_counter() - began)
        content = pydantic_core.to_json(answer, inf_nan_mode="constants")
        return Response(content, 200, {"x-model-version": version}, "application/json")

    def check(model: str) -> None:
        if model != current.name:
            raise RequestError(404, f"there is no model {model[:60]!r}: {current.name!r} is served")

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
    for kind in (RequestError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _refused)
    return app


async def _refused(request: Request, error: Any) -> Response:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        status, text = 400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    elif isinstance(error, RequestError):
        status, text = error.status, str(error)
    else:
        status = getattr(error, "status_code", 500)
        text = str(getattr(error, "detail", type(error).__name__))
    _REFUSED.labels(status).inc()
    content = pydantic_core.to_json({"error": text})
    return Response(content, status, _HEADERS.get(status), "application/json")
