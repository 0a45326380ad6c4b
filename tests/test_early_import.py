"""TensorFlow's import begins with the command: when it does, and what becomes of a wrong guess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dtrain import __main__ as command
from dtrain import errors
from dtrain.host import forkserver
from dtrain.job.early_import import task_environment, trains


@pytest.mark.parametrize(
    "words",
    [
        "",
        "strategy=mirrored trainer.epochs=1",
        "-m optimizer.learning_rate=0.1,0.2",
        "--multirun seed=1,2",
        "--run",
        "--config-dir presets model=mine",
        "--config-dir=presets",
        "-cd presets experiment=mine",
        "launcher=local",
        "launcher=env strategy=multiworker",
        "launcher.max_restarts=3",
        "dry_run=false",
        "resume=outputs/2026-01-01/00-00-00_cnn_default",
        "+fork=outputs/x",
        "strategy=miror",  # what it will be refused for is not known yet
        "model.name=launcher",
    ],
)
def test_commands_that_train(words: str) -> None:
    assert trains(words.split())


@pytest.mark.parametrize(
    "words",
    [
        "--cfg job",
        "--cfg=job",
        "-c job",
        "-cjob",
        "--resolve --cfg job",
        "--help",
        "--hydra-help",
        "--info",
        "-i",
        "--info=plugins",
        "--version",
        "--shell-completion install=bash",
        "-sc query=bash",
        "--nonsense",
        "dry_run=true",
        "+dry_run=true",
        "++dry_run=True",
        "dry_run=true,false -m",
        "launcher=inline",
        "launcher=mine",
        "launcher=local,inline -m",
        "+launcher=inline",
        "~launcher",
        "launcher={_target_:mine.Launcher}",
        "launcher._target_=mine.Launcher",
        "hardware.onednn=false",
        "hardware.onednn=true",
        "++hardware.onednn=false",
        "-m hardware.onednn=true,false",
        "hardware={onednn:false}",
    ],
)
def test_commands_that_do_not_or_need_another_environment(words: str) -> None:
    assert not trains(["trainer.epochs=1", *words.split(), "seed=3"])


def test_the_usual_environment_is_that_of_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    assert task_environment() == {**task_environment(True)}
    assert task_environment(False) == {
        "KERAS_BACKEND": "tensorflow", "TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "1",
        "PYTHONHASHSEED": "0",
    }  # fmt: skip


def test_other_commands_begin_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(forkserver, "guess", begun.append)
    for words in (["--help"], ["--version"], ["checkpoint", "x"], ["compre"], ["--cfg", "job"]):
        monkeypatch.setattr(sys, "argv", ["dtrain", *words])
        command.main()
    assert begun == []
    monkeypatch.setattr(sys, "argv", ["dtrain", "strategy=miror"])
    assert command.main() == errors.USAGE
    assert begun == [task_environment()]
    assert "strategy=miror" in capsys.readouterr().err


#: A process whose warm servers import nothing; it prints what each line of the test has found.
SCRIPT = """
import json, os, signal, sys
from multiprocessing import forkserver as library
library.ForkServer.set_forkserver_preload = lambda *_: None
from dtrain.host import forkserver
ONE, OTHER = {"WHICH": "one"}, {"WHICH": "other"}

def server():
    return [each._forkserver_pid for each in forkserver._servers.values()][-1]

def ended(pid):
    if not os.path.exists(f"/proc/{pid}"):
        return True
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split()[2] == "Z"

def say(pipe):
    pipe.send(os.environ["WHICH"])

def forked(context):
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=say, args=(theirs,))
    process.start()
    theirs.close()
    process.join()
    return [context.get_start_method(), ours.recv()]

if __name__ == "__main__":
    found = {}
    exec(sys.argv[1])
    print(json.dumps(found))
"""


def found(tmp_path: Path, code: str) -> Any:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    with tempfile.TemporaryDirectory() as temporary:  # a socket's path must be short
        done = subprocess.run(
            [sys.executable, str(path), code],
            env={**os.environ, "TMPDIR": temporary},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert os.listdir(temporary) == []
    return json.loads(done.stdout)


def test_a_right_guess_is_the_server(tmp_path: Path) -> None:
    code = """
forkserver.guess(ONE)
first = server()
forkserver.guess(OTHER)  # there is one
found["first"] = forked(forkserver.warm(ONE))
found["same"] = server() == first
forkserver.end_guessed()  # it is in use
found["used"] = forked(forkserver.warm(ONE))
found["other"] = forked(forkserver.warm(OTHER))  # has a server of its own
found["still"] = forked(forkserver.warm(ONE))
"""
    assert found(tmp_path, code) == {
        "first": ["forkserver", "one"], "same": True, "used": ["forkserver", "one"],
        "other": ["forkserver", "other"], "still": ["forkserver", "one"],
    }  # fmt: skip


def test_a_wrong_guess_is_replaced(tmp_path: Path) -> None:
    code = """
forkserver.guess(ONE)
first = server()
found["other"] = forked(forkserver.warm(OTHER))
found["ended"] = ended(first)
found["one"] = forked(forkserver.warm(ONE))
found["anew"] = server() != first
"""
    assert found(tmp_path, code) == {
        "other": ["forkserver", "other"], "ended": True, "one": ["forkserver", "one"], "anew": True,
    }  # fmt: skip


def test_a_guess_that_nobody_asks_for_is_ended(tmp_path: Path) -> None:
    code = """
forkserver.end_guessed()  # there is none
forkserver.guess(ONE)
first = server()
forkserver.end_guessed()
found["ended"] = ended(first)
forkserver.end_guessed()
found["later"] = forked(forkserver.warm(OTHER))
"""
    assert found(tmp_path, code) == {"ended": True, "later": ["forkserver", "other"]}


def test_a_python_that_does_not_say_which_its_server_is(tmp_path: Path) -> None:
    """The server stays, for tasks of the environment that it has."""
    code = """
forkserver.guess(ONE)
[guessed] = forkserver._servers.values()
first, guessed._forkserver_pid = guessed._forkserver_pid, None
found["other"] = forked(forkserver.warm(OTHER))
guessed._forkserver_pid = first
found["one"] = forked(forkserver.warm(ONE))
found["ended"] = ended(first)
"""
    assert found(tmp_path, code) == {
        "other": ["forkserver", "other"], "one": ["forkserver", "one"], "ended": False,
    }  # fmt: skip
