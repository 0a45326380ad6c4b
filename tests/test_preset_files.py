"""Which files of --config-dir are looked at; what is wrong with one: ``tests/values``."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtrain.controller.preset_files import check
from dtrain.errors import UsageError

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
        check(command)
        return
    with pytest.raises(UsageError, match=f"{wrong}, line 1: found character"):
        check(command)
    check(words)  # without the folder nothing of it is read
