"""Wrong commands, a line each in ``mistakes.txt``: what each is answered with, and that typed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from dtrain.__main__ import main
from dtrain.cli.app import Command, composed
from dtrain.config import command_line, help, schema, suggest
from dtrain.config.check import settle
from dtrain.config.overrides import key_of, parse
from dtrain.host.commands import names
from dtrain.launchers import Local
from dtrain.sweep.compose import Master
from dtrain.sweep.search import Source

Call: TypeAlias = Callable[..., tuple[int, list[str]]]
#: Options that compose no configuration to train with.
ANSWERED = ("--help", "--version", "--cfg", "list")
FILES = {
    "data.csv": "colour,size,label\nred,1,0\nblue,2,1\nred,3,0\nblue,4,1\n",
    "mine.py": "def build(): ...\ndef load(): ...\n",
    "outputs/mlflow.db": "",
    "a/run/command.json": '{"format": 2}',
    "a/sweep/sweep.json": "{}",
    "presets/vae/base.yaml": "# @package _global_\nproject: {width: 8}\n",
    "presets/experiment/good.yaml": "# @package _global_\nseed: 1\n",
    "presets/model/other.yaml": "defaults: [mine]\nb: 1\n",
    "presets/broken.yaml": "a: [\n",
    "presets/bare.yaml": "seed: 3\n",
    "secret.txt": "",
    "evil/__init__.py": "open('ran', 'w').close()",
}
#: A word that was typed names one of these, which are no more than folders.
OF_A_FOLDER = re.compile(r"error: (\S*(outputs|evil|a/run|a/sweep|RUN|nothere)|resume=latest)")


class Mistake(NamedTuple):
    """A line: the command, what its refusal names, and what is right beside it."""

    typed: str
    names: list[str]
    beside: list[str]

    def words(self) -> list[str]:
        """Return the command, of which the last word says that nothing is to start."""
        if file := re.match("file ?(.*?):(.*)", self.typed):
            group, text = file[1] or "experiment", file[2].strip()
            path = Path("presets", group, "mine.yaml")
            path.write_text(text.replace(r"\n", "\n").replace(r"\t", "\t"))
            return ["--config-dir", "presets", f"{group}=mine", *self.beside, "dry_run=true"]
        words = [*self.beside, *shlex.split(self.typed)]
        is_answered = words[0] in (*names(), *ANSWERED) or "dry_run" in self.typed
        return words if is_answered else [*words, "dry_run=true"]


def mistakes() -> Iterator[Any]:
    for line in Path(__file__).with_name("mistakes.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            typed, names, beside = f"{line} | ".split(" | ")[:3]
            yield pytest.param(Mistake(typed, names.split(" & "), shlex.split(beside)), id=line)


class Settled(Command):
    """What a command is composed for: its values are checked, and nothing starts."""

    def job(self, node: Any) -> int:
        settle(node)
        return 0

    def sweep(self, loader: Any, master: Any, source: Source) -> None:
        settle(Master(loader, master).compose(0, source.next() or []))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that runs a command in this process: its exit code and errors."""

    monkeypatch.setattr(Local, "start", None)  # no task is started

    def called(words: list[str], command: Callable[[], int] = main) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["dtrain", *words])
        try:
            code = command()
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr().err
        assert "Traceback" not in said, said
        return code, re.findall("^error: .*", said, re.M)

    return called


@pytest.mark.parametrize("mistake", [*mistakes()])
def test_a_mistake_is_named_and_what_is_to_be_typed_is_accepted(
    mistake: Mistake, tmp_path: Path, run: Call
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    words, files = mistake.words(), {*tmp_path.rglob("*")}
    code, errors = run(words)
    assert code == 2 and len(errors) == 1, errors
    assert {*tmp_path.rglob("*")} == files
    for name in mistake.names:
        assert name in errors[0], errors[0]
    typed = re.search(r"; type: (.+?)(?=; accepted: |$)", errors[0])
    if typed is not None and "of Hydra's" not in errors[0]:  # where it is told in words
        words = shlex.split(typed[1])
        if words[:3] == ["python", "-m", "dtrain"]:
            del words[:3]
        keys = {key_of(word) for word in words}
        beside = [word for word in mistake.beside if key_of(word) not in keys]
        is_command = words and words[0] in (*names(), *ANSWERED)
        if mistake.typed.split()[0] in names() and not is_command:  # a word of that command
            head = [word for word in shlex.split(mistake.typed)[:2] if "=" not in word]
            words, is_command = [*head, *words], True
        words = words if is_command else [*beside, *words]
        code, errors = run(words, main if is_command else lambda: composed(words, Settled()))
        assert code == 0 or OF_A_FOLDER.match(errors[0]), errors


def test_what_other_tools_have_is_typed_as_keys_that_take_it() -> None:
    for theirs, row in suggest.rows().items():
        [(way, text)] = row.items()
        assert way == "hint" or theirs not in (*help.keys(), *schema.GROUPS)
        is_typed = way != "hint" and not text.startswith(("python", "format="))  # a word of export
        words = shlex.split(text) if is_typed else []
        for sign, key, value in map(parse, words):
            if sign or key.startswith(("-", "hydra")):
                continue
            assert suggest.is_key(key.replace("/", ".")), theirs
            assert value in (None, "VALUE") or suggest.is_taken(key, value.replace("VALUE", "3"))


def test_a_key_that_is_typed_twice_is_told() -> None:
    assert command_line.notes(["seed=1", "a=2", "seed=1"]) == []
    [note] = command_line.notes(["seed=1", "seed=2"])
    assert "seed=1" in note and "seed=2" in note
