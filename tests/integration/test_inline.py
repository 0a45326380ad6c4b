"""``launcher=inline``: the whole job in one process, for a debugger."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dtrain.run import journal
from tests import warm
from tests.conftest import QUICK


def whole_job(folder: str, arguments: list[str]) -> tuple[int, int]:
    """Run the command line here, in a process that may have TensorFlow."""
    import multiprocessing
    import warnings

    warnings.simplefilter("default")
    from dtrain.cli.app import main

    os.chdir(folder)
    sys.argv = ["dtrain", *arguments]
    return main(), len(multiprocessing.active_children())


def test_inline_gives_the_numbers_of_local(dtrain, tmp_path: Path) -> None:
    local = dtrain(*QUICK)
    here = tmp_path / "here"
    here.mkdir()
    arguments = [*QUICK, "launcher=inline"]
    code, children = warm.call(whole_job, 1, {"folder": str(here), "arguments": arguments})
    assert (code, children) == (0, 0)
    [path] = here.glob("outputs/*/*/journal.jsonl")
    points = {
        e["step"]: e["metrics"]["loss"]
        for e in journal.read(path)
        if e["event"] == "metrics" and "loss" in e["metrics"]
    }
    assert points == local.points("loss")
