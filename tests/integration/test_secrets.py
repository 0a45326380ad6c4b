"""A secret reaches the code that needs it, and no file, no MLflow and no message holds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtrain.cli.commands.sync import main as sync_main
from dtrain.tracking import delivery

TYPED, ADDRESS, ENVIRONMENT, ELSEWHERE = "tYpEd-0815", "aDdReSs-0815", "eNvIrOn-0815", "eLsE-0815"
MODEL = """
import keras

def build(input_shape, classes, api_key, login, url, width=4, fail=False):
    given = (api_key, login["password"], login["user"], url)
    expected = ("tYpEd-" + "0815", "eNvIrOn-" + "0815", "me", "https://host/eLsE-" + "0815")
    if given != expected:
        raise ValueError("other values arrived")
    if fail:
        raise ValueError(f"the service refused {api_key} and {login}")
    return keras.Sequential([
        keras.Input(input_shape), keras.layers.Dense(width, name=f"for_{width}"),
        keras.layers.Dense(classes, activation="softmax"),
    ])

class Upload(keras.callbacks.Callback):
    def __init__(self, token):
        super().__init__()
        self.token = token
        if token != "tYpEd-" + "0815":
            raise ValueError("another token arrived")
"""
WORDS = (
    "model=custom", "model._target_=mine.build", f"+model.api_key={TYPED}",
    "+model.login={user:me,password:'${oc.env:MY_PASSWORD}'}",
    "+model.url='https://host/${oc.env:MY_PLACE_TOKEN}'",
    f"trainer.callbacks=[{{_target_:mine.Upload,token:{TYPED}}}]",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch, user_code) -> Iterator[None]:
    monkeypatch.setenv("MY_PASSWORD", ENVIRONMENT)
    monkeypatch.setenv("MY_PLACE_TOKEN", ELSEWHERE)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", ENVIRONMENT)
    monkeypatch.setattr(delivery, "AWAY_SECONDS", 0.5)
    user_code(MODEL)
    yield
    forget()


def forget() -> None:
    """Be a process that was given nothing yet."""
    for name in [name for name in os.environ if name.startswith("DTRAIN_SECRET_")]:
        del os.environ[name]


def holders(folder: Path, *texts: str) -> list[str]:
    """Return where a secret is found: files by name and content, and texts."""
    words = [word.encode() for word in (TYPED, ADDRESS, ENVIRONMENT, ELSEWHERE)]
    # Not in the user's own module, and the bytecode of it.
    files = [p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("mine.")]
    assert len(files) > 10
    found = [str(p) for p in files if any(w in p.read_bytes() + str(p).encode() for w in words)]
    return found + [text for text in texts if any(word.decode() in text for word in words)]


@pytest.mark.faults
@pytest.mark.usefixtures("store")
def test_of_a_run_that_is_tracked_and_resumed(
    dtrain, quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    without = [word for word in quick if not word.startswith("model")]
    run = dtrain(
        *without, *WORDS, "tracking=mlflow", f"tracking.uri=http://me:{ADDRESS}@127.0.0.1:9"
    )
    assert run.code == 0, run.output
    assert "tracking: API request to http://me:***@127.0.0.1:9/" in run.output
    assert "python -m dtrain sync" in run.output
    path = run.rundir.path
    assert "${oc.env:MY_PASSWORD}" in run.rundir.config.read_text()
    assert holders(tmp_path, run.output) == []

    forget()
    for arguments, code, said in (
        ([], 2, "error: tracking.uri=http://me:***@127.0.0.1:9: "
         "it is a secret, which the run folder does not hold; accepted: the value, given anew; "
         "hint: DTRAIN_SECRET_TRACKING_URI=VALUE in front of the command"),
        ([f"tracking.uri=http://me:{ADDRESS}@127.0.0.1:9"], 1,
         "could not be shipped: API request to"),
        ([f"tracking.uri=sqlite:///{tmp_path}/outputs/mlflow.db"], 0, "shipped to sqlite:///"),
    ):  # fmt: skip
        monkeypatch.setattr("sys.argv", ["sync", str(path), *arguments])
        capfd.readouterr()
        assert sync_main() == code
        output = "".join(capfd.readouterr())
        assert said in output
        assert holders(tmp_path, output) == []

    given = (f"+model.api_key={TYPED}", WORDS[-1], f"tracking.uri=http://me:{ADDRESS}@127.0.0.1:9")
    with monkeypatch.context() as another:  # user, to whom it is sent: it gets nothing of his
        another.setenv("XDG_STATE_HOME", str(tmp_path.parent / "another"))
        sent = dtrain(f"resume={path}", "trainer.epochs=3", *given)
        assert sent.code == 2
        assert "model.login.password=***: asks for the variable MY_PASSWORD of" in sent.output
        another.setattr("sys.argv", ["sync", str(path)])
        capfd.readouterr()
        assert sync_main() == 2
        output = "".join(capfd.readouterr())
        assert "@127.0.0.1:9: the run folder names it, which another user or machine mad" in output
        assert "shipping to" not in output
    forget()
    again = dtrain(f"resume={path}", "trainer.epochs=3")
    assert again.code == 2
    assert "hint: DTRAIN_SECRET_MODEL_API_KEY=VALUE in front of the command" in again.output
    more = dtrain(f"resume={path}", "trainer.epochs=3", *given)
    assert more.code == 0, more.output
    assert more.result["step"] == 12
    assert holders(tmp_path, again.output, more.output) == []


@pytest.mark.usefixtures("store")
def test_of_a_run_that_fails_with_it(dtrain, quick, tmp_path: Path) -> None:
    without = [word for word in quick if not word.startswith("model")]
    run = dtrain(*without, *WORDS, "+model.fail=true", "tracking=mlflow")
    assert run.code == 1
    assert "the service refused ***" in run.error
    assert "the service refused ***" in run.log
    assert holders(tmp_path, run.output) == []


def test_of_a_key_that_nothing_takes(dtrain, quick, tmp_path: Path) -> None:
    run = dtrain(*quick, f"+dataset.api_key={TYPED}")
    assert run.code == 2
    assert "dataset.api_key=***" in run.output
    assert TYPED not in run.output
    run = dtrain(*quick, f"tracking.urj=http://me:{ADDRESS}@host")
    assert run.code == 2
    assert "***@host: there is no such key" in run.output
    assert ADDRESS not in run.output
