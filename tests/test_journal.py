from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dtrain.errors import DamagedFile
from dtrain.run import journal
from dtrain.run.journal import Follower, Journal

NOTICE = '{"event": "notice", "time": 1.0, "message": "Zürich"}\n'.encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_an_event_can_be_read_when_write_returns(path: Path) -> None:
    log = Journal(path)
    before = time.time()
    log.write("checkpoint", step=3, path="a\nb")
    (event,) = journal.read(path)
    assert before - 0.001 <= event.pop("time") <= time.time() + 0.001
    assert event == {"event": "checkpoint", "step": 3, "path": "a\nb"}
    log.write("notice", time=5.0, message="é")
    assert journal.read(path)[1] == {"event": "notice", "time": 5.0, "message": "é"}
    log.close()
    assert path.read_bytes().count(b"\n") == 2


def test_numbers_that_are_none_round_trip_through_strict_json(path: Path) -> None:
    log = Journal(path)
    log.write("metrics", step=1, metrics={"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1})
    log.write("notice", values=[math.nan, 1.0])
    log.close()

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    found, notice = journal.read(path)
    metrics = found["metrics"]
    assert notice["values"] == ["nan", 1.0]
    assert math.isnan(metrics.pop("a"))
    assert metrics == {"b": math.inf, "c": -math.inf, "d": 1.0}
    assert all(isinstance(value, float) for value in metrics.values())


TAILS = {"none": b"", "brace": b"{", "no newline": NOTICE[:-1], "half": NOTICE[:-6], "nul": b"\0"}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
@pytest.mark.parametrize("whole", [b"", NOTICE, NOTICE * 3], ids=["none", "one", "three"])
def test_a_torn_last_line_is_cut_off(path: Path, whole: bytes, tail: bytes) -> None:
    path.write_bytes(whole + tail)
    assert len(journal.read(path)) == whole.count(b"\n")
    with contextlib.closing(Journal(path)) as log:
        assert path.read_bytes() == whole
        log.write("notice", message="next")
    assert path.read_bytes().startswith(whole)
    assert [e["message"] for e in journal.read(path)] == ["Zürich"] * whole.count(b"\n") + ["next"]


def test_lines_of_several_threads_stay_whole(path: Path) -> None:
    log = Journal(path)

    def write(thread: int) -> None:
        for i in range(100):
            log.write("notice", message="x" * 50 * thread, thread=thread, i=i)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    events = journal.read(path)
    assert len(events) == 400
    for n in range(4):
        assert [e["i"] for e in events if e["thread"] == n] == list(range(100))


def test_follower_returns_each_event_once_and_whole(path: Path) -> None:
    follower = Follower(path)
    assert follower.new() == []
    middle = NOTICE.index("ü".encode()) + 1  # inside the two bytes of one letter
    found = []
    with path.open("ab", buffering=0) as file:
        for piece in (b"", NOTICE[:5], NOTICE[5:middle], NOTICE[middle:-1], b"\n" + NOTICE * 2):
            file.write(piece)
            found.append(len(follower.new()))
    assert found == [0, 0, 0, 0, 3]
    assert follower.new() == []
    assert [e["message"] for e in journal.read(path)] == ["Zürich"] * 3


def back(path: Path, step: int, validated: bool = True) -> None:
    """Have another command go on from a checkpoint."""
    with contextlib.closing(Journal(path)) as log:
        log.write(journal.RESUMED, step=step, validated=validated)


def test_follower_reads_a_run_that_goes_back_from_its_beginning(path: Path) -> None:
    """A job that continues from a checkpoint writes again what it had written."""
    follower = Follower(path)
    with contextlib.closing(Journal(path)) as log:
        for step in range(1, 6):
            log.write("metrics", step=step, metrics={"loss": 1.0 / step})
        assert [event["step"] for event in follower.new()] == [1, 2, 3, 4, 5]
        log.write("restart", step=3, message="worker-0 died")
        found = follower.new()
        assert [event["event"] for event in found] == ["metrics"] * 3 + ["restart"]
        assert follower.new() == []
        log.write("metrics", step=4, metrics={"loss": 0.5})
    [event] = follower.new()
    assert (event["step"], event["metrics"]) == (4, {"loss": 0.5})
    back(path, 2)
    with contextlib.closing(Journal(path)) as log:
        for step in range(3, 40):
            log.write("metrics", step=step, metrics={"another": step})
    assert [event["step"] for event in follower.new()] == [*range(1, 40)]
    assert [event["step"] for event in journal.read(path)] == [*range(1, 40)]


def test_a_follower_that_skipped_is_told_of_all_after_a_return(path: Path) -> None:
    with contextlib.closing(Journal(path)) as log:
        log.write("metrics", step=1, metrics={})
        log.write("metrics", step=2, metrics={})
    back(path, 1)
    follower = Follower(path)
    follower.skip()
    assert follower.new() == []
    back(path, 1)
    assert [event["step"] for event in follower.new()] == [1]


EVENTS: list[dict[str, Any]] = [
    {"event": "init", "path": "p", "digest": "d"},
    {"event": "metrics", "step": 1, "metrics": {"loss": math.inf}},
    {"event": "notice", "message": "m"},
    {"event": "checkpoint", "step": 2, "path": "2"},
    {"event": "metrics", "step": 3, "metrics": {"loss": 0.5}},
    {"event": "error", "kind": "training", "message": "m"},
    {"event": "end", "status": "failed", "step": 3},
]


@pytest.mark.parametrize(
    ("step", "kept"), [(0, [0, 2]), (1, [0, 1, 2]), (2, [0, 1, 2, 3]), (3, [0, 1, 2, 3, 4])]
)
def test_what_a_resumed_run_writes_again_is_passed_over(
    path: Path, step: int, kept: list[int]
) -> None:
    log = Journal(path)
    for event in EVENTS:
        log.write(**event)
    log.close()
    before = journal.read(path)
    written = path.read_bytes()
    back(path, step)
    assert journal.read(path) == [before[i] for i in kept]
    assert path.read_bytes().startswith(written), "nothing is taken back"
    assert os.listdir(path.parent) == [path.name]


def test_a_return_of_a_torn_or_absent_journal(path: Path) -> None:
    back(path, 0)
    assert journal.read(path) == []
    path.write_bytes(NOTICE + NOTICE[:9])
    back(path, 0)
    assert path.read_bytes().count(b"\n") == 2
    assert journal.read(path)[0]["message"] == "Zürich"


def test_a_validation_that_will_be_done_again_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    log = Journal(path)
    for step in (4, 8):
        for kind, metrics in (
            ("interval", {"loss": 1.0, "val_rate": 2.0}),
            ("epoch", {"epoch_examples": 4.0}),
            ("validation", {"val_loss": 1.0, "examples_per_second": 0.5}),  # a callback's
        ):
            log.write("metrics", step=step, epoch=1, kind=kind, metrics=metrics)
    log.close()
    back(path, 4)
    assert [event["kind"] for event in journal.read(path)] == ["interval", "epoch", "validation"]
    before = journal.read(path)
    back(path, 4, validated=False)
    assert journal.read(path) == before[:-1]


DAMAGED = {
    "zeros": b"\0" * 5000, "empty": b"", "torn": NOTICE[:20] + NOTICE[:20], "list": b"[1]",
    "not utf-8": b'{"event": "notice", "time": 1.0, "message": "\xff"}', "text": b'"x"',
    "deep": b"[" * 100_000, "deeper": b'{"event": "a", "time": 1, "x": ' + b"[" * 100_000,
    "no event": b'{"time": 1.0}', "no time": b'{"event": "notice"}',
    "nan time": b'{"event": "a", "time": NaN}',
    "no step": b'{"event": "metrics", "time": 1.0, "metrics": {}}',
    "a step of text": b'{"event": "metrics", "time": 1.0, "step": "1", "metrics": {}}',
    "a step below 0": b'{"event": "checkpoint", "time": 1.0, "step": -1}',
    "metrics of text": b'{"event": "metrics", "time": 1.0, "step": 1, "metrics": "x"}',
    "a metric of a list": b'{"event": "metrics", "time": 1.0, "step": 1, "metrics": {"a": []}}',
    "a metric too large": b'{"event": "metrics", "time": 1, "step": 1, "metrics": {"a": 1'
    + b"0" * 400 + b"}}",
    "too long": b'{"event": "notice", "time": 1, "message": "' + b"x" * journal.LINE_BYTES + b'"}',
}  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_costs_that_line(path: Path, line: bytes) -> None:
    path.write_bytes(NOTICE + line + b"\n" + NOTICE * 2)
    follower = Follower(path)
    assert [event["message"] for event in follower.new()] == ["Zürich"] * 3
    said = "journal.jsonl: passed over 1 damaged line, the first is line 2"
    assert (follower.damaged, follower.notice()) == (1, said)


def test_a_long_line_that_is_still_written(path: Path) -> None:
    follower = Follower(path)
    half = b"x" * (journal.LINE_BYTES // 2)
    path.write_bytes(NOTICE + half)
    assert len(follower.new()) == 1
    with path.open("ab") as file:
        for _ in range(3):
            file.write(half)
            file.flush()
            assert follower.new() == []
        file.write(b"\n" + NOTICE)
    assert (len(follower.new()), follower.damaged) == (1, 1)
    follower.skip()
    assert follower.new() == []


def test_what_is_no_journal_is_not_read_to_its_end(path: Path) -> None:
    path.write_bytes(b"\n" * 200_000)
    with pytest.raises(DamagedFile, match="more than 100,000 damaged lines"):
        journal.read(path)


def test_lines_without_an_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LONG_BYTES", 4 << 20)
    path.write_bytes(b"\0" * (6 << 20))
    with pytest.raises(DamagedFile, match="has lines of more than"):
        journal.read(path)


def test_what_is_passed_over_with_skip_is_not_news(path: Path) -> None:
    follower = Follower(path)
    path.write_bytes(NOTICE * 3 + NOTICE[:9])
    follower.skip()
    with path.open("ab") as file:
        file.write(NOTICE[9:] + NOTICE)
    assert len(follower.new()) == 2


def test_a_full_disk_leaves_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Journal(path)
    log.write("notice", message="one")
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 9:
            return write(descriptor, data[:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        log.write("notice", message="two")
    monkeypatch.setattr(os, "write", write)
    log.write("notice", message="three")
    log.close()
    assert [event["message"] for event in journal.read(path)] == ["one", "three"]
    assert path.read_bytes().count(b"\n") == 2


def test_an_event_is_not_longer_than_a_line_may_be(path: Path) -> None:
    with contextlib.closing(Journal(path)) as log:
        with pytest.raises(ValueError, match="the event notice has"):
            log.write("notice", message="x" * journal.LINE_BYTES)
        log.write("notice", message="a name of a file: \udcff")
    [event] = journal.read(path)
    assert event["message"] == "a name of a file: ?"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_journal_is_a_file_of_its_own(path: Path, tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other"
    other.write_bytes(NOTICE + b"torn")
    {
        "link": lambda: path.symlink_to(other),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[kind]()
    with pytest.raises(DamagedFile, match="is a"):
        Journal(path)
    if kind != "hard link":
        with pytest.raises(DamagedFile, match="not a regular file"):
            journal.read(path)
    assert other.read_bytes() == NOTICE + b"torn"
