"""The progress display: lines in a log, a bar on a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dtrain.host import answer
from dtrain.run.progress import EpochLines
from dtrain.terminal import progress
from dtrain.terminal.progress import Display, Log


def report(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": step, "total_steps": 40, "epoch": (step - 1) // 10 + 1, "epochs": 4,
        "steps_per_epoch": 10, "loss": 0.51234, "metrics": {"val_accuracy": 0.97, "loss": 1.0},
        "examples_per_second": 12345.6, "time": 100.0 + step, **changes,
    }  # fmt: skip


def display(terminal: bool, shows: str = "bar") -> tuple[Display, io.StringIO]:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=160, soft_wrap=True, highlight=False
    )
    return Display(console, shows), file


def ended(epoch: int, **changes: Any) -> dict[str, Any]:
    metrics = {"accuracy": 0.875, "loss": 10.5 / epoch, "val_loss": 1e-5, "val_accuracy": 0.97}
    return {
        "event": "epoch", "step": 10 * epoch, "epoch": epoch, "epochs": 12, "metrics": metrics,
        "epoch_seconds": 2.04, "best": epoch == 2, **changes,
    }  # fmt: skip


def test_a_log_file_has_one_line_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, file = display(terminal=False)
    shown.event({"event": "start", "objective": "val_accuracy"})
    shown.update(None)
    for epoch in (1, 2):
        for step in range(10 * epoch - 9, 10 * epoch + 1):
            shown.update(report(step))
            shown.update(report(step))
        shown.event(ended(epoch))
    rest = "val_loss 1.000e-05  val_accuracy 0.9700  accuracy 0.8750    2.0 s"
    assert file.getvalue().splitlines() == [
        f"epoch  1/12  loss 10.5000  {rest}", f"epoch  2/12  loss 5.2500   {rest}  best",
    ]  # fmt: skip
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)  # it takes long
    shown.update(report(21))
    shown.close()
    [_, _, last] = file.getvalue().splitlines()
    assert last == "epoch 3/4  step 21/40  loss 0.5123  12,346 examples/s  0:00:19 left"


def test_what_has_no_epochs_has_a_line_for_each_part() -> None:
    shown, file = display(terminal=False)
    for step in range(1, 41):
        shown.update(report(step, units=["checkpoint", "batch"]))
    assert len(file.getvalue().splitlines()) == 5  # and the last step
    assert file.getvalue().startswith("checkpoint 1/4  batch 1/40  12,346 examples/s  ? left\n")


def test_a_fork_counts_its_own_epochs() -> None:
    shown, file = display(terminal=False)
    shown.event(ended(9, epochs_before=8))
    assert file.getvalue().startswith("epoch 1/4  loss 1.1667")
    line = progress.moving_line(report(25, epochs_before=2), "?", 80)
    assert line.startswith("epoch 1/2  ")


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_what_does_not_fit_is_left_out_at_the_right(width: int) -> None:
    whole = EpochLines().line(ended(2), None)
    line = EpochLines().line(ended(2), width)
    assert line.startswith("epoch  2/12  loss 5.2500 ") and line.endswith("    2.0 s  best")
    assert len(line) <= width and (line == whole) == (width >= len(whole))
    moving = {
        progress.moving_line(report(step, **changes), "0:00:01", width)
        for step in (1, 40)
        for changes in ({}, {"evaluated": 8}, {"loss": 123.4}, {"examples_per_second": 1.0})
    }
    assert {len(line) for line in moving} == {min(width - 1, 106)}
    assert all(line.startswith("epoch ") for line in moving)
    assert ("examples/s" in moving.pop()) == (width > 80)


@pytest.mark.parametrize(("shows", "lines", "moves"), [("bar", 1, True), ("epochs", 1, False),
                                                       ("none", 0, False)])  # fmt: skip
def test_a_terminal_has_a_moving_line_below_those_that_stay(
    shows: str, lines: int, moves: bool
) -> None:
    shown, file = display(terminal=True, shows=shows)
    shown.update(report(20))
    shown.message("a line that stays")
    shown.event(ended(2))
    shown.close()
    drawn = file.getvalue()
    assert ("epoch 2/4  ━" in drawn and "\x1b[2K" in drawn) == moves  # erased, not repeated
    assert "a line that stays\n" in drawn
    assert drawn.count("epoch  2/12") == lines


def test_quiet_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer.without_quiet(["-q", "a=1"]) == ["a=1"]
    shown, file = display(terminal=True)
    assert answer.without_quiet(["a=1"]) == ["a=1"] and not answer.is_quiet()
    shown.event({"event": "notice", "message": "a notice"})
    shown.detail("a detail")
    shown.event(ended(1))
    shown.message("an error")
    shown.close()
    shown.detail("the end")
    assert file.getvalue() == "an error\nthe end\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_texts_are_shown_as_they_are(terminal: bool) -> None:
    shown, file = display(terminal)
    shown.event(ended(2, metrics={"val_[red]a[/red]:ok:": 1.0}))
    shown.message("mine.py:ok: no [bold]such[/bold] file")
    shown.close()
    assert "val_[red]a[/red]:ok: " in file.getvalue()
    assert "mine.py:ok: no [bold]such[/bold] file" in file.getvalue()


def test_a_loss_that_is_not_known() -> None:
    assert progress.counted(report(1)) + progress.measured(report(1, loss=None)) == (
        "epoch 1/4  step 1/40" + "loss -  12,346 examples/s"
    )


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
