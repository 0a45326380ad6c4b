"""``python -m dtrain doctor``: what it sees, and what it says would go wrong."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from unittest import mock

import pytest

from dtrain.cli.commands import doctor
from dtrain.launchers import Local
from tests.cluster_environments import mpi, step


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = doctor.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_a_machine_that_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(Local, "kill") as kill:  # other launchers may have asked hosts
        code, out, err = report(capsys, "tracking=none")
    assert (code, err) == (0, "")
    kill.assert_called_once()
    parts = ("this machine\n", "  versions ", "TensorFlow 2.", "  cluster   none: launcher=auto")
    for part in (*parts, "where results go\n", "  tracking    none\n", "chief-0  trains"):
        assert part in out
    assert out.endswith("a run would start\n")
    assert not Path("outputs").exists()


def test_what_would_be_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = report(capsys, "strategy=mirrored", "trainer.batch_size=63", "tracking=none")
    assert code == 2 and "a run would start" not in out
    assert err.startswith("error: trainer.batch_size=63: 2 replicas cannot share it evenly")
    assert "where results go" in out  # the rest is reported all the same
    code, _, err = report(capsys, "trainer.batch=63")
    assert code == 2 and "trainer.batch" in err


def test_a_step_of_slurm(capsys: pytest.CaptureFixture[str]) -> None:
    variables = {**step(0, "n[1-2]", "1(x2)", 2), "HOME": os.environ["HOME"]}
    with mock.patch.dict(os.environ, {**variables, "DTRAIN_CLUSTER_KEY": "a key of this test"}):
        code, out, err = report(capsys, "strategy=multiworker", "tracking=none")
        assert code == 0, err
        assert "cluster   SLURM step 41.0: 2 tasks on n[1-2]; this is task 0\n" in out
        assert "worker-0  trains" in out
        code, _, err = report(capsys, "strategy=mirrored", "tracking=none")
        assert code == 2 and "is one process, and SLURM step 41.0 has 2 tasks" in err
    with mock.patch.dict(os.environ, mpi(2, 2, (0, 1))):
        code, out, err = report(capsys, "tracking=none")
        assert code == 2 and "note: cluster: OMPI_COMM_WORLD_RANK=2" in out


def test_a_sweep_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = report(capsys, "seed=1,2", "hydra.mode=MULTIRUN", "tracking=none")
    assert code == 2 and "doctor has one configuration" in err


def test_the_hosts_that_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = "launcher.hosts=[127.0.0.1,nowhere.invalid:2]"
    code, out, _ = report(capsys, "launcher=ssh", hosts, "tracking=none")
    assert code == 2
    assert "  to 127.0.0.1        127.0.0.1, from 127.0.0.1\n" in out
    assert "  to nowhere.invalid  no way\n" in out
    assert "note: to nowhere.invalid: there is no way (" in out


def test_a_tracking_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        code, out, _ = report(capsys, f"tracking.uri={address}")
        assert code == 0 and f"  tracking    {address} can be reached\n" in out
    code, out, _ = report(capsys, f"tracking.uri={address}")
    assert code == 0  # a run trains all the same
    assert "note: tracking: it does not answer (Connection refused)" in out


def test_where_run_folders_go(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = report(capsys, f"output_dir={tmp_path}/not/there", "tracking=none")
    assert f"  output_dir  {tmp_path}/not/there\n" in out
    _, out, _ = report(capsys, "output_dir=s3://bucket/x", "tracking=none")
    assert "  output_dir  s3://bucket/x\n" in out
    monkeypatch.setattr("os.access", lambda path, mode: False)
    _, out, _ = report(capsys, "tracking=none")
    assert f"note: output_dir: nothing can be written in {tmp_path}" in out
