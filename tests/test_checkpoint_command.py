from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.cli.commands.checkpoint import main
from tests.test_checkpoint_store import flip, point, truncate
from tests.test_checkpoint_writer import writer


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder: three checkpoints, of which the second is the best."""
    folder = tmp_path / "run"
    log = writer(folder / "checkpoints", best=True)
    for step, objective in ((4, None), (8, 0.75), (12, 0.5)):
        arrays = {"model/dense/kernel": np.full((2, 3), step, "f4"), "optimizer/it": np.array(step)}
        meta = {"objective": objective, "examples": step * 32, "epoch": {"examples": 5}, "seed": 0}
        log.submit(step, arrays, meta)
    log.wait()
    (folder / "config.yaml").write_text("objective: val_accuracy\nobjective_mode: max\n")
    return folder


class Shown:
    """What one command printed."""

    def __init__(self, code: int, output: str, error: str):
        self.code, self.output, self.error = code, output, error
        self.lines = output.splitlines()

    @property
    def states(self) -> dict[int, list[str]]:
        """The marks, if any, and the state of each row of the table, by step."""
        rows = [line.split() for line in self.lines if re.match(r" *\d+  ", line)]
        # Between the step and these are the time, in two words or absent, bytes and objective.
        return {int(row[0]): row[4 if row[1] == "-" else 5 :] for row in rows}


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Any:
    def command(*arguments: Any) -> Shown:
        code = main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return Shown(code, captured.out, captured.err)

    return command


def test_a_run_as_a_command(run: Path) -> None:
    os.utime(run / "checkpoints" / "8" / "manifest.json", (1e9, 1e9))
    code = (
        "import runpy, sys; sys.argv[1:1] = ['checkpoint']\n"
        "try: runpy.run_module('dtrain', run_name='__main__', alter_sys=True)\n"
        "finally: print({'tensorflow', 'keras', 'hydra', 'mlflow', 'rich'} & set(sys.modules))"
    )
    environment = {**os.environ, "TZ": "UTC", "PYTHONPATH": str(Path(__file__).parent.parent)}
    commands = (["-m", "dtrain", "checkpoint", str(run)], ["-c", code, str(run)])
    plain, watched = (
        subprocess.run(
            [sys.executable, "-W", "error", *each],
            capture_output=True, text=True, timeout=60, env=environment,
        )
        for each in commands
    )  # fmt: skip
    assert (plain.returncode, plain.stderr) == (0, "")
    assert watched.stdout == plain.stdout + "set()\n", "nothing heavy is imported"
    size = f"{sum(p.stat().st_size for p in (run / 'checkpoints' / '8').iterdir()):,}"
    head, _, second, *_ = plain.stdout.splitlines()
    assert head.split() == ["step", "saved", "bytes", "objective", "marks", "state"]
    assert second.split() == ["8", "2001-09-09", "01:46:40", size, "0.75", "best", "sound"]


def test_a_run(run: Path, show: Any) -> None:
    found = show(run)
    assert (found.code, found.error) == (0, "")
    assert found.states == {4: ["-", "sound"], 8: ["best", "sound"], 12: ["latest", "sound"]}
    assert show(run / "checkpoints").output == found.output


def test_one_checkpoint(run: Path, show: Any) -> None:
    found = show(run / "checkpoints" / "12")
    assert (found.code, found.states) == (0, {12: ["-", "sound"]})


@pytest.mark.parametrize(
    ("config", "best"),
    [
        ("objective_mode: max", 8),
        ("objective_mode: min", 12),
        ("objective: loss", None),
        ("{", None),
        (None, None),
    ],
)
def test_the_best_is_marked_where_it_is_known(
    run: Path, show: Any, config: str | None, best: int | None
) -> None:
    (run / "config.yaml").unlink()
    if config is not None:
        (run / "config.yaml").write_text(config)
    for path in (run, run / "checkpoints"):
        found = show(path)
        assert found.code == 0
        assert [step for step, words in found.states.items() if "best" in words] == (
            [] if best is None else [best]
        )


@pytest.mark.parametrize(
    ("damage", "name", "state"),
    [
        (truncate, "state.safetensors", "state.safetensors has 92 bytes and should have 184"),
        (flip, "state.safetensors", "state.safetensors does not match its checksum"),
        (flip, "manifest.json", "manifest.json does not match its checksum"),
        (os.remove, "manifest.json", "manifest.json cannot be read: No such file or directory"),
        (os.remove, "state.safetensors", "state.safetensors cannot be read: No such file"),
    ],
)
def test_damage_is_shown(run: Path, show: Any, damage: Any, name: str, state: str) -> None:
    damage(run / "checkpoints" / "12" / name)
    found = show(run)
    assert (found.code, found.error) == (1, "")
    assert found.states[4] == ["-", "sound"]
    assert found.states[12][0] == "latest"
    assert " ".join(found.states[12][1:]).startswith(state)
    one = show(run / "checkpoints" / "12")
    assert one.code == 1
    assert " ".join(one.states[12]).startswith(f"- {state}")


def test_a_damaged_pointer_is_shown(run: Path, show: Any) -> None:
    flip(run / "checkpoints" / "latest")
    found = show(run)
    assert found.code == 1
    pointer = run / "checkpoints" / "latest"
    assert f"damaged: {pointer} is damaged: it does not match its checksum" in found.lines
    assert found.states[12] == ["-", "sound"]


def test_what_does_not_count_is_shown(run: Path, show: Any) -> None:
    folder = run / "checkpoints"
    point(folder, 8)
    os.rename(folder / "4", folder / ".old-4")
    (folder / ".tmp-9").mkdir()
    found = show(run)
    assert found.code == 0
    assert found.states == {
        4: ["aside", "sound"],
        8: ["latest", "best", "sound"],
        12: ["uncommitted", "sound"],
    }
    assert show(folder / ".old-4").code == 0


def test_what_is_named_and_not_there_is_shown(run: Path, show: Any) -> None:
    shutil.rmtree(run / "checkpoints" / "12")
    found = show(run)
    assert found.code == 1
    missing = "latest manifest.json cannot be read: No such file or directory"
    assert " ".join(found.states[12]) == missing


def test_nothing_sound(run: Path, show: Any) -> None:
    for path in (run / "checkpoints").glob("*/manifest.json"):
        path.write_text(json.dumps({"meta": {}}))
    found = show(run)
    assert found.code == 1
    assert " ".join(found.states[4]) == "- manifest.json is not a manifest: KeyError('sha256')"
    assert found.lines[-1] == f"{run / 'checkpoints'} holds no sound checkpoint"


@pytest.mark.parametrize("kind", ["run", "checkpoints", "without"])
def test_nothing_at_all(tmp_path: Path, show: Any, kind: str) -> None:
    (tmp_path / "config.yaml").write_text("objective_mode: max")
    if kind != "without":
        (tmp_path / "checkpoints").mkdir()
    found = show(tmp_path / "checkpoints" if kind == "checkpoints" else tmp_path)
    assert found.code == 1
    assert found.output.strip() == f"{tmp_path}/checkpoints holds no sound checkpoint"


def test_a_folder_of_checkpoints_by_another_name(run: Path, show: Any, tmp_path: Path) -> None:
    (run / "checkpoints").rename(tmp_path / "copies")
    assert show(tmp_path / "copies").states[12] == ["latest", "sound"]
    (tmp_path / "copies" / "latest").unlink()
    assert show(tmp_path / "copies").states[12] == ["-", "sound"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("absent", "is not there"),
        ("file", "is neither a run folder nor a checkpoint"),
        ("empty", "is neither a run folder nor a checkpoint"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, show: Any, name: str, problem: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    found = show(tmp_path / name)
    assert (found.code, found.output) == (2, "")
    assert found.error == (
        f"error: RUN={tmp_path / name}: {problem}; accepted: a run folder, its checkpoints "
        "folder, or one of these; hint: python -m dtrain checkpoint "
        "outputs/DATE/TIME_NAME\n"
    )


def test_what_cannot_be_looked_at_is_told(show: Any) -> None:
    found = show("x" * 300)
    assert (found.code, found.output) == (2, "")
    assert found.error.startswith(f"error: {'x' * 300}")
    assert found.error.endswith(" cannot be a path: File name too long\n")
