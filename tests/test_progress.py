"""The progress display: lines in a log, a bar on a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from dtrain.controller import progress
from dtrain.controller.progress import Display


def report(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": step, "total_steps": 40, "epoch": (step - 1) // 10 + 1, "epochs": 4,
        "steps_per_epoch": 10, "loss": 0.51234, "metrics": {"val_accuracy": 0.97, "loss": 1.0},
        "examples_per_second": 12345.6, "time": 100.0 + step, **changes,
    }  # fmt: skip


def display(terminal: bool) -> tuple[Display, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=160, soft_wrap=True)
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


def test_a_loss_that_is_not_known() -> None:
    shown, file = display(terminal=False)
    shown.update(report(1, loss=None))
    assert "loss -" in file.getvalue()
