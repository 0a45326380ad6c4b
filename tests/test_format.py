"""A folder of another version is refused wherever one is named, with both versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dtrain
from dtrain import __main__, errors
from dtrain.errors import UsageError
from dtrain.run.folder import FORMAT, RunDir

#: Command lines that read the run RUN, or the sweep SWEEP.
DOORS = [
    ["resume=RUN"], ["fork=RUN"], ["fork=RUN/checkpoints/4"], ["init.weights=RUN", "dry_run=true"],
    ["evaluate", "RUN"], ["evaluate", "RUN/checkpoints/4"], ["predict", "RUN"], ["export", "RUN"],
    ["serve", "RUN"], ["compare", "RUN"], ["sync", "RUN"], ["promote", "RUN", "alias=a", "name=b"],
    ["checkpoint", "RUN"], ["checkpoint", "RUN/checkpoints/4"], ["replay", "RUN"],
    ["-m", "sweep.resume=SWEEP"], ["sync", "SWEEP"],
]  # fmt: skip


@pytest.fixture
def folders(tmp_path: Path, request: Any) -> dict[str, Path]:
    """A run and a sweep, with the number of their form or without one."""
    number = getattr(request, "param", {})
    run, sweep = tmp_path / "run", tmp_path / "sweep"
    (run / "checkpoints" / "4").mkdir(parents=True)
    sweep.mkdir()
    command = {**number, "overrides": [], "config_dir": None}
    (run / "command.json").write_text(json.dumps(command))
    for name in ("config.yaml", "checkpoints/4/manifest.json", "cluster.json", "journal.jsonl"):
        (run / name).write_text("{}")
    (sweep / "sweep.json").write_text(json.dumps({**number, "command": command, "jobs": []}))
    return {"RUN": run, "SWEEP": sweep}


@pytest.mark.parametrize("line", DOORS, ids=" ".join)
@pytest.mark.parametrize(
    ("folders", "version"), [({}, "0.1.0"), ({"format": 3}, "format 3")], indirect=["folders"]
)
def test_every_door(
    line: list[str], version: str, folders: dict[str, Path], monkeypatch: Any, capsys: Any
) -> None:
    words = line
    for name, path in folders.items():
        words = [word.replace(name, str(path)) for word in words]
    monkeypatch.setattr("sys.argv", ["dtrain", *words])
    assert __main__.main() == errors.USAGE
    printed = capsys.readouterr().err
    assert f"is of dtrain {version}, and this is 0.2.0; " in printed, printed
    assert f"use dtrain {version} for it" in printed


def test_python(folders: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"is of dtrain 0\.1\.0, and this is 0\.2\.0"):
        dtrain.Run(folders["RUN"])
    with pytest.raises(UsageError, match=r"is of dtrain 0\.1\.0, and this is 0\.2\.0"):
        dtrain.Sweep(folders["SWEEP"])


def test_what_is_written_is_of_this_version(quick: tuple[str, ...], dtrain: Any) -> None:
    done = dtrain(*quick, "trainer.epochs=1")
    assert done.code == 0, done.output
    command = json.loads(RunDir(done.rundir.path).command.read_text())
    assert command["format"] == FORMAT == 2
