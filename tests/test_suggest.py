"""Names of other tools, words that are no overrides, and that what messages say can be typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dtrain.config import command_line, other_tools, schema, suggest
from dtrain.config import help as key_help
from dtrain.config.overrides import parse
from dtrain.errors import UsageError
from tests.hints import followed, hint, is_command
from tests.sampled import thinned

KEYS = key_help.keys()
#: A value of another tool's key.
TYPED = {"max_time": "2h", "monitor": "val_loss", "accelerator": "gpu", "device": "gpu",
         "precision": "16-mixed",
         "logger": "mlflow", "report_to": "mlflow", "callbacks": "early_stopping",
         "mixed_precision": "bf16", "backend": "ray", "format": "csv"}  # fmt: skip


def known(override: str) -> bool:
    """Whether an override names a key, and an option of its group, that there are."""
    sign, name, value = parse(override)
    if sign or name == "to" or name.startswith(("-", "model._target_", "hydra")):
        return True
    if name in schema.GROUPS:
        return value in schema.options(name)
    return name.replace("/", ".") in KEYS


@pytest.mark.parametrize("theirs", {**other_tools.KEYS, **other_tools.VALUES})
def test_a_name_of_another_tool_is_answered_with_what_there_is(theirs: str) -> None:
    if "=" in theirs:
        said = suggest.corrected(*theirs.split("=", 1))
    else:
        assert "." in theirs or theirs not in KEYS
        key = f"{theirs}x" if theirs.endswith(".") else theirs
        value = TYPED.get(theirs, "cosine" if "schedule" in other_tools.KEYS[theirs] else "3")
        said = suggest.meant(key, value)
    assert said is not None
    label = hint(str(UsageError("a", "is wrong", 1, accepted="b", hint=said)))
    if label is None:
        return
    overrides = [word for word in shlex.split(label) if "=" in word]
    assert overrides and all(map(known, overrides)), said


def test_commands_of_other_tools_are_those_of_dtrain() -> None:
    from dtrain.__main__ import COMMANDS

    assert not set(other_tools.COMMANDS) & set(COMMANDS)
    for ours in other_tools.COMMANDS.values():
        first = ours.partition(" ")[0]
        assert first in ("", *COMMANDS) or first.startswith("--") or known(first) or "=" in first


WORDS = {
    "trainer.epochs = 3": "type: trainer.epochs=3",
    "trainer.epochs= 3": "type: trainer.epochs=3",
    "trainer.epochs =3": "type: trainer.epochs=3",
    "trainer.epochs==3": "type: trainer.epochs=3",
    "trainer.epochs 3": "type: trainer.epochs=3",
    "lr 3": "type: optimizer.learning_rate=3",
    "trainer.metrics=accuracy mae": "type: 'trainer.metrics=[accuracy,mae]'",
    "trainer.metrics=accuracy, mae": "hint: 'trainer.metrics=[accuracy,mae]', or -m ",
    "seed=1, 2": "type: -m seed=1,2",
    "trainer.class_weight={0:1, 1:3}": "type: 'trainer.class_weight={0:1, 1:3}'",
    '\'{"trainer": {"epochs": 3}, "seed": 1}\'': "type: trainer.epochs=3 seed=1",
    "x.yaml": "hint: --config-dir FOLDER experiment=x",
    "experiment/there.yaml": "type: --config-dir . experiment=there",
    "mine.py": "hint: model=custom model._target_=mine.NAME",
    "data.csv": "type: dataset=csv dataset.path=data.csv",
    "a/run": "type: resume=a/run",
    "a": "type: python -m dtrain compare a",
    "mirrored": "type: strategy=mirrored",
    "ddp": "type: strategy=mirrored",
    "dry_run": "type: dry_run=true",
    "=3": "has no key",
    "zzzqq": "type: python -m dtrain --help",
}


@pytest.mark.parametrize("line", WORDS)
def test_words_that_are_no_overrides(line: str, tmp_path: Path) -> None:
    (tmp_path / "a/run").mkdir(parents=True)
    (tmp_path / "a/run/command.json").write_text('{"format": 2}')
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/there.yaml").write_text("seed: 1")
    with pytest.raises(UsageError, match=re.escape(WORDS[line])):
        command_line.check(["model=mlp", *shlex.split(line), "seed=3"])


def test_overrides_are_passed_over() -> None:
    command_line.check(
        ["model=mlp", "trainer.metrics=[a,b]", "~seed", "+a.b={c: [d]}", "name='a b'"]
    )


def messages() -> dict[str, str]:
    """Return the errors of the transcripts that say what to type, by their commands."""
    found = {}
    for path in sorted((Path(__file__).parent / "golden/faces").glob("wrong_*.txt")):
        for command, error in re.findall(r"^\$ dtrain (.*)\n(error: .*)", path.read_text(), re.M):
            if hint(error) and not is_command(shlex.split(command)) and command[0].islower():
                found[command] = error
    return found


@pytest.mark.parametrize("command", thinned([*messages()], 2))
def test_what_a_transcript_says_can_be_typed(command: str, dtrain) -> None:
    error = messages()[command]
    then = followed(shlex.split(command), error)
    hosts = "launcher=ssh" in then  # by names that no machine has
    if is_command(then) or then[:1] == ["-m"] or hosts:
        return
    run = dtrain(*then, "dry_run=true")
    again = re.findall(r"^error: ([\w./]+)", run.output, re.M)
    assert again != re.findall(r"^error: ([\w./]+)", error), run.output
