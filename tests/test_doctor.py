"""``python -m dtrain doctor``: what it sees, and what it says would go wrong."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dtrain.controller.commands import doctor
from dtrain.controller.examination import machine, network
from dtrain.controller.examination.finding import size
from dtrain.controller.launchers import Local
from dtrain.host import network as addresses
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
    parts = ("this machine\n", "  versions ", "TensorFlow 2.", "cluster      none: launcher=auto")
    for part in (*parts, "where results go\n", "  tracking    none\n", "chief-0  trains"):
        assert part in out
    assert out.endswith("a run would start\n")
    assert not Path("outputs").exists()


def test_what_would_be_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = report(capsys, "strategy=mirrored", "trainer.batch_size=63", "tracking=none")
    assert code == 2 and "a run would start" not in out
    assert err.startswith("error: trainer.batch_size=63: 2 replicas cannot share it evenly")
    assert "open ports now" in out  # the rest is reported all the same
    code, _, err = report(capsys, "trainer.batch=63")
    assert code == 2 and "trainer.batch" in err


def test_a_step_of_slurm(capsys: pytest.CaptureFixture[str]) -> None:
    variables = {**step(0, "n[1-2]", "1(x2)", 2), "HOME": os.environ["HOME"]}
    with mock.patch.dict(os.environ, {**variables, "DTRAIN_CLUSTER_KEY": "a key of this test"}):
        code, out, err = report(capsys, "strategy=multiworker", "tracking=none")
        assert code == 0, err
        assert "cluster      SLURM step 41.0: 2 tasks on n[1-2]; this is task 0\n" in out
        assert "  cluster key  there is one\n" in out and "worker-0  trains" in out
        code, _, err = report(capsys, "strategy=mirrored", "tracking=none")
        assert code == 2 and "is one process, and SLURM step 41.0 has 2 tasks" in err
    with mock.patch.dict(os.environ, mpi(2, 2, (0, 1))):
        code, out, err = report(capsys, "tracking=none")
        assert code == 2 and "note: cluster: OMPI_COMM_WORLD_RANK=2" in out


def test_a_sweep_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = report(capsys, "seed=1,2", "hydra.mode=MULTIRUN", "tracking=none")
    assert code == 2 and "doctor has one configuration" in err


# --- tracking and disks


def test_a_tracking_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert network.server(address).found == f"{address} can be reached"
    found = network.server(address)
    assert "it does not answer (Connection refused)" in found.doubt
    code, out, _ = report(capsys, f"tracking.uri={address}")
    assert code == 0 and "note: tracking: it does not answer" in out  # a run trains all the same


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.disk("output_dir", tmp_path / "not" / "there")
    assert found.found.startswith(f"{tmp_path}/not/there: ") and " free" in found.found
    monkeypatch.setattr("shutil.disk_usage", lambda path: mock.Mock(free=1000))
    assert "only 1.0 kB are free" in machine.disk("output_dir", tmp_path).doubt
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert machine.disk("x", tmp_path).doubt == f"nothing can be written in {tmp_path}"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (53e9, "53 GB")]
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


# --- the machine


def test_a_container_with_less_time_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_quota", lambda: 0.5)
    assert machine._cores().doubt == (
        "the container has the time of 0.5: hardware.intra_op_threads=1"
    )
    monkeypatch.setattr("dtrain.host.memory.available", lambda: 10**9)
    assert machine._memory().doubt.startswith("TensorFlow alone takes")


# --- the network


def test_sockets_that_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as four, socket.socket(socket.AF_INET) as idle:
        idle.bind(("127.0.0.1", 0))
        found = list(network.listening())
        assert (four.getsockname()[1], ipaddress.ip_address("127.0.0.1")) in found
        assert idle.getsockname()[1] not in {port for port, _ in found}
    if socket.has_ipv6:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as six:
            found = list(network.listening())
            assert (six.getsockname()[1], ipaddress.ip_address("::1")) in found


def test_what_is_open_beyond_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [("lo", "127.0.0.1"), ("eth0", "10.1.2.3"), ("eth1", "8.8.4.4")]
    known = [(name, ipaddress.ip_address(address)) for name, address in both]
    monkeypatch.setattr(addresses, "interfaces", lambda: known)

    def doubt(wanted: str | None, several: bool = True) -> str:
        return network._reachable(wanted, several).doubt

    assert doubt("10.0.0.0/8") == (
        "TensorFlow's servers can be reached beyond 10.0.0.0/8, at 8.8.4.4 (eth1): close ports "
        "20000 to 32767 there"
    )
    assert "beyond eth1, at 10.1.2.3 (eth0): " in doubt("eth1")
    assert "beyond private networks, at 8.8.4.4 (eth1): " in doubt(None)
    assert doubt("0.0.0.0/0") == doubt(None, several=False) == ""


def test_proxies() -> None:
    found = network._proxies({"http_proxy": "http://me:hunter2@proxy:3128"}).found
    assert "hunter2" not in found and "proxy:3128: not between tasks" in found


DROPPING = [
    {"chain": {"table": "filter", "name": "input", "hook": "input", "policy": "drop"}},
    {"chain": {"table": "filter", "name": "output", "hook": "output", "policy": "drop"}},
    {"chain": {"table": "mine", "name": "in", "hook": "input", "policy": "accept"}},
    {"rule": {"table": "mine", "chain": "in", "expr": [{"match": {}}, {"reject": None}]}},
    {"rule": {"table": "filter", "chain": "output", "expr": [{"drop": None}]}},
]


def test_chains_that_drop() -> None:
    assert network.closing(DROPPING) == ["filter input", "mine in"]
    assert network.closing(DROPPING[1:3]) == []


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (json.dumps({"nftables": DROPPING}), "nftables drops in filter input, mine in"),
        (json.dumps({"nftables": []}), "no rule of nftables drops what comes in"),
        ("{", "cannot be seen (nft does not list its rules)"),
        ("{}", "cannot be seen (nft does not list its rules)"),
    ],
)
def test_a_firewall(answer: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*words: Any, **more: Any) -> Any:
        return subprocess.CompletedProcess(words, 0, answer, "")

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("shutil.which", lambda name, path=None: "/usr/sbin/nft")
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert network.firewall(True).found == found
    assert bool(network.firewall(True).doubt) == ("drops in" in found)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    assert network.firewall(True).found == "cannot be seen (that needs root)"
