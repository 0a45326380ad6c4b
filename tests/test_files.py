"""Files of a dataset: by name, pattern and list, in the order of their names."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dtrain.data.files import DataFile, files
from dtrain.errors import DataError, UsageError


@pytest.fixture(autouse=True)
def _some_files() -> None:
    Path("in/deep").mkdir(parents=True)
    for name in ("b.x", "a.x", "c.y", "in/d.x", "in/deep/e.x", "odd[1].x"):
        Path(name).write_text(name)


def names(path: str | list[str]) -> list[str]:
    return [file.name for file in files(path)]


def test_names_patterns_and_lists() -> None:
    assert names("b.x") == ["b.x"]
    assert names("*.x") == ["a.x", "b.x", "odd[1].x"]
    assert names("in/**/*.x") == ["in/d.x", "in/deep/e.x"]
    assert names("[ab].x") == ["a.x", "b.x"]
    assert names(["in/*.x", "b.x", "a.x"]) == ["a.x", "b.x", "in/d.x"], "by name, as given or not"
    assert names("odd[1].x") == ["odd[1].x"], "a file of that very name is no pattern"
    Path("in.z").touch()
    assert names("in*") == ["in.z"], "and no folder"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("none.x", r"dataset\.path=none\.x: there is no such file \(looked in /"),
        ("*.z", "no file has such a name"),
        ("in", "is a folder; accepted: a file, a pattern"),
        ([], "names no file"),
        (["a.x", "a.x"], "names /.*a.x twice"),
        (["*.x", "./a.x"], "names /.*a.x twice"),
        (["a.x", "{}/a.x"], "names /.*a.x twice"),
    ],
)
def test_what_is_refused(path: str | list[str], text: str) -> None:
    given = path if isinstance(path, str) else [each.format(os.getcwd()) for each in path]
    with pytest.raises(UsageError, match=text):
        files(given)


def test_the_key_is_named() -> None:
    with pytest.raises(UsageError, match=r"^dataset\.validation=none"):
        files("none", "dataset.validation")


def test_a_file() -> None:
    file = DataFile("a.x")
    assert (file.size(), repr(file), file.local()) == (3, "a.x", Path("a.x"))
    with file.open() as opened:
        opened.seek(1)
        assert opened.read() == b".x"
    stamp = file.stamp()
    os.utime("a.x", ns=(1, 1))
    assert file.stamp() != stamp
    assert file.stamp() == "3-1"


def test_a_file_that_is_gone() -> None:
    file = DataFile("a.x")
    Path("a.x").unlink()
    for read in (file.size, file.stamp, file.open):
        with pytest.raises(
            DataError, match=rf"^a\.x: cannot be read \({os.strerror(errno.ENOENT)}"
        ):
            read()
