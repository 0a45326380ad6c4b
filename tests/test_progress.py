"""The progress display: lines in a log, a bar on a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dtrain.terminal import progress
from dtrain.terminal.progress import Display, Log


def report(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": step, "total_steps": 40, "epoch": (step - 1) // 10 + 1, "epochs": 4,
        "steps_per_epoch": 10, "loss": 0.51234, "metrics": {"val_accuracy": 0.97, "loss": 1.0},
        "examples_per_second": 12345.6, "time": 100.0 + step, **changes,
    }  # fmt: skip


def display(terminal: bool) -> tuple[Display, io.StringIO]:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=160, soft_wrap=True, highlight=False
    )
    return Display(console), file


def test_lines_in_a_log_file() -> None:
    shown, file = display(terminal=False)
    shown.update(None)
    shown.update(report(1))
    shown.update(report(20))
    shown.close()
    first, second = file.getvalue().splitlines()
    assert first.startswith("epoch 1/4  step 1/40  loss 0.5123  12,346 examples/s")
    assert first.endswith("? left")
    assert second.startswith("epoch 2/4  step 20/40")
    assert "val_accuracy 0.97" in second
    assert second.endswith("0:00:20 left")  # one second a step, 20 to go


def test_a_log_file_gets_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, file = display(terminal=False)
    for step in range(1, 41):
        shown.update(report(step))
        shown.update(report(step))
    assert len(file.getvalue().splitlines()) == 5  # one an epoch, and the last step
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    shown.update(report(2))
    shown.update(report(3))
    assert len(file.getvalue().splitlines()) == 7


def test_a_terminal_is_redrawn() -> None:
    shown, file = display(terminal=True)
    shown.update(report(20))
    shown.message("a line that stays")
    shown.close()
    drawn = file.getvalue()
    for part in ("epoch 2/4", "step 20/40", "loss 0.5123", "12,346 examples/s", "val_accuracy"):
        assert part in drawn
    assert "\x1b[2K" in drawn  # the line is erased, not repeated
    assert "a line that stays" in drawn


@pytest.mark.parametrize("terminal", [False, True])
def test_texts_are_shown_as_they_are(terminal: bool) -> None:
    shown, file = display(terminal)
    shown.update(report(20, metrics={"val_[red]a[/red]:ok:": 1.0}))
    shown.message("mine.py:ok: no [bold]such[/bold] file")
    shown.close()
    assert "val_[red]a[/red]:ok: " in file.getvalue()
    assert "mine.py:ok: no [bold]such[/bold] file" in file.getvalue()


def test_a_loss_that_is_not_known() -> None:
    shown, file = display(terminal=False)
    shown.update(report(1, loss=None))
    assert "loss -" in file.getvalue()


CHATTER = (
    "2026-11-21 04:11:17.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This\n"
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    "E0000 00:00:1700000000.123456   12345 cuda_platform.cc:52] failed call to cuInit\n"
    "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
    "I1121 04:11:17.000000 139 grpc_server_lib.cc:463] Started server\n"
    "W1121 04:11:17.000000 139 coordination_service.cc:1] lost\n"
    "[rank1]:[W1126 13:00:17.961000 139 ProcessGroupGloo.cpp:1] a warning\n"
    "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while "
    "calling /tensorflow.WorkerService/RecvBuf:\n"
    ':UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"Socket closed"}\n'
)


def test_a_log_is_shown_without_tensorflows_chatter(tmp_path: Path) -> None:
    path = tmp_path / "chief-0.log"
    tail = Log(path)
    assert [*tail.new()] == [], "it does not exist yet"
    lines = ["mine: 3", "", "Every Word", "E. coli: 7", "2026-11-21 is a day", "W 5"]
    path.write_text("".join(f"{line}\n{CHATTER}" for line in lines))
    assert [*tail.new()] == lines
    assert [*tail.new()] == []


def test_a_log_of_megabytes_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PIECE", 8)
    path = tmp_path / "chief-0.log"
    path.write_text("one\ntwo\nthree\n0123456789\nlast\n")
    tail = Log(path)
    assert [*tail.new()] == ["one", "two", "three", "01234567", "89", "last"]
    assert [*tail.new()] == []


def test_what_is_there_already_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "chief-0.log"
    tail = Log(path)
    tail.skip()
    assert [*tail.new()] == [], "it does not exist yet"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    tail.skip()
    with path.open("ab") as file:
        file.write(b"news\n")
    assert [*tail.new()] == ["news"]


def test_a_torn_last_line_is_shown_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "chief-0.log"
    tail = Log(path)
    text = "first\nZürich\n".encode() + CHATTER.encode() + b"last \xff\n"
    found: list[list[str]] = []
    with path.open("ab", buffering=0) as file:
        for position in range(len(text)):  # also between the two bytes of a letter
            file.write(text[position : position + 1])
            found.append([*tail.new()])
    assert [line for lines in found for line in lines] == ["first", "Zürich", "last \ufffd"]
    assert found[text.index(b"\n")] == ["first"]
    assert found[-1] == ["last \ufffd"]
    with path.open("a") as file:
        file.write("no end")
    assert [*tail.new()] == []


def test_what_is_reported_elsewhere_is_left_out_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "chief-0.log"
    path.write_text("first\nTrainingError: the loss: is nan\nthe loss: is nan\nlast\n")
    assert [*Log(path).new("the loss: is nan")] == ["first", "the loss: is nan", "last"]
