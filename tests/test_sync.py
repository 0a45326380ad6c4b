"""``python -m dtrain.sync`` sends a run where its user has said, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dtrain.cluster import Cluster, Task
from dtrain.controller import consent
from dtrain.rundir import write_json
from dtrain.sync import main


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a run folder, sync it, and return the exit code and what was printed."""
    monkeypatch.setenv("CANARY", "the canary")
    monkeypatch.delenv("DTRAIN_ENV", raising=False)
    consent.begin([], None)
    (tmp_path / "run").mkdir()
    cluster = Cluster((Task("chief", 0, 1),), "cpu", 1, {})
    write_json(tmp_path / "run" / "cluster.json", cluster.to_json())

    def sync(config: str, command: Any, capsys: Any, *more: str) -> tuple[int, str]:
        (tmp_path / "run" / "config.yaml").write_text(config)
        write_json(tmp_path / "run" / "command.json", command)
        monkeypatch.setattr("sys.argv", ["sync", str(tmp_path / "run"), *more])
        code = main()
        return code, capsys.readouterr().err

    return sync


FORGED = {
    "a server": "http://127.0.0.1:9/x",
    "a secret in it": "http://127.0.0.1:9/${oc.env:CANARY}",
    "a file of the user's": "sqlite:////tmp/mine.db",
    "put together": "http://127.0.0.1:9/${oc.decode:'${oc.env:CANARY}'}",
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_address(case: str, sent: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = f"tracking: {{uri: {json.dumps(FORGED[case])}}}\noutput_dir: x\n"
    for command in ({}, [], consent.signed(["seed=1"], None, "http://127.0.0.1:9")):
        code, printed = sent(config, command, capsys)
        assert code == 2
        assert printed.startswith("error: tracking.uri=") and "--uri ADDRESS" in printed
        assert "another user or machine" in printed
        assert "the canary" not in printed and "shipping to" not in printed


def test_a_forged_name(
    sent: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, store: Path
) -> None:
    config = "tracking: {uri: null, experiment: '${oc.env:CANARY}'}\nname: '${oc.env:CANARY}'\n"
    code, printed = sent(
        f"{config}output_dir: {tmp_path}/outputs\n", {}, capsys, "--uri", f"sqlite:///{store}"
    )
    assert code == 2, printed
    assert f"shipping to sqlite:///{store}" in printed
    assert "asks for the variable CANARY of your environment" in printed
    assert "the canary" not in printed
    assert b"the canary" not in store.read_bytes()
