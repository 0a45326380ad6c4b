"""``resume=`` and ``fork=``: the words of a run, which run is meant, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from dtrain.config import tree
from dtrain.errors import UsageError
from dtrain.job import resume
from dtrain.run import checkpoint, identity
from dtrain.run.folder import RunDir, write_json, write_text
from tests.test_schema import composed, node

WORDS = ("model=mlp", "dataset=synthetic", "model.units=[16]")


@pytest.fixture
def begun(tmp_path: Path) -> Any:
    """Write the folder of a run, as far as its controller would, and return it."""

    def begin(
        *words: str,
        name: str = "12-00-00_a",
        status: str | None = None,
        steps: tuple[int, ...] = (),
    ) -> RunDir:
        words = words or WORDS
        rundir = RunDir.create(tmp_path / "outputs" / "2026-01-01" / name)
        config = composed(*words)
        write_text(rundir.config, tree.to_yaml(config))
        write_json(rundir.command, resume.command(list(words), None))
        if status is not None:
            write_json(rundir.result, {"status": status})
        for step in steps:
            meta = {
                "config": identity.fingerprints(config),
                "versions": identity.versions("tensorflow"),
            }
            checkpoint.save(rundir.checkpoints, step, {"a": np.zeros(3)}, meta)
        return rundir

    return begin


def damage(rundir: RunDir, *steps: int) -> None:
    for step in steps:
        (rundir.checkpoints / str(step) / "state.safetensors").write_bytes(b"")


def refused(message: str, call: Any, *arguments: Any) -> UsageError:
    """Return the error, whose text is ``message``: a shell's pattern of whole parts."""
    with pytest.raises(UsageError) as caught:
        call(*arguments)
    pattern = ".*".join(re.escape(part) for part in message.split("*"))
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)
    return caught.value


# --- the words


def test_what_is_kept_of_a_command() -> None:
    words = ["model=cnn", "resume=auto", "++resume=x", "seed=1", "dry_run=true", "fork=x"]
    command = resume.command(words, "/conf")
    assert command["overrides"] == ["model=cnn", "seed=1", "fork=x"]
    assert command["config_dir"] == "/conf"


@pytest.mark.parametrize(
    "given", [[], ["seed=1"], ["resume=null", "fork=null"], ["seed=1", "resume=auto"]]
)
def test_a_command_of_its_own_stays_as_it_is(given: list[str]) -> None:
    assert resume.arguments(given) == given


@pytest.mark.parametrize("key", ["resume", "fork"])
def test_the_words_of_the_run_come_first(key: str, begun) -> None:
    rundir = begun(*WORDS, "optimizer/schedule=cosine", "optimizer.beta_1=0.8", "+model.x=1")
    for folder in (str(rundir.path), f"'{rundir.path}'", f'"{rundir.path}/"'):
        given = [f"{key}={folder}", "seed=1"]
        own = [*WORDS, "optimizer/schedule=cosine", "optimizer.beta_1=0.8", "+model.x=1"]
        assert resume.arguments(given) == [*own, *given]
    word = f"{key}={rundir.path}"
    # What replaces a group replaces its keys.
    assert resume.arguments([word, "optimizer=sgd"])[:-2] == [*WORDS, "+model.x=1"]
    assert resume.arguments([word, "model=cnn"])[:3] == ["dataset=synthetic", *own[3:5]]
    assert "model.units=[16]" not in resume.arguments([word, "model.units=[8]"])
    assert "+model.x=1" not in resume.arguments([word, "~model.x"])


def test_options_come_before_all_words(begun) -> None:
    """Hydra takes no words, an option and words again."""
    word = f"fork={begun().path}"
    assert resume.arguments(["-m", word, "seed=1,2"]) == ["-m", *WORDS, word, "seed=1,2"]
    given = ["--config-dir", "mine", "-m", word]
    assert resume.arguments(given) == [*given[:3], *WORDS, word]
    assert resume.arguments([word, "seed=1,2", "-m"]) == [*WORDS, word, "seed=1,2", "-m"]


def test_a_job_of_an_experiment_of_a_sweep_is_one_run(begun: Any) -> None:
    word = f"resume={begun(*WORDS, 'experiment=speed').path}"
    own = [*WORDS, "experiment=speed"]
    assert resume.arguments([word]) == [*own, "hydra.mode=RUN", word]
    assert resume.arguments(["-m", word, "seed=1,2"]) == ["-m", *own, word, "seed=1,2"]


def test_the_config_dir_of_the_run(begun) -> None:
    rundir = begun()
    write_json(rundir.command, resume.command(["seed=1"], "/conf"))
    word = f"resume={rundir.path}"
    assert resume.arguments([word]) == ["--config-dir", "/conf", "seed=1", word]
    for own in (["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]):
        assert resume.arguments([*own, word]) == [*own, "seed=1", word]


def test_a_checkpoint_may_be_forked(begun) -> None:
    rundir = begun(steps=(4,))
    for path in ("checkpoints/4", "checkpoints/4/", "checkpoints/8"):  # that is looked at later
        word = f"fork={rundir.path}/{path}"
        assert resume.arguments([word]) == [*WORDS, word]


def test_a_fork_of_a_fork_forgets_the_first(begun) -> None:
    rundir = begun(*WORDS, "fork=elsewhere")
    word = f"fork={rundir.path}"
    assert resume.arguments([word]) == [*WORDS, word]
    word = f"resume={rundir.path}"
    assert resume.arguments([word]) == [*WORDS, "fork=elsewhere", word]


@pytest.mark.parametrize("key", ["resume", "fork"])
@pytest.mark.parametrize("missing", ["all", "command.json", "config.yaml"])
def test_a_folder_that_is_none(key: str, missing: str, begun) -> None:
    rundir = begun()
    if missing == "all":
        shutil.rmtree(rundir.path)
    else:
        (rundir.path / missing).unlink()
    problem = "is not a run folder (it has no command.json)"
    if missing == "all":
        problem = f"there is no such folder (looked in {os.getcwd()})"
    refused(
        f"{key}={rundir.path}: {problem}; "
        f"accepted: a folder that a run printed; "
        f"hint: {key}=outputs/DATE/TIME_NAME",
        resume.arguments, [f"{key}={rundir.path}"],
    )  # fmt: skip


def test_a_word_that_is_nearly_latest() -> None:
    refused("resume=lastest: there is no such folder*; type: resume=latest",
            resume.arguments, ["resume=lastest"])  # fmt: skip


def test_a_word_without_a_value(begun, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("resume=: is not a run folder*", resume.arguments, ["resume"])
    monkeypatch.chdir(begun().path)
    assert resume.arguments(["resume"]) == [*WORDS, "resume"], "Hydra will explain"


def test_resume_and_fork_exclude_each_other() -> None:
    refused(
        "fork=y: cannot be given with resume=; accepted: a path, or null; type: fork=y",
        resume.arguments, ["fork=y", "resume=x"],
    )  # fmt: skip


def test_a_scheduler_may_start_a_fork_again(begun) -> None:
    given = [f"fork={begun().path}", "resume=auto", "seed=9"]
    words = resume.arguments(given)
    assert words[-3:] == given
    assert words == resume.arguments(given), "the same command composes the same"


# --- resume=auto


def found(tmp_path: Path, *words: str, meaning: tuple[str, ...] = ()) -> str | None:
    """Return the name of the folder that the same command would continue with."""
    words = words or WORDS
    config = composed(*words, *meaning, f"output_dir={tmp_path}/outputs")
    path = resume.find(config, resume.command([*words, "resume=auto"], None))
    return None if path is None else Path(path).name


def test_the_newest_that_is_not_finished(begun, tmp_path: Path) -> None:
    assert found(tmp_path) is None  # not even a folder
    begun(name="12-00-00_a", status="KILLED")
    begun(name="12-00-01_a")  # its controller was killed, too
    assert found(tmp_path) == "12-00-01_a"
    begun(name="12-00-02_a", status="FAILED")
    assert found(tmp_path) == "12-00-02_a"
    begun(name="12-00-02_a", status="KILLED")  # in the same second
    assert found(tmp_path) == "12-00-02_a-2"
    begun("seed=3", name="12-00-03_a", status="KILLED")
    assert found(tmp_path) == "12-00-02_a-2", "other words"
    begun(name="12-00-04_a", status="FINISHED")
    assert found(tmp_path) is None, "what came before the last is left alone"


def test_the_same_words(begun, tmp_path: Path) -> None:
    begun("seed=1", "trainer.epochs=2", "trainer.epochs=4")
    for words in (
        ["seed=1", "trainer.epochs=4"],
        ["trainer.epochs=4", "seed=1"],
        ["trainer.epochs=3", "seed=1", "trainer.epochs=4"],
        ["seed=1", "trainer.epochs=4", "dry_run=true"],
    ):
        assert found(tmp_path, *words) == "12-00-00_a", words
    for words in (
        ["seed=1"],
        ["seed=1", "trainer.epochs=4", "trainer.epochs=2"],
        ["seed=1", "trainer.epochs=4", "hardware=cpu"],
    ):
        assert found(tmp_path, *words) is None, words
    config = composed("seed=1", "trainer.epochs=4", f"output_dir={tmp_path}/outputs")
    words = ["seed=1", "trainer.epochs=4"]
    assert resume.find(config, resume.command(words, "/conf")) is None


def test_the_same_words_with_another_meaning(begun, tmp_path: Path) -> None:
    """A default, or a file of --config-dir, is another one by now."""
    begun(name="12-00-00_a")
    assert found(tmp_path, meaning=("optimizer.beta_1=0.8",)) is None
    assert found(tmp_path, meaning=("trainer.epochs=99",)) == "12-00-00_a"


def test_folders_that_tell_nothing_are_passed_over(
    begun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(name="12-00-00_a")
    begun(name="12-00-01_a").command.unlink()
    begun(name="12-00-02_a").config.unlink()
    begun(name="12-00-03_a").config.write_text("a: [")
    begun(name="12-00-04_a").config.write_text("seed: ${a}")
    begun(name="12-00-05_a").config.write_text("- 1\n")
    begun(name="12-00-06_a").config.write_bytes(b"\xff")
    begun(name="12-00-07_a").command.write_text("[")
    begun(name="12-00-08_a").command.write_text('{"format": 2, "overrides": 3}')
    damaged = begun(name="12-00-09_a")
    damaged.command.unlink()
    os.mkfifo(damaged.command)
    (begun(name="12-00-10_a").path / "logs").symlink_to(tmp_path)
    assert found(tmp_path) == "12-00-00_a"
    lines = capsys.readouterr().err.splitlines()
    # Those first that do not say when they began, as they may be the newest.
    names = [f"{number:02}_a" for number in (9, 8, 7, 10, 6, 5, 4, 3, 2)]
    for line, name in zip(lines, names, strict=True):
        assert line.startswith(f"resume=auto: passed over {tmp_path}/outputs/2026-01-01/12-00-")
        assert f"-{name}: " in line


# --- what resume= refuses


def checked(rundir: RunDir, *given: str, **later: str) -> Any:
    """Check a command as the command line does; return its configuration.

    Args:
        rundir: what is resumed.
        given: the words beside.
        later: defaults that are others by now.
    """
    words = resume.arguments([f"resume={rundir.path}", *given])
    whole = node(*words)
    for key, value in later.items():
        OmegaConf.update(whole, key.replace("__", "."), value)
    config = tree.typed(whole)
    resume.check(config, words)
    return config


def test_what_goes_on(begun) -> None:
    assert checked(begun(steps=(4, 8))).fork is None
    assert checked(begun()).resume  # killed before its first checkpoint
    checked(
        begun(steps=(4,)), "trainer.epochs=99", "strategy=mirrored", "hardware=cpu",
        "tracking=none", "checkpoint.keep=9", "launcher.max_restarts=1", "model.units=[16]",
    )  # fmt: skip
    damaged = begun(steps=(4, 8))
    damage(damaged, 8)
    checked(damaged)


def test_damaged_checkpoints_alone(begun) -> None:
    rundir = begun(steps=(4, 8))
    damage(rundir, 4, 8)
    state = rundir.checkpoints / "8" / "state.safetensors"
    refused(
        f"resume={rundir.path}: holds no sound checkpoint ({state} *); "
        f"accepted: a path, or null; hint: the command that began the run, to start anew",
        checked, rundir,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model.units=[8]", "model.units"),
        ("model=cnn", "model"),
        ("+model.x=1", "model.x"),
        ("dataset.noise=2", "dataset.noise"),
        ("optimizer/schedule=cosine", "optimizer.schedule"),
        ("seed=1", "seed"),
        ("trainer.batch_size=16", "trainer.batch_size"),
        ("trainer.steps_per_epoch=16", "trainer.steps_per_epoch"),
        ("trainer.loss=mse", "trainer.loss"),
        ("trainer.metrics=[]", "trainer.metrics"),
        ("trainer.callbacks=[{_target_:keras.callbacks.History}]", "trainer.callbacks"),
        ("hardware.precision=mixed_bfloat16", "hardware.precision"),
    ],
)
def test_what_would_change_the_numbers(override: str, key: str, begun) -> None:
    rundir = begun(steps=(4,))
    word, _, value = override.partition("=")
    fixed = next(f for f in identity.fixed() if f"{key}.".startswith(f"{f}."))
    error = refused(
        f"{key}={value}: would change the numbers of a run that is resumed ({fixed}); "
        f"accepted: trainer.epochs, strategy, hardware, tracking, checkpoint, launcher; "
        f"hint: no {word}=, or fork={rundir.path} {override}",
        checked, rundir, override,
    )  # fmt: skip
    assert error.key == key


def test_a_file_that_was_edited(begun) -> None:
    rundir = begun(steps=(4,))
    text = rundir.config.read_text()
    for old, new, key in (
        ("\nseed: 0", "\nseed: 7", "seed"),
        ("- 16", "- 8", "model"),
        ("batch_size: 64", "batch_size: 32", "trainer.batch_size"),
    ):
        assert text.count(old) == 1
        rundir.config.write_text(text.replace(old, new))
        refused(
            f"resume={rundir.path}: its config.yaml was changed since it was saved ({key}); "
            f"accepted: a path, or null; "
            f"hint: fork={rundir.path} to begin a new run from it",
            checked, rundir,
        )  # fmt: skip
    rundir.config.write_text(text.replace("epochs: 25", "epochs: 26"))
    checked(rundir)


def test_a_run_of_another_version(begun) -> None:
    rundir = begun()
    config = identity.fingerprints(composed(*WORDS)) | {"dataset": "of other rules"}
    meta = {"config": config, "versions": {"dtrain": "0.0.9"}}
    checkpoint.save(rundir.checkpoints, 4, {"a": np.zeros(3)}, meta)
    now = identity.versions("tensorflow")["dtrain"]
    refused(
        f"resume={rundir.path}: has a dataset of another dtrain (written by dtrain 0.0.9; "
        f"this is dtrain {now}); accepted: the version of dtrain that began the run; "
        f"hint: fork={rundir.path} to begin a new run with its weights",
        checked, rundir,
    )  # fmt: skip


def test_a_file_that_was_edited_before_the_first_checkpoint(begun) -> None:
    rundir = begun(*WORDS, "seed=3")
    rundir.config.write_text(rundir.config.read_text().replace("\nseed: 3", "\nseed: 7"))
    refused(
        f"seed=3: is not what the run has in its config.yaml; accepted: 7; "
        f"type: resume={rundir.path} seed=7",
        checked, rundir,
    )  # fmt: skip
    assert checked(rundir, "seed=7").seed == 7


def test_a_default_that_is_another_one_by_now(begun) -> None:
    rundir = begun(steps=(4,))
    refused(
        f"optimizer.beta_1=0.8: is not what the run has in its config.yaml; accepted: 0.9; "
        f"type: resume={rundir.path} optimizer.beta_1=0.9",
        lambda: checked(rundir, optimizer__beta_1=0.8),
    )  # fmt: skip
    refused(
        f"trainer.loss=mse: is not what the run has in its config.yaml; "
        f"accepted: auto; type: resume={rundir.path} trainer.loss=auto",
        lambda: checked(rundir, trainer__loss="mse"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "is not valid YAML (line 2: *)"),
        ("seed: ${a}", "is not the configuration of a run (*)"),
        ("- 1\n", "is not a mapping"),
        ("7", "is not a mapping"),
        ("", "is not a mapping"),
        ("{}", "dataset is not what a run has there"),
        ("dataset: 3\nseed: 1\n", "dataset is not what a run has there"),
        ("a: &x [1]\nb: *x\n", "has an alias (*x), which dtrain never writes"),
        (
            "a: !!python/name:os.system\n",
            "is not valid YAML (line 1: could not determine a constructor for the tag *)",
        ),
    ],
)
def test_a_file_that_cannot_be_read(text: str, problem: str, begun) -> None:
    rundir = begun(steps=(4,))
    rundir.config.write_text(text)
    separator = ": " if problem.startswith("dataset") else " "
    refused(f"{rundir.config}{separator}{problem}", checked, rundir)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], None),
        ({"format": 2}, "overrides"),
        ({"format": 2, "overrides": "seed=1"}, "overrides"),
        ({"format": 2, "overrides": [1]}, "overrides"),
        ({"format": 2, "overrides": [], "config_dir": 3}, "config_dir"),
        ({"format": 2, "overrides": [], "sweep": {"number": "1"}}, "sweep.number"),
        (
            {"format": 2, "overrides": [], "sweep": {"number": 1, "differs": {"a": 1}}},
            "sweep.differs",
        ),
    ],
)
@pytest.mark.parametrize("key", ["resume", "fork"])
def test_a_damaged_command(key: str, value: Any, field: str | None, begun) -> None:
    rundir = begun()
    rundir.command.write_text(json.dumps(value))
    place = f"{rundir.command}: {field}" if field else f"{rundir.command} "
    refused(f"{place}*", resume.arguments, [f"{key}={rundir.path}"])


def test_a_link_in_the_folder(begun, tmp_path: Path) -> None:
    rundir = begun(steps=(4,))
    (rundir.path / "logs").symlink_to(tmp_path)
    refused(f"{rundir.path}/logs is a symbolic link, not a regular file",
            resume.arguments, [f"resume={rundir.path}"])  # fmt: skip


def test_a_fork_goes_on_with_what_was_pinned(begun) -> None:
    origin = begun(steps=(4, 8))
    pinned = origin.checkpoints / "4"
    fork = begun(*WORDS, f"fork={pinned}")
    write_json(fork.command, resume.command([*WORDS, f"fork={origin.path}"], None))
    for given in ([], ["fork=null"]):
        assert checked(fork, *given).fork == str(pinned)
    damage(origin, 4)
    refused(
        f"resume={fork.path}: saved nothing, and what it forked is gone ({pinned}/*); "
        f"accepted: a path, or null; hint: fork=ANOTHER_RUN",
        checked, fork,
    )  # fmt: skip
    config = identity.fingerprints(composed(*WORDS))
    meta = {"config": config, "versions": identity.versions("tensorflow")}
    checkpoint.save(fork.checkpoints, 6, {"a": np.zeros(3)}, meta)
    assert checked(fork).fork == str(pinned)  # it was forked from there all the same


# --- which checkpoint fork= means


def pinned(fork: str | Path) -> str:
    config = composed(*WORDS, f"fork={fork}")
    resume.pin(config)
    return str(config.fork)


def test_a_fork_is_pinned(begun, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = begun(steps=(4, 8, 12))
    whole = str(rundir.checkpoints / "12")
    assert pinned(rundir.path) == whole
    assert pinned(f"{rundir.path}/") == whole
    assert pinned(rundir.checkpoints / "4") == str(rundir.checkpoints / "4")
    monkeypatch.chdir(rundir.path.parent)
    assert pinned(rundir.path.name) == whole
    assert pinned(f"{rundir.path.name}/checkpoints/4/") == str(rundir.checkpoints / "4")
    damage(rundir, 12)
    assert pinned(rundir.path) == str(rundir.checkpoints / "8")


def test_nothing_to_fork(begun) -> None:
    rundir = begun()
    rest = (
        f"accepted: a run that saved one, or RUN_DIR/checkpoints/STEP; "
        f"hint: python -m dtrain checkpoint {rundir.path} to see what there is"
    )
    refused(f"fork={rundir.path}: holds no sound checkpoint; {rest}", pinned, rundir.path)
    for each in (4, 8):
        checkpoint.save(rundir.checkpoints, each, {"a": np.zeros(3)}, {})
    damage(rundir, 4, 8)
    for path, step in ((rundir.path, 8), (rundir.checkpoints / "4", 4)):
        state = rundir.checkpoints / str(step) / "state.safetensors"
        refused(f"fork={path}: holds no sound checkpoint ({state} *); {rest}", pinned, path)
    absent = rundir.checkpoints / "5"
    refused(f"fork={absent}: holds no sound checkpoint ({absent}/*); {rest}", pinned, absent)
