"""``python -m dtrain serve``: its models answer as they are, whoever asks, and whatever happens."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.cli.commands.serve import ExportFolder, OfRegistry
from dtrain.errors import DtrainError, UsageError
from dtrain.run import checkpoint
from dtrain.tracking.mlflow.store import Registered, import_mlflow
from tests import serving_models, warm
from tests.conftest import QUICK, need
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
def small(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with served(trained / "exports/small", tmp_path_factory.mktemp("own"), name="small") as client:
        yield client


def predict(client: Client, x: np.ndarray) -> tuple[np.ndarray, str]:
    status, answer, headers = client("/invocations", {"instances": x.tolist()})
    assert status == 200, answer
    return np.asarray(answer["predictions"]), headers["x-model-version"]


def test_both_protocols_give_the_numbers_of_the_model(small: Client, trained: Path) -> None:
    right = expected(trained, ROWS)
    [path] = [p for p in (trained / "exports/small").iterdir() if p.name.isdecimal()]
    for body in (
        {"instances": ROWS.tolist()},
        {"inputs": ROWS.tolist()},
        {"inputs": {"inputs": ROWS.tolist()}},
        {"instances": [{"inputs": row} for row in ROWS.tolist()]},
        {"dataframe_records": [{"inputs": row} for row in ROWS.tolist()]},
        {"dataframe_split": {"columns": ["inputs"], "data": [[row] for row in ROWS.tolist()]}},
    ):
        status, answer, headers = small("/invocations", body)
        assert status == 200, answer
        np.testing.assert_allclose(answer["predictions"], right, atol=1e-6)
        assert headers["x-model-version"] == path.name
    about = small("/v2/models/small")[1]
    assert about["versions"] == [path.name]
    assert about["inputs"] == [{"name": "inputs", "datatype": "FP32", "shape": [-1, 8]}]
    tensor = {"name": "inputs", "datatype": "FP32", "shape": [40, 8]}
    for data in (ROWS.reshape(-1).tolist(), ROWS.tolist()):
        body = {"id": "seven", "inputs": [{**tensor, "data": data}]}
        status, answer, _ = small("/v2/models/small/infer", body)
        assert status == 200, answer
        assert (answer["id"], answer["model_version"]) == ("seven", path.name)
        [found] = answer["outputs"]
        assert (found["name"], found["datatype"]) == ("outputs", "FP32")
        numbers = np.reshape(found["data"], found["shape"])
        np.testing.assert_allclose(numbers, right, atol=1e-6)


def test_health_pages_and_counts(small: Client) -> None:
    for path in ("/ping", "/v2/health/live", "/v2/health/ready", "/v2", "/v2/models/small/ready"):
        assert small(path)[0] == 200, path
    page = small("/docs")[1]
    assert b"swagger" in page and small("/")[1] == page
    assert b"/v2/models/{model}/infer" in page and b"http" not in page, "it needs no network"
    paths = small("/openapi.json")[1]["paths"]
    assert {"/invocations", "/v2/models/{model}/infer", "/metrics"} <= set(paths)
    for path, body, wanted in (
        ("/nothing", None, 404), ("/v2/models/other/infer", {"inputs": []}, 404),
        ("/invocations", None, 405), ("/v2/models/other", None, 404),
    ):  # fmt: skip
        status, answer, _ = small(path, body)
        assert status == wanted and answer["error"]
    predict(small, ROWS[:3])
    text = small("/metrics")[1]
    assert b"dtrain_request_seconds_count{" in text and b"dtrain_batch_rows_bucket{" in text


V2 = {"name": "inputs", "datatype": "FP32", "shape": [1, 8], "data": [0.0] * 8}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"instances": [[1.0] * 7]}, "takes float32 [?, 8]: this has the shape [1, 7]"),
        ({"instances": [["a"] * 8]}, 'takes float32 [?, 8]: it has "a"'),
        ({"instances": [[True] * 8]}, "takes float32 [?, 8]: it has true"),
        ({"instances": [[1e39] * 8]}, "it has 1e+39"),
        ({"instances": [[1.0] * 8, [1.0]]}, "its lists differ in length"),
        ({"instances": []}, "takes float32 [?, 8]: this has the shape [0]"),
        ({"instances": [{"x": 1}]}, "unknown column 'x': the model takes 'inputs' (float32"),
        ({"inputs": {}}, "column 'inputs' is missing: the model takes 'inputs' (float32 [?, 8])"),
        ({}, "one of dataframe_split, dataframe_records, instances, inputs is expected"),
        ({"inputs": [], "instances": []}, "is expected: it has in"),
        (b"[" * 100_000, "body"),
        (b"\xff", "body"),
        ([1], "body: "),
        ({"instances": [[[[[[[[1]]]]]]]]}, "this has the shape"),
        ({"dataframe_split": {"columns": list("abcdefgh"), "data": [[1] * 8]}}, "column 'a'"),
        ({"dataframe_split": {"columns": ["0", "0"], "data": [[1, 2]]}}, "each column another"),
        ({"dataframe_records": [{"0": 1}, {"1": 1}]}, "row 1 has other columns than the first"),
        ({"inputs": [{**V2, "datatype": "FP64"}]}, "its datatype is FP32, not FP64"),
        ({"inputs": [{**V2, "data": [0.0] * 7}]}, "8 values by its shape [1, 8], and 7 in data"),
        ({"inputs": [{**V2, "shape": [2**60, 8]}]}, "and 8 in data"),
        ({"inputs": [{**V2, "shape": [10**4298] * 1000}]}, "shape"),
        ({"inputs": [{**V2, "shape": [2**60, 0], "data": []}]}, "and 0 in data"),
        ({"inputs": [{**V2, "data": [[1, 2], [[3], [4]]]}]}, ""),
        ({"inputs": [{**V2, "shape": [8, 1], "data": [[i] * (i % 2 + 1) for i in range(8)]}]}, ""),
        ({"inputs": [{**V2, "data": [{}] * 8}]}, "takes float32"),
        ({"inputs": [{**V2, "datatype": 5}]}, "datatype"),
        ({"inputs": [{**V2, "shape": []}]}, "values by its shape []"),
        ({"inputs": [V2, V2]}, "twice"),
        ({"id": "\ud800", "inputs": [V2]}, "the values cannot be read: 'utf-8' codec"),
        ({"inputs": [{**V2, "shape": [-1, 8]}]}, "inputs.0.shape.0: "),
        ({"inputs": [V2], "outputs": [{"name": "y"}]}, "unknown output 'y': outputs"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(small: Client, body: Any, message: str) -> None:
    path = "/v2/models/small/infer" if "datatype" in str(body) else "/invocations"
    status, answer, _ = small(path, body)
    assert (status, answer.keys()) == (400, {"error"})
    assert message in answer["error"]


def test_columns_by_name_and_names_of_classes(models: Path, tmp_path: Path) -> None:
    with served(models / "table", tmp_path) as client:
        table = {"columns": ["visits", "income", "age"], "data": [[7, 1, 4], [7, 4, 1]]}
        status, answer, _ = client("/invocations", {"dataframe_split": table})
        assert status == 200 and answer["labels"] == ["yes", "no"], answer
        tensors = [
            {"name": name, "datatype": "FP64", "shape": [2], "data": data}
            for name, data in (("visits", [7, 7]), ("age", [4, 1]), ("income", [1, 4]))
        ]
        status, answer, _ = client("/v2/models/m/infer", {"inputs": tensors})
        assert status == 200, answer
        assert answer["outputs"][1] == {
            "name": "labels", "datatype": "BYTES", "shape": [2], "data": ["yes", "no"]
        }  # fmt: skip
        for columns, message in (
            (["visits", "income", "years"], "unknown column 'years'"),
            (["visits", "income"], "column 'age' is missing: the model takes 'x' (float32 [?, 3])"),
        ):
            table = {"columns": columns, "data": [[7] * len(columns)]}
            status, answer, _ = client("/invocations", {"dataframe_split": table})
            assert status == 400 and message in answer["error"]


def test_a_column_is_an_input_of_one_value(models: Path, tmp_path: Path) -> None:
    with served(models / "single", tmp_path) as client:
        for rows in ([{"age": 2}, {"age": 3.5}], [{"age": [2]}, {"age": [3.5]}]):
            assert client("/invocations", {"dataframe_records": rows})[1] == {"predictions": [4, 7]}


def test_texts_integers_and_several_inputs(models: Path, tmp_path: Path) -> None:
    with served(models / "pair", tmp_path) as client:
        body = {"instances": [{"a": [1, 2], "b": "é"}, {"a": [3, 4.0], "b": {"b64": "AP8="}}]}
        status, answer, _ = client("/invocations", body)
        assert status == 200, answer
        assert answer["predictions"] == {"sum": [3, 7], "text": ["é3", {"b64": "AP83"}]}
        table = {"columns": ["b", "a"], "data": [["x", [1, 1]], ["y", [2, 2]]]}
        _, answer, _ = client("/invocations", {"dataframe_split": table})
        assert answer["predictions"] == {"sum": [2, 4], "text": ["x2", "y4"]}
        for body, message in (
            ({"instances": [{"a": [1, 2]}]}, "column 'b' is missing"),
            ({"inputs": [[1, 2]]}, "column 'a' is missing: the model takes 'a' (int32 [?, 2])"),
            ({"inputs": {"a": [[1, 2.5]], "b": ["x"]}}, "takes int32 [?, 2]: it has 2.5"),
            ({"inputs": {"a": [[1, 2**40]], "b": ["x"]}}, "it has 1099511627776"),
            ({"inputs": {"a": [[1, 2]], "b": ["x", "y"]}}, "'a' has 1, 'b' has 2"),
            ({"inputs": {"a": [[1, 2]], "b": [5]}}, "input 'b' takes string [?]: it has 5"),
        ):
            status, answer, _ = client("/invocations", body)
            assert status == 400 and message in answer["error"], answer


def test_models_that_take_batches_otherwise(models: Path, tmp_path: Path) -> None:
    with served(models / "fixed", tmp_path) as client:  # of two rows, always
        assert client("/invocations", {"inputs": [[1, 2, 3], [4, 5, 6]]})[1]["predictions"] == [
            6,
            15,
        ]
        assert "float32 [2, 3]" in client("/invocations", {"inputs": [[1, 2, 3]]})[1]["error"]
    with served(models / "centered", tmp_path) as client:  # whose rows are not independent
        assert client.about["batched"] is False
        _, answer, _ = client("/invocations", {"inputs": [[1, 3], [5, 7]]})
        assert answer == {"predictions": [[-3, -1], [1, 3]]}
    with (
        pytest.raises(DtrainError, match="output 'y' differs from that of the trained model by"),
        served(models / "wrong", tmp_path),
    ):
        pass


def test_one_bad_request_of_a_batch_fails_alone_and_a_hang_ends(
    models: Path, tmp_path: Path
) -> None:
    with served(models / "touchy", tmp_path, max_delay_ms=200, timeout=3) as client:

        def ask(value: float) -> Any:
            return client("/invocations", {"instances": [[value, 1.0]]})[:2]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(ask, [1, 2, 100, 3, 4]))
        assert [status for status, _ in found] == [200, 200, 400, 200, 200]
        assert found[3][1] == {"predictions": [4.0]}
        assert "too much" in found[2][1]["error"]
        with pytest.raises(OSError):
            ask(60)
        until(lambda: client.notices == ["the process has died; version 1 serves again"])
        assert ask(7) == (200, {"predictions": [8.0]})


def test_the_process_is_killed(trained: Path, tmp_path: Path) -> None:
    """It is started again, and requests wait for that."""
    right = expected(trained, ROWS)
    with served(trained / "exports/small", tmp_path) as client:
        for count in (1, 2):
            os.kill(client.server._process.pid, signal.SIGKILL)
            until(lambda: len(client.notices) == count)  # noqa: B023
            np.testing.assert_allclose(predict(client, ROWS)[0], right, atol=1e-6)


def test_limits(trained: Path, tmp_path: Path) -> None:
    path, own = trained / "exports/small", {"authorization": "Bearer secret"}
    limits = {"max_delay_ms": 300, "max_queue": 6, "max_batch": 4, "max_body_mb": 0.01}
    with served(path, tmp_path, token="secret", **limits) as client:
        assert client("/v2/health/ready")[0] == 200, "nothing is secret there"
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": "Basic ???"}):
            status, _, found = client("/v2", None, headers)
            assert status == 401 and found["www-authenticate"] == "Bearer"

        def ask(rows: int) -> Any:
            return client("/invocations", {"inputs": ROWS[:rows].tolist()}, own)[:2]

        status, answer = ask(6)
        assert status == 200 and len(answer["predictions"]) == 6
        assert ask(7) == (413, {"error": "a request has at most 6 rows: this 7"})
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            statuses = [status for status, _ in pool.map(ask, [3] * 12)]
        assert set(statuses) <= {200, 503} and statuses.count(200) >= 2
        assert client("/invocations", b" " * 20_000 + b"{}", own)[0] == 413


def raw(client: Client, text: str, seconds: float = 10) -> bytes:
    """Send what may be no whole request, and return what comes first, nothing at the end."""
    port = int(client.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(text.encode())
        return connection.recv(1 << 16)


def test_a_request_is_refused_by_its_headers_and_must_arrive(trained: Path, tmp_path: Path) -> None:
    post = "POST /invocations HTTP/1.1\r\nhost: a\r\ncontent-length: 15000000\r\n"
    with served(trained / "exports/small", tmp_path, token="secret", timeout=1) as client:
        assert raw(client, post + "\r\n" + "x" * 300_000).startswith(b"HTTP/1.1 401"), "at once"
        for line in ("a" * 1_000_000, f"a: {'b' * 60_000}\r\n" * 9):
            with contextlib.suppress(ConnectionError):
                answer = raw(client, post + line + "\r\n")
                assert answer[:12] in (b"", b"HTTP/1.1 400"), "headers without an end"
        body = post + "authorization: Bearer secret\r\n\r\n{"
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for answer in pool.map(lambda head: raw(client, head), ("", post[:30], post, body)):
                assert b" 200 " not in answer, "it is closed after a second"
        assert client("/ping", None, {"host": "evil.example"})[0] == 200, "it has a token"


def test_a_server_with_small_limits_is_not_taken_for_silent(trained: Path, tmp_path: Path) -> None:
    limits = {"timeout": 0.1, "max_body_mb": 0.01}
    with served(trained / "exports/small", tmp_path, **limits) as client:
        time.sleep(2)
        assert (client("/ping")[0], client.notices) == (200, [])


def test_a_foreign_name_is_refused(small: Client) -> None:
    """A page of an attacker's could be made to lead to this machine."""
    port = small.address.rpartition(":")[2]
    for name in ("localhost", "127.0.0.1", "[::1]", "127.9.9.9"):
        assert small("/ping", None, {"host": f"{name}:{port}"})[0] == 200
    for name in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "[::1", ""):
        assert small("/ping", None, {"host": name})[0] == 400, name
    assert small("/ping/")[0] == 404, "no redirect"


def test_a_server_that_is_silent_ends() -> None:
    """Whatever holds Python: the command starts another."""
    lines = """
import asyncio, re, socket, uvicorn
from dtrain.serving.server import PatientServer

async def hang(scope, receive, send):
    re.match("(a*)*b", "a" * 40)  # of which no other thread gets a turn

async def main():
    server = PatientServer(uvicorn.Config(hang, port=0, lifespan="off"), 1, 1)
    listener = socket.create_server(("127.0.0.1", 0))
    asking = asyncio.to_thread(socket.create_connection, listener.getsockname())
    asyncio.get_running_loop().call_later(0.5, lambda: asyncio.ensure_future(ask(asking)))
    await server.serve([listener])

async def ask(asking):
    (await asking).sendall(b"GET / HTTP/1.1\\r\\nhost: a\\r\\n\\r\\n")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, timeout=60)
    assert done.returncode == 1 and b"in hang" in done.stderr, done.stderr


def swap(folder: Path, trained: Path, number: int) -> None:
    """Let a version appear, as an export does."""
    [made] = [p for p in (trained / "exports/small").iterdir() if p.name.isdecimal()]
    shutil.copytree(made, folder / f".{number}")
    (folder / f".{number}").rename(folder / str(number))


def test_swaps_under_load(
    trained: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request fails; a bad version leaves the old one."""
    monkeypatch.setattr("dtrain.cli.commands.serve._LOOK", 0.05)
    right, folder = expected(trained, ROWS), tmp_path / "small"
    folder.mkdir()
    swap(folder, trained, 1)
    ends, bad, seen = threading.Event(), [], set()

    def load(seed: int) -> None:
        draw = random.Random(seed)
        while not ends.is_set():
            begin = draw.randrange(30)
            rows = slice(begin, begin + draw.choice([1, 1, 3, 9]))
            try:
                found, version = predict(client, ROWS[rows])
                np.testing.assert_allclose(found, right[rows], atol=1e-6)
                seen.add(version)
            except Exception as error:
                bad.append(error)

    (tmp_path / "own").mkdir()
    with served(None, tmp_path / "own", ExportFolder(folder), name="small") as client:
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for seed in range(3):
                pool.submit(load, seed)
            try:
                swap(folder, trained, 2)
                until(lambda: "2" in seen)
                shutil.copytree(models / "pair", folder / "3")
                until(lambda: any("version 3 does not serve: it is" in t for t in client.notices))
                shutil.copytree(folder / "1", tmp_path / "4")
                (tmp_path / "4/saved_model.pb").write_bytes(b"no model")
                (tmp_path / "4").rename(folder / "4")
                until(
                    lambda: any("version 4 does not serve: it cannot" in t for t in client.notices)
                )
                assert predict(client, ROWS[:1])[1] == "2"
                swap(folder, trained, 5)
                until(lambda: "5" in seen and "version 5 serves now" in client.notices)
            finally:
                ends.set()
        assert not bad
        os.kill(client.server._process.pid, signal.SIGKILL)
        until(lambda: client.notices[-1] == "the process has died; version 5 serves again")


def command(
    words: list[str], ask: Callable[[Client], None], patch: pytest.MonkeyPatch, capfd: Any
) -> tuple[int, str, str]:
    """Run the command here; ``ask`` gets its address in a thread, then SIGTERM ends it."""
    from dtrain.__main__ import main

    patch.setattr(sys, "argv", ["dtrain", "serve", *words, "port=0"])
    printed: list[str] = []
    began, failed = threading.Event(), []

    def look(*values: Any, **_: Any) -> None:
        printed.extend(map(str, values))
        if "Ctrl-C ends it" in printed:
            began.set()

    def client() -> None:
        try:
            assert began.wait(120)
            [page] = [line.split()[-1] for line in printed if line.startswith("page:")]
            ask(Client(page.removesuffix("/docs")))
        except BaseException as error:
            failed.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr("dtrain.cli.commands.serve.print", look, raising=False)
    thread = threading.Thread(target=client)
    thread.start()
    code = main()
    thread.join()
    if failed:
        raise failed[0]
    return code, "\n".join(printed), capfd.readouterr().err


def test_a_run_is_served_and_followed(
    trained: Path, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest checkpoint, and then another one; SIGTERM ends it with 0."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    shutil.rmtree(run / "exports")
    [step] = checkpoint.store.steps(run / "checkpoints")
    monkeypatch.setattr("dtrain.cli.commands.serve._LOOK", 0.05)

    def ask(client: Client) -> None:
        found, version = predict(client, ROWS)
        np.testing.assert_allclose(found, expected(run, ROWS), atol=1e-6)
        assert version == str(step)
        last, _ = checkpoint.newest(run / "checkpoints")
        assert last is not None
        arrays = {name: value * 2 if name.startswith("model/") and value.dtype.kind == "f"
                  else value for name, value in last.arrays.items()}  # fmt: skip
        checkpoint.store.save(run / "checkpoints", step + 4, arrays, dict(last.meta))
        until(lambda: predict(client, ROWS)[1] == str(step + 4), 90)
        np.testing.assert_allclose(predict(client, ROWS)[0], expected(run, ROWS), atol=1e-6)

    words = [str(run), "follow=true", "checkpoint=latest"]
    code, output, error = command(words, ask, monkeypatch, capfd)
    assert code == 0, error
    assert f"serving: small, version {step} (within " in output
    assert not (run / "exports").exists(), "what it exports to follow goes with it"


def test_programs_of_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Served and followed by a process without TensorFlow; a wrong version does not serve."""
    need("torch")
    monkeypatch.setattr("dtrain.cli.commands.serve._LOOK", 0.05)
    made, folder, own = (tmp_path / name for name in ("made", "folder", "own"))
    for each in (made, folder, own):
        each.mkdir()
    warm.call(serving_models.make_programs, 1, {"folder": made}, backend="torch")
    (made / "1").rename(folder / "1")
    with served(None, own, ExportFolder(folder)) as client:
        assert client.about["batched"] and client.about["deviation"] == 0
        assert client("/v2/models/m")[1] == {
            "name": "m", "versions": ["1"], "platform": "pytorch_pt2",
            "inputs": [{"name": "add", "datatype": "FP32", "shape": [-1]},
                       {"name": "words", "datatype": "INT32", "shape": [-1]}],
            "outputs": [{"name": name, "datatype": "FP32", "shape": [-1]} for name in "yz"],
        }  # fmt: skip

        def ask(*rows: tuple[int, float]) -> Any:
            body = {"instances": [{"words": words, "add": add} for words, add in rows]}
            return client("/invocations", body)[:2]

        maps = Path(f"/proc/{client.server._process.pid}/maps").read_text()
        assert "libtorch" in maps and "libtensorflow" not in maps
        three = [(3, 0.5), (2, 1.0), (4, 0.0)]
        assert ask(*three) == (200, {"predictions": {"y": [0.5, 1, 0], "z": [3.5, 3, 4]}})
        status, answer = ask((9, 0.0))
        assert status == 400 and "the model failed: index out of range" in answer["error"]
        (made / "2").rename(folder / "2")
        until(lambda: ask(three[0]) == (200, {"predictions": {"y": [0.5], "z": [7]}}))
        (made / "3").rename(folder / "3")
        until(lambda: any("output 'z' differs from that of" in text for text in client.notices))
        shutil.copytree(folder / "1", made / "4")
        (made / "4/model.pt2").write_bytes(b"no program")
        (made / "4").rename(folder / "4")
        until(lambda: any("version 4 does not serve: it cannot" in t for t in client.notices))
        assert client("/v2/models/m")[1]["versions"] == ["2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "MODEL=nothing: is no run folder, no model of a registry and no export"),
        (["models:/a"], "MODEL=models:/a: is no model of a registry"),
        (["models:/a/1", "follow=true"], "tracking.uri=: "),
        (["run", "prot=1"], "prot=1: is no word of serve; type: port=1"),
        (["run", "port=70000"], "port=70000: must be at most 65535"),
        (["run", "follow=perhaps"], "follow=perhaps: is neither true nor false"),
        (["run", "host=0.0.0.0"], "host=0.0.0.0: others could ask the server, and no token"),
        (["run", "host=192.0.2.1"], "host=192.0.2.1: cannot be used ("),
        (["run", "port=0", "checkpoint=all"], "checkpoint=all: means several checkpoints"),
        (["run", "port=0", "checkpoint=4", "follow=true"], "checkpoint=4: cannot be followed"),
        (["run/exports/small", "weights=ema"], "weights=ema: is not of what is served"),
    ],
)  # fmt: skip
def test_usage(
    trained: Path, words: list[str], message: str, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dtrain.__main__ import main

    monkeypatch.chdir(trained.parent)
    if "host=192.0.2.1" in words:
        monkeypatch.setenv("DTRAIN_SERVE_TOKEN", "")
    monkeypatch.setattr(sys, "argv", ["dtrain", "serve", *words])
    assert main() == 2
    assert f"error: {message}" in capfd.readouterr().err


def test_a_port_in_use(small: Client, trained: Path, capfd: Any, monkeypatch: Any) -> None:
    from dtrain.__main__ import main

    port = small.address.rpartition(":")[2]
    monkeypatch.setattr(sys, "argv", ["dtrain", "serve", str(trained), f"port={port}"])
    assert main() == 2
    assert f"error: port={port}: cannot be used (Address already in use)" in capfd.readouterr().err


@pytest.fixture
def registry(store: Path, tmp_path: Path, models: Path) -> Any:
    """A registry with two versions of a model, one of another, and an alias."""
    found = import_mlflow().tracking.MlflowClient(f"sqlite:///{store}")
    for name in ("digits", "empty"):
        found.create_registered_model(name)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing/MLmodel").write_text("flavors: {}\n")
    shutil.copytree(models / "fixed", tmp_path / "fixed")
    for name, source in (("digits", "fixed"), ("digits", "fixed"), ("empty", "nothing")):
        found.create_model_version(name, (tmp_path / source).as_uri())
    found.set_registered_model_alias("digits", "champion", "1")
    return found


def test_an_alias_is_followed(registry: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("dtrain.cli.commands.serve._LOOK", 0.05)
    (own := tmp_path / "own").mkdir()
    source = OfRegistry(Registered("models:/digits@champion", None), own)
    with served(None, own, source) as client:

        def version() -> str:
            status, answer, headers = client("/invocations", {"inputs": [[1, 2, 3], [4, 5, 6]]})
            assert (status, answer) == (200, {"predictions": [6, 15]})
            return str(headers["x-model-version"])

        assert version() == "1"
        registry.set_registered_model_alias("digits", "champion", "2")
        until(lambda: version() == "2")
        until(lambda: len(list(own.iterdir())) == 1)
        registry.delete_registered_model_alias("digits", "champion")
        until(lambda: any("models:/digits@champion" in text for text in client.notices))
        assert version() == "2"


def test_other_names_of_a_model(registry: Any, tmp_path: Path, monkeypatch: Any) -> None:
    store = f"sqlite:///{tmp_path}/outputs/mlflow.db"
    found = Registered("models:/digits/2", store)
    assert found.version() == "2"
    assert (found.download("2", tmp_path / "there") / "saved_model.pb").is_file()
    with pytest.raises(DtrainError, match="models:/empty/1 has no model that is"):
        Registered("models:/empty/1", store).download("1", tmp_path / "empty")
    for text in ("models:/digits@none", "models:/other@champion"):
        with pytest.raises(DtrainError, match=text):
            Registered(text, store).version()
    monkeypatch.chdir("/")
    with pytest.raises(UsageError, match=r"tracking\.uri=: /outputs/mlflow\.db is not there"):
        Registered("models:/digits@champion", None)
