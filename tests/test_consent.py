"""What a configuration may read of the environment, and whose a run folder is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain.config import private, trust
from dtrain.errors import UsageError


@pytest.fixture(autouse=True)
def _command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "the canary")
    monkeypatch.delenv("DTRAIN_ENV", raising=False)
    trust.begin([], None)


def read(text: str) -> Any:
    return OmegaConf.to_container(
        OmegaConf.create({"a": text, "b": "oc", "c": "CANARY"}), resolve=True
    )["a"]


#: Ways to write one variable.
WRITTEN = [
    "${oc.env:CANARY}", "${oc.env: 'CANARY' }", '${oc.env:"CANARY"}', "${oc.env:CANARY,x}",
    "x${oc.env:CANARY}y", "${oc.env:${c}}", "${${b}.env:CANARY}", "${oc.${d}:CANARY}",
    "${oc.decode:'${oc.env:CANARY}'}", "${oc.select:missing,${oc.env:CANARY}}",
    "${oc.create:{x:'${oc.env:CANARY}'}}", "${oc.env:CAN${e}}", "${ oc.env : CANARY}",
]  # fmt: skip


@pytest.mark.parametrize("text", WRITTEN)
def test_however_it_is_written(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"a": text, "b": "oc", "c": "CANARY", "d": "env", "e": "ARY"}
    with pytest.raises(OmegaConfBaseException) as caught:
        OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    found = private.own_error(caught.value)
    if found is not None:  # else it is no interpolation at all
        assert "asks for the variable CANARY of your environment" in str(found)
    assert "the canary" not in str(caught.value)
    monkeypatch.setenv("DTRAIN_ENV", "OTHER, CANARY")
    try:
        assert "the canary" in str(OmegaConf.to_container(OmegaConf.create(config), resolve=True))
    except OmegaConfBaseException:
        assert found is None


@pytest.mark.parametrize(
    "word",
    [
        "model.x=${oc.env:CANARY}",
        "model.x='a${oc.env:CANARY,b}'",
        "model.x='${ oc.env: \"CANARY\"}'",
    ],
)
def test_what_the_user_types_is_read(word: str) -> None:
    trust.begin([word], None)
    assert read("${oc.env:CANARY}") == "the canary"
    assert trust.command().read == {"CANARY": "the canary"}
    trust.begin(["model.x=CANARY"], None)
    assert not private.allowed("CANARY")


def test_files_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "presets" / "model").mkdir(parents=True)
    (tmp_path / "presets" / "model" / "small.yaml").write_text("x: ${oc.env:CANARY}")
    (tmp_path / "presets" / "model" / "large.yaml").write_text("${oc.env:HOME}" + " " * 2_000_000)
    os.mkfifo(tmp_path / "presets" / "pipe.yaml")
    trust.begin([], str(tmp_path / "presets"))
    assert private.allowed("CANARY") and not private.allowed("HOME")


def test_a_variable_of_ours_is_for_configurations() -> None:
    assert private.allowed("DTRAIN_SECRET_MODEL_API_KEY")


def test_defaults_and_absent_variables() -> None:
    assert read("${oc.env:ABSENT,x}") == "x"
    assert read("${oc.env:ABSENT,null}") is None
    with pytest.raises(OmegaConfBaseException, match="the environment has no variable ABSENT"):
        read("${oc.env:ABSENT}")


def test_a_command_of_ones_own() -> None:
    words = ["tracking.uri=http://me:${oc.env:CANARY}@host", "seed=1"]
    command = json.loads(json.dumps(private.sign_command(words, None, "http://x")))
    assert private.accept("resume", "r", command, ["resume=r"]) == (words, None)
    assert private.allowed("CANARY")
    private.check_named("tracking.uri", "http://x", "")  # the words are the user's own
    assert private.is_own_address(command, "http://x")
    assert not private.is_own_address(command, "http://y")
    assert private.is_own_address(command, None) and private.is_own_address(None, None)


def test_data_at_addresses_that_the_user_has_named() -> None:
    forged = {"overrides": ["dataset.path=s3://x/a"], "config_dir": None}
    private.check_named("dataset.path", "s3://x/a", "")
    private.accept("resume", "r", forged, ["resume=r", "dataset.path=s3://y/b"])
    private.check_named("dataset.path", "s3://y/b", "")
    with pytest.raises(UsageError, match=r"dataset\.validation=s3://x/a"):
        private.check_named("dataset.validation", "s3://x/a", "")
    trust.begin([], None)
    private.accept("resume", "r", private.sign_command(["dataset.path=s3://x/a"], None, None), [])
    private.check_named("dataset.path", "s3://x/a", "")


CHANGES: dict[str, dict[str, Any]] = {
    "another word": {"overrides": ["model.y=${oc.env:CANARY}"]},
    "a word more": {"overrides": ["model.x=${oc.env:CANARY}", "seed=1"]},
    "another folder": {"config_dir": "/elsewhere"},
    "no signature": {"signature": None},
    "a number": {"signature": 7},
    "another signature": {"signature": "é"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_command_from_elsewhere(change: str) -> None:
    command = {**private.sign_command(["model.x=${oc.env:CANARY}"], None, None), **CHANGES[change]}
    private.accept("resume", "r", command, ["resume=r"])
    assert not private.allowed("CANARY")
    with pytest.raises(UsageError, match=r"tracking\.uri=http://x: the run folder names it"):
        private.check_named("tracking.uri", "http://x", "")
    with pytest.raises(UsageError, match=r"^dataset\.path=s3://x: the run folder names it"):
        private.check_named("dataset.path", "s3://x", "")
    trust.begin([], None)
    private.accept("resume", "r", command, ["resume=r", "tracking=mlflow", "dataset=npz"])
    with pytest.raises(UsageError):  # a preset of theirs may name it as well
        private.check_named("tracking.uri", "http://x", "")
    with pytest.raises(UsageError):
        private.check_named("dataset.path", "s3://x", "")
    # Resumed here they are not the user's own by that.
    again = private.sign_command(command["overrides"], command["config_dir"], "http://x")
    assert again["signature"] is None and again["uri_signature"] is None
    trust.begin([], None)
    private.accept("resume", "r", command, ["resume=r", "+tracking.uri=http://x"])
    private.check_named("tracking.uri", "http://x", "")
    with pytest.raises(UsageError):
        private.check_named("dataset.path", "s3://x", "")
    again = private.sign_command(command["overrides"], command["config_dir"], "http://x")
    assert again["signature"] is None and private.is_own_address(again, "http://x")


@pytest.mark.parametrize(
    "command",
    [
        None, [], {}, {"overrides": None}, {"overrides": "seed=1"}, {"overrides": [1]},
        {"overrides": ["--experimental-rerun=x.pickle"]}, {"overrides": ["seed=1", "-m"]},
        {"overrides": ["a=\0"]}, {"overrides": [], "config_dir": 3},
        {"overrides": [], "config_dir": "--experimental-rerun"}, {"overrides": [["seed=1"]]},
    ],
)  # fmt: skip
def test_what_is_no_command(command: Any) -> None:
    with pytest.raises(UsageError, match=r"resume=r: its command holds .*which is no override"):
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
    forged = {"overrides": words, "config_dir": None}
    assert private.accept("fork", "r", forged, ["fork=r"]) == (["seed=3"], None)
    trust.begin([], None)
    own = private.sign_command(words, None, None)
    assert private.accept("fork", "r", own, ["fork=r"]) == (words, None)


@pytest.mark.parametrize(
    "words", [["seed=1"] * 1001, ["=3"], ["+="], ["name=" + "x" * 2**17], ["a\0=3"]], ids=len
)
def test_words_that_no_command_has(words: list[str]) -> None:
    with pytest.raises(UsageError, match="its command holds"):
        private.accept("resume", "r", {"overrides": words, "config_dir": None}, ["resume=r"])


def test_hosts_that_the_user_has_named() -> None:
    from dtrain.config import schema

    node = {
        "_target_": "dtrain.controller.launchers.Ssh", "hosts": ["a"], "setup": ["rm -r /"],
        "python": None, "max_restarts": 3,
    }  # fmt: skip
    found = dict(schema.of_hosts({**node, "network": None, "folder": None, "ssh_config": None,
                                  "hostfile": None, "variables": []}))  # fmt: skip
    assert found == {"hosts": ["a"], "setup": ["rm -r /"]}
    assert not list(schema.of_hosts({"_target_": "dtrain.controller.launchers.Local"}))
    forged = {"overrides": ["launcher=ssh", "launcher.setup=['rm -r /']"], "config_dir": None}
    private.check_named("launcher.setup", node["setup"], "")
    private.accept("resume", "r", forged, ["resume=r", "launcher.hosts=[a]"])
    private.check_named("launcher.hosts", ["a"], "")
    with pytest.raises(UsageError, match=r"launcher\.setup=.*the run folder names it"):
        private.check_named("launcher.setup", node["setup"], "")
