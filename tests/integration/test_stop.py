"""Asked to stop at any moment and resumed, a run ends with the bits of one that was not.

A moment is an operation of a task: a call of the user's function, a step, a call of a validation, a
file operation of a save. 3 here, 36 by ``make test-faults``.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtrain.run import checkpoint
from tests.conftest import QUICK, Run
from tests.integration.test_failures import command as command  # a fixture
from tests.integration.test_failures import processes, until
from tests.integration.test_kill import BASE, STEPS, STRATEGIES, USER, seconds, state, undisturbed
from tests.sampled import sampled

WITH = {
    **STRATEGIES,
    "ps": (
        "strategy=ps",
        "strategy.update=sync",
        "strategy.workers=2",
        "strategy.servers=1",
        "+model.synchronized=false",
    ),
}
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
#: What a run does before its first step; each may take for ever.
STARTING = ("dataset", "model", "trace")
#: Calls of each of four validations: two whole batches and a rest; two hosts take them at once.
CALLS = {"one_device": 3, "multiworker": 2, "ps": 3}


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
        assert run.error == "stopped before a checkpoint was saved"
    elif kind == "training":
        what = order(draw, strategy, "training", draw.randint(1, STEPS - 1))
        run = stopped(dtrain, folder, what, *words)
        assert run.code == 75, (what, run.output)
        # Another task, and what comes by the controller, is heard of at the next step.
        assert run.result["step"] in range(what["count"], what["count"] + 3)
    elif kind == "validation":
        what = order(draw, strategy, "validation", draw.randint(1, 4 * CALLS[strategy] - 1))
        run = stopped(dtrain, folder, what, *words)
        assert run.code == 75, (what, run.output)
        assert run.result["step"] == STEPS // 4 * (-(-what["count"] // CALLS[strategy])), what
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
    """Return (strategy, kind, seed): 3 for ``make test``, 36 for the campaign."""
    kinds = ("start", "training", "validation", "saving", "restoring", "end")
    short = [
        ("one_device", "start", 0), ("one_device", "validation", 1), ("one_device", "saving", 0),
    ]  # fmt: skip
    strategies = ("one_device", "multiworker", "ps")
    long = [(s, k, seed) for seed in (100, 101) for s in strategies for k in kinds]
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


def test_a_validation_that_outlives_its_time(dtrain, user_code, tmp_path: Path) -> None:
    """One that nothing can end but force: the epoch before it is not lost."""
    user_code(USER)
    words = (*BASE, *WITH["one_device"])
    if "one_device" not in undisturbed:
        whole = dtrain(*words)
        assert whole.code == 0, whole.output
        undisturbed["one_device"] = state(whole), seconds(whole)
        os.rename("outputs", "whole")
    what = order(random.Random(0), "one_device", "validation", 4)
    Path("stop.json").write_text(json.dumps({**what, "hang": True}))
    run = dtrain(*words, "checkpoint.every_steps=null", "launcher.grace_seconds=2")
    assert run.code == 75, run.output
    assert "ended by force" in run.output
    newest, problems = checkpoint.newest(run.rundir.checkpoints)
    assert (newest.step, newest.meta["pending_validation"], problems) == (20, True, [])
    assert [e["step"] for e in run.events("metrics") if "val_loss" in e["metrics"]] == [10]
    resumed = dtrain(f"resume={run.rundir.path}", "checkpoint.every_steps=3")
    assert resumed.code == 0, resumed.output
    assert state(resumed) == undisturbed["one_device"][0]


@pytest.mark.parametrize("number", sampled([signal.SIGTERM, signal.SIGHUP], signal.SIGHUP))
def test_a_command_that_is_still_looking_at_its_data(
    number: signal.Signals, command, dtrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was made for it, or the run is as it was."""
    words = ("dataset=digits", "model=mlp", "tracking=none", "trainer.epochs=1")
    run = dtrain(*words)
    assert run.code == 0, run.output
    before = {path: path.read_bytes() for path in Path("outputs").rglob("*") if path.is_file()}
    # The file of the digits is a pipe, in every command from here on: who reads it waits for ever.
    package = Path(__file__).parents[2] / "dtrain"
    pipe = tmp_path / "slow" / "dtrain" / "datasets" / "digits.csv.gz"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    for folder in (package, package / "datasets"):
        for each in folder.iterdir():
            with contextlib.suppress(FileExistsError):
                (tmp_path / "slow" / each.relative_to(package.parent)).symlink_to(each)
    (tmp_path / "slow" / "conf").symlink_to(package.with_name("conf"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/slow")
    held: list[int] = []

    def read() -> bool:
        with contextlib.suppress(OSError):  # nobody has opened it
            held.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(held)

    for arguments, code in ((words, 1), ((f"resume={run.rundir.path}", "trainer.epochs=2"), 75)):
        started = command(*arguments)
        until(read, lambda started=started: started.output)
        started.process.send_signal(number)
        assert started.process.wait(60) == code, started.output
        os.close(held.pop())
        assert "Traceback" not in started.output
        after = {path: path.read_bytes() for path in Path("outputs").rglob("*") if path.is_file()}
        assert after == before


#: Takes the terminal on its standard input for its own, as a shell's session does.
SESSION = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "dtrain", *sys.argv[1:]])
"""


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """Every process of it is told by SIGHUP, and none can print any more."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SESSION, *QUICK, "trainer.epochs=20000",
         "trainer.log_every_steps=1000"],
        cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    shown = b""

    def saved() -> bool:
        nonlocal shown
        with contextlib.suppress(BlockingIOError):
            shown += os.read(ours, 1 << 16)
        return any(tmp_path.glob("outputs/*/*/checkpoints/latest"))

    try:
        until(saved, lambda: shown.decode())
        os.close(ours)
        assert process.wait(60) == 75
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    [path] = tmp_path.glob("outputs/*/*/result.json")
    result = json.loads(path.read_text())
    assert result["status"] == "KILLED"
    newest, _ = checkpoint.newest(path.parent / "checkpoints")
    assert newest is not None and newest.step == result["step"]
    until(lambda: processes(tmp_path) == {}, lambda: processes(tmp_path), 20)
