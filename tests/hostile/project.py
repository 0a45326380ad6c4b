"""A project with runs and sweeps of all kinds in it, made once for a module of tests."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.config import tree
from dtrain.run import checkpoint, identity
from dtrain.run.folder import read_json
from tests.hostile.second import Server

WORDS = (
    "launcher=local",
    "launcher._target_=tests.hostile.second.Fickle",
    "tracking=none",
    "trainer.epochs=3",
    "model._target_=mine.small",
    "model=custom",
    "dataset=csv",
    "hardware=cpu",
)
ENVIRONMENT = {"DTRAIN_TRUST": "tests,mine", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@dataclasses.dataclass
class Home:
    """A user's project, with runs and sweeps in it, and an empty folder beside."""

    path: Path
    server: Server

    @property
    def elsewhere(self) -> Path:
        return self.path / "elsewhere"

    @property
    def project(self) -> Path:
        return self.path / "project"

    def __call__(self, *arguments: str, cwd: Path | None = None, **more: Any) -> tuple[int, str]:
        environment = {**ENVIRONMENT, **more.pop("environment", {})}
        code, output = self.server(cwd or self.project, *arguments, environment=environment, **more)
        ours = [line for line in output.splitlines() if " | " not in line]  # of a task's log
        assert not any("Traceback" in line for line in ours), output
        return code, output

    def begin(self, *arguments: str, last: str = "end") -> Path:
        """Begin a run or a sweep; return its folder."""
        before = set(self.project.glob("outputs/**/cluster.json"))
        words = (*WORDS, f"dataset.path={self.project}/data.csv")
        self(*arguments[:1], *words, *arguments[1:], environment={"QUICK_LAST": last})
        new = sorted(set(self.project.glob("outputs/**/cluster.json")) - before)
        return new[0].parents[1] if "-m" in arguments else new[0].parent


def hashes(folder: Path) -> dict[str, str]:
    """Return a hash of every file but logs, and where each link leads to."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            if path.name != ".lock" and path.parent.name != "logs":
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[f"{name}/"] = str(path.lstat().st_mode)
    return found


def save(folder: Path, *steps: int) -> None:
    """Save checkpoints as the tasks of a run would, which quick ones do not."""
    found = identity.fingerprints(tree.read(folder / "config.yaml"))
    meta = {"config": found, "versions": {"keras": "0.1"}, "pending_validation": False}
    for step in steps:
        checkpoint.save(folder / "checkpoints", step, {"a": np.zeros(9)}, meta)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Home:
    made = Home(tmp_path_factory.mktemp("home"), server)
    made.elsewhere.mkdir()
    made.project.mkdir()
    (made.project / "mine.py").write_text("def small(x=1):\n    return None\n")
    rows = "\n".join(f"{n},{n % 7},{n % 3}" for n in range(300))
    (made.project / "data.csv").write_text(f"a,b,label\n{rows}\n")
    for kind, last in (("finished", "end"), ("interrupted", "end"), ("failed", "crash")):
        folder = made.begin(f"name={kind}", last=last)
        save(folder, *((2, 3) if kind == "finished" else (1,)))
        if kind == "interrupted":  # as a task that was asked to stop leaves it
            found = read_json(folder / "result.json") or {}
            found |= {"status": "KILLED", "exit_code": 75}
            (folder / "result.json").write_text(json.dumps(found))
        folder.rename(made.project / kind)
    sweeps = (
        ("sweep", "end", "seed=1,2"), ("sweep-failed", "crash", "seed=1,2,3"),
        ("sweep-interrupted", "end", "seed=1,2,3"),
    )  # fmt: skip
    for kind, last, word in sweeps:
        folder = made.begin("-m", f"name={kind}", word, last=last)
        for job in folder.glob("[0-9]*"):
            save(job, 2)
        if kind == "sweep-interrupted":
            (folder / "1" / "result.json").unlink()
            shutil.rmtree(folder / "2")
            data = read_json(folder / "sweep.json") or {}
            data["jobs"][1]["status"], data["jobs"][2]["status"] = "RUNNING", "WAITING"
            (folder / "sweep.json").write_text(json.dumps(data))
        folder.rename(made.project / kind)
    shutil.rmtree(made.project / "outputs")
    return made


RUNS = ("finished", "interrupted", "failed")
SWEEPS = ("sweep", "sweep-failed", "sweep-interrupted")
