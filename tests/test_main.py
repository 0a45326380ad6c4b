"""One command: what it dispatches to, what it prints of itself, and how it ends."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtrain import __main__ as command
from dtrain import errors
from dtrain.cli import app, registry
from dtrain.cli.commands import sync
from dtrain.config import schema, trust
from dtrain.host import commands

CONF, EXPERIMENTS = schema.folder("conf"), schema.folder("experiments")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dtrain", *words])
        code = command.main()
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("word", "near"), [("compre", "compare"), ("chekpoint", "checkpoint"), ("trainn", "x")]
)
def test_a_misspelt_command(word: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = printed(capsys, word, "x")
    assert (code, out) == (errors.USAGE, "")
    assert err.startswith(f"error: {word}: there is no such command; type: python -m dtrain {near}")
    assert "; accepted: checkpoint, compare" in err


def test_an_error_without_a_file_is_about_what_was_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert registry.report(OSError(errno.EHOSTUNREACH, "no route"), "data") == errors.FAILED
    assert capsys.readouterr().err == "error: data: no route\n"


def test_a_command_within_another_leaves_its_words_and_what_they_consent_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["dtrain", "sync", "RUN"])
    outer = trust.begin(["tracking.uri=${oc.env:PLACE}"])
    assert app.composed(["tracking=csv"], sync.ComposedTrackers()) == errors.OK
    assert trust.command() is outer and sys.argv == ["dtrain", "sync", "RUN"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["train", "model=mlp", "name=a b"], "type: python -m dtrain model=mlp 'name=a b'"),
        (["fit"], "type: python -m dtrain"),
        (["test"], "hint: python -m dtrain evaluate outputs/DATE/TIME_NAME"),
        (["infer", "a/run"], "type: python -m dtrain predict a/run"),
        (["list"], "type: python -m dtrain compare outputs"),
        (["model", "mlp"], "type: model=mlp"),
        (["strategy"], "hint: strategy=VALUE"),
        (["dry_run"], "type: dry_run=true"),
        (["epochs", "3"], "type: trainer.epochs=3"),
        (["epochs", "=", "3"], "type: trainer.epochs=3"),
    ],
)
def test_what_trains_needs_no_command(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = printed(capsys, *words)
    assert code == errors.USAGE
    assert f"; {hint}; accepted: checkpoint, " in err


def test_a_command_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = printed(capsys, "checkpoint", "nowhere")
    assert code == errors.USAGE
    assert err.startswith("error: RUN=nowhere: is not there; ")


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "--help")
    assert code == errors.OK
    assert all(f"\n  {name} " in out for name in commands.names())
    options = [path for group in schema.GROUPS for path in (CONF / group).glob("*.yaml")]
    for path in (*options, *EXPERIMENTS.glob("*.yaml")):
        lines = path.read_text().splitlines()
        comment = lines[1] if lines[0].startswith("# @package") else lines[0]
        assert f" {path.stem:<18}{comment.removeprefix('# ')}\n" in out, path
    assert "schema" not in out and "rules" not in out
    assert out.partition("examples:\n")[2].count("python -m dtrain") == 3


def test_help_lists_a_users_presets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "presets" / "model").mkdir(parents=True)
    (tmp_path / "presets" / "model" / "tiny.yaml").write_text("# @package _global_\n# Mine\x1b[1m.")
    for words in (("--config-dir", "presets"), ("--config-dir=presets",)):
        _, out, _ = printed(capsys, "--help", *words)
        assert "    tiny              Mine\\x1b[1m.\n" in out


def test_help_of_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--help", "trainer.batch_size")[1] == (
        "trainer.batch_size: Examples of a step, over all replicas.\n"
        "  accepted  a whole number from 1 to 1000000000\n"
        "  default   64\n"
        "  decides   data\n"
    )
    code, out, err = printed(capsys, "--help", "trainer.batch_siz")
    assert (code, out) == (errors.USAGE, "") and "--help trainer.batch_size" in err
    assert "  default   " not in printed(capsys, "--help", "dataset.path")[1]


def test_versions(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "--version")
    names = ("tensorflow", "jax", "torch", "keras")
    lines = [f"{name} {importlib.metadata.version(name)}" for name in names]
    assert code == errors.OK and out.splitlines()[1:] == lines


@pytest.mark.parametrize(
    "words", [["--help"], ["--help", "model.units"], ["--version"], ["x", "y"]]
)
def test_it_answers_without_slow_imports(words: list[str]) -> None:
    code = (
        "import sys; from dtrain.__main__ import main; main(); "
        "slow = {'tensorflow', 'keras', 'mlflow', 'numpy', 'pandas', 'rich'} & set(sys.modules); "
        "sys.exit(f'imported {slow}' if slow else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a run that has not begun: no traceback, and it has failed."""
    from dtrain.cli.commands import compare

    monkeypatch.setattr(compare, "main", lambda _: os.kill(os.getpid(), number) or signal.pause())
    assert printed(capsys, "compare", "x") == (errors.FAILED, "", "")
