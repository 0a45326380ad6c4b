"""Which files of --config-dir are looked at; what is wrong with one: ``tests/values``."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from dtrain.config import explain, schema
from dtrain.errors import UsageError

schema.register()
BROKEN = "\t"
SOUND = "_target_: a.b\n"


ONE = {"model/a.yaml": BROKEN}
#: (words, files, which of them is told to be wrong)
CHOSEN: list[tuple[str, dict[str, str], str | None]] = [
    ("", ONE, None), ("model=a", ONE, "model/a.yaml"), ("model=cnn", {}, None),
    ("model=b", {**ONE, "model/b.yaml": SOUND}, None), ("model.units=a", ONE, None),
    ("+x/y=a", {"x/y/a.yaml": BROKEN}, "x/y/a.yaml"),
    ("model@pkg=a", ONE, "model/a.yaml"), ("-m model=cnn,a", ONE, "model/a.yaml"),
    ("model=b", {**ONE, "model/b.yaml": "defaults: [a]\n"}, "model/a.yaml"),
    ("model=b", {"x/a.yaml": BROKEN, "model/b.yaml": "defaults: [/x/a@_here_]\n"}, "x/a.yaml"),
    ("experiment=e", {**ONE, "experiment/e.yaml": "defaults: [override /model: a, _self_]\n"},
     "model/a.yaml"),
    ("experiment=e", {"experiment/e.yaml": "defaults:\n  - /x: [s, a]\n", "x/s.yaml": SOUND,
                      "x/a.yaml": BROKEN}, "x/a.yaml"),
    # Classes and epochs are whole numbers, as on the command line.
    ("trainer=mine", {"trainer/mine.yaml": "class_weight: {0: 1, 1: 3}\n"}, None),
    # Two ways to one file are no circle.
    ("model=b", {"model/b.yaml": "defaults: [c, d]\n", "model/c.yaml": "defaults: [s]\n",
                 "model/d.yaml": "defaults: [s]\n", "model/s.yaml": SOUND}, None),
]  # fmt: skip


@pytest.mark.parametrize(("words", "files", "wrong"), CHOSEN)
def test_files_that_are_chosen_are_looked_at(
    words: str, files: dict[str, str], wrong: str | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = ["--config-dir", str(tmp_path), *words.split()]
    said = f"{wrong} .*line 1: found character"
    with pytest.raises(UsageError, match=said) if wrong else contextlib.nullcontext():
        explain.check(command)


@pytest.mark.parametrize(
    ("length", "twice", "problem"),
    [
        (30, True, "lead to more than 1,000 files"), (8, True, None),
        (40, False, "led to by more than 32 presets"),
    ],
)  # fmt: skip
def test_presets_that_multiply(
    length: int, twice: bool, problem: str | None, tmp_path: Path
) -> None:
    """Each is small and names the next one, or twice, and Hydra would compose them for hours."""
    (tmp_path / "model").mkdir()
    for number in range(length):
        lines = [f"  - /model@{way}{number}: b{number + 1}\n" for way in ("xy" if twice else "x")]
        text = "".join(["defaults:\n", *lines, "  - _self_\na: 1\n"])
        (tmp_path / "model" / f"b{number}.yaml").write_text(text)
    (tmp_path / "model" / f"b{length}.yaml").write_text("a: 1\n")
    with pytest.raises(UsageError, match=problem) if problem else contextlib.nullcontext():
        explain.check(["--config-dir", str(tmp_path), "model=b0"])
