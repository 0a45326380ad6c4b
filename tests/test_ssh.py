"""What launcher=ssh hands to OpenSSH, and what it makes of an answer; nothing is connected to."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtrain import errors
from dtrain.__main__ import main
from dtrain.errors import UsageError
from dtrain.launchers import Ssh
from dtrain.launchers.agents.host import Host, Inbox
from dtrain.launchers.ssh import explain
from tests.conftest import QUICK
from tests.test_launchers import SETTINGS


def ssh(**given: Any) -> Ssh:
    return Ssh(**{**SETTINGS, **given})


def remote(launcher: Ssh) -> str:
    return launcher.command("a")[-1]


def test_the_command_of_the_client() -> None:
    command = ssh(ssh_config="~/x", start_timeout=7.5).command("me@a")
    assert command[0] == "ssh" and command[-3:-1] == ["--", "me@a"]
    assert command[1:3] == ["-F", str(Path.home() / "x")]
    given = [command[place + 1] for place, word in enumerate(command) if word == "-o"]
    assert {"BatchMode=yes", "ControlMaster=no", "ForwardAgent=no", "ConnectTimeout=7"} <= set(
        given
    )


def test_what_a_shell_there_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in a key reaches the shell as one word."""
    folder = tmp_path / "it's a $(touch x) folder"
    folder.mkdir()
    seen = tmp_path / "seen"
    python = tmp_path / "a python'"
    python.write_text(f'#!/bin/sh\n(pwd; echo $A; echo "$@") > {seen}\n')
    python.chmod(0o755)
    launcher = ssh(folder=str(folder), python=str(python), setup=["A=1", "export A"])
    subprocess.run(["sh", "-c", remote(launcher)], check=True)
    assert seen.read_text().splitlines() == [str(folder), "1", "-m dtrain.agent"]
    assert not (tmp_path / "x").exists() and not (folder / "x").exists()
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(["sh", "-c", remote(ssh(python=str(python)))], check=True)
    assert seen.read_text().splitlines()[0] == str(tmp_path)
    words = shlex.split(remote(ssh(python=str(python))))
    words[-1] = words[-1].replace(str(tmp_path), "/not/there", 1)
    subprocess.run(words[1:], check=True, env={"HOME": str(home), "PATH": "/usr/bin:/bin"})
    assert sys.executable in remote(ssh())


def test_a_setup_that_fails_ends_it() -> None:
    done = subprocess.run(["sh", "-c", remote(ssh(setup=["exit 3"]))], check=False)
    assert done.returncode == 3


def test_hosts_are_given_once(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("a slots=2\n")
    [(leads, slots)] = ssh(hostfile=str(path)).transports()
    assert (leads.host, slots) == ("a", 2)
    for given, said in (
        ({}, "no host is given"),
        ({"hosts": ["a"], "hostfile": str(path)}, "hosts and a file of hosts are given"),
        ({"hosts": ["a", "a"]}, "is given twice"),
    ):
        with pytest.raises(UsageError, match=said):
            ssh(**given).transports()
    path.write_text("# none\n")
    with pytest.raises(UsageError, match="names no host"):
        ssh(hostfile=str(path)).transports()


def test_no_host_is_asked_for_what_is_done_here(tmp_path: Path, monkeypatch, capfd) -> None:
    client = tmp_path / "ssh"
    client.write_text(f"#!/bin/sh\necho asked >&2; touch {tmp_path}/asked; exit 255\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = (*QUICK[1:], "launcher=ssh", "launcher.hosts=[a,b]", "strategy=multiworker")
    monkeypatch.setattr(sys, "argv", ["dtrain", "data", *words])
    assert main() == errors.OK
    assert "in batches of 32" in "".join(capfd.readouterr())
    assert not (tmp_path / "asked").exists()


def test_variables_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("DTRAIN_TRUST", "tests")
    monkeypatch.setenv("OTHER", "1")
    assert (
        ssh(variables=["MINE"]).variables().items()
        >= {"MINE": "1", "DTRAIN_TRUST": "tests"}.items()
    )
    assert "OTHER" not in ssh(variables=["MINE"]).variables()
    with pytest.raises(UsageError, match="the environment has no variable NONE"):
        ssh(variables=["NONE"]).variables()


def answered(**said: Any) -> Host:
    [(leads, _)] = ssh(hosts=["me@a"]).transports()
    host = Host(leads, 1, Inbox(5.0).queue)
    for name, value in said.items():
        setattr(host, name, value)
    return host


@pytest.mark.parametrize(
    ("printed", "problem", "hint"),
    [
        ("Host key verification failed.", "its host key is not known", "ssh a, once"),
        ("me@a: Permission denied (publickey,password).", "none of your keys", "ssh-copy-id a"),
        ("ssh: Could not resolve hostname a: it is not known", "no host of this name", ""),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
         "is another than", "ssh-keygen -R a"),
        ("sh: 1: exec: /x/python: not found", "Python cannot be started", "launcher.python"),
        ("/x/python: No module named dtrain", "dtrain is not installed", "pip install"),
        ("/x/python: No module named dtrain.agent", "knows no agents", ""),
        ("ModuleNotFoundError: No module named 'numpy'", "lacks a package", ""),
        ("bash: module: command not found", "Python cannot be started", ""),
        ("strange\nwords", "no agent answers there: words", "ssh a"),
        ("", "no agent answers there: lost it", "ssh a"),
    ],
)  # fmt: skip
def test_what_an_answer_means(printed: str, problem: str, hint: str) -> None:
    host = answered(lost="lost it")
    host.transport.printed = lambda: printed  # type: ignore[attr-defined]
    found = explain(host)
    assert problem in found[0] and hint in found[1]


def test_the_address_in_a_network() -> None:
    host = answered(facts={"address": "10.0.0.1", "addresses": [
        ["lo", "127.0.0.1"], ["eth0", "10.0.0.1"], ["ib0", "192.168.7.1"], ["ib0", "fd00::1"],
    ]})  # fmt: skip
    for network, address in ((None, "10.0.0.1"), ("192.168.0.0/16", "192.168.7.1"),
                             ("ib0", "192.168.7.1"), ("fd00::/8", "fd00::1")):  # fmt: skip
        assert ssh(network=network).address(host) == address
    with pytest.raises(UsageError, match=r"has no address there, but 127\.0\.0\.1 \(lo\)"):
        ssh(network="172.16.0.0/12").address(host)
