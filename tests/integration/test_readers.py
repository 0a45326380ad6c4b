"""Runs whose data is read by processes: the same numbers, and nothing is left of these."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtrain import errors
from tests.conftest import QUICK
from tests.integration.test_failures import Command, command, sound, until
from tests.sampled import sampled

__all__ = ["command"]  # a fixture

USER = '''
import contextlib
import os
import pathlib
import signal

import numpy as np

from dtrain.data.sources import Source, Splits


class Rows(Source):
    """Notes who reads it; may be asked to end its process in the midst."""

    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return self.examples

    def __getitem__(self, rows):
        pathlib.Path("readers", str(os.getpid())).touch()
        order = pathlib.Path("kill the reader")
        if len(rows) > 1 and order.exists():
            with contextlib.suppress(FileNotFoundError):  # The other reader has taken it.
                order.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        x = np.stack([np.random.default_rng(int(row)).normal(size=8) for row in rows])
        x = x.astype("float32")
        return x, (x.sum(1) > 0).astype("int64") + (x[:, 0] > 1)


def load():
    return Splits(Rows(128), Rows(50), 3)
'''
CALLBACKS = '''
import os
import pathlib
import signal

import keras


class Order(keras.callbacks.Callback):
    """Has something killed at the end of the second epoch, or waits there."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def on_epoch_end(self, epoch, logs=None):
        if epoch != 1:
            return
        if self.what == "reader":
            pathlib.Path("kill the reader").touch()
        elif self.what == "task" and not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.what == "wait":
            pathlib.Path("waits").touch()
            signal.pause()
'''
RUN = (
    *(argument for argument in QUICK if not argument.startswith("dataset")),
    "dataset=custom",
    "dataset._target_=readers_user.load",
    "trainer.epochs=4",
)
NUMBERS = ("loss", "accuracy", "val_loss", "val_accuracy")


def order(what: str) -> str:
    return f"trainer.callbacks=[{{_target_:readers_callbacks.Order,what:{what}}}]"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def code(user_code: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not one module: readers would import Keras with the source.
    user_code(USER, "readers_user")
    user_code(CALLBACKS, "readers_callbacks")
    monkeypatch.setenv("DTRAIN_TRUST", "readers_user,readers_callbacks")
    (tmp_path / "readers").mkdir()


def who_read(folder: Path) -> set[int]:
    """Return the processes that have read since the last such call."""
    found = {int(path.name) for path in (folder / "readers").iterdir()}
    for pid in found:
        (folder / "readers" / str(pid)).unlink()
    return found


@pytest.mark.faults
@pytest.mark.usefixtures("code")
def test_the_numbers_are_those_of_a_run_without(dtrain: Any, tmp_path: Path) -> None:
    shared = set(os.listdir("/dev/shm"))
    runs = {}
    for workers in (0, 3):
        runs[workers] = dtrain(*RUN, f"dataset.workers={workers}")
        assert runs[workers].code == 0, runs[workers].output
        # The task reads too, until the readers do.
        assert len(who_read(tmp_path)) == workers + 1
    killed = dtrain(*RUN, "dataset.workers=3", order("task"))
    assert killed.code == 1, killed.output
    pids = who_read(tmp_path)
    assert len(pids) == 4
    until(lambda: not any(map(alive, pids)), lambda: pids, 20)
    resumed = dtrain("trainer.epochs=4", f"resume={killed.rundir.path}")
    assert resumed.code == 0, resumed.output
    assert len(who_read(tmp_path)) == 4
    for name in NUMBERS:
        expected = runs[0].points(name)
        assert len(expected) >= 4
        assert runs[3].points(name) == expected
        assert resumed.points(name) == expected
    assert set(os.listdir("/dev/shm")) == shared


@pytest.mark.usefixtures("code")
def test_a_reader_that_is_killed(dtrain: Any, tmp_path: Path) -> None:
    # So many that there is something to read when the order is given.
    run = dtrain(*RUN, "trainer.epochs=30", "dataset.workers=2", order("reader"))
    assert run.code == errors.FAILED, run.output
    assert run.result["status"] == "FAILED"
    problem = "of 2: ended by SIGKILL, as the system does where memory runs out"
    assert problem in run.error and problem in run.output
    assert "Traceback" not in run.output + run.log
    assert sound(run.rundir)[-1] >= 8
    pids = who_read(tmp_path)
    until(lambda: not any(map(alive, pids)), lambda: pids, 20)
    assert dtrain(f"resume={run.rundir.path}").code == 0


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(("number", "status"), sampled([("SIGINT", 75), ("SIGKILL", 1)]))
def test_a_run_that_is_ended(
    number: str, status: int, command: Callable[..., Command], tmp_path: Path
) -> None:
    """Ctrl-C reaches the readers too, and the task may need them until it has saved."""
    run = command(*RUN, "dataset.workers=2", order("wait"))
    until((tmp_path / "waits").exists, lambda: run.output)
    pids = who_read(tmp_path)
    [task] = [
        pid for pid in pids if b"data.reader" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(pids) == 3
    if number == "SIGINT":
        os.killpg(run.process.pid, signal.SIGINT)
    else:
        os.kill(task, signal.SIGKILL)
    assert run.process.wait(60) == status, run.output
    until(lambda: not any(map(alive, pids)), lambda: pids, 20)
    # That of step 8 was begun before the callback: who is killed in it may not see its end.
    assert sound(run.rundir)[-1] in ((8,) if number == "SIGINT" else (4, 8))


@pytest.mark.usefixtures("code")
def test_data_that_readers_do_not_have(dtrain: Any) -> None:
    run = dtrain(*QUICK, "dataset.workers=2")
    assert run.code == 0, run.output
    [notice] = [e["message"] for e in run.events("notice") if "workers" in e["message"]]
    assert notice.startswith("dataset.workers=2 has no effect: ")


POOLS = '''
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor

import joblib
import numpy as np

from dtrain.data.sources import Source, Splits


def value(row):
    return float(row % 7)


def check():
    pid = os.fork()
    if not pid:
        os._exit(signal.getsignal(signal.SIGTERM) != signal.SIG_DFL)
    assert os.waitpid(pid, 0)[1] == 0, "a Pool ends its processes by SIGTERM, and waits for them"


class Rows:
    """Has a pool that is never closed, in the task and in a reader."""

    pool = None

    def __len__(self):
        return 64

    def __getitem__(self, row):
        if Rows.pool is None:
            check()
            Rows.pool = multiprocessing.Pool(1)
            print("pool", *[process.pid for process in multiprocessing.active_children()])
        found = Rows.pool.map_async(value, [row]).get(60)[0]
        return np.float32([found]), int(found > 3)


def load():
    methods = multiprocessing.get_all_start_methods()  # of which the first is Python's default
    assert multiprocessing.get_start_method() == methods[0]
    check()
    rows, found = range(8), []
    for context in (multiprocessing, multiprocessing.get_context("spawn")):
        with context.Pool(2) as pool:
            found.append(pool.map_async(value, rows).get(60))
    with ProcessPoolExecutor(2) as pool:
        found.append(list(pool.map(value, rows, timeout=60)))
    found.append(joblib.Parallel(n_jobs=2, timeout=60)(joblib.delayed(value)(i) for i in rows))
    assert found == 4 * [[float(i % 7) for i in rows]]
    return Splits(Rows(), Rows(), 2)
'''


def test_processes_of_a_users_function(dtrain: Any, user_code: Any) -> None:
    """As in a script of the user's own, in a task and in a reader; none is left."""
    user_code(POOLS)
    run = dtrain(
        "tracking=none", "model=mlp", "model.units=[4]", "dataset=custom",
        "dataset._target_=mine.load", "dataset.workers=1", "trainer.epochs=1",
    )  # fmt: skip
    assert run.code == 0, run.output + run.log
    pools = [line.split()[1:] for line in run.log.splitlines() if line.startswith("pool ")]
    assert len(pools) == 2, "of the task, which reads first, and of the reader"
    pids = [int(pid) for found in pools for pid in found]
    until(lambda: not any(map(alive, pids)), lambda: pids, 20)
