"""Runs that go wrong: right status and exit code, checkpoints intact, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.run import checkpoint, journal
from dtrain.run.folder import RunDir, read_json
from tests.conftest import QUICK
from tests.integration.test_records import points, runs
from tests.sampled import sampled

USER = '''
import keras
import tensorflow as tf


def explode(input_shape, classes):
    raise RuntimeError("no such weights")


class Bomb(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise RuntimeError("bang in epoch 1")


class Leave(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        import sys
        if epoch == 1:
            sys.exit(0)


class Careless(keras.callbacks.Callback):
    """Replaces standard output by what has no flush, and removes the current folder."""

    def on_train_end(self, logs=None):
        import os, sys
        sys.stdout = type("Tee", (), {"write": lambda self, text: len(text)})()
        os.rmdir(os.getcwd())


class Poison(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            last = self.model.trainable_variables[-1]  # a relu would hide it
            last.assign(last * float("nan"))


class Die(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        import os, signal
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class End(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        import os
        if epoch == 1:
            os._exit(0)


class Fill(keras.callbacks.Callback):
    """Fills the disk that the run folder lies on."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            with open("outputs/filler", "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
'''


def sound(rundir: RunDir) -> list[int]:
    """Return the steps of all checkpoints, each of them verified."""
    found = checkpoint.steps(rundir.checkpoints)
    for step in found:
        checkpoint.load(rundir.checkpoints / str(step))
    return found


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("name", "arguments", "message", "saved"),
    [
        ("model", ["model=custom", "model._target_=mine.explode"], "no such weights", []),
        ("callback", ["trainer.callbacks=[{_target_:mine.Bomb}]"], "bang in epoch 1", [4, 8]),
        ("exit", ["trainer.callbacks=[{_target_:mine.Leave}]"], "SystemExit: 0 (", [4, 8]),
        ("nan", ["trainer.callbacks=[{_target_:mine.Poison}]"], "the loss is nan at step", [4]),
        ("killed", ["trainer.callbacks=[{_target_:mine.Die}]"], "ended by SIGKILL", [4]),
        ("ended", ["trainer.callbacks=[{_target_:mine.End}]"], "before the task was done", [4]),
    ],
)
def test_training_that_fails(
    name: str, arguments: list[str], message: str, saved: list[int], dtrain, user_code,
    tmp_path: Path,
) -> None:  # fmt: skip
    user_code(USER)
    base = [a for a in QUICK if name != "model" or not a.startswith("model")]
    run = dtrain(*base, "trainer.epochs=3", "tracking=mlflow", *arguments)
    assert run.code == 1, run.output
    assert run.result["status"] == "FAILED"
    assert message in run.error
    assert message in run.output
    assert "chief-0.log" in run.output
    # That of step 8 was begun before the validation: who is killed after it may not see its end.
    assert sound(run.rundir) in (saved, [*saved, 8] if name in ("killed", "ended") else saved)
    [(_, recorded)] = runs(tmp_path)
    assert recorded.info.status == "FAILED"


def test_what_is_around_a_command(tmp_path: Path, user_code) -> None:
    """Closed descriptors; a current folder that goes away."""
    user_code(USER)
    (tmp_path / "here").mkdir()
    code = (
        "import os; os.close(0); os.close(1)\n"
        "os.execv(os.sys.executable, ['python', '-m', 'dtrain', *os.sys.argv[1:]])"
    )
    words = [sys.executable, "-c", code, *QUICK, "trainer.callbacks=[{_target_:mine.Careless}]"]
    # In a folder that is gone, Python itself fails by a relative one of these.
    path = [str(tmp_path), *(folder for folder in sys.path if os.path.isabs(folder))]
    places = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [*words, f"hydra.run.dir={tmp_path}/run", f"output_dir={tmp_path}"], cwd=tmp_path / "here",
        env=places, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert read_json(RunDir(tmp_path / "run").result)["status"] == "FINISHED"
    assert f"run folder: {tmp_path}/run" in done.stderr
    leave = "import os; os.mkdir('a'); os.chdir('a'); os.rmdir('../a')"
    gone = subprocess.run(
        [sys.executable, "-c", f"{leave}\n{code}"],
        cwd=tmp_path, env=places, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1), gone.stderr
    assert "the current folder is not there any more" in gone.stderr


def test_nan_may_be_tolerated_but_is_never_saved(dtrain, user_code) -> None:
    user_code(USER)
    run = dtrain(
        *QUICK, "trainer.epochs=3", "trainer.terminate_on_nan=false",
        "trainer.callbacks=[{_target_:mine.Poison}]",
    )  # fmt: skip
    assert run.code == 0, run.output
    assert run.result["status"] == "FINISHED"
    assert re.search(r"no checkpoint at step 12: \S+ is not finite", run.output), run.output
    assert sound(run.rundir) == [4]


#: Test examples that the first task to read them after training cannot read, once; and, of
#: ``differs``, others in the task that is first to have them.
ONE_FAILS = """
import os
import pathlib
import numpy as np


class Rows:
    def __init__(self, fails=False, more=0):
        self.fails, self.more = fails, more

    def __len__(self):
        return 48

    def __getitem__(self, index):
        trained = any(pathlib.Path("run/checkpoints").glob("[0-9]*"))
        if self.fails and trained:
            if is_first("failed"):
                raise ValueError("a file that one host lacks")
        return np.full(8, index + self.more, "float32"), index % 4


def is_first(name):
    try:
        open(name, "x").close()
    except FileExistsError:
        return False
    return True


def load():
    return {"train": Rows(), "validation": Rows(), "test": Rows(fails=True)}


def differs():
    is_first("differs") and pathlib.Path("differs").write_text(str(os.getpid()))
    own = pathlib.Path("differs").read_text() == str(os.getpid())
    return {"train": Rows(), "validation": Rows(), "test": Rows(more=own)}
"""


@pytest.mark.parametrize(
    "cluster",
    sampled(["strategy=multiworker hardware.hosts=2", "strategy=mirrored backend=torch"],
            "strategy=multiworker hardware.hosts=2"),
)  # fmt: skip
def test_one_task_of_several_cannot_read_the_test(cluster: str, dtrain, user_code) -> None:
    user_code(ONE_FAILS)
    own = (
        "tracking=none", "model=mlp", "model.classes=4", "dataset=custom",
        "dataset._target_=mine.load", "trainer.batch_size=16", "trainer.epochs=1", "report=false",
        "trainer.loss=sparse_categorical_crossentropy", *cluster.split(),
    )  # fmt: skip
    run = dtrain("hydra.run.dir=run", *own)
    assert run.code == 1 and "a file that one host lacks" in run.output, run.output
    assert not Path("run/evaluations.jsonl").exists()
    other = dtrain(*own, "dataset._target_=mine.differs")
    assert other.code == 2 and "the test data is not the chief's" in other.output, other.output
    again = dtrain("resume=run")
    assert again.code == 0 and "test/loss" in again.output, again.output


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk to fill")
def test_a_full_disk(dtrain, user_code, tmp_path: Path) -> None:
    user_code(USER)
    with small_disk(tmp_path / "outputs"):
        run = dtrain(*QUICK, "trainer.epochs=3", "trainer.callbacks=[{_target_:mine.Fill}]")
        assert run.code == 1, run.output
        assert "No space left on device" in run.output
        assert str(tmp_path / "outputs") in run.output
        assert sound(run.rundir) in ([4], [4, 8]), "that of step 8 was being written"


class Command:
    """``python -m dtrain`` as a user starts it: own process group, output in a file."""

    def __init__(self, folder: Path, *arguments: str):
        self._folder = folder
        self._output = folder / "terminal.txt"
        with self._output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dtrain", *arguments],
                cwd=folder, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def rundir(self) -> RunDir:
        [found] = self._folder.glob("outputs/*/*/cluster.json")
        return RunDir(found.parent)

    def wait_for(self, event: str) -> None:
        """Wait until the journal has such an event."""

        def there() -> bool:
            folders = list(self._folder.glob("outputs/*/*/journal.jsonl"))
            return bool(folders) and any(e["event"] == event for e in journal.read(folders[0]))

        until(there, lambda: self.output)

    def tasks(self) -> dict[str, int]:
        """Return the process of each task."""
        return processes(self._folder)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def group(self) -> list[int]:
        """Return the processes of the group that are alive."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.process.pid and fields[0] != "Z":
                    found.append(int(stat.parent.name))
        return found


def processes(folder: Path) -> dict[str, int]:
    """Return the process of each task of any run below ``folder``, by its open log."""
    found = {}
    for process in filter(str.isdecimal, os.listdir("/proc")):  # some have just ended
        with contextlib.suppress(OSError):
            log = Path(os.readlink(f"/proc/{process}/fd/1"))
            if log.suffix == ".log" and folder in log.parents:
                found[log.stem] = int(process)
    return found


def until(condition: Callable[[], bool], explain: Callable[[], Any], seconds: float = 120) -> None:
    """Poll ``condition``; the pause only spares the processor."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.05)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(*arguments: str) -> Command:
        started.append(Command(tmp_path, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.close()


ENDLESS = ("trainer.epochs=20000", "tracking=mlflow", "trainer.log_every_steps=1000")


@pytest.mark.usefixtures("store")
def test_ctrl_c_saves_and_the_same_run_goes_on(command, dtrain, tmp_path: Path) -> None:
    running = command(*QUICK, *ENDLESS)
    running.wait_for("metrics")
    os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does: to every process
    assert running.process.wait(60) == 75, running.output
    until(lambda: not running.group(), running.group)
    result = read_json(running.rundir.result) or {}
    assert result["status"] == "KILLED"
    stopped = sound(running.rundir)[-1]
    assert stopped == result["step"]
    assert f"python -m dtrain resume={running.rundir.path.relative_to(tmp_path)}" in running.output
    [(client, recorded)] = runs(tmp_path)
    assert recorded.info.status == "KILLED"

    epochs = stopped // 4 + 3
    run = dtrain(f"resume={running.rundir.path}", f"trainer.epochs={epochs}")
    assert run.code == 0, run.output
    assert run.result["step"] == epochs * 4
    [(client, recorded)] = runs(tmp_path)
    assert recorded.info.status == "FINISHED"
    assert points(client, recorded, "loss") == run.points("loss")
    assert points(client, recorded, "val_loss") == run.points("val_loss")


@pytest.mark.usefixtures("store")
def test_sigterm_to_the_controller(command, tmp_path: Path) -> None:
    running = command(*QUICK, *ENDLESS)
    running.wait_for("checkpoint")
    running.process.terminate()
    assert running.process.wait(60) == 75, running.output
    until(lambda: not running.group(), running.group)
    assert (read_json(running.rundir.result) or {})["status"] == "KILLED"


SLOW = '''
import keras


class Stuck(keras.callbacks.Callback):
    """Never comes back, whatever it is asked."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            with open("stuck", "w"):
                pass
            while True:
                import time
                time.sleep(1)
'''


@pytest.mark.usefixtures("store")
def test_ctrl_c_twice_ends_at_once(command, user_code, tmp_path: Path) -> None:
    user_code(SLOW)
    running = command(*QUICK, *ENDLESS, "trainer.callbacks=[{_target_:mine.Stuck}]")
    until((tmp_path / "stuck").exists, lambda: running.output)
    os.killpg(running.process.pid, signal.SIGINT)
    until(lambda: "once more" in running.output, lambda: running.output)
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.process.wait(20) == 75, running.output  # an earlier checkpoint is there
    until(lambda: not running.group(), running.group)
    assert (read_json(running.rundir.result) or {})["status"] == "KILLED"
    assert sound(running.rundir) in ([4], [4, 8]), "that of step 8 was being written"
    [(_, recorded)] = runs(tmp_path)
    assert recorded.info.status == "KILLED"


def test_ctrl_c_before_training(command, tmp_path: Path) -> None:
    running = command(*QUICK)
    until(lambda: "starting" in running.output, lambda: running.output)
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.process.wait(20) == 1, running.output
    until(lambda: not running.group(), running.group)
    assert "Traceback" not in running.output
    result = read_json(running.rundir.result) or {}
    assert result["status"] == "KILLED"


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("strategy", sampled(["", "strategy=multiworker hardware.hosts=2"], ""))
def test_no_task_survives_the_controller(strategy: str, command) -> None:
    running = command(*QUICK, *ENDLESS, *strategy.split())
    running.wait_for("metrics")
    if strategy:  # even one that is stopped, and could not end itself
        os.kill(running.tasks()["worker-0"], signal.SIGSTOP)
    running.process.kill()
    running.process.wait()
    until(lambda: not running.group(), running.group, 20)
