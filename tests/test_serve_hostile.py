"""Requests made of the server's own description, and of nothing at all: no 500, no hang."""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dtrain.serving.model import Limits
from tests import serving_models, warm
from tests.serving_models import Client, served

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from([2**63, -(2**63) - 1, 1e308, 10**400, "a", "x", "FP32", "INT32", "BYTES", -1])
)  # fmt: skip
KEYS = st.text(max_size=6) | st.sampled_from(
    ["inputs", "instances", "name", "shape", "data", "datatype", "parameters", "b64", "outputs",
     "binary_data_size", "columns", "dataframe_split", "dataframe_records", "id", "a", "b"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("models")
    warm.call(serving_models.make, 1, {"folder": folder})
    with served(Path(folder, "pair"), Limits(timeout=20)) as made:
        yield made


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where something stands in a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*path, key))


@st.composite
def mutated(draw: Any, example: Any) -> Any:
    """Return an example with a few of its parts replaced, left out or doubled."""
    value = copy.deepcopy(example)
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(list(places(value))))
        if not path:
            continue
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        change = draw(st.integers(0, 2))
        if change == 0:
            parent[path[-1]] = draw(VALUES)
        elif change == 1:
            del parent[path[-1]]
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
    return value


EXAMPLES = (
    {"id": "1", "inputs": [
        {"name": "a", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]},
        {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["x"],
         "parameters": {"binary_data_size": 5}},
     ], "outputs": [{"name": "sum", "parameters": {"binary_data": True}}]},
    {"instances": [{"a": [1, 2], "b": "x"}, {"a": [1, 2], "b": {"b64": "AA=="}}]},
    {"inputs": {"a": [[1, 2]], "b": ["x"]}},
    {"dataframe_split": {"columns": ["b", "a"], "data": [["x", [1, 1]]]}},
    {"dataframe_records": [{"a": [1, 2], "b": "x"}]},
)  # fmt: skip


@st.composite
def requests(draw: Any, paths: list[tuple[str, str]]) -> tuple[str, str, bytes, dict[str, str]]:
    method, path = draw(st.sampled_from(paths))
    if draw(st.integers(0, 5)) == 0:
        method = draw(st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]))
    if draw(st.integers(0, 5)) == 0:
        path = path.replace("/m", "/" + quote(draw(st.text(max_size=5)), safe=""))
    if draw(st.integers(0, 5)) == 0:
        path = path.replace("/m", "/m/versions/" + quote(draw(st.text(max_size=5)), safe=""))
    kind = draw(st.integers(0, 4))
    if kind == 0:
        body = draw(st.binary(max_size=64))
    else:
        value = draw(VALUES) if kind == 1 else draw(mutated(draw(st.sampled_from(EXAMPLES))))
        body = json.dumps(value).encode() + (b"\x01\0\0\0x" if draw(st.booleans()) else b"")
    headers = {"content-type": draw(st.sampled_from(["application/json", "text/csv", ""]))}
    if draw(st.booleans()):
        lengths = st.integers(-2, 200).map(str) | st.sampled_from(["", "x", "9" * 400])
        headers["Inference-Header-Content-Length"] = draw(lengths)
    return method, path, body, headers


def test_requests_made_of_the_description(client: Client) -> None:
    statuses = answered(client, 400, derandomize=True)
    assert {200, 400, 404, 405} <= statuses


@pytest.mark.faults
def test_very_many_of_them(client: Client) -> None:
    answered(client, 20_000, derandomize=False)


def answered(client: Client, count: int, derandomize: bool) -> set[int]:
    """Send so many requests, and return the statuses of their answers."""
    described = client("/openapi.json")[1]["paths"]
    paths = [(method.upper(), path) for path, each in described.items() for method in each]
    assert len(paths) > 10
    host = client.address.removeprefix("http://")
    statuses = set()

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=derandomize,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(requests(paths))
    def ask(request: tuple[str, str, bytes, dict[str, str]]) -> None:
        method, path, body, headers = request
        asked.request(method, path, body, headers)
        answer = asked.getresponse()
        text = answer.read()
        statuses.add(answer.status)
        assert answer.status < 500, (request, text)
        if answer.status >= 400 and method != "HEAD":
            assert json.loads(text)["error"], "a sentence"

    with contextlib.closing(http.client.HTTPConnection(host, timeout=30)) as asked:
        ask()
    assert client("/v2/health/ready")[0] == 200
    assert client.serving.metrics.restarts == 0
    return statuses


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999999999999999\r\n\r\n",
        b"POST /invocations HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{",  # and it leaves
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v2/models/%ff%fe HTTP/1.1\r\nHost: x\r\nX: \xff\xfe\r\n\r\n",
    ],
)
def test_what_is_no_request(client: Client, data: bytes) -> None:
    host, port = client.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as raw:
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while piece := raw.recv(1 << 16):
                answer += piece
        except ConnectionResetError:
            pass
    assert not answer.startswith(b"HTTP/1.1 5"), answer
    body = {"instances": [{"a": [1, 2], "b": "x"}]}
    assert client("/v1/models/m:predict", body)[0] == 200, "others are answered"
