"""Pickles of folders: loaded only as the user's own signed command names them, at every door."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dtrain.config.private import given_modules as names
from dtrain.host import pickles
from dtrain.host.python_path import FOLDER
from tests.hostile.test_five_rules import OF_WORDS, Place, _Evil

SCRIPT = """
import dtrain

def build(input_shape, classes):
    import keras

    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(),
                             keras.layers.Dense(classes, activation="softmax")])

if __name__ == "__main__":
    dtrain.train(model=build, epochs=1, tracking="none", output_dir="made")
"""
MODEL = """
import sys, dtrain
try:
    dtrain.Run("run").model()
except dtrain.errors.DtrainError as error:
    sys.exit(f"error: {error}")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a run of a script's function."""
    place = tmp_path_factory.mktemp("made")
    for name in ("project", "home"):
        (place / name).mkdir()
    project = place / "project"
    (project / "script.py").write_text(SCRIPT)
    (project / ".gitignore").write_text("run\nmade\noutputs\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=project, check=True)
    done = python(place, "script.py")
    assert done.returncode == 0, done.stdout
    [run] = project.glob("made/*/*_build_default")
    run.rename(project / "run")
    yield place


def python(place: Path, *words: str, trust: str = "") -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "XDG_STATE_HOME": str(place / "home"), "DTRAIN_TRUST": trust,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *words], cwd=place / "project", env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Place:
    return Place(made, tmp_path / "place")


def evil(place: Place) -> str:
    """Put a pickle that makes a file into the folder; return the name of its module."""
    data = pickles.written([], pickle.dumps(_Evil(place.canary / "ran")))
    name = pickles.name_of(data)
    (place.run / FOLDER / f"{name}.pickle").write_bytes(data)
    return name


def change(place: Place) -> None:
    """Put another pickle in the place of the user's."""
    [own] = set(place.run.glob("given/*.pickle"))
    name = evil(place)
    (place.run / FOLDER / f"{name}.pickle").replace(own)


def link(place: Place) -> None:
    """Have the user's own file behind a link."""
    [own] = place.run.glob("given/*.pickle")
    target = place.canary / own.name
    own.rename(target)
    own.symlink_to(target)


def grow(place: Place) -> None:
    """Make the file one that no memory takes."""
    [own] = place.run.glob("given/*.pickle")
    os.truncate(own, 10 << 30)


def foreign(place: Place) -> None:
    """Let the whole folder be another user's: his command names his pickle, with his signature."""
    rename(place, "command.json", "config.yaml")
    file = place.run / "command.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps({**found, "signature": "0" * 64}))


def unsigned(place: Place) -> None:
    """Name another pickle in the user's signed command."""
    rename(place, "command.json", "config.yaml")


def configured(place: Place) -> None:
    """Name another pickle in the configuration alone: the command is the user's own."""
    rename(place, "config.yaml")


def rename(place: Place, *files: str) -> None:
    name = evil(place)
    for each in files:
        text = (place.run / each).read_text()
        [own] = names([text])
        (place.run / each).write_text(text.replace(own, name))


SIGNED = "was passed from Python to a run that your key has not signed"
ATTACKS: dict[str, tuple[Callable[[Place], None], str]] = {
    "changed": (change, "was changed since it was given"),
    "link": (link, ""),
    "huge": (grow, ""),
    "foreign": (foreign, SIGNED),
    "unsigned": (unsigned, SIGNED),
}


@pytest.mark.parametrize(
    ("attack", "door"),
    [
        pytest.param(attack, door, marks=() if (number + turn) % 5 == 0 else (pytest.mark.faults,))
        for number, attack in enumerate(ATTACKS)
        for turn, door in enumerate(OF_WORDS)
    ],
)
def test_a_pickle_that_is_not_the_users_own_is_refused(
    attack: str, door: str, place: Place
) -> None:
    act, says = ATTACKS[attack]
    act(place)
    text = place.refuses(door)
    assert door == "replay" or says in text, text


@pytest.mark.parametrize(
    "attack", [foreign, configured, pytest.param(unsigned, marks=pytest.mark.faults)]
)
def test_nobody_trusts_it_by_a_word(attack: Callable[[Place], None], place: Place) -> None:
    """Neither DTRAIN_TRUST nor an override that the user types opens it, nor a call in Python."""
    attack(place)
    [name] = names([(place.run / "config.yaml").read_text()])
    for words in (
        ("resume=run", "trainer.epochs=2"), ("export", "run"),
        (f"model._target_={name}.build", "model=custom"),
        ("fork=run", f"model._target_={name}.build"),
    ):  # fmt: skip
        if attack is not configured or name in str(words):  # else the command is the user's own
            done = python(place.root, "-m", "dtrain", *words, trust=name)
            assert done.returncode == 2 and SIGNED in done.stdout, done.stdout
    done = python(place.root, "-c", MODEL, trust=name)
    assert done.returncode == 1 and SIGNED in done.stdout, done.stdout
    assert not (place.canary / "ran").exists()


def test_the_users_own_opens_every_door(place: Place) -> None:
    (place.project / "script.py").write_text("raise SystemError('what trains is in the folder')")
    for words in (
        ("resume=run", "trainer.epochs=2"), ("fork=run", "trainer.epochs=3"), ("evaluate", "run"),
        ("predict", "run"), ("export", "run", "format=keras"), ("replay", "run"),
    ):  # fmt: skip
        done = python(place.root, "-m", "dtrain", *words)
        assert done.returncode == 0, done.stdout
    done = python(place.root, "-c", MODEL)
    assert done.returncode == 0, done.stdout
