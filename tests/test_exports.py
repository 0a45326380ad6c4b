"""A version appears whole, is added to, and is no other's; without TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dtrain.errors import UsageError
from dtrain.run import exports
from dtrain.run.exports import Version


def record(folder: Path, *names: str) -> Any:
    """Write files of formats, and return their record."""
    formats = {}
    for name in names:
        last = exports.FORMATS[name].files[-1]
        if name == "savedmodel":
            (folder / "variables").mkdir(parents=True)
            (folder / "variables" / "data").write_text("numbers")
        (folder / last).write_text(name)
        files = exports.files(folder, name)
        size = sum(file["bytes"] for file in files.values())
        formats[name] = {
            "bytes": size, "files": files, "deviation": 0.0, "limit": 1e-5, "versions": {},
        }  # fmt: skip
    return {
        "step": 7, "digest": "d", "weights": "raw", "run": "r", "examples": 9, "formats": formats,
        "signature": {"inputs": [], "outputs": []},
    }  # fmt: skip


def published(path: Path, *names: str) -> Version:
    version = Version(path)
    version.aside.mkdir(parents=True)
    version.publish(record(version.aside, *names))
    return Version(path)


def test_a_version_appears_by_one_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[tuple[set[str], bool]] = []
    rename = os.rename

    def watched(source: Path, target: Path) -> None:
        renamed.append((set(os.listdir(source)), target.exists()))
        rename(source, target)

    monkeypatch.setattr(os, "rename", watched)
    found = published(tmp_path / "7", "savedmodel", "onnx")
    assert renamed == [({"variables", "saved_model.pb", "model.onnx", "export.json"}, False)]
    assert os.listdir(tmp_path) == ["7"]
    (tmp_path / "8").mkdir()
    with pytest.raises(UsageError, match="and no export of dtrain"):
        Version(tmp_path / "8")
    assert found.record is not None and sorted(found.record["formats"]) == ["onnx", "savedmodel"]
    assert found.record["formats"]["savedmodel"]["files"]["variables/data"]["bytes"] == 7


def test_a_format_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(tmp_path / "7", "onnx")
    before = (tmp_path / "7" / "export.json").read_bytes()
    order: list[str] = []
    rename = os.rename

    def watched(source: Path, target: Path) -> None:
        order.append(target.name)
        assert (tmp_path / "7" / "export.json").read_bytes() == before, "it is named last"
        rename(source, target)

    monkeypatch.setattr(os, "rename", watched)
    (tmp_path / "7" / "variables").mkdir()  # of an export that was killed
    found = published(tmp_path / "7", "savedmodel")
    assert order == ["variables", "saved_model.pb"], "what makes it complete comes last"
    assert found.record is not None and list(found.record["formats"]) == ["onnx", "savedmodel"]
    assert {"model.onnx", "saved_model.pb"} < set(os.listdir(tmp_path / "7"))
    assert os.listdir(tmp_path) == ["7"]
