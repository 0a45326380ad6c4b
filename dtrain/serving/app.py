"""The HTTP application (ASGI): what is asked, who may ask, and what is counted of it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from dtrain import secrets
from dtrain.serving.endpoints import Answer, Asked, Endpoints, of_json
from dtrain.serving.metrics import Metrics
from dtrain.serving.problems import Refused, wrong
from dtrain.serving.versions import Versions

#: Seconds in which a body has to come.
_BODY_SECONDS = 30.0
#: Bytes of a body that is too large which are passed over, and seconds of that, at most.
_LINGER_BYTES, _LINGER_SECONDS = 64 << 20, 5.0
_CHALLENGE = {"www-authenticate": 'Bearer, Basic realm="dtrain"'}


class _TooLarge(Refused):
    """A body is too large, and was not read to its end."""


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


class App:
    """The application.

    Args:
        versions: of the model.
        metrics: to count in.
        token: that requests have to bring; None where none is asked for.
        max_body: bytes of a body.
    """

    def __init__(self, versions: Versions, metrics: Metrics, token: str | None, max_body: int):
        self._metrics, self._token, self._max_body = metrics, token, max_body
        endpoints = Endpoints(versions, metrics, max_body, token is not None)
        # V2 and TensorFlow Serving both have the model's name, and may have a version, in it.
        name, number = r"(?P<model>[^/:]+)", r"(?:/versions/(?P<version>[^/:]+))?"
        self._routes = [
            Route("POST", re.compile(f"/v2/models/{name}{number}/infer"), "v2", endpoints.infer),
            Route("POST", re.compile(f"/v1/models/{name}{number}:predict"), "tf", endpoints.rows),
            Route("POST", re.compile("/invocations"), "mlflow", endpoints.invocations),
            Route("GET", re.compile("/v2/health/live"), "health", endpoints.live, True),
            Route("GET", re.compile("/v2/health/ready"), "health", endpoints.ready, True),
            Route("GET", re.compile("/ping|/health"), "health", endpoints.ping, True),
            Route("GET", re.compile("/v2"), "v2", endpoints.server),
            Route("GET", re.compile(f"/v2/models/{name}{number}"), "v2", endpoints.metadata),
            Route("GET", re.compile(f"/v2/models/{name}{number}/ready"), "v2", endpoints.ready),
            Route("GET", re.compile(f"/v1/models/{name}{number}"), "tf", endpoints.status),
            Route("GET", re.compile(f"/v1/models/{name}{number}/metadata"), "tf", endpoints.about),
            Route("GET", re.compile("/version"), "mlflow", endpoints.version),
            Route("GET", re.compile("/metrics"), "other", endpoints.counts),
            Route("GET", re.compile("/openapi.json"), "other", endpoints.openapi),
            Route("GET", re.compile("/"), "other", endpoints.page),
            Route("POST", re.compile("/rollback"), "other", endpoints.rollback),
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] != "http":  # nothing else is configured
            return
        began, protocol, unread = time.perf_counter(), "other", False
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
            answer = of_json({"error": str(error)}, error.status, error.headers)
            unread = isinstance(error, _TooLarge) and "expect" not in headers
        except Exception as error:  # a mistake of ours: the server goes on, and says so
            print(secrets.mask(traceback.format_exc()), file=sys.stderr, flush=True)
            answer = of_json({"error": f"the server failed: {type(error).__name__}"}, 500)
        self._metrics.request(protocol, answer.status, time.perf_counter() - began)
        listed = [
            (b"content-type", answer.kind.encode()),
            (b"content-length", str(len(answer.body)).encode()),
            *((name.encode(), value.encode()) for name, value in answer.headers.items()),
        ]
        start = {"type": "http.response.start", "status": answer.status, "headers": listed}
        await send(start)
        body = b"" if scope["method"] == "HEAD" else answer.body
        if unread:
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
        large = _TooLarge(413, f"a body has at most {self._max_body:,} bytes")
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
