"""Which files of --config-dir are looked at; what is wrong with one: ``tests/values``."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtrain.config import explain, schema
from dtrain.errors import UsageError

schema.register()
BROKEN = "\t"
SOUND = "_target_: a.b\n"


@pytest.mark.parametrize(
    ("words", "files", "wrong"),
    [
        ([], {"model/a.yaml": BROKEN}, None),
        (["model=b"], {"model/a.yaml": BROKEN, "model/b.yaml": SOUND}, None),
        (["model=a"], {"model/a.yaml": BROKEN}, "model/a.yaml"),
        (["+x/y=a"], {"x/y/a.yaml": BROKEN}, "x/y/a.yaml"),
        (["model@pkg=a"], {"model/a.yaml": BROKEN}, "model/a.yaml"),
        (["-m", "model=cnn,a"], {"model/a.yaml": BROKEN}, "model/a.yaml"),
        (["model.units=a"], {"model/a.yaml": BROKEN}, None),
        (["model=b"], {"model/a.yaml": BROKEN, "model/b.yaml": "defaults: [a]\n"}, "model/a.yaml"),
        (
            ["model=b"],
            {"x/a.yaml": BROKEN, "model/b.yaml": "defaults: [/x/a@_here_]\n"},
            "x/a.yaml",
        ),
        (
            ["experiment=e"],
            {
                "experiment/e.yaml": "defaults:\n  - override /model: a\n  - _self_\n",
                "model/a.yaml": BROKEN,
            },
            "model/a.yaml",
        ),
        (
            ["experiment=e"],
            {"experiment/e.yaml": "defaults:\n  - /x: [s, a]\n", "x/s.yaml": SOUND,
             "x/a.yaml": BROKEN},
            "x/a.yaml",
        ),
        # Two ways to one file are no circle.
        (
            ["model=b"],
            {"model/b.yaml": "defaults: [c, d]\n", "model/c.yaml": "defaults: [s]\n",
             "model/d.yaml": "defaults: [s]\n", "model/s.yaml": SOUND},
            None,
        ),
        (["model=cnn"], {}, None),
    ],
)  # fmt: skip
def test_what_is_chosen(
    words: list[str], files: dict[str, str], wrong: str | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = ["--config-dir", str(tmp_path), *words]
    if wrong is None:
        explain.check(command)
        return
    with pytest.raises(UsageError, match=f"{wrong} .*line 1: found character"):
        explain.check(command)


def _chain(folder: Path, length: int, twice: bool) -> None:
    """Write presets of which each names the next one, or twice."""
    (folder / "model").mkdir(parents=True)
    for number in range(length):
        lines = [f"  - /model@x{number}: b{number + 1}", f"  - /model@y{number}: b{number + 1}"]
        text = "\n".join(["defaults:", *lines[: 1 + twice], "  - _self_", "a: 1", ""])
        (folder / "model" / f"b{number}.yaml").write_text(text)
    (folder / "model" / f"b{length}.yaml").write_text("a: 1\n")


@pytest.mark.parametrize(
    ("length", "twice", "problem"),
    [(30, True, "lead to more than 1,000 files"), (40, False, "led to by more than 32 presets")],
)
def test_presets_that_multiply(length: int, twice: bool, problem: str, tmp_path: Path) -> None:
    """Each is small, and Hydra would compose them for hours."""
    _chain(tmp_path / "presets", length, twice)
    with pytest.raises(UsageError, match=problem):
        explain.check(["--config-dir", str(tmp_path / "presets"), "model=b0"])


def test_presets_that_name_others(tmp_path: Path) -> None:
    _chain(tmp_path / "presets", 8, True)
    explain.check(["--config-dir", str(tmp_path / "presets"), "model=b0"])


def test_classes_and_epochs_are_whole_numbers(tmp_path: Path) -> None:
    """As on the command line; the file itself has names alone."""
    (tmp_path / "trainer").mkdir()
    path, words = tmp_path / "trainer/mine.yaml", ["--config-dir", str(tmp_path), "trainer=mine"]
    path.write_text("class_weight: {0: 1, 1: 3}\n")
    explain.check(words)
    path.write_text("class_weight: {0: 1, 0: 2}\n")
    with pytest.raises(UsageError, match="duplicate key 0"):
        explain.check(words)
