"""Processes that read: what they read is what the task reads, and how they end."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dtrain.config import targets
from dtrain.data import nest
from dtrain.data.convert import adapted
from dtrain.data.mixture import Mixture
from dtrain.data.nest import Ragged
from dtrain.data.sources import Arrays, Splits
from dtrain.data.streams import Stream
from dtrain.data.transforms import padded
from dtrain.errors import DataError, UsageError
from dtrain.task.data import readers
from dtrain.task.data.reader import Frame, read_frame, taken
from dtrain.task.data.readers import Child, Pool

USER = (Path(__file__).parent / "reading_user.py").read_text()


@pytest.fixture
def load(user_code: Any) -> Iterator[Callable[..., tuple[Splits, dict[str, Any]]]]:
    """Return what a function of a user's returns, and the node that names it."""
    user_code(USER, "reading_user")

    def made(function: str, pad: Any = None, **arguments: Any) -> tuple[Splits, dict[str, Any]]:
        node = {"_target_": f"reading_user.{function}", **arguments}
        return padded(adapted(targets.instantiate(node, "dataset")), pad), node

    yield made
    sys.modules.pop("reading_user", None)


@contextlib.contextmanager
def reading(loaded: tuple[Splits, dict[str, Any]], workers: int, pad: Any = None) -> Iterator[Pool]:
    splits, node = loaded
    with Pool(splits, workers, node) as pool:
        pool.ready()
        yield pool


def same(found: Any, expected: Any) -> None:
    assert nest.outline(found) == nest.outline(expected)
    for one, other in zip(nest.leaves(found), nest.leaves(expected), strict=True):
        if isinstance(other, Ragged):
            same((one.values, one.lengths), (other.values, other.lengths))
        else:
            assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
            np.testing.assert_array_equal(one, other)


KINDS = {
    "numbers": None,
    "lists": None,
    "texts": None,
    "nested": None,
    "ragged": None,
    "large": None,
    "padded": {"tokens": {"length": 4}},
    "buckets": {"tokens": {"buckets": [2, 4, 8], "value": -1}},
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_what_is_read(name: str, workers: int, load: Any) -> None:
    pad = KINDS[name]
    loaded = load("plain", pad, kind="ragged" if pad else name)
    draw = np.random.default_rng(0)
    asked = [draw.integers(0, 40, draw.integers(1, 9)) for _ in range(40)]
    with reading(loaded, workers, pad) as pool:
        sources = [(loaded[0].train, pool.splits.train)]
        sources += [(loaded[0].validation, pool.splits.validation)]

        def read(number: int) -> Any:
            own, pooled = sources[number % 2]
            return taken(own, asked[number]), pooled[asked[number]]

        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(read, range(len(asked))))
    # ORDER: compared at the end, when everything else has been read and the readers have ended.
    for expected, pooled in found:
        same(pooled, expected)
    assert len(loaded[0].train) == len(pool.splits.train) == 90
    assert Path("calls").read_text() == "called\n"  # the readers have the sources pickled


@pytest.mark.task
def test_random_numbers_are_drawn_by_position() -> None:
    """Other ones in each part and pass, and the same in a resumed run, a task or a reader."""
    import random

    from dtrain.task.backends.tensorflow import input_pipeline

    sys.path.append(str(Path(__file__).parent))
    splits = adapted(importlib.import_module("reading_user").noisy())

    def read(splits: Splits, replicas: int, first: int, steps: range) -> np.ndarray:
        inputs = input_pipeline.Inputs(splits.train, splits.validation, 8, 3, steps.start)
        place = {"replicas": replicas, "first_replica": first, "local_replicas": 1}
        iterator = iter(input_pipeline.training(inputs, **place))
        return np.array([next(iterator)[0] for _ in steps])

    def evaluated(splits: Splits) -> np.ndarray:
        inputs = input_pipeline.Inputs(splits.train, splits.validation, 8, 3)
        place = {"replicas": 1, "first_replica": 0, "local_replicas": 1}
        iterator = iter(input_pipeline.evaluation(inputs, **place))
        return np.array([next(iterator)[0][0] for _ in range(4)])

    np.random.seed(7)
    random.seed(7)
    whole = read(splits, 1, 0, range(9))
    assert len(np.unique(whole)) == whole.size
    np.testing.assert_array_equal(read(splits, 1, 0, range(5, 9)), whole[5:])
    parts = [read(splits, 2, first, range(9)) for first in (0, 1)]
    assert len(np.unique(parts)) == whole.size
    held = evaluated(splits)
    np.testing.assert_array_equal(held[:2], held[2:])
    assert len(np.unique(held)) == held.size / 2
    with reading((splits, {}), 2) as pool:
        np.testing.assert_array_equal(read(pool.splits, 1, 0, range(9)), whole)
        np.testing.assert_array_equal(evaluated(pool.splits), held)
    state = np.random.RandomState(7), random.Random(7)
    assert (np.random.rand(), random.random()) == (state[0].rand(), state[1].random())


def test_readers_are_plain_interpreters(load: Any) -> None:
    with reading(load("plain", kind="within"), 2) as pool:
        found, _ = pool.splits.train[np.arange(2)]
    assert found.tolist() == [["-1", "1", None, None]] * 2


@pytest.mark.parametrize(
    ("how", "pickled"),
    [
        ("array", True),
        ("unseeded", True),
        ("mapped", False),
        ("a lambda", False),
        ("a file", False),
    ],
)
def test_what_cannot_be_pickled_is_made_anew(how: str, pickled: bool, load: Any) -> None:
    loaded = load("held", how=how)
    rows = np.array([5, 80, 5])
    with reading(loaded, 2) as pool:
        same(pool.splits.train[rows], taken(loaded[0].train, rows))
    assert (pool._frame() is not None) == pickled
    if how == "a file":
        loaded[0].train.file.close()


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        (
            "unseeded, not to be pickled",
            "reader 1 of 2 reads example 0 of the training data otherwise than the task does",
        ),
        ("unseeded draws", "example 0 of the training data is not the same when it is read again"),
        ("other length", "finds 1[12] examples where the task has 10"),
        (
            "only once",
            "reader 1 of 2 cannot read the dataset .FileNotFoundError: .* 'once'",
        ),
    ],
)
def test_data_that_is_not_the_same(how: str, problem: str, load: Any, tmp_path: Path) -> None:
    (tmp_path / "once").mkdir()
    match = rf"^dataset.workers=2: .*{problem}.*; accepted: "
    with pytest.raises(UsageError, match=match) as error, reading(load("held", how=how), 2):
        pytest.fail("it was not refused")
    assert error.value.key == "dataset.workers"


@pytest.mark.parametrize("workers", [0, 4])
def test_what_is_not_in_python(workers: int) -> None:
    splits = Splits(Arrays(np.zeros((3, 2)), np.zeros(3)))
    with Pool(splits, workers, {}) as pool:
        pool.ready()
    assert pool.splits is splits and pool._children == []
    notice = "dataset.workers=4 has no effect: this dataset is read by threads already"
    assert pool.notices == ((notice,) if workers else ())
    stream = Splits(Stream(lambda: None))
    if workers:
        with pytest.raises(
            UsageError, match=r"^dataset.workers=4: a stream has an order of its own"
        ):
            Pool(stream, workers, {})
    else:
        assert Pool(stream, workers, {}).splits is stream


def test_members_of_a_mixture(load: Any) -> None:
    one, node = load("plain", kind="numbers")
    other = Arrays(np.zeros((30, 5, 3), np.float32), np.arange(30))
    splits = Splits(Mixture([one.train, other, one.validation], [1, 2, 3]), one.validation, 3)
    with reading((splits, node), 2) as pool:
        mixed = pool.splits.train
        assert isinstance(mixed, Mixture) and mixed.members[1] is other
        assert mixed.shares == splits.train.shares and len(mixed) == 160
        for member, own in ((mixed.members[0], one.train), (mixed.members[2], one.validation)):
            same(member[np.arange(7)], taken(own, np.arange(7)))
    assert splits.train.members[0] is one.train


def test_a_validation_that_the_task_leaves_out(load: Any) -> None:
    splits, node = load("leaving", kind="numbers")
    with reading((Splits(splits.train), node), 1) as pool:
        same(pool.splits.train[np.arange(3)], taken(splits.train, np.arange(3)))
    assert pool.splits.validation is None


def test_an_example_that_cannot_be_read(load: Any) -> None:
    """It may be left out, or never be asked for."""
    with reading(load("plain", kind="torn"), 1) as pool:
        assert pool.splits.train[np.arange(40, 45)][0].tolist() == [40, 41, 42, 43, 44]
        with pytest.raises(DataError, match=r"^example 45: is torn$"):
            pool.splits.train[np.arange(40, 46)]


def test_errors_of_a_source(load: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with reading(load("plain", kind="failing"), 1) as pool:
        take = pool.splits.train.__getitem__
        with pytest.raises(DataError, match=r"^FILE, row 7: is cut short$") as data:
            take(np.arange(2))
        assert (data.value.place, data.value.problem) == ("FILE, row 7", "is cut short")
        with pytest.raises(UsageError, match=r"^dataset.path=a: is gone; acc.*; hint: b$") as usage:
            take(np.arange(3))
        assert usage.value.key == "dataset.path"
        with pytest.raises(ValueError, match=r"^no such thing$"):
            take(np.arange(4))
        with pytest.raises(RuntimeError, match=r"^Odd: what and ever$"):
            take(np.arange(5))
        with pytest.raises(DataError, match=r"^reader 1 of 1: has run out of memory$"):
            take(np.arange(6))
        same(take(np.arange(10)), (np.arange(10),) * 2)  # and reads on
    log = capfd.readouterr().err
    assert "reader 1 of 1: Traceback" in log and "in failing\n" in log
    assert "is cut short" not in log


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (7, "ended with exit code 3; what it printed is"),
        (8, "ended by SIGSEGV"),
        (9, "ended by SIG"),
    ],
)
def test_a_reader_that_ends(rows: int, problem: str, load: Any, tmp_path: Path) -> None:
    with reading(load("plain", kind="failing"), 1) as pool:
        [child] = pool._children
        if rows == 9:

            def kill() -> None:
                while not (tmp_path / "stuck").exists():
                    os.sched_yield()
                os.kill(child._process.pid, signal.SIGKILL)

            threading.Thread(target=kill).start()
        for _ in range(2):  # nothing waits for it afterwards
            with pytest.raises(DataError, match=rf"^reader 1 of 1: {problem}"):
                pool.splits.train[np.arange(rows)]
            rows = 10


def test_requests_to_stop_do_not_end_a_reader(load: Any) -> None:
    with reading(load("plain", kind="numbers"), 1) as pool:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
            os.kill(pool._children[0]._process.pid, number)
        assert len(pool.splits.train[np.arange(3)][0]) == 3


def test_the_end_of_the_task(load: Any, tmp_path: Path) -> None:
    """Those that have nothing to do end by themselves, the others are killed."""
    (tmp_path / "left").mkdir()
    with reading(load("leaving", kind="failing"), 2) as pool:
        children = {child._process.pid: child for child in pool._children}
        threads = ThreadPoolExecutor(1)
        stuck = threads.submit(pool.splits.train.__getitem__, np.arange(9))
        while not (tmp_path / "stuck").exists():
            os.sched_yield()
    with threads, pytest.raises(DataError, match=r"reader . of 2: ended by SIGKILL"):
        stuck.result()
    codes = {pid: child._process.returncode for pid, child in children.items()}
    assert sorted(codes.values()) == [-signal.SIGKILL, 0]
    assert [path.name for path in (tmp_path / "left").iterdir()] == [
        str(pid) for pid, code in codes.items() if code == 0
    ]


def test_too_many(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Child] = []

    class Few(subprocess.Popen):  # type: ignore[type-arg] # as it is used
        def __init__(self, *args: Any, **kwargs: Any):
            if len(started) == 2:
                raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
            super().__init__(*args, **kwargs)
            started.append(self)  # type: ignore[arg-type] # only counted, and asked for its code

    monkeypatch.setattr(subprocess, "Popen", Few)
    monkeypatch.setattr(readers, "_PATIENCE", 60)  # none has to be ended on a slow machine
    problem = "^dataset.workers=3: process 3 cannot be started .Resource temporarily unavailable"
    with pytest.raises(UsageError, match=problem), reading(load("plain", kind="numbers"), 3):
        pytest.fail("it was not refused")
    assert [each.returncode for each in started] == [0, 0]


@contextlib.contextmanager
def meeting(path: Path, pairs: int) -> Iterator[list[int]]:
    """Let those who come go on two by two, so many pairs, and then one by one.

    Yields the number of pairs that have met.
    """
    met = [0]

    def meet() -> None:
        with contextlib.suppress(OSError):  # it is shut down
            while True:
                waiting = [server.accept()[0] for _ in range(2 if met[0] < pairs else 1)]
                met[0] += len(waiting) == 2
                for each in waiting:
                    each.sendall(b"!")
                    each.close()

    with socket.socket(socket.AF_UNIX) as server, ThreadPoolExecutor(1) as thread:
        server.bind(str(path))
        server.listen()
        thread.submit(meet)
        yield met
        server.shutdown(socket.SHUT_RDWR)


def test_two_are_read_at_once(load: Any, tmp_path: Path) -> None:
    with (
        meeting(tmp_path / "meeting", 6) as met,
        reading(load("plain", kind="together"), 2) as pool,
        ThreadPoolExecutor(2) as threads,
    ):
        asked = [np.arange(4) + begin for begin in range(12)]
        examples = list(threads.map(pool.splits.train.__getitem__, asked))
    assert [y.tolist() for _, y in examples] == [rows.tolist() for rows in asked]
    assert met == [6]


def in_the_task(folder: Path, kind: str, workers: int, pad: Any) -> Any:
    """Return a pool, in a process that was forked for a test."""
    from dtrain.host import python_path

    os.chdir(folder)
    os.environ["DTRAIN_TRUST"] = "reading_user"
    (folder / "reading_user.py").write_text(USER)
    python_path.offer()
    node = {"_target_": "reading_user.plain", "kind": kind}
    splits = padded(adapted(targets.instantiate(node, "dataset")), pad)
    return Pool(splits, workers, node)


@pytest.mark.task
@pytest.mark.parametrize("name", ["numbers", "texts", "nested", "padded", "buckets"])
def test_the_batches_of_a_run(name: str, tmp_path: Path) -> None:
    from dtrain.data.order import Shuffled
    from dtrain.task.backends.tensorflow import input_pipeline

    pad = KINDS[name]
    found = []
    for workers in (0, 1, 3):
        with in_the_task(tmp_path, "ragged" if pad else name, workers, pad) as pool:
            pool.ready()
            inputs = input_pipeline.Inputs(
                pool.splits.train, pool.splits.validation, 12, 3, order=Shuffled(90, 3)
            )
            pipelines = {"replicas": 2, "first_replica": 0, "local_replicas": 2}
            batches = []
            for make in (input_pipeline.training, input_pipeline.evaluation):
                iterator = make(inputs, **pipelines).as_numpy_iterator()
                batches += [next(iterator) for _ in range(30)]
            found.append(batches)
    for batches in found[1:]:
        for one, other in zip(batches, found[0], strict=True):
            same(one, other)


def test_a_frame() -> None:
    def texts(*words: Any) -> np.ndarray:
        return np.array(words, object)

    whole = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    value = (
        {"none": None, "empty": np.zeros((0, 3)), "texts": texts("a", b"\0", "")},
        (whole, whole.T, whole[:, ::2], np.array(3), np.arange(3, dtype=">f4")),
        np.ones(3, ml_dtypes.bfloat16), Ragged(np.arange(3), np.array([2, 0, 1])),
    )  # fmt: skip
    frame = Frame(value)
    found = read_frame(frame.shared(), frame.lengths)
    same(found, value)
    assert found[1][0].ctypes.data % 64 == 0


def test_memory_is_given_back_when_nothing_refers_to_it(load: Any) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("dtrain-reader")

    with reading(load("plain", kind="large"), 1) as pool:
        rows = np.arange(6)
        before = mapped()
        kept = [pool.splits.train[rows + i][0][:, 0] for i in range(5)]
        assert mapped() == before + 5, "of an array that is kept, or a part of it"
        held = [pool.splits.train[rows] for _ in range(3)]
        assert [column.tolist() for column in kept] == [(rows + i).tolist() for i in range(5)]
        assert all(x.ctypes.data % 64 == 0 for x, _ in held), "TensorFlow would copy it"
        del kept, held
        assert mapped() == before
        [[child]] = [pool._children]
        links = [os.readlink(link) for link in Path(f"/proc/{child._process.pid}/fd").iterdir()]
        assert not any("/dev/shm" in link for link in links), links
