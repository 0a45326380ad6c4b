"""The HTTP application (ASGI): who may ask, what is asked, how it is answered and counted."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import json
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from dtrain import secrets
from dtrain.host.versions import version as version_of
from dtrain.serving import openapi, page, rows, v2
from dtrain.serving.metrics import Metrics
from dtrain.serving.problems import Refused, wrong
from dtrain.serving.versions import Versions

#: Seconds in which a body has to come.
_BODY_SECONDS = 30.0
#: Bytes of a body that is too large which are passed over, and seconds of that, at most.
_LINGER_BYTES, _LINGER_SECONDS = 64 << 20, 5.0
#: Header that names the version that an answer is from.
VERSION = "x-model-version"
_JSON = "application/json"
_BINARY = "application/octet-stream"
_TEXT = "text/plain; charset=utf-8"
_CHALLENGE = {"www-authenticate": 'Bearer, Basic realm="dtrain"'}


class Answer(NamedTuple):
    """What a request is answered with."""

    body: bytes
    kind: str = _JSON
    status: int = 200
    headers: dict[str, str] = {}


class Asked(NamedTuple):
    """A request: what its address names, its headers, and what reads its body."""

    words: dict[str, str | None]
    headers: dict[str, str]
    body: Callable[[], Awaitable[bytes]]


class Route(NamedTuple):
    """What answers at an address.

    Attributes:
        method: of HTTP.
        path: a pattern of paths.
        protocol: that requests are counted under.
        handler: answers.
        open: whether it answers without the token.
    """

    method: str
    path: re.Pattern[str]
    protocol: str
    handler: Callable[[Asked], Awaitable[Answer]]
    open: bool = False


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    return Answer(json.dumps(value).encode(), _JSON, status, headers or {})


class App:
    """The application.

    Args:
        versions: of the model.
        metrics: to count in.
        token: that requests have to bring; None where none is asked for.
        max_body: bytes of a body.
    """

    def __init__(self, versions: Versions, metrics: Metrics, token: str | None, max_body: int):
        self._versions, self._metrics = versions, metrics
        self._token, self._max_body = token, max_body
        # V2 and TensorFlow Serving both have the model's name, and may have a version, in it.
        name, number = r"(?P<model>[^/:]+)", r"(?:/versions/(?P<version>[^/:]+))?"
        self._routes = [
            Route("POST", re.compile(f"/v2/models/{name}{number}/infer"), "v2", self._infer),
            Route("POST", re.compile(f"/v1/models/{name}{number}:predict"), "tf", self._predict),
            Route("POST", re.compile("/invocations"), "mlflow", self._invocations),
            Route("GET", re.compile("/v2/health/live"), "health", self._live, True),
            Route("GET", re.compile("/v2/health/ready"), "health", self._ready, True),
            Route("GET", re.compile("/ping|/health"), "health", self._ping, True),
            Route("GET", re.compile("/v2"), "v2", self._server),
            Route("GET", re.compile(f"/v2/models/{name}{number}"), "v2", self._metadata),
            Route("GET", re.compile(f"/v2/models/{name}{number}/ready"), "v2", self._ready),
            Route("GET", re.compile(f"/v1/models/{name}{number}"), "tf", self._status),
            Route("GET", re.compile(f"/v1/models/{name}{number}/metadata"), "tf", self._about),
            Route("GET", re.compile("/version"), "mlflow", self._version),
            Route("GET", re.compile("/metrics"), "other", self._counts),
            Route("GET", re.compile("/openapi.json"), "other", self._openapi),
            Route("GET", re.compile("/"), "other", self._page),
            Route("POST", re.compile("/rollback"), "other", self._rollback),
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] != "http":  # nothing else is configured
            return
        began, protocol = time.perf_counter(), "other"
        headers = {name.decode("latin-1"): value.decode("latin-1")
                   for name, value in scope["headers"]}  # fmt: skip
        try:
            route, words = self._route(scope["method"], scope["path"])
            protocol = route.protocol
            if not route.open:
                self._check_token(headers)
            asked = Asked(words, headers, lambda: self._body(headers, receive))
            answer = await route.handler(asked)
        except Refused as error:
            answer = _json({"error": str(error)}, error.status, error.headers)
        except Exception as error:  # a mistake of ours: the server goes on, and says so
            print(secrets.mask(traceback.format_exc()), file=sys.stderr, flush=True)
            answer = _json({"error": f"the server failed: {type(error).__name__}"}, 500)
        self._metrics.request(protocol, answer.status, time.perf_counter() - began)
        listed = [
            (b"content-type", answer.kind.encode()),
            (b"content-length", str(len(answer.body)).encode()),
            *((name.encode(), value.encode()) for name, value in answer.headers.items()),
        ]
        start = {"type": "http.response.start", "status": answer.status, "headers": listed}
        await send(start)
        body = b"" if scope["method"] == "HEAD" else answer.body
        if answer.status == 413 and "expect" not in headers:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await self._pass_over(receive)
            body = b""
        await send({"type": "http.response.body", "body": body})

    async def _pass_over(self, receive: Any) -> None:
        """Read what is too large, for a while: most clients look at an answer only after that."""
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while size < _LINGER_BYTES:
                    message = await receive()
                    size += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    def _route(self, method: str, path: str) -> tuple[Route, dict[str, str | None]]:
        others = set()
        for route in self._routes:
            if (match := route.path.fullmatch(path)) is None:
                continue
            if method in (route.method, "HEAD" if route.method == "GET" else ""):
                return route, match.groupdict()
            others.add(route.method)
        if others:
            allowed = ", ".join(sorted(others))
            raise Refused(405, f"{method[:20]} is not taken here: {allowed} is", {"allow": allowed})
        raise Refused(404, f"there is nothing at {path[:200]!r}: / has what there is")

    def _check_token(self, headers: dict[str, str]) -> None:
        if self._token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":  # of a browser; the user's name may be any
            try:
                given = base64.b64decode(given, validate=True).decode("latin-1").partition(":")[2]
            except (binascii.Error, ValueError):
                given = ""
        elif scheme.lower() != "bearer":
            given = ""
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Refused(401, "a token is asked for: Authorization: Bearer TOKEN", _CHALLENGE)

    async def _body(self, headers: dict[str, str], receive: Any) -> bytes:
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "a body that is compressed is not taken")
        large = Refused(413, f"a body has at most {self._max_body:,} bytes")
        length = headers.get("content-length", "")
        if length.isascii() and length.isdecimal() and int(length[:20]) > self._max_body:
            raise large
        parts, size = [], 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise wrong("the client has left")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._max_body:
                        raise large
                    if not message.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            raise Refused(408, f"the body has not come within {_BODY_SECONDS:g} s") from None

    async def _infer(self, asked: Asked) -> Answer:
        model = self._versions.find(asked.words["model"], asked.words["version"])
        body = await asked.body()
        request = v2.parsed(body, asked.headers.get(v2.HEADER), model.signature)
        found = await model.infer(request.inputs)
        name = self._versions.name
        answer, length = v2.answer(request, found, name, model.version)
        headers = {VERSION: model.version}
        if length is None:
            return Answer(answer, _JSON, 200, headers)
        return Answer(answer, _BINARY, 200, {**headers, v2.HEADER: str(length)})

    async def _predict(self, asked: Asked) -> Answer:
        model = self._versions.find(asked.words["model"], asked.words["version"])
        inputs, by_rows = rows.predict(v2.load(await asked.body()), model.signature)
        found = await model.infer(inputs)
        value = rows.by_rows(found) if by_rows else rows.by_columns(found, "outputs")
        return _json(value, headers={VERSION: model.version})

    async def _invocations(self, asked: Asked) -> Answer:
        model = self._versions.find(None, None)
        kind = asked.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
        if kind == "text/csv":
            raise Refused(415, f"text/csv is not taken here: {_JSON} is")
        inputs = rows.invocations(v2.load(await asked.body()), model.signature)
        found = await model.infer(inputs)
        return _json(rows.by_columns(found, "predictions"), headers={VERSION: model.version})

    async def _live(self, asked: Asked) -> Answer:
        return _json({"live": True})

    async def _ready(self, asked: Asked) -> Answer:
        name, number = asked.words.get("model"), asked.words.get("version")
        model = self._versions.find(name, number)
        answer: dict[str, Any] = {"ready": model.ready}
        if name is not None:
            answer = {"name": self._versions.name, **answer}
        return _json(answer, 200 if model.ready else 503)

    async def _ping(self, asked: Asked) -> Answer:
        ready = self._versions.find(None, None).ready
        return Answer(b"\n", _TEXT, 200 if ready else 503)

    async def _server(self, asked: Asked) -> Answer:
        about = {"name": "dtrain", "version": version_of("dtrain") or "?"}
        return _json({**about, "extensions": ["binary_tensor_data"]})

    async def _metadata(self, asked: Asked) -> Answer:
        model = self._versions.find(asked.words["model"], asked.words["version"])
        versions = [each.version for each in self._versions.kept]
        return _json(v2.metadata(self._versions.name, versions, model.signature))

    async def _status(self, asked: Asked) -> Answer:
        self._versions.find(asked.words["model"], asked.words["version"])
        listed = [
            {
                "version": model.version,
                "state": "AVAILABLE" if model.ready else "LOADING",
                "status": {"error_code": "OK", "error_message": ""},
            }
            for model in self._versions.kept
            if asked.words["version"] in (None, model.version)
        ]
        return _json({"model_version_status": listed})

    async def _about(self, asked: Asked) -> Answer:
        model = self._versions.find(asked.words["model"], asked.words["version"])
        return _json(rows.metadata(self._versions.name, model.version, model.signature))

    async def _version(self, asked: Asked) -> Answer:
        return Answer((version_of("dtrain") or "?").encode(), _TEXT)

    async def _counts(self, asked: Asked) -> Answer:
        model, kept = self._versions.current, self._versions.kept
        gauges = {
            "dtrain_ready": float(model is not None and model.ready),
            "dtrain_queue_rows": float(sum(each.waiting for each in kept)),
        }
        text = self._metrics.text(None if model is None else model.version, gauges)
        return Answer(text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, asked: Asked) -> Answer:
        return _json(self._described())

    async def _page(self, asked: Asked) -> Answer:
        text, policy = page.of(self._described())
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
        return Answer(text.encode(), "text/html; charset=utf-8", 200, headers)

    def _described(self) -> dict[str, Any]:
        model = self._versions.find(None, None)
        return openapi.of(self._versions.name, model, self._max_body, self._token is not None)

    async def _rollback(self, asked: Asked) -> Answer:
        kind = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _JSON:  # which no page of another site can send without being asked
            raise Refused(415, f"the content type is to be {_JSON}")
        await asked.body()
        model = await self._versions.rollback()
        return _json({"version": model.version})
