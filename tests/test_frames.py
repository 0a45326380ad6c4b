"""Tracebacks on the terminal: the frames of the user's own code."""

from __future__ import annotations

import os
from pathlib import Path

import dtrain
from dtrain.terminal.progress import Frames, Log

HOME = os.path.dirname(dtrain.__file__)
PACKAGES = "/usr/lib/python3.11/site-packages"
HEAD = "Traceback (most recent call last):"


def frame(file: str, code: str) -> list[str]:
    return [f'  File "{file}", line 3, in call', f"    {code}", "    ^^^^"]


def test_the_frames_of_the_user_are_left() -> None:
    own = [*frame("/home/me/net.py", "inside(x)"), *frame(f"{PACKAGES}/mine/layer.py", "one()")]
    lines = [
        "before", HEAD, *frame(f"{HOME}/task/main.py", "run()"), *own[:3],
        *frame(f"{PACKAGES}/keras/src/layer.py", "call()"), *own[3:],
        *frame("/usr/lib/python3.11/contextlib.py", "enter()"),
        "ValueError: bad", "", "  indented, behind it", "after",
    ]  # fmt: skip
    frames = Frames()
    found = [kept for line in lines for kept in frames.kept([line])]  # as a log grows
    assert found == [
        "before", HEAD, *own, "ValueError: bad", "", "  indented, behind it", "after",
    ]  # fmt: skip


def test_of_a_traceback_of_others_its_last_line_is_left() -> None:
    lines = [HEAD, *frame(f"{PACKAGES}/tensorflow/x.py", "run()"), "OSError: 3", HEAD]
    assert [*Frames().kept(lines)] == ["OSError: 3"]


def test_a_log_is_shown_so(tmp_path: Path) -> None:
    path = tmp_path / "chief-0.log"
    path.write_text("\n".join([HEAD, *frame(f"{HOME}/x.py", "run()"), "KeyError: 1\n"]))
    assert [*Log(path).new()] == ["KeyError: 1"]
