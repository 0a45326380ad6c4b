"""``python -m dtrain serve``: its models answer as they are, whoever asks, and whatever happens."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dtrain
from dtrain.controller.served import own_folder
from dtrain.run import checkpoint
from dtrain.serving.follow import Folder
from dtrain.serving.model import Limits
from dtrain.serving.problems import Unusable
from tests import serving_models, warm
from tests.conftest import QUICK
from tests.serving_models import Client, served
from tests.test_export import expected

ROWS = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)


def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a second, exported."""
    from dtrain.__main__ import main

    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        for words in ([*QUICK, "trainer.epochs=1", "name=small", "hydra.run.dir=run"],
                      ["export", "run"]):  # fmt: skip
            patch.setattr(sys, "argv", ["dtrain", *words])
            assert main() == 0
    return folder / "run"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    warm.call(serving_models.make, 1, {"folder": folder})
    return folder


@pytest.fixture(scope="module")
def small(trained: Path) -> Iterator[Client]:
    with served(trained / "exports" / "small", name="small") as client:
        yield client


def command(
    words: list[str], ask: Callable[[str, int], None], capfd: Any, patch: Any
) -> tuple[int, str, str]:
    """Run the command here; ``ask`` gets its address and process in a thread, then it ends."""
    from dtrain.__main__ import main

    patch.setattr(sys, "argv", ["dtrain", "serve", *words, "port=0"])
    printed: list[str] = []
    began, refused = threading.Event(), threading.Event()

    def look(*values: Any, **_: Any) -> None:
        printed.extend(map(str, values))
        if printed[-1] == "Ctrl-C ends it":
            began.set()

    failed: list[BaseException] = []

    def client() -> None:
        try:
            assert began.wait(90)
            if refused.is_set():
                return
            [page] = [line.split()[-1] for line in printed if line.startswith("page:")]
            ask(page, os.getpid())
        except BaseException as error:
            failed.append(error)
        os.kill(os.getpid(), signal.SIGTERM)  # for which the command has a handler

    monkey = "dtrain.controller.commands.serve.print"
    patch.setattr(monkey, look, raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    thread = threading.Thread(target=client)
    thread.start()
    try:
        code = main()
    finally:
        if not began.is_set():
            refused.set()
            began.set()
        thread.join()
    assert {number: signal.getsignal(number) for number in before} == before
    if failed:
        raise failed[0]
    return code, "\n".join(printed), capfd.readouterr().err


def by_instances(client: Client, x: np.ndarray, path: str = "/v1/models/small:predict") -> Any:
    status, answer, headers = client(path, {"instances": x.tolist()})
    assert status == 200, answer
    return np.asarray(answer["predictions"]), headers["x-model-version"]


def test_every_protocol_gives_the_numbers_of_the_model(small: Client, trained: Path) -> None:
    import tritonclient.http as triton

    right = expected(trained, ROWS)
    [path] = [p for p in (trained / "exports/small").iterdir() if p.name.isdecimal()]
    found, version = by_instances(small, ROWS)
    np.testing.assert_allclose(found, right, atol=1e-6)
    assert version == path.name
    assert by_instances(small, ROWS[:1], f"/v1/models/small/versions/{version}:predict")[0].shape
    for body, key in (
        ({"inputs": ROWS.tolist()}, "outputs"),
        ({"inputs": {"inputs": ROWS.tolist()}}, "outputs"),
    ):
        status, answer, _ = small("/v1/models/small:predict", body)
        assert status == 200, answer
        np.testing.assert_allclose(answer[key], right, atol=1e-6)
    columns = [f"c{n}" for n in range(8)]
    for body in (
        {"instances": ROWS.tolist()},
        {"inputs": ROWS.tolist()},
        {"dataframe_split": {"columns": columns, "data": ROWS.tolist()}},
        {"dataframe_records": [dict(zip(columns, row, strict=True)) for row in ROWS.tolist()]},
        {"dataframe_split": {"columns": ["inputs"], "data": [[row] for row in ROWS.tolist()]}},
    ):
        status, answer, headers = small("/invocations", body)
        assert status == 200, answer
        np.testing.assert_allclose(answer["predictions"], right, atol=1e-6)
        assert headers["x-model-version"] == version
    client = triton.InferenceServerClient(small.address.removeprefix("http://"))
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("small") and client.is_model_ready("small", version)
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    about = client.get_model_metadata("small")
    assert about["inputs"] == [{"name": "inputs", "datatype": "FP32", "shape": [-1, 8]}]
    for binary in (True, False):
        given = triton.InferInput("inputs", [40, 8], "FP32")
        given.set_data_from_numpy(ROWS, binary_data=binary)
        wanted = [triton.InferRequestedOutput("outputs", binary_data=binary)]
        answer = client.infer("small", [given], outputs=wanted, request_id="seven")
        np.testing.assert_allclose(answer.as_numpy("outputs"), right, atol=1e-6)
        told = answer.get_response()
        assert (told["id"], told["model_name"], told["model_version"]) == (
            "seven",
            "small",
            version,
        )
    answer = client.infer("small", [given])  # nothing is said of outputs: they are binary
    np.testing.assert_allclose(answer.as_numpy("outputs"), right, atol=1e-6)
    given = triton.InferInput("inputs", [1, 7], "FP32")
    given.set_data_from_numpy(ROWS[:1, :7])
    with pytest.raises(triton.InferenceServerException) as error:
        client.infer("small", [given])
    assert "input 'inputs' takes FP32 of shape [-1, 8]: this is [1, 7]" in str(error.value)
    client.close()


def test_other_endpoints(small: Client) -> None:
    assert small("/ping")[:2] == (200, b"\n")
    assert small("/v2/health/live")[:2] == (200, {"live": True})
    assert small("/version")[0] == 200
    status, answer, _ = small("/v1/models/small")
    assert [each["state"] for each in answer["model_version_status"]] == ["AVAILABLE"]
    _, answer, _ = small("/v1/models/small/metadata")
    [made] = answer["metadata"]["signature_def"]["signature_def"].values()
    assert made["inputs"]["inputs"]["dtype"] == "DT_FLOAT"
    text = small("/metrics")[1].decode()
    assert 'dtrain_requests_total{protocol="health",status="200"}' in text
    assert "dtrain_ready 1\n" in text and "dtrain_batch_rows_count" in text
    status, text, headers = small("/")
    assert status == 200 and b"/v2/models/small/infer" in text
    # It loads nothing from anywhere.
    assert headers["content-security-policy"].startswith("default-src 'none'; connect-src 'self'")
    assert b"src=" not in text and b"http" not in text
    for path, status in (
        ("/nothing", 404), ("/v1/models/other:predict", 404), ("/invocations", 405),
        ("/v2/models/small/versions/9/infer", 404),
    ):  # fmt: skip
        body = None if status == 405 else {}
        found = small(path, body)
        assert found[0] == status and found[1]["error"]
    assert small("/rollback", b"{}", {"content-type": "text/plain"})[0] == 415
    assert small("/rollback", b"{}")[:2] == (
        409, {"error": "there is no version before the one that serves"},
    )  # fmt: skip
    examples = small("/openapi.json")[1]["paths"]
    posts = {path: each["post"] for path, each in examples.items() if "post" in each}
    assert len(posts) == 4
    for path, each in posts.items():
        if path != "/rollback":
            body = each["requestBody"]["content"]["application/json"]["example"]
            assert small(path, body)[0] == 200, path


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("tf", {"instances": [[1.0] * 7]}, 400,
         "input 'inputs' takes float32 [?, 8]: this is of shape [1, 7]"),
        ("tf", {"instances": [["a"] * 8]}, 400, "takes float32 [?, 8]: it has text"),
        ("tf", {"instances": [[None] * 8]}, 400, "takes float32 [?, 8]: it has null"),
        ("tf", {"instances": [[True] * 8]}, 400, "takes float32 [?, 8]: it has truth values"),
        ("tf", {"instances": [[1e39] * 8]}, 400, "it has 1e+39, which is too large"),
        ("tf", {"instances": [[10**400] * 8]}, 400, "too large"),
        ("tf", {"instances": [[1.0] * 8, [1.0]]}, 400, "have not all the same length"),
        ("tf", {"instances": []}, 400, "[?, 8]: this is of shape [0]"),
        ("tf", {"instances": [{"x": 1}]}, 400, "instances[0] is to have the inputs 'inputs'"),
        ("tf", {}, 400, "one of instances, inputs: it has none of them"),
        ("tf", {"inputs": {"x": 1}}, 400, "no input 'x': it takes 'inputs' (float32 [?, 8])"),
        ("tf", {"inputs": {}}, 400, "input 'inputs' (float32 [?, 8]) is missing"),
        ("tf", {"signature_name": "train", "inputs": []}, 400, "serving_default is"),
        ("tf", b"[" * 100_000, 400, "nested too deep"),
        ("tf", b"\xff", 400, "the body is no JSON"),
        ("tf", b"[" * 70 + b"1" + b"]" * 70, 400, "a JSON object"),
        ("tf", {"instances": [[[[[[[[1]]]]]]]]}, 400, "this is of shape"),
        ("invocations", {"dataframe_split": {"columns": ["a"], "data": [[1]]}}, 400,
         "the table has the columns 'a'; taken: 'inputs' (float32 [?, 8])"),
        ("invocations", {"dataframe_records": [{"a": 1}, {"b": 1}]}, 400, "dataframe_records[1]"),
        ("v2", {"inputs": [{"name": "inputs", "shape": [1, 8], "datatype": "FP64",
                            "data": [0.0] * 8}]}, 400, "takes FP32 of shape [-1, 8]: this is FP64"),
        ("v2", {"inputs": [{"name": "inputs", "shape": [1, 8], "datatype": "FP32",
                            "data": [0.0] * 7}]}, 400, "[1, 8] are 8 values: data has 7"),
        ("v2", {"inputs": [{"name": "inputs", "shape": [2**60, 8], "datatype": "FP32",
                            "data": [0.0]}]}, 400, "data has 1"),
        ("v2", {"inputs": [{"name": "inputs", "shape": [1, 8], "datatype": "FP32",
                            "parameters": {"binary_data_size": 99}}]}, 400,
         "input 'inputs' has 99 bytes: 0 are left of it"),
        ("v2", {"inputs": [], "outputs": [{"name": "y"}]}, 400, "has no output 'y'"),
        ("v2", {"id": 5, "inputs": []}, 400, "id: a text is taken"),
        ("v2", [], 400, "a JSON object with inputs"),
        ("v2", b" " * 2_000_000, 413, "a body has at most 1,048,576 bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    narrow: Client, path: str, body: Any, status: int, message: str
) -> None:
    places = {"tf": "/v1/models/m:predict", "v2": "/v2/models/m/infer"}
    found, answer, _ = narrow(places.get(path, f"/{path}"), body)
    assert (found, answer.keys()) == (status, {"error"})
    assert message in answer["error"]


@pytest.fixture(scope="module")
def narrow(trained: Path) -> Iterator[Client]:
    """A server that takes bodies of a megabyte."""
    with served(trained / "exports" / "small", max_body=1 << 20) as client:
        yield client


def test_texts_integers_and_several_inputs(models: Path) -> None:
    import tritonclient.http as triton

    with served(models / "pair") as client:
        body = {"instances": [{"a": [1, 2], "b": "é"}, {"a": [3, 4.0], "b": {"b64": "AP8="}}]}
        status, answer, _ = client("/v1/models/m:predict", body)
        assert status == 200, answer
        assert answer["predictions"] == [
            {"sum": 3, "text": "é3"}, {"sum": 7, "text": {"b64": "AP83"}},
        ]  # fmt: skip
        table = {"columns": ["b", "a"], "data": [["x", [1, 1]], ["y", [2, 2]]]}
        _, answer, _ = client("/invocations", {"dataframe_split": table})
        assert answer["predictions"] == {"sum": [2, 4], "text": ["x2", "y4"]}
        with triton.InferenceServerClient(client.address.removeprefix("http://")) as asked:
            a, b = triton.InferInput("a", [2, 2], "INT32"), triton.InferInput("b", [2], "BYTES")
            a.set_data_from_numpy(np.asarray([[1, 2], [3, 4]], np.int32))
            b.set_data_from_numpy(np.asarray([b"\x00\xff", b"z"], object))
            found = asked.infer("m", [b, a])
            assert found.as_numpy("text").tolist() == [b"\x00\xff3", b"z7"]
            assert found.as_numpy("sum").dtype == np.int64
        for body, message in (
            ({"instances": [{"a": [1, 2]}]}, "instances[0] is to have the inputs 'a', 'b'"),
            ({"inputs": {"a": [[1, 2]]}}, "input 'b' (string [?]) is missing"),
            ({"inputs": {"a": [[1, 2.5]], "b": ["x"]}}, "takes int32 [?, 2]: it has 2.5"),
            ({"inputs": {"a": [[1, 2**40]], "b": ["x"]}}, "it has 1099511627776"),
            ({"inputs": {"a": [[1, 2]], "b": ["x", "y"]}}, "'a' has 1, 'b' has 2"),
            ({"inputs": {"a": [[1, 2]], "b": [5]}}, "input 'b' takes string [?]: it has 5"),
        ):
            status, answer, _ = client("/v1/models/m:predict", body)
            assert status == 400 and message in answer["error"]


def test_models_that_take_batches_otherwise(models: Path) -> None:
    with served(models / "fixed", Limits(max_batch=2)) as client:  # of four rows, always
        x = np.arange(27.0).reshape(9, 3)
        _, answer, _ = client("/v1/models/m:predict", {"instances": x.tolist()})
        assert answer["predictions"] == x.sum(axis=1).tolist()
    with served(models / "whole") as client:  # whose output has no rows
        _, answer, _ = client("/v1/models/m:predict", {"inputs": [[1, 2], [3, 4]]})
        assert answer == {"outputs": 10.0}
        status, answer, _ = client("/v1/models/m:predict", {"instances": [[1, 2]]})
        assert status == 400 and "ask by columns" in answer["error"]
    with served(models / "centered") as client:  # whose rows are not independent
        loaded = client.serving.versions.current.loaded
        assert "neighbours" in loaded["note"]
        _, answer, _ = client("/v1/models/m:predict", {"inputs": [[1, 3], [5, 7]]})
        assert answer == {"outputs": [[-3, -1], [1, 3]]}, "nothing was padded"


def test_a_model_that_is_not_what_was_stored_is_refused(models: Path) -> None:
    with pytest.raises(Unusable, match="output 'y' differs from Keras'"), served(models / "wrong"):
        pass


def test_one_bad_request_of_a_batch_fails_alone(models: Path) -> None:
    """What the model refuses, and what it never ends at, spoils no request beside it."""
    limits = Limits(max_delay=0.2, timeout=100.0, batch_timeout=1.0)
    with served(models / "touchy", limits) as client:

        def ask(value: float) -> Any:
            return client("/v1/models/m:predict", {"instances": [[value, 1.0]]})[:2]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(ask, [1, 2, 100, 3, 4]))
            assert [status for status, _ in found] == [200, 200, 400, 200, 200]
            assert found[3][1] == {"predictions": [4.0]}
            assert "too much" in found[2][1]["error"]
        pid = client.serving.versions.current.pid
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(ask, [1, 60, 3]))
        assert [status for status, _ in found] == [200, 503, 200]
        assert "died of this request" in found[1][1]["error"]
        until(lambda: client.serving.versions.current.ready)
        assert client.serving.versions.current.pid not in (None, pid), "it was started again"
        assert ask(7) == (200, {"predictions": [8.0]})


def test_the_process_of_a_model_is_killed(trained: Path) -> None:
    """Requests that it had are computed again; none fails."""
    right = expected(trained, ROWS)
    with served(trained / "exports" / "small", name="small") as client:
        ends, bad = threading.Event(), []

        def load(seed: int) -> int:
            count, draw = 0, random.Random(seed)
            while not ends.is_set():
                row = draw.randrange(40)
                try:
                    found, _ = by_instances(client, ROWS[row : row + 1])
                    np.testing.assert_allclose(found[0], right[row], atol=1e-6)
                except Exception as error:
                    bad.append(error)
                count += 1
            return count

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            loads = [pool.submit(load, seed) for seed in range(4)]
            for _ in range(2):
                model = client.serving.versions.current
                until(lambda: model.ready)  # noqa: B023
                before = model.pid
                os.kill(before, signal.SIGKILL)
                until(lambda: model.pid not in (None, before))  # noqa: B023
            until(lambda: model.ready)
            ends.set()
            assert all(each.result() for each in loads)
        assert not bad
        assert client.serving.metrics.restarts == 2


def test_limits(trained: Path) -> None:
    path = trained / "exports" / "small"
    limits = Limits(max_batch=4, max_delay=0.3, max_queue=6)
    with served(path, limits, token="secret", name="small") as client:
        assert client("/v2/health/ready")[0] == 200, "of which nothing is secret"
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": "Basic ???"}):
            status, answer, found = client("/v2", None, headers)
            assert status == 401 and "Basic" in found["www-authenticate"]
        assert client("/", None, {"authorization": "Basic eDpzZWNyZXQ="})[0] == 200  # x:secret
        own = {"authorization": "Bearer secret"}
        status, answer, _ = client("/v1/models/small:predict", {"inputs": ROWS[:6].tolist()}, own)
        assert status == 200 and len(answer["outputs"]) == 6, "in two batches"
        status, answer, _ = client("/v1/models/small:predict", {"inputs": ROWS[:7].tolist()}, own)
        assert (status, answer) == (413, {"error": "a request has at most 6 rows: this 7"})
        host, port = client.address.removeprefix("http://").split(":")
        with contextlib.closing(http.client.HTTPConnection(host, int(port))) as kept:
            began = time.monotonic()
            for count, status in ((7, 413), (6, 200)):  # on one connection
                body = json.dumps({"inputs": ROWS[:count].tolist()})
                kept.request("POST", "/v1/models/small:predict", body, own)
                with kept.getresponse() as found:
                    assert (found.status, bool(found.read())) == (status, True)
            assert time.monotonic() - began < 4, "nothing is waited for"

        def ask(_: int) -> int:
            body = {"inputs": ROWS[:3].tolist()}
            return client("/v1/models/small:predict", body, own)[0]

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            found = list(pool.map(ask, range(12)))
        assert set(found) <= {200, 503} and found.count(200) >= 2
        gzip = {**own, "content-encoding": "gzip"}
        assert client("/v1/models/small:predict", b"...", gzip)[0] == 415


def swap(folder: Path, trained: Path, number: int) -> None:
    """Let a version appear, as an export does."""
    [made] = [p for p in (trained / "exports/small").iterdir() if p.name.isdecimal()]
    shutil.copytree(made, folder / f".{number}")
    (folder / f".{number}").rename(folder / str(number))


def swaps(trained: Path, folder: Path, count: int, clients: int) -> None:
    """Have so many versions take over under load; no request fails."""
    right = expected(trained, ROWS)
    folder.mkdir()
    swap(folder, trained, 1)
    with served(folder, source=(source := Folder(folder)), name="small") as client:
        source.seconds = 0.05
        ends, bad, seen = threading.Event(), [], set()

        def load(seed: int) -> None:
            draw = random.Random(seed)
            while not ends.is_set():
                begin = draw.randrange(30)
                rows = slice(begin, begin + draw.choice([1, 1, 3, 9]))
                try:
                    found, version = by_instances(client, ROWS[rows])
                    np.testing.assert_allclose(found, right[rows], atol=1e-6)
                    seen.add(version)
                except Exception as error:
                    bad.append(error)

        host, port = client.address.removeprefix("http://").split(":")
        body = json.dumps({"instances": ROWS[:1].tolist()}).encode()
        slow = socket.create_connection((host, int(port)), timeout=30)
        head = f"POST /v1/models/small:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
        slow.sendall(f"{head}\r\n\r\n".encode() + body[:9])
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            for seed in range(clients):
                pool.submit(load, seed)
            for number in range(2, count + 2):
                swap(folder, trained, number)
                until(lambda: str(number) in seen)  # noqa: B023
            ends.set()
        with slow:  # which began before all of them
            slow.sendall(body[9:])
            assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert not bad
        versions = client.serving.versions
        assert [each.version for each in versions.kept] == [str(count + 1), str(count)]
        assert client.serving.metrics.swaps == count


def test_swaps_under_load(trained: Path, tmp_path: Path) -> None:
    swaps(trained, tmp_path / "small", 2, 3)


@pytest.mark.faults
def test_many_swaps_under_load(trained: Path, tmp_path: Path) -> None:
    swaps(trained, tmp_path / "small", 20, 8)


def test_a_bad_version_leaves_the_old_one_and_rollback(
    trained: Path, models: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    swap(folder, trained, 1)
    with served(folder, source=(source := Folder(folder)), name="small") as client:
        source.seconds = 0.02
        shutil.copytree(models / "pair", folder / "2")
        until(lambda: any("version 2 is not served" in text for text in client.notices))
        assert "a new command serves it" in client.notices[0]
        shutil.copytree(folder / "1", tmp_path / "3")
        (tmp_path / "3/saved_model.pb").write_bytes(b"no model")
        (tmp_path / "3").rename(folder / "3")
        until(lambda: any("version 3 is not served: it cannot" in t for t in client.notices))
        assert by_instances(client, ROWS[:1])[1] == "1"
        swap(folder, trained, 4)
        until(lambda: by_instances(client, ROWS[:1])[1] == "4")
        assert "version 4 serves now; version 1 is kept for a rollback" in client.notices
        assert by_instances(client, ROWS[:1], "/v1/models/small/versions/1:predict")[1] == "1"
        assert client("/rollback", b"{}")[:2] == (200, {"version": "1"})
        time.sleep(0.2)  # some looks of the follower, which does not take it again
        assert by_instances(client, ROWS[:1])[1] == "1"
        status, answer, _ = client("/v1/models/small/versions/3:predict", {"inputs": []})
        assert status == 404 and answer["error"] == "there is no version '3' of 'small': 1, 4"
        swap(folder, trained, 5)
        until(lambda: by_instances(client, ROWS[:1])[1] == "5")


def test_a_run_is_served_and_followed(
    trained: Path, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best checkpoint, and then a better one; SIGTERM ends it with 0."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    shutil.rmtree(run / "exports")
    [step] = checkpoint.store.steps(run / "checkpoints")
    monkeypatch.setattr("dtrain.controller.served.OfRun.seconds", 0.05)

    def ask(address: str, _: int) -> None:
        def predict() -> tuple[Any, str]:
            request = urllib.request.Request(
                f"{address}invocations", json.dumps({"inputs": ROWS.tolist()}).encode(),
                {"content-type": "application/json"},
            )  # fmt: skip
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["predictions"], answer.headers["x-model-version"]

        found, version = predict()
        np.testing.assert_allclose(found, expected(run, ROWS), atol=1e-6)
        assert version == str(step)
        last, _ = checkpoint.newest(run / "checkpoints")
        assert last is not None
        arrays = {name: value * 2 if name.startswith("model/") and value.dtype.kind == "f"
                  else value for name, value in last.arrays.items()}  # fmt: skip
        meta = json.loads(json.dumps(last.meta))
        meta["objective"] = {"value": 2.0} if isinstance(meta.get("objective"), dict) else 2.0
        checkpoint.store.save(run / "checkpoints", step + 4, arrays, meta)
        until(lambda: predict()[1] == str(step + 4), 90)
        np.testing.assert_allclose(predict()[0], expected(run, ROWS), atol=1e-6)

    words = [str(run), "follow=true", "checkpoint=latest"]
    code, output, error = command(words, ask, capfd, monkeypatch)
    assert code == 0, error
    assert f"serving: small, version {step} (within " in output
    assert f"version {step + 4} serves now; version {step} is kept for a rollback" in output + error
    assert not (run / "exports").exists(), "what it exports to follow goes with it"


def test_what_a_killed_server_has_left_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with own_folder() as mine:
        left, new = tmp_path / "dtrain-serve-left", tmp_path / "dtrain-serve-new"
        for folder in (left, new):
            (folder / "model").mkdir(parents=True)
        for folder in (left, mine):
            os.utime(folder, (1, 1))
        with own_folder():
            assert not left.exists() and new.exists() and mine.exists()


@pytest.mark.faults
def test_a_training_that_is_killed(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is followed while it removes its checkpoints, and its end disturbs no request."""
    run = tmp_path / "outputs" / "run"
    words = [*QUICK, "trainer.epochs=100000", "checkpoint.keep=1", f"hydra.run.dir={run}"]
    monkeypatch.setenv("PYTHONPATH", str(Path(dtrain.__file__).parent.parent))
    training = subprocess.Popen(
        [sys.executable, "-m", "dtrain", *words], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    seen: list[str] = []

    def ask(address: str, _: int) -> None:
        body = json.dumps({"inputs": ROWS[:2].tolist()}).encode()
        request = urllib.request.Request(
            f"{address}invocations", body, {"content-type": "application/json"}
        )

        def predict() -> int:
            with urllib.request.urlopen(request, timeout=60) as answer:
                if answer.headers["x-model-version"] not in seen:
                    seen.append(answer.headers["x-model-version"])
            return len(seen)

        until(lambda: predict() > 2, 300)
        os.killpg(training.pid, signal.SIGKILL)
        for _ in range(300):
            predict()

    try:
        until((run / "checkpoints").is_dir)
        code, _, error = command([str(run), "follow=true", "checkpoint=latest"], ask, capfd,
                                 monkeypatch)  # fmt: skip
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(training.pid, signal.SIGKILL)
        training.wait()
    assert code == 0, error
    assert list(map(int, seen)) == sorted(map(int, seen))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "MODEL=nothing: is no run folder, no model of a registry and no SavedModel"),
        (["models:/a"], "MODEL=models:/a: is no model of a registry"),
        (["models:/a/1", "follow=true"], "tracking.uri=: "),
        (["run", "prot=1"], "prot=1: says nothing of a server; hint: the command with port="),
        (["run", "port=70000"], "port=70000: cannot be; accepted: a whole number from 0 to 65,535"),
        (["run", "follow=perhaps"], "follow=perhaps: is neither; accepted: true or false"),
        (["run", "host=0.0.0.0"], "host=0.0.0.0: others could ask the server, and no token"),
        (["run", "port=0", "checkpoint=all"], "checkpoint=all: is not one that can be served"),
        (["run", "port=0", "checkpoint=4", "follow=true"], "checkpoint=4: is not one that can"),
        (["run/exports/small", "weights=ema"], "weights=ema: says nothing of run/exports/small"),
        (["run", "name=a:b", "port=0"], "name=a:b: has a colon"),
    ],
)  # fmt: skip
def test_usage(
    trained: Path, words: list[str], message: str, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dtrain.__main__ import main

    monkeypatch.chdir(trained.parent)
    monkeypatch.delenv("DTRAIN_SERVE_TOKEN", raising=False)
    monkeypatch.setattr(sys, "argv", ["dtrain", "serve", *words])
    assert main() == 2
    assert f"error: {message}" in capfd.readouterr().err


def test_an_address_that_cannot_be_had(
    small: Client, trained: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dtrain.__main__ import main

    monkeypatch.setenv("DTRAIN_SERVE_TOKEN", "")
    for host in ("nowhere.invalid", "192.0.2.1"):
        monkeypatch.setattr(sys, "argv", ["dtrain", "serve", str(trained), f"host={host}"])
        assert main() == 2
        printed = capfd.readouterr().err
        assert f"error: host={host}: cannot be used (" in printed and "host=127.0.0.1" in printed

    port = small.address.rpartition(":")[2]
    monkeypatch.setattr(sys, "argv", ["dtrain", "serve", str(trained), f"port={port}"])
    assert main() == 2
    assert f"error: port={port}: cannot be used (Address already in use)" in capfd.readouterr().err
