"""The live table of a sweep, and its lines in a log file."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from dtrain.controller.sweep import table as module
from dtrain.controller.sweep.table import Row, Table


def report(step: int) -> dict[str, Any]:
    return {"step": step, "total_steps": 40, "epoch": (step - 1) // 10 + 1, "epochs": 4,
            "time": 100.0 + step}  # fmt: skip


def shown(terminal: bool, height: int = 30) -> tuple[Table, io.StringIO]:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=100, height=height, soft_wrap=True,
        highlight=False,
    )  # fmt: skip
    return Table("val_accuracy", 20, console), file


def test_time_left() -> None:
    row = Row(3, {})
    assert (row.left, row.epoch) == ("", "")
    row.state = "running"
    row.update(report(1))
    assert (row.left, row.epoch) == ("? left", "1/4")
    row.update(report(11))
    assert (row.left, row.epoch) == ("0:00:29 left", "2/4")
    row.update(None)
    assert row.left == ""
    row.seconds = 61.2
    assert row.left == "0:01:01"


def test_texts_are_shown_as_they_are() -> None:
    table, file = shown(terminal=True)
    table.add(0, {"metrics[0]": "a:ok:[red]"})
    table.message("mine.py:ok: [bold]")
    table._shown_at = 0.0
    table.refresh()
    table.close()
    for text in ("metrics[0]", "a:ok:[red]", "mine.py:ok: [bold]"):
        assert text in file.getvalue()


def test_lines_in_a_log_file(monkeypatch: pytest.MonkeyPatch) -> None:
    table, file = shown(terminal=False)
    first, second = table.add(0, {"strategy": "mirrored"}), table.add(1, {})
    table.began(first)
    table.refresh()  # it is not time
    first.objective = 0.97123
    table.ended(first, "FINISHED", 12.0, None)
    table.began(second)
    second.update(report(11))
    monkeypatch.setattr(module, "LINE_SECONDS", 0.0)
    table.refresh()
    table.ended(second, "FAILED", 3.0, "chief-0: bang")
    table.close()
    assert file.getvalue().splitlines() == [
        "job 0 (strategy=mirrored): begins",
        "job 0 (strategy=mirrored): FINISHED  val_accuracy 0.9712  0:00:12  (1 of 20 done)",
        "job 1: begins",
        "1 of 20 done; running: job 1 epoch 2/4 ? left",
        "job 1: FAILED: chief-0: bang",
    ]


def test_a_terminal_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PICTURE_SECONDS", 0.0)
    table, file = shown(terminal=True)
    rows = [table.add(n, {"strategy": s}) for n, s in enumerate(["mirrored", "ps"])]
    table.began(rows[0])
    rows[0].update(report(11))
    rows[0].objective = 0.5
    table.refresh()
    drawn = file.getvalue()
    for part in ("strategy", "mirrored", "running", "2/4", "0.5", "? left", "waiting", "0 of 20"):
        assert part in drawn
    assert "begins" not in drawn
    table.ended(rows[1], "FAILED", 1.0, "bang")
    assert "job 1 (strategy=ps): FAILED: bang" in file.getvalue()  # above the table
    table.close()
    assert "\x1b[2K" in file.getvalue()  # the picture is erased, not repeated


def test_a_small_terminal_shows_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PICTURE_SECONDS", 0.0)
    table, file = shown(terminal=True, height=9)
    rows = [table.add(n, {"seed": f"s{n}"}) for n in range(20)]
    for row in rows[:10]:
        row.state = "FINISHED"
    rows[4].state = "FAILED"
    table.began(rows[12])
    table.refresh()
    drawn = file.getvalue()
    assert "s12" in drawn and "s4" in drawn and "s10" in drawn
    assert "s5" not in drawn
    assert "10 of 20 done, 16 more" in drawn
    table.close()
