"""The parts of a server that need no process: messages, batches, counts, the line of a terminal."""

from __future__ import annotations

import asyncio
import json
import struct
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dtrain.controller.serving_options import Options, taken
from dtrain.controller.terminal import serving as status
from dtrain.errors import UsageError
from dtrain.host import frames
from dtrain.serving import arrays, v2
from dtrain.serving.follow import Folder, Follower
from dtrain.serving.metrics import Metrics
from dtrain.serving.problems import Refused, Unusable
from dtrain.serving.queue import Item, Queue
from dtrain.serving.signature import Signature, Spec


def test_messages_come_as_they_went() -> None:
    texts = np.empty((2, 2), object)
    texts[:] = [[b"", b"\x00\xff"], ["é".encode(), b"a" * 300]]
    given = {
        "a": np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2],
        "b": np.asarray([1.5, float("nan")], ml_dtypes.bfloat16),
        "c": texts,
        "d": np.zeros((0, 4), np.float32),
        "e": np.asarray(True),
    }
    data = frames.packed({"rows": 2}, given)
    head, body = frames.SIZES.unpack(data[: frames.SIZES.size])
    assert len(data) == frames.SIZES.size + head + body
    rest = data[frames.SIZES.size :]
    found, back = frames.unpacked(rest[:head], rest[head:])
    assert found == {"rows": 2}
    for name, value in given.items():
        assert back[name].dtype == value.dtype and back[name].shape == value.shape
        assert back[name].tobytes() == value.tobytes() or name == "c"
    assert back["c"].tolist() == texts.tolist()


def on_loop(test: Callable[[], None]) -> None:
    async def run() -> None:
        test()

    asyncio.run(run())


def item(rows: int, key: Any = 0, came: float | None = None) -> Item:
    made = Item({}, rows, (key,), asyncio.get_running_loop().create_future())
    made.came = made.came if came is None else came
    return made


def test_batches() -> None:
    def check() -> None:
        queue = Queue()
        a, b, c, d, e = item(2), item(3), item(4), item(1, "other"), item(1)
        queue.add([a, b, c, d, e])
        assert queue.rows == 11
        assert queue.batch(8, True, 0) == ([a, b], 0), "the next has no room"
        b.answer.cancel()
        queue.put_back([a, b])
        assert (queue.rows, a.tries) == (8, 1), "nobody waits for one of them"
        assert queue.batch(8, True, 0)[0] == [a], "alone"
        c.answer.cancel()
        assert queue.batch(8, True, 0)[0] == [d], "of another shape, behind one given up"
        queue.add([item(1)])
        assert len(queue.batch(8, False, 0)[0]) == 1
        assert queue.rows == 1
        assert queue.batch(8, True, 0)[0] and queue.batch(8, True, 0) == ([], 0.0)
        queue.add([item(1)])
        found, late = queue.batch(8, True, 60)
        assert not found and 50 < late <= 60, "it waits for others"
        queue.add([item(7)])
        assert len(queue.batch(8, True, 60)[0]) == 2, "it is full"
        queue.add([item(1, came=0.0)])
        assert len(queue.batch(8, True, 60)[0]) == 1, "it has waited"
        d.end(Refused(503, "no"))
        d.end({})
        assert isinstance(d.answer.exception(), Refused)

    on_loop(check)


def test_counts() -> None:
    metrics = Metrics()
    metrics.request("v2", 200, 0.004)
    metrics.request("v2", 400, 20.0)
    metrics.batch(3)
    text = metrics.text('a"b', {"dtrain_ready": 1.0, "dtrain_queue_rows": 12.0})
    for line in (
        'dtrain_requests_total{protocol="v2",status="400"} 1',
        'dtrain_request_seconds_bucket{protocol="v2",le="0.005"} 1',
        'dtrain_request_seconds_bucket{protocol="v2",le="+Inf"} 2',
        'dtrain_request_seconds_sum{protocol="v2"} 20.004000',
        'dtrain_batch_rows_bucket{le="2"} 0', 'dtrain_batch_rows_bucket{le="4"} 1',
        "dtrain_batch_rows_count 1", "dtrain_swaps_total 0", "dtrain_queue_rows 12",
        'dtrain_model_info{version="a\\"b"} 1',
    ):  # fmt: skip
        assert f"\n{line}\n" in text, line
    assert "dtrain_model_info" not in metrics.text(
        None, {"dtrain_ready": 0, "dtrain_queue_rows": 0}
    )


def test_the_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    clock = iter([10.0, 12.0, 14.0])
    monkeypatch.setattr(status, "time", types.SimpleNamespace(
        monotonic=lambda: next(clock), strftime=lambda _: "10:20:30",
    ))  # fmt: skip
    metrics = Metrics()
    model = types.SimpleNamespace(version="44", waiting=3)
    server: Any = types.SimpleNamespace(
        metrics=metrics, versions=types.SimpleNamespace(current=model)
    )
    line = status.Status()
    line.show(server)
    assert "version 44: no request yet, 3 rows wait" in capfd.readouterr().err
    for _ in range(4):
        metrics.request("v2", 200, 0.005)
    line.show(server)
    assert "version 44: 2 requests/s, 5.0 ms, 3 rows wait" in capfd.readouterr().err
    line.show(server)
    assert "version 44: 0 requests/s, 3 rows wait" in capfd.readouterr().err
    line.say("version 55 serves now")
    assert capfd.readouterr().err.endswith("10:20:30 version 55 serves now\n")


def test_options() -> None:
    options, rest = taken(["port=0", "dataset.path=x", "follow=True", "timeout=2.5"], "dataset")
    assert (options.port, options.follow, options.timeout) == (0, True, 2.5)
    assert rest == ["dataset.path=x"]
    assert taken([], None) == (Options(), [])
    for text in ("max_batch=0", "max_batch=1.5", "timeout=nan", "threads=x", "dataset.path=x"):
        with pytest.raises(UsageError, match=text.partition("=")[0]):
            taken([text], None)


def test_the_newest_of_a_folder(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.newest() is None
    for name in ("9", "10", "11", ".tmp", "x12"):
        (tmp_path / name).mkdir()
        if name != "11":  # which is not whole
            (tmp_path / name / "saved_model.pb").write_bytes(b"")
    assert folder.newest() == "10"
    assert folder.fetch("10").version == "10"
    with pytest.raises(Unusable, match="is gone"):
        folder.fetch("11")
    assert Folder(tmp_path / "9").newest() == "."
    assert Folder(tmp_path / "9").fetch(".").version == "9"
    assert Folder(tmp_path / "x12").fetch(".").version == "1"


def test_what_cannot_be_had_is_said_once_and_tried_three_times() -> None:
    class Source:
        seconds = 0.0
        fetched = 0

        def end(self) -> None:
            pass

        def newest(self) -> str | None:
            return "5 digest"

        def fetch(self, key: str) -> Any:
            self.fetched += 1
            raise RuntimeError("no disk")

    source, said, none = Source(), [], types.SimpleNamespace()
    follower = Follower(source, "4 digest", none, none, said.append)  # type: ignore[arg-type]
    waits = iter([False] * 20 + [True])
    follower._ends = types.SimpleNamespace(  # type: ignore[assignment]
        wait=lambda _: next(waits), is_set=lambda: False
    )
    follower.run()
    assert source.fetched == 3
    assert said == [
        "version 5 is not served: RuntimeError: no disk",
        "version 5 is not served: RuntimeError: no disk; it is not tried again",
    ]


def test_other_types() -> None:
    spec = Spec("x", "bfloat16", (None, 2))
    value = arrays.array([[1.5, 2]], spec)
    assert value.dtype == ml_dtypes.bfloat16 and arrays.plain(value) == [[1.5, 2.0]]
    signature = Signature((spec,), (spec,), True, None)
    body = json.dumps({"inputs": [{
        "name": "x", "datatype": "BF16", "shape": [1, 2], "parameters": {"binary_data_size": 4},
    }]}).encode()  # fmt: skip
    data = np.asarray([1.5, 2], ml_dtypes.bfloat16).tobytes()
    asked = v2.parsed(body + data, str(len(body)), signature)
    assert arrays.plain(asked.inputs["x"]) == [[1.5, 2.0]]
    for kind, value, good in (("bool", [True, False], True), ("bool", [1, 0], False),
                              ("uint8", [255, 0], True), ("uint8", [256, 0], False),
                              ("int64", [2**63 - 1, 0], True), ("uint64", [2**64 - 1, 0], True),
                              ("uint64", [-1, 0], False), ("int64", [2**53 + 1, 1.0], True),
                              ("int32", [float("inf"), 1.0], False),
                              ("int32", [True, 1.5], False), ("int64", [2**63, 0], False),
                              ("float16", [65504, 1], True), ("float16", [70000, 1], False),
                              ("float64", [1e300, float("nan")], True)):  # fmt: skip
        spec = Spec("x", kind, (None, 2))
        if good:
            found = arrays.array([value], spec)
            assert found.dtype == kind
            assert kind == "float64" or found.tolist() == [value], "exactly"
        else:
            with pytest.raises(Refused, match="input 'x' takes"):
                arrays.array([value], spec)
    with pytest.raises(Refused, match="a text ends behind"):
        v2._of_bytes(struct.pack("<I", 9) + b"abc", (1,), Spec("x", frames.TEXT, (None,)))
    assert signature.differs(Signature((spec,), (), True, None)) is not None
    assert signature.differs(signature) is None
