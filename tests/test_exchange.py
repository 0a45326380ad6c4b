"""Sums over the tasks of a job, each a thread here: by shared memory, by sockets, and by both."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dtrain.task.exchange import exchange, links, meeting, shared
from dtrain.task.exchange.exchange import Exchange
from dtrain.task.exchange.links import Link, Lost

KEY = b"a key of the job"


def together(tasks: int, function: Callable[[int], Any]) -> list[Any]:
    """Call ``function(rank)`` in a thread for each task; return what they return, or raise."""
    found: list[Any] = [None] * tasks

    def run(rank: int) -> None:
        try:
            found[rank] = function(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a task waits without an end"
    return found


class Sharing:
    """What tasks tell each other before they are connected.

    Args:
        machines: on which each task is to be.
    """

    def __init__(self, machines: list[int]):
        self._machines = machines
        self._rows: dict[int, list[int]] = {}
        self._all = threading.Barrier(len(machines))

    def of(self, rank: int) -> Callable[[list[int]], list[list[int]]]:
        def share(own: list[int]) -> list[list[int]]:
            self._rows[rank] = [own[0], self._machines[rank], *own[2:]]
            self._all.wait(60)
            return [self._rows[each] for each in range(len(self._machines))]

        return share


@pytest.fixture
def connected() -> Iterator[Callable[..., list[Exchange]]]:
    made: list[Exchange] = []

    def connect(machines: list[int], keys: list[bytes] | None = None) -> list[Any]:
        tasks, sharing = len(machines), Sharing(machines)
        names = [f"task-{i}" for i in range(tasks)]

        def one(rank: int) -> Exchange:
            key = keys[rank] if keys else KEY
            return Exchange(rank, ["127.0.0.1"] * tasks, names, key, sharing.of(rank))

        found = together(tasks, one)
        made.extend(each for each in found if isinstance(each, Exchange))
        return found

    yield connect
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "machines",
    [[0], [0, 0], [0, 0, 0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 0, 1, 0], [2, 1, 1, 0, 3, 4]],
    ids=str,
)
def test_all_tasks_have_the_same_bits(machines: list[int], connected: Any) -> None:
    """Of several types and lengths, some longer than the one before, one of fewer than tasks."""
    tasks = connected(machines)
    draw = np.random.default_rng(0)
    for length, kind in ((5, "float32"), (3, "float64"), (100_003, "float32"), (40, "float16"),
                         (0, "float32"), (77, ml_dtypes.bfloat16)):  # fmt: skip
        vectors = [draw.standard_normal(length).astype(kind) for _ in tasks]
        before = [vector.copy() for vector in vectors]
        found = together(len(tasks), lambda rank, v=vectors: tasks[rank].sum(v[rank]))
        expected = np.sum([vector.astype(np.float64) for vector in vectors], axis=0)
        accuracy = {"float64": 1e-14, "float32": 1e-5}.get(kind, 0.1)
        for sum_, vector, same in zip(found, vectors, before, strict=True):
            assert sum_.dtype == vector.dtype and sum_.shape == vector.shape
            assert sum_.tobytes() == found[0].tobytes()
            np.testing.assert_allclose(sum_.astype(np.float64), expected, accuracy, accuracy)
            assert vector.tobytes() == same.tobytes(), "the own vector stays as it was"


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, "float16"])
@pytest.mark.parametrize("machines", [[0, 0, 0, 0, 0], [0, 1, 2], [0, 1, 2, 3]], ids=str)
def test_types_of_two_bytes_are_added_up_in_float32(
    machines: list[int], kind: Any, connected: Any
) -> None:
    """Ones are lost one by one beside a large number, which has so few digits; not their sum."""
    tasks = connected(machines)
    first = 4096 if kind == "float16" else 512
    vectors = [np.full(10, first if rank == 0 else 1.25, kind) for rank in range(len(tasks))]
    found = together(len(tasks), lambda rank: tasks[rank].sum(vectors[rank]))
    if len(set(machines)) == 1:  # rounded once, and not for each that is added
        total = np.float32(first + 1.25 * (len(tasks) - 1))
        assert total.astype(kind) > first, "or nothing would be seen"
        expected = np.full(10, total).astype(kind)
        assert all(np.array_equal(each, expected) for each in found)
    assert all(each.tobytes() == found[0].tobytes() for each in found)


def test_sums_are_right_many_times_in_a_row(connected: Any) -> None:
    """None takes the sum of a call for that of another, however fast the others are."""
    tasks = connected([0, 0, 1])

    def many(rank: int) -> list[float]:
        return [float(tasks[rank].sum(np.full(9, i * (rank + 1.0)))[rank]) for i in range(300)]

    assert together(3, many) == [[i * 6.0 for i in range(300)]] * 3


@pytest.mark.parametrize("machines", [[0], [0, 0], [0, 1], [1, 0, 2], [0, 1, 2, 2, 3]], ids=str)
def test_none_leaves_a_meeting_before_the_last_has_come(
    machines: list[int], connected: Any
) -> None:
    tasks, left = connected(machines), threading.Event()
    last = len(machines) - 1

    def one(rank: int) -> bool:
        early = rank == last and left.wait(0.3)
        tasks[rank].meet()
        left.set()
        return early

    assert not any(together(len(machines), one))


@pytest.mark.parametrize("machines", [[0, 0], [0, 1], [0, 1, 2]], ids=str)
def test_a_task_that_is_gone_is_named(
    machines: list[int], connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "GRACE", 0.0)
    tasks = connected(machines)

    def one(rank: int) -> Any:
        try:
            return None if rank == 0 else tasks[rank].sum(np.ones(10))
        finally:  # as a task that ends does, of this error too
            tasks[rank].close()

    found = together(len(machines), one)
    for error in found[1:]:
        assert isinstance(error, Lost)
    assert any("task-0 is gone" in str(error) for error in found[1:])


def ends() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def test_a_task_that_stands_still_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gives signs of life is waited for, as one that saves a checkpoint is."""
    monkeypatch.setattr(links, "BEAT", 0.01)
    data, pulse = ends(), ends()
    own, other = Link("worker-1", data[0], pulse[0]), Link("chief-0", data[1], pulse[1])
    try:
        for _ in range(2 * links.MISSED):
            other.beat()
            own.beat()
        assert own.missed == 0
        for _ in range(links.MISSED):
            own.beat()
        nothing = memoryview(b"")
        with pytest.raises(Lost, match="worker-1 is lost: nothing came from it for"):
            links.swap(own, nothing, own, memoryview(bytearray(1)))
        other.beat()
        own.beat()
        other.data.send(b".")
        links.swap(own, nothing, own, memoryview(bytearray(1)))
    finally:
        own.close()
        other.close()


def test_a_task_without_the_key_is_not_let_in(
    connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "PATIENCE", 1.0)
    for machines in ([0, 0], [0, 1]):
        one, other = connected(machines, [KEY, b"another key"])
        assert isinstance(one, TimeoutError) and "task-1 did not connect" in str(one)
        assert isinstance(other, OSError) and "job's key" in str(other)


def test_strangers_are_turned_away_and_the_others_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "PROOF", 0.1)
    names = ["task-0", "task-1"]
    with meeting.listen("127.0.0.1") as server, meeting.listen("127.0.0.1") as unused:
        places = [("127.0.0.1", each.getsockname()[1]) for each in (server, unused)]
        hello = meeting._HELLO.pack(meeting._MAGIC, bytes(32), 1, 0, meeting.DATA)
        strangers = [socket.create_connection(places[0]) for _ in range(4)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        strangers[1].sendall(hello + bytes(32))  # and no code
        strangers[2].close()  # the last one says nothing

        def one(rank: int) -> Any:
            return meeting.connect(rank, [1 - rank], places, names, server, KEY)

        found = together(2, one)
        assert [list(each) for each in found] == [[1], [0]]
        for each in (*found[0].values(), *found[1].values(), *strangers):
            each.close()


def test_an_address_that_is_not_this_machines_own_is_listened_for_everywhere() -> None:
    with meeting.listen("192.0.2.1") as server:
        assert server.getsockname()[0] == "0.0.0.0"


def test_memory_of_another_job_is_not_taken(tmp_path: Any) -> None:
    own = shared.create(KEY)
    try:
        with pytest.raises(PermissionError):
            shared.open_of(os.getpid(), own, b"another key")
        os.close(shared.open_of(os.getpid(), own, KEY))
    finally:
        os.close(own)
    assert 0 <= shared.machine() == shared.machine() < 2**48
