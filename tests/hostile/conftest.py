"""The template of all places, made once: real runs of quick tasks, and what a kill leaves."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dtrain.config import load
from dtrain.run import checkpoint, identity
from tests.hostile.harness import QUICK, SMALL, Commands, Listener, Place


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    server = Commands(tmp_path_factory.mktemp("commands"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.close()


@pytest.fixture(scope="session")
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no command has anything to do with."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate(b"\n", 30)


@pytest.fixture(scope="session")
def template(
    tmp_path_factory: pytest.TempPathFactory, commands: Commands,
    listener: Listener, bystander: subprocess.Popen[bytes],
) -> Place:  # fmt: skip
    root = tmp_path_factory.mktemp("template") / "place"
    place = Place(root, None, listener.port, bystander.pid)

    def run(module: str, *words: str) -> None:
        ended = commands(
            module, *words, cwd=place.work, environment=place.environment(), timeout=300
        )
        assert ended.code == 0, ended.output

    run("dtrain", *QUICK, *SMALL)
    [made] = place.outputs.glob("2*/*")
    for path in (place.run, place.stopped, place.other):
        shutil.copytree(made, path)
    shutil.rmtree(made.parent)
    run("dtrain", "-m", *QUICK, *SMALL, "seed=1,2")
    [made] = (place.outputs / "multirun").glob("*/*")
    shutil.copytree(made, place.sweep)
    shutil.rmtree(made.parent)
    _kill(place.stopped)
    about = identity.fingerprints(load.read(place.stopped / "config.yaml"))
    for step in (1, 2):
        weights = {"a": np.arange(4.0), "b/c": np.ones((2, 3), np.float32)}
        meta = {"objective": step / 10, "config": about, "pending_validation": False}
        checkpoint.save(place.stopped / "checkpoints", step, weights, meta)
    _kill(place.sweep / "1")
    sweep = json.loads((place.sweep / "sweep.json").read_text())
    sweep.update(status="KILLED", ended=None)
    sweep["jobs"][1].update(status="KILLED", objective=None, exit_code=75)
    (place.sweep / "sweep.json").write_text(json.dumps(sweep))
    # Of MLflow: its tables take seconds to make.
    run("dtrain", "sync", str(place.other))
    return place


def _kill(run: Path) -> None:
    """Leave what a killed command leaves."""
    (run / "result.json").unlink()
    journal = (run / "journal.jsonl").read_text().splitlines(keepends=True)
    (run / "journal.jsonl").write_text("".join(line for line in journal if '"end"' not in line))


@pytest.fixture
def place(
    tmp_path: Path, template: Place, listener: Listener, bystander: subprocess.Popen[bytes]
) -> Iterator[Place]:
    yield Place(tmp_path / "place", template, listener.port, bystander.pid)
    # Folders nested deeper than Python's own removal goes.
    subprocess.run(["rm", "-rf", str(tmp_path / "place")], check=True)


@pytest.fixture
def alive(bystander: subprocess.Popen[bytes]) -> Callable[[], bool]:
    """Say whether the bystander is neither dead nor stopped."""

    def look() -> bool:
        state = Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return bystander.poll() is None and state not in "TtZ"

    return look
