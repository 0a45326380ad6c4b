"""What a command takes over of what ``tune`` has measured: ``hardware=tuned``, keys at ``auto``."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtrain.config.schema import Hardware
from dtrain.controller import taken, tuned
from dtrain.errors import DamagedFile, UsageError
from dtrain.run.folder import RunDir
from tests.conftest import QUICK, Commands
from tests.test_schema import node
from tests.test_tune import known, settled

DEVICES, THREADS, PRECISION = "hardware.devices", "hardware.intra_op_threads", "hardware.precision"
JIT, ONEDNN = "hardware.jit_compile", "hardware.onednn"
MLP = ("model=mlp",)


@pytest.fixture(autouse=True)
def _nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_CACHE", str(tmp_path / "cache"))


class Used:
    """What a command takes over.

    Args:
        overrides: of the command.
        choices: of groups, where they are not the usual ones.
    """

    def __init__(self, *overrides: str, **choices: str):
        self.config = settled(*overrides)
        left = taken.choice(
            self.config, node(*overrides), overrides, {"launcher": "auto", **choices}
        )
        self.said: list[str] = []
        self.kept = taken.use(self.config, left, overrides, self.said.append)


def test_what_was_measured_is_used_but_for_what_is_typed() -> None:
    path = tuned.write(settled(*MLP), {THREADS: 2, PRECISION: "mixed_bfloat16"})
    used = Used(*MLP, f"{ONEDNN}=false", hardware="tuned")
    assert used.kept == [
        f"{DEVICES}=null", f"{THREADS}=2", f"{PRECISION}=mixed_bfloat16", f"{JIT}=false",
        "dataset.workers=0",
    ]  # fmt: skip
    assert used.config.hardware.intra_op_threads == 2 and not used.said
    assert used.config.hardware.precision.name == "mixed_bfloat16"
    # A run that is resumed has them among its own overrides: nothing is read again.
    path.write_text("damaged")
    assert Used(*MLP, f"{ONEDNN}=true", *used.kept, hardware="tuned").kept == []
    assert Used(*MLP).kept == []


def test_what_was_not_measured_is_refused() -> None:
    with pytest.raises(UsageError) as refused:
        Used("hardware=tuned", *MLP, f"{JIT}=auto", hardware="tuned")
    assert str(refused.value).endswith("type: python -m dtrain tune model=mlp")
    with pytest.raises(UsageError, match="launcher=slurm starts tasks on others"):
        Used(hardware="tuned", launcher="slurm")


# --- keys that are auto


def test_the_keys_that_may_be_auto_are_measured() -> None:
    assert taken.SWITCHES == (ONEDNN, JIT)
    assert set(taken.SWITCHES) <= set(tuned.KEYS)


def test_auto_is_what_was_measured() -> None:
    tuned.write(settled(*MLP), {JIT: True, ONEDNN: False, THREADS: 2})
    used = Used(*MLP, f"{JIT}=auto", f"{ONEDNN}=auto")
    assert used.kept == [f"{ONEDNN}=false", f"{JIT}=true"]
    assert (used.config.hardware.onednn, used.config.hardware.jit_compile) == (False, True)
    assert used.config.hardware.intra_op_threads is None, "which is not auto"
    assert used.said == [f"{ONEDNN}=false, {JIT}=true (auto): as python -m dtrain tune found"]


def test_auto_is_the_default_where_nothing_was_measured() -> None:
    used = Used(*MLP, f"{JIT}=auto", f"{ONEDNN}=auto")
    assert used.kept == [f"{ONEDNN}=true", f"{JIT}=false"]
    assert (used.config.hardware.onednn, used.config.hardware.jit_compile) == (True, False)
    [line] = used.said
    assert "the default: nothing was measured" in line and "python -m dtrain tune" in line
    tuned.write(settled("model=cnn"), {JIT: True})
    assert Used(*MLP, f"{JIT}=auto").kept == [f"{JIT}=false"], "of another model"


@pytest.mark.parametrize(
    ("measured", "words", "reason"),
    [
        ({JIT: True, ONEDNN: False}, (), f"{ONEDNN}=false was measured with it"),
        ({JIT: True, PRECISION: "mixed_bfloat16"}, (), f"{PRECISION}=mixed_bfloat16 was measured"),
        ({JIT: True}, (f"{PRECISION}=mixed_bfloat16",), "and here it is mixed_bfloat16"),
    ],
)
def test_a_part_of_other_numbers_is_not_taken(
    measured: dict[str, Any], words: tuple[str, ...], reason: str
) -> None:
    tuned.write(settled(*MLP), measured)
    used = Used(*MLP, f"{JIT}=auto", *words)
    assert used.kept == [f"{JIT}=false"]
    assert reason in used.said[0] and "the default: " in used.said[0]


@pytest.mark.parametrize("launcher", ["slurm", "k8s", "ssh", "ray", "env"])
def test_auto_on_other_machines_is_the_default(launcher: str) -> None:
    tuned.write(settled(*MLP), {JIT: True})
    used = Used(*MLP, f"{JIT}=auto", launcher=launcher)
    assert used.kept == [f"{JIT}=false"]
    assert f"launcher={launcher} is for several machines" in used.said[0]


def test_the_commands_of_a_cluster_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned.write(settled(*MLP), {JIT: True})
    cluster = {"worker": ["10.0.0.1:1", "10.0.0.2:1"]}
    about = {"cluster": cluster, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(about))
    used = Used(*MLP, f"{JIT}=auto")
    assert used.kept == [f"{JIT}=false"] and "is for several machines" in used.said[0]
    assert Used(*MLP, f"{JIT}=auto", launcher="local").kept == [f"{JIT}=true"]


@pytest.mark.parametrize("text", ["{", "[1]", '{"version": 2}', '{"version": 1, "of": {}}'])
def test_a_damaged_file_is_refused(text: str) -> None:
    tuned.write(settled(*MLP), {}).write_text(text)
    with pytest.raises(DamagedFile):
        Used(*MLP, f"{JIT}=auto")


def test_nobody_reads_what_nobody_asks_for() -> None:
    tuned.write(settled(*MLP), {}).write_text("damaged")
    assert Used(*MLP, f"{JIT}=true").kept == []


def test_without_anybody_who_looks_auto_is_the_default() -> None:
    hardware = settled(f"{JIT}=auto", f"{ONEDNN}=auto").hardware
    assert (hardware.onednn, hardware.jit_compile) == (Hardware().onednn, Hardware().jit_compile)


def test_a_variable_may_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_SECRET_SWITCH", "true")
    reference = "${oc.env:DTRAIN_SECRET_SWITCH}"
    assert settled(f"{JIT}={reference}").hardware.jit_compile is True
    monkeypatch.setenv("DTRAIN_SECRET_SWITCH", "auto")
    assert Used(*MLP, f"{JIT}={reference}").kept == [f"{JIT}=false"]


@pytest.mark.parametrize("value", ["maybe", "1", "null", "[true]", "TRUE_", "0.5"])
def test_what_is_no_switch_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="accepted: true, false or auto; type: ") as refused:
        settled(f"{ONEDNN}={value}")
    assert refused.value.key == ONEDNN


def test_what_a_run_took_is_told_from_what_was_typed() -> None:
    words = [*MLP, f"{JIT}=auto"]
    assert taken.parted([*words, f"{JIT}=true"], [JIT]) == (words, [f"{JIT}=true"])
    assert taken.parted([*words, "seed=1"], [JIT]) == ([*words, "seed=1"], [])
    assert taken.parted(words, []) == (words, [])
    assert taken.parted([], [JIT]) == ([], [])


@pytest.mark.parametrize("value", ["auto", "1", "null", "", "9" * 5000])
def test_what_a_folder_has_is_read_strictly(value: str) -> None:
    config = copy.copy(known())
    with pytest.raises(DamagedFile, match=f"command.json: {JIT}"):
        taken.again(config, [f"{JIT}={value}"], Path("command.json"))
    assert config.hardware.jit_compile is False


def test_a_run_keeps_what_it_took(dtrain: Commands) -> None:
    words = [*QUICK, "trainer.epochs=1"]
    missing = dtrain(*words, "hardware=tuned")
    assert missing.code == 2 and "python -m dtrain tune model=mlp" in missing.output
    tuned.write(settled(*words), {THREADS: 1, "hardware.precision": "mixed_bfloat16"})
    done = dtrain(*words, "hardware=tuned")
    assert done.code == 0, done.output
    assert done.rundir is not None
    config = yaml.safe_load(done.rundir.config.read_text())
    assert config["hardware"]["precision"] == "mixed_bfloat16"
    assert config["hardware"]["intra_op_threads"] == 1
    command = json.loads(done.rundir.command.read_text())
    assert "hardware.precision=mixed_bfloat16" in command["overrides"]
    tuned.write(settled(*words), {})  # measured again since, with another result
    again = dtrain(f"resume={done.rundir.path}", "trainer.epochs=2", "dry_run=true")
    assert again.code == 0 and "precision            mixed_bfloat16" in again.output


AUTO = (f"{JIT}=auto", f"{ONEDNN}=auto")


def hardware(folder: Path) -> tuple[Any, Any]:
    """Return what a run has computed with."""
    found = yaml.safe_load(RunDir(folder).config.read_text())["hardware"]
    return found["jit_compile"], found["onednn"]


def test_a_run_keeps_what_auto_was(dtrain: Commands) -> None:
    words = [*QUICK, *AUTO, "trainer.epochs=1"]
    tuned.write(settled(*words), {JIT: True})
    done = dtrain(*words)
    assert done.code == 0, done.output
    assert done.output.count("(auto): as python -m dtrain tune found") == 1
    assert done.rundir is not None
    assert hardware(done.rundir.path) == (True, True)
    overrides = json.loads(done.rundir.command.read_text())["overrides"]
    assert overrides[-2:] == [f"{ONEDNN}=true", f"{JIT}=true"]
    cluster = json.loads(done.rundir.cluster.read_text())
    assert cluster["environment"]["TF_ENABLE_ONEDNN_OPTS"] == "1"
    tuned.write(settled(*words), {ONEDNN: False})  # measured again since, with another result
    again = dtrain(f"resume={done.rundir.path}", "trainer.epochs=2")
    assert again.code == 0 and "(auto)" not in again.output, again.output
    assert hardware(done.rundir.path) == (True, True)


def test_the_same_command_goes_on_with_what_it_took(dtrain: Commands) -> None:
    words = [*QUICK, *AUTO, "resume=auto", "trainer.epochs=1"]
    tuned.write(settled(*QUICK), {JIT: True})
    done = dtrain(*words)
    assert done.code == 0 and done.rundir is not None, done.output
    done.rundir.result.unlink()  # it was killed
    tuned.write(settled(*QUICK), {ONEDNN: False})
    again = dtrain(*words)
    assert again.code == 0 and f"resume=auto: {done.rundir.path.absolute()}" in again.output
    assert hardware(done.rundir.path) == (True, True)
    words[words.index(f"{JIT}=auto")] = f"{JIT}=false"
    other = dtrain(*words, "dry_run=true")
    assert "no unfinished run of this command" in other.output


def test_a_sweep_keeps_what_its_jobs_took(dtrain: Commands) -> None:
    words = ["-m", *QUICK, *AUTO, "trainer.epochs=1", "seed=1,2", "sweep.parallel=1"]
    tuned.write(settled(*QUICK), {JIT: True})
    done = dtrain(*words)
    assert done.code == 0, done.output
    assert done.output.count("(auto): as python -m dtrain tune found") == 1, "of both jobs once"
    [folder] = {path.parent for path in Path("outputs/multirun").rglob("sweep.json")}
    assert [hardware(folder / name) for name in ("0", "1")] == [(True, True)] * 2
    tuned.write(settled(*QUICK), {ONEDNN: False})
    again = dtrain(f"sweep.resume={folder}", "dry_run=true")
    assert again.code == 0 and "(auto)" not in again.output, again.output
    assert len(list(folder.glob("[0-9]*"))) == 2


def test_the_plan_says_what_auto_is(dtrain: Commands) -> None:
    plan = dtrain(*QUICK, *AUTO, "strategy=mirrored", "dry_run=true")
    [line] = [each for each in plan.output.splitlines() if "(auto)" in each]
    assert plan.code == 0 and line.startswith(f"{ONEDNN}=true, {JIT}=false (auto): the default")
    assert line.endswith("python -m dtrain tune")


def test_a_preset_may_leave_it_to_tune(dtrain: Commands, tmp_path: Path) -> None:
    preset = tmp_path / "conf" / "hardware" / "mine.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("defaults: [auto, _self_]\njit_compile: auto\nonednn: auto\n")
    tuned.write(settled(*QUICK), {JIT: True})
    run = dtrain("--config-dir", str(tmp_path / "conf"), "hardware=mine", *QUICK, "dry_run=true")
    assert run.code == 0 and f"{JIT}=true (auto)" in run.output, run.output
