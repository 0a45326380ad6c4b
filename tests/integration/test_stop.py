"""Asked to stop at any moment and resumed, a run ends with the bits of one that was not.

A moment is an operation of a task: a call of the user's function, a step, a call of a validation, a
file operation of a save. 9 here, 100 by ``make test-faults``.
"""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from dtrain import checkpoint
from tests.conftest import Run
from tests.integration.test_failures import processes
from tests.integration.test_kill import BASE, STEPS, STRATEGIES, USER, seconds, state, undisturbed

WITH = {
    **STRATEGIES,
    "ps": ("strategy=ps", "strategy.update=sync", "strategy.workers=2", "strategy.servers=1"),
}
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
#: What a run does before its first step; each may take for ever.
STARTING = ("dataset", "model", "trace")
#: Calls of all validations: two whole batches and a rest, four times.
CALLS = 12


def order(draw: random.Random, strategy: str, moment: str, count: int = 1) -> dict[str, Any]:
    """Have a stop asked for; return what is ordered."""
    tasks = ["chief-0", "worker-0"] if strategy == "multiworker" else ["chief-0"]
    chiefs = moment in ("saving", "saving the model")
    starting = moment in STARTING or moment == "restoring"
    found = {
        "moment": moment,
        "count": count,
        "task": "chief-0" if chiefs else draw.choice(tasks),
        "pid": draw.choice([0, os.getpid()]),  # the task itself, or the controller
        "signal": draw.choice(SIGNALS),
        "hang": starting,
        "heard": moment in ("training", "validation"),
    }
    Path("stopped.json").unlink(missing_ok=True)
    Path("stop.json").write_text(json.dumps(found))
    return found


def stopped(dtrain: Any, folder: Path, what: dict[str, Any], *words: str) -> Run:
    """Run a command that is asked to stop, and look at how it ends."""
    run = dtrain(*words)
    about = f"{what}\n{run.output}"
    assert Path("stopped.json").exists(), about
    assert "ended by force" not in run.output, about
    assert "Traceback" not in run.output, about
    assert processes(folder) == {}, about
    status = {0: "FINISHED", 75: "KILLED", 1: "KILLED"}[run.code]
    assert run.result["status"] == status, about
    return run


def interrupted(draw: random.Random, strategy: str, kind: str, dtrain: Any, folder: Path) -> Run:
    """Begin a run that is asked to stop at a moment of a kind; return it."""
    words = (*BASE, *WITH[strategy])
    if kind == "start":
        what = order(draw, strategy, draw.choice(STARTING))
        run = stopped(dtrain, folder, what, *words)
        assert (run.code, checkpoint.steps(run.rundir.checkpoints)) == (1, []), run.output
        assert run.result["error"] == "stopped before a checkpoint was saved"
    elif kind == "training":
        what = order(draw, strategy, "training", draw.randint(1, STEPS - 1))
        run = stopped(dtrain, folder, what, *words)
        assert run.code == 75, (what, run.output)
        # Another task, and what comes by the controller, is heard of at the next step.
        assert run.result["step"] in range(what["count"], what["count"] + 3)
    elif kind == "validation":
        what = order(draw, strategy, "validation", draw.randint(1, CALLS - 1))
        run = stopped(dtrain, folder, what, *words)
        assert run.code == 75, (what, run.output)
        assert run.result["step"] == STEPS // 4 * (-(-what["count"] // 3)), what
    elif kind == "saving":
        # What is saved meanwhile may be the last.
        what = order(draw, strategy, "saving", draw.randint(1, 120))
        run = stopped(dtrain, folder, what, *words)
        assert run.code in (0, 75), (what, run.output)
    elif kind == "end":
        what = order(draw, strategy, draw.choice(["the end", "saving the model"]))
        run = stopped(dtrain, folder, what, *words)
        assert run.code == 0, (what, run.output)
    else:
        first = interrupted(draw, strategy, "training", dtrain, folder)
        step = first.result["step"]
        moment = draw.choice(["restoring", *STARTING])
        what = order(draw, strategy, moment, draw.randint(1, 6) if moment == "restoring" else 1)
        run = stopped(dtrain, folder, what, f"resume={first.rundir.path}")
        assert run.code == 75, (what, run.output)
        assert checkpoint.steps(run.rundir.checkpoints)[-1] == run.result["step"] == step
    return run


def campaign() -> list[Any]:
    """Return (strategy, kind, seed): 9 for ``make test``, 100 for the campaign."""
    kinds = ("start", "training", "validation", "saving", "restoring", "end")
    short = [
        ("one_device", "start", 0), ("one_device", "validation", 1), ("one_device", "saving", 0),
        ("one_device", "restoring", 0), ("one_device", "end", 0), ("multiworker", "validation", 0),
        ("multiworker", "start", 1), ("ps", "validation", 0), ("ps", "training", 0),
    ]  # fmt: skip
    strategies = ("one_device", "multiworker", "ps")
    long = [(s, k, seed) for seed in range(100, 106) for s in strategies for k in kinds][:100]
    return [pytest.param(*each, id="-".join(map(str, each))) for each in short] + [
        pytest.param(*each, id="-".join(map(str, each)), marks=pytest.mark.faults) for each in long
    ]


@pytest.mark.parametrize(("strategy", "kind", "seed"), campaign())
def test_the_bits_are_those_of_a_run_that_was_not_stopped(
    strategy: str, kind: str, seed: int, dtrain, user_code, tmp_path: Path
) -> None:
    user_code(USER)
    if strategy not in undisturbed:
        whole = dtrain(*BASE, *WITH[strategy])
        assert whole.code == 0, whole.output
        undisturbed[strategy] = state(whole), seconds(whole)
        os.rename("outputs", "whole")
    draw = random.Random(f"{strategy} {kind} {seed}")
    run = interrupted(draw, strategy, kind, dtrain, tmp_path)
    about = f"{Path('stopped.json').read_text()}\n{run.output}"
    resumed = run if run.code == 0 else dtrain(f"resume={run.rundir.path}")
    assert resumed.code == 0, about + resumed.output
    assert state(resumed) == undisturbed[strategy][0], about
    assert resumed.result["epoch_examples"] == [240] * 4
    left = {path.name for path in resumed.rundir.path.iterdir()}
    assert "model.keras" in left and not any(name.startswith(".saving") for name in left)
    assert len(list(resumed.rundir.checkpoints.iterdir())) <= 4
