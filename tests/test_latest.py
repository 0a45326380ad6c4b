"""``latest``, in the place of a run folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import dtrain
from dtrain import __main__ as program
from dtrain.errors import UsageError
from dtrain.job import latest
from dtrain.run.folder import write_json
from tests.conftest import Commands


def run(folder: str, **command: object) -> None:
    """Make what is looked at of a run."""
    os.makedirs(folder)
    write_json(
        Path(folder, "command.json"), {"format": 2, "overrides": [], "config_dir": None, **command}
    )
    Path(folder, "config.yaml").touch()


def test_the_newest_run_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("outputs/2026-01-02/09-00-00_a", "outputs/2026-01-01/10-00-00_b", "mine/d/t_c"):
        run(name)
    run("outputs/2026-01-03/10-00-00_d", derived="evaluate")
    os.makedirs("outputs/2026-01-04/10-00-00_sweep")
    newest = str(Path("outputs/2026-01-02/09-00-00_a"))
    given = ["resume=latest", "seed=1", "checkpoint=latest"]
    assert latest.resolved(given, latest.KEYS) == [f"resume={newest}", *given[1:]]
    assert capsys.readouterr().err == f"resume=latest: {newest}\n"
    for words, keys, expected in (
        (["latest", "checkpoint=latest"], ("",), [newest, "checkpoint=latest"]),
        (["mine/latest"], ("",), ["mine/d/t_c"]),
        (["models:/mine/latest"], ("",), ["models:/mine/latest"]),
        (["fork=latest", "output_dir=mine"], latest.KEYS, ["fork=mine/d/t_c", "output_dir=mine"]),
        (["init.weights='latest'"], latest.KEYS, [f"init.weights={newest}"]),
    ):
        assert latest.resolved(words, keys) == expected
    with pytest.raises(UsageError, match=r"resume=latest: there is no run below other"):
        latest.resolved(["resume=latest", "output_dir=other"], latest.KEYS)
    os.makedirs("latest")  # a folder of this name is itself
    assert latest.resolved(["latest", "resume=latest"], ("", "resume")) == [
        "latest",
        "resume=latest",
    ]


def test_the_newest_sweep_is_meant() -> None:
    days = "outputs/multirun/2026-01"
    for name, started in (
        (f"{days}-02/a", 3),
        (f"{days}-03/b", 2),
        ("outputs/c", 1),
        ("mine/d", 4),
    ):
        os.makedirs(name)
        write_json(Path(name, "sweep.json"), {"format": 2, "started": started})
    newest = Path("outputs/multirun/2026-01-02/a")
    assert latest.resolved(["sweep.resume=latest"], latest.KEYS) == [f"sweep.resume={newest}"]
    assert latest.resolved(["sweep.resume=mine/latest"], latest.KEYS) == ["sweep.resume=mine/d"]
    assert dtrain.Sweep("latest").path == newest.absolute()
    assert dtrain.Sweep("outputs/multirun/2026-01-03/latest").path.name == "b"
    run("outputs/2026-01-02/09-00-00_a")
    run("mine/2026-01-02/09-00-00_b")
    assert dtrain.Run("latest").path == Path("outputs/2026-01-02/09-00-00_a").absolute()
    assert dtrain.Run(Path("mine/latest")).path.name == "09-00-00_b"
    for kind in (dtrain.Run, dtrain.Sweep):
        with pytest.raises(UsageError, match=r"=other/latest: there is no .* below other"):
            kind("other/latest")


def test_the_newest_is_the_one_that_began_last(capsys: pytest.CaptureFixture[str]) -> None:
    run("outputs/mine/run1", began=100.0)
    run("outputs/2026-01-02/09-00-00_a", began=300.0)
    run("outputs/2026-01-03/09-00-00_b", began=200.5)
    run("outputs/alone", began=250)
    newest = str(Path("outputs/2026-01-02/09-00-00_a"))
    assert latest.resolved(["latest"], ("",)) == [newest]
    run("outputs/zuletzt", began=301.0)
    assert latest.resolved(["latest"], ("",)) == [str(Path("outputs/zuletzt"))]


def test_commands_take_the_latest(
    dtrain: Commands, quick: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    first = dtrain(*quick, "trainer.epochs=1")
    path = os.path.relpath(first.rundir.path)
    again = dtrain("resume=latest", "trainer.epochs=2")
    assert again.code == 0 and again.output.startswith(f"resume=latest: {path}\n"), again.output
    assert first.result["step"] == 8
    for words in (["checkpoint", "latest"], ["export", "latest", "format=x"]):
        code = program._main(words, lambda: None)
        output = capfd.readouterr()
        assert output.err.startswith(f"RUN=latest: {path}\n"), output
        assert code == (2 if "format=x" in words else 0)
    assert program._main(["serve", "other/latest"], lambda: None) == 2
    assert "there is no run below other" in capfd.readouterr().err
