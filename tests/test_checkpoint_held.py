"""Checkpoints that a reader holds stay, whatever the training removes, and whenever."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.errors import CheckpointError
from dtrain.run import checkpoint


def saved(folder: Path, *steps: int) -> list[Path]:
    return [checkpoint.save(folder, step, {"a": np.full(3, step)}, {}) for step in steps]


@pytest.mark.parametrize("links", [True, False])
def test_what_is_held_stays(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_disk(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    paths = saved(tmp_path / "run", 4, 8)
    if not links:
        monkeypatch.setattr(os, "link", other_disk)
    held = checkpoint.hold(lambda: paths, tmp_path / "held")
    assert held == [tmp_path / "held" / "4", tmp_path / "held" / "8"]
    assert (os.stat(held[0] / "state.safetensors").st_nlink == 2) == links
    shutil.rmtree(tmp_path / "run")
    assert [checkpoint.load(path).arrays["a"].tolist() for path in held] == [[4] * 3, [8] * 3]


def test_what_goes_while_it_is_chosen_is_chosen_anew(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "run", 4, 8)
    chosen = [[first], [first, second], [second]]

    def choose() -> list[Path]:
        shutil.rmtree(first, ignore_errors=True)
        return chosen.pop(0)

    [held] = checkpoint.hold(choose, tmp_path / "held")
    assert checkpoint.load(held).step == 8 and not chosen
    shutil.rmtree(second)
    with pytest.raises(CheckpointError, match="was removed before it could be read"):
        checkpoint.hold(lambda: [second], tmp_path / "held")
