"""What a configuration may read of the environment, and whose a run folder is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain.config import private, schema, trust
from dtrain.errors import UsageError


@pytest.fixture(autouse=True)
def _command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "the canary")
    monkeypatch.delenv("DTRAIN_ENV", raising=False)


def read(text: str, **more: str) -> Any:
    return OmegaConf.to_container(OmegaConf.create({"a": text, **more}), resolve=True)["a"]


#: Ways to write one variable.
WRITTEN = [
    "${oc.env:CANARY}", "${oc.env: 'CANARY' }", '${oc.env:"CANARY"}', "${oc.env:CANARY,x}",
    "x${oc.env:CANARY}y", "${oc.env:${c}}", "${${b}.env:CANARY}", "${oc.${d}:CANARY}",
    "${oc.decode:'${oc.env:CANARY}'}", "${oc.select:missing,${oc.env:CANARY}}",
    "${oc.create:{x:'${oc.env:CANARY}'}}", "${oc.env:CAN${e}}", "${ oc.env : CANARY}",
]  # fmt: skip


@pytest.mark.parametrize("text", WRITTEN)
def test_a_variable_is_not_read_however_it_is_written(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"b": "oc", "c": "CANARY", "d": "env", "e": "ARY"}
    with pytest.raises(OmegaConfBaseException) as caught:
        read(text, **more)
    found = private.own_error(caught.value)
    assert "the canary" not in str(caught.value)
    monkeypatch.setenv("DTRAIN_ENV", "OTHER, CANARY")
    if found is not None:  # else it is no interpolation at all
        assert "asks for the variable CANARY of your environment" in str(found)
        assert "the canary" in str(read(text, **more))
        return
    with pytest.raises(OmegaConfBaseException):
        read(text, **more)


def test_what_the_user_types_is_read() -> None:
    for written in ("${oc.env:CANARY}", "'a${oc.env:CANARY,b}'", "'${ oc.env: \"CANARY\"}'"):
        trust.begin([f"model.x={written}"], None)
        assert read("${oc.env:CANARY}") == "the canary"
        assert trust.command().read == {"CANARY": "the canary"}
    trust.begin(["model.x=CANARY"], None)
    assert not private.allowed("CANARY")


def test_files_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text("x: ${oc.env:CANARY}")
    (tmp_path / "large.yaml").write_text("${oc.env:HOME}" + " " * 2_000_000)
    os.mkfifo(tmp_path / "pipe.yaml")
    trust.begin([], str(tmp_path))
    assert private.allowed("CANARY") and not private.allowed("HOME")
    assert private.allowed("DTRAIN_SECRET_MODEL_API_KEY"), "a variable of ours"


def test_a_command_of_ones_own() -> None:
    words = ["tracking.uri=http://me:${oc.env:CANARY}@host", "seed=1"]
    command = json.loads(json.dumps(private.sign_command(words, None, "http://x")))
    assert private.accept("resume", "r", command, ["resume=r"]) == (words, None)
    assert private.allowed("CANARY")
    private.check_named("tracking.uri", "http://x", "")  # the words are the user's own
    assert private.is_own_address(command, "http://x")
    assert not private.is_own_address(command, "http://y")
    assert private.is_own_address(command, None) and private.is_own_address(None, None)


def forged(*words: str) -> dict[str, Any]:
    return {"overrides": [*words], "config_dir": None}


def named(key: str, value: Any) -> bool:
    """Say whether the user has named an address, or hosts."""
    try:
        private.check_named(key, value, "")
    except UsageError as error:
        assert str(error).startswith(f"{key}=") and "the run folder names it" in str(error)
        return False
    return True


@pytest.mark.parametrize(
    "change",
    [
        {"overrides": ["model.y=${oc.env:CANARY}"]}, {"config_dir": "/elsewhere"},
        {"overrides": ["model.x=${oc.env:CANARY}", "seed=1"]},
        {"signature": None}, {"signature": 7}, {"signature": "é"},
    ],
)  # fmt: skip
def test_a_command_from_elsewhere(change: dict[str, Any]) -> None:
    command = {**private.sign_command(["model.x=${oc.env:CANARY}"], None, None), **change}
    # Of the words that are typed beside it, the last ones name the address; a preset of theirs may.
    for typed, is_named in (
        ([], False), (["tracking=mlflow", "dataset=npz"], False),
        (["+tracking.uri=http://x"], True),
    ):  # fmt: skip
        trust.begin([], None)
        private.accept("resume", "r", command, ["resume=r", *typed])
        assert not private.allowed("CANARY")
        assert named("tracking.uri", "http://x") is is_named
        assert not named("dataset.path", "s3://x")
        # Resumed here they are not the user's own by that.
        again = private.sign_command(command["overrides"], command["config_dir"], "http://x")
        assert again["signature"] is None
        assert private.is_own_address(again, "http://x") is is_named


def test_data_at_addresses_that_the_user_has_named() -> None:
    assert named("dataset.path", "s3://x/a"), "in no folder from elsewhere"
    words = ["resume=r", "dataset.path=s3://y/b"]
    private.accept("resume", "r", forged("dataset.path=s3://x/a"), words)
    assert named("dataset.path", "s3://y/b") and not named("dataset.validation", "s3://x/a")
    trust.begin([], None)
    private.accept("resume", "r", private.sign_command(["dataset.path=s3://x/a"], None, None), [])
    assert named("dataset.path", "s3://x/a")


@pytest.mark.parametrize(
    "command",
    [
        None, [], {}, {"overrides": None}, {"overrides": "seed=1"}, {"overrides": [1]},
        {"overrides": ["--experimental-rerun=x.pickle"]}, {"overrides": ["seed=1", "-m"]},
        {"overrides": ["a=\0"]}, {"overrides": [], "config_dir": 3},
        {"overrides": [], "config_dir": "--experimental-rerun"}, {"overrides": [["seed=1"]]},
        *map(forged, ("=3", "+=", "name=" + "x" * 2**17, "a\0=3")), forged(*["seed=1"] * 1001),
    ],
)  # fmt: skip
def test_what_is_no_command(command: Any) -> None:
    with pytest.raises(UsageError, match="resume=r: its command holds "):
        private.accept("resume", "r", command, ["resume=r"])


def test_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a" / "b"))
    signature = private.sign_command([], None, None)["signature"]
    key = tmp_path / "a" / "b" / "dtrain" / "key"
    assert key.stat().st_mode & 0o777 == 0o600 and len(key.read_bytes()) == 32
    assert os.listdir(key.parent) == ["key"]
    assert private.sign_command([], None, None)["signature"] == signature
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "c"))
    assert private.sign_command([], None, None)["signature"] != signature
    key.write_bytes(b"short")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a" / "b"))
    assert private.sign_command([], None, None)["signature"] is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))  # no place for one
    command = private.sign_command(["a=b"], None, None)
    assert command["signature"] is None
    assert not private.is_own(None, None)


def test_a_fork_of_anothers_goes_where_the_user_says() -> None:
    words = ["output_dir=/elsewhere", "+hydra.run.dir=/x", "hydra.sweep.dir=/x", "seed=3"]
    assert private.accept("fork", "r", forged(*words), ["fork=r"]) == (["seed=3"], None)
    trust.begin([], None)
    own = private.sign_command(words, None, None)
    assert private.accept("fork", "r", own, ["fork=r"]) == (words, None)


def test_hosts_that_the_user_has_named() -> None:
    given = {"hosts": ["a"], "setup": ["rm -r /"]}
    more = dict.fromkeys(("python", "network", "folder", "ssh_config", "hostfile"))
    node = {"_target_": "dtrain.launchers.Ssh", **given, **more, "variables": []}
    assert dict(schema.of_hosts({**node, "max_restarts": 3})) == given
    assert not list(schema.of_hosts({"_target_": "dtrain.launchers.Local"}))
    assert named("launcher.setup", given["setup"]), "in no folder from elsewhere"
    words = ["resume=r", "launcher.hosts=[a]"]
    private.accept("resume", "r", forged("launcher=ssh", "launcher.setup=['rm -r /']"), words)
    assert named("launcher.hosts", ["a"]) and not named("launcher.setup", given["setup"])
