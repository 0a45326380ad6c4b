"""What a server answers at each address."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from dtrain.host.versions import version as version_of
from dtrain.serving import openapi, page, rows, v2
from dtrain.serving.metrics import Metrics
from dtrain.serving.problems import Refused
from dtrain.serving.versions import Versions

#: Header that names the version that an answer is from.
VERSION = "x-model-version"
_JSON = "application/json"
_BINARY = "application/octet-stream"
_TEXT = "text/plain; charset=utf-8"


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


def of_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """Return an answer of JSON."""
    return Answer(json.dumps(value).encode(), _JSON, status, headers or {})


class Endpoints:
    """The answers of one server; each method is asked for one, and may raise a refusal.

    Args:
        versions: of the model.
        metrics: that were counted.
        max_body: bytes of a body, for the description.
        token: whether one is asked for, for the description.
    """

    def __init__(self, versions: Versions, metrics: Metrics, max_body: int, token: bool):
        self._versions, self._metrics = versions, metrics
        self._max_body, self._token = max_body, token

    async def infer(self, asked: Asked) -> Answer:
        """Predict, by KServe's protocol."""
        body = await asked.body()
        # ORDER: no wait from here on to the model's queue: it may leave meanwhile.
        model = self._versions.find(asked.words["model"], asked.words["version"])
        request = v2.parsed(body, asked.headers.get(v2.HEADER), model.signature)
        found = await model.infer(request.inputs)
        name = self._versions.name
        answer, length = v2.answer(request, found, name, model.version)
        headers = {VERSION: model.version}
        if length is None:
            return Answer(answer, _JSON, 200, headers)
        return Answer(answer, _BINARY, 200, {**headers, v2.HEADER: str(length)})

    async def rows(self, asked: Asked) -> Answer:
        """Predict, by TensorFlow Serving's protocol."""
        body = await asked.body()
        model = self._versions.find(asked.words["model"], asked.words["version"])
        inputs, by_rows = rows.predict(v2.load(body), model.signature)
        found = await model.infer(inputs)
        value = rows.by_rows(found) if by_rows else rows.by_columns(found, "outputs")
        return of_json(value, headers={VERSION: model.version})

    async def invocations(self, asked: Asked) -> Answer:
        """Predict, by MLflow's protocol."""
        kind = asked.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
        if kind == "text/csv":
            raise Refused(415, f"text/csv is not taken here: {_JSON} is")
        body = await asked.body()
        model = self._versions.find(None, None)
        inputs = rows.invocations(v2.load(body), model.signature)
        found = await model.infer(inputs)
        return of_json(rows.by_columns(found, "predictions"), headers={VERSION: model.version})

    async def live(self, asked: Asked) -> Answer:
        """Say that the server is there."""
        return of_json({"live": True})

    async def ready(self, asked: Asked) -> Answer:
        """Say whether a model, or the one that serves, answers."""
        name, number = asked.words.get("model"), asked.words.get("version")
        model = self._versions.find(name, number)
        answer: dict[str, Any] = {"ready": model.ready}
        if name is not None:
            answer = {"name": self._versions.name, **answer}
        return of_json(answer, 200 if model.ready else 503)

    async def ping(self, asked: Asked) -> Answer:
        """Say whether the model answers, as MLflow does."""
        ready = self._versions.find(None, None).ready
        return Answer(b"\n", _TEXT, 200 if ready else 503)

    async def server(self, asked: Asked) -> Answer:
        """Say what the server is."""
        about = {"name": "dtrain", "version": version_of("dtrain") or "?"}
        return of_json({**about, "extensions": ["binary_tensor_data"]})

    async def metadata(self, asked: Asked) -> Answer:
        """Say what a model takes and gives, by KServe's protocol."""
        model = self._versions.find(asked.words["model"], asked.words["version"])
        versions = [each.version for each in self._versions.kept]
        return of_json(v2.metadata(self._versions.name, versions, model.signature))

    async def status(self, asked: Asked) -> Answer:
        """Say which versions there are, by TensorFlow Serving's protocol."""
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
        return of_json({"model_version_status": listed})

    async def about(self, asked: Asked) -> Answer:
        """Say what a model takes and gives, by TensorFlow Serving's protocol."""
        model = self._versions.find(asked.words["model"], asked.words["version"])
        return of_json(rows.metadata(self._versions.name, model.version, model.signature))

    async def version(self, asked: Asked) -> Answer:
        """Say which version of dtrain it is."""
        return Answer((version_of("dtrain") or "?").encode(), _TEXT)

    async def counts(self, asked: Asked) -> Answer:
        """Return what was counted, for Prometheus."""
        model, kept = self._versions.current, self._versions.kept
        gauges = {
            "dtrain_ready": float(model is not None and model.ready),
            "dtrain_queue_rows": float(sum(each.waiting for each in kept)),
        }
        text = self._metrics.text(None if model is None else model.version, gauges)
        return Answer(text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, asked: Asked) -> Answer:
        """Return the description of the server."""
        return of_json(self._described())

    async def page(self, asked: Asked) -> Answer:
        """Return a page of that."""
        text, policy = page.of(self._described())
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
        return Answer(text.encode(), "text/html; charset=utf-8", 200, headers)

    def _described(self) -> dict[str, Any]:
        model = self._versions.find(None, None)
        return openapi.of(self._versions.name, model, self._max_body, self._token)

    async def rollback(self, asked: Asked) -> Answer:
        """Let the version before serve again."""
        kind = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _JSON:  # which no page of another site can send without being asked
            raise Refused(415, f"the content type is to be {_JSON}")
        await asked.body()
        model = await self._versions.rollback()
        return of_json({"version": model.version})
