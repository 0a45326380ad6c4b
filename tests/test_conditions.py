"""Conditions of a promotion, and what is known of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dtrain.errors import DamagedFile, UsageError
from dtrain.run import evaluations, registry
from dtrain.run.folder import RunDir
from dtrain.run.journal import Journal
from dtrain.run.registry import Measured
from dtrain.tracking import conditions
from dtrain.tracking.conditions import Condition, Other


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("val_accuracy>=@champion", [Condition("val_accuracy", ">=", "champion", 0.0)]),
        (" test/loss < 1e-3 ", [Condition("test/loss", "<", None, 1e-3)]),
        ("a>=-1 and b==@x-2", [Condition("a", ">=", None, -1.0), Condition("b", "==", "x-2", 0)]),
    ],
)
def test_parsed(text: str, expected: list[Condition]) -> None:
    assert conditions.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    ["val_accuracy", "a>", "a>=", "a>@", "a=>1", "a>b", "a>nan", ">1", "a>1 b>2", "a>1 and", "and"],
)
def test_no_condition(text: str) -> None:
    with pytest.raises(UsageError, match="is no condition"):
        conditions.parse(text)


@pytest.mark.parametrize(
    ("text", "own", "champion", "message"),
    [
        ("a>=0.5", 0.5, None, None),
        ("a>0.5", 0.5, None, "a is 0.5, which is not > 0.5"),
        ("a>=@b", 0.5, Measured(0.5, "d", 0), None),
        ("a<@b", 0.5, Measured(0.25, "d", 0), "a is 0.5, which is not < 0.25 of version 3 (@b)"),
        ("a<@b", 0.5, Measured(0.25, "e", 0), "a of version 3 (@b) is of other data than that of "),
        (
            "a<@b",
            0.5,
            None,
            "version 3 (@b) has no number 'a' of known data; python -m dtrain eval",
        ),
    ],
)
def test_what_holds(text: str, own: float, champion: Any, message: str | None) -> None:
    [condition] = conditions.parse(text)
    other = Other("3", "/runs/b", {} if champion is None else {"a": champion})
    given = None if condition.alias is None else other
    found = conditions.failure(condition, Measured(own, "d", 0), given)
    assert found is None if message is None else (found or "").startswith(message), found


MODEL: registry.Model = {
    "path": "exports/a/4", "step": 4, "digest": "d", "weights": "raw", "data": "v",
    "names": ["a"],
}  # fmt: skip


def leave(folder: Path) -> RunDir:
    rundir = RunDir.create(folder / "run")
    journal = Journal(rundir.journal)
    for step in (2, 4):
        for kind, metrics in (
            ("interval", {"loss": 1.0, "val_gap": 1.0}),  # a metric of the training of that name
            ("validation", {"val_loss": float(step), "val_auc": float("nan")}),
        ):
            journal.write("metrics", step=step, time=2.5, kind=kind, metrics=metrics)
    journal.close()
    for digest, weights, value in (("d", "raw", 1.0), ("d", "ema", 2.0), ("e", "raw", 3.0)):
        evaluations.append(
            rundir, time=3.0, step=4, digest=digest, weights=weights, data="t", examples=5,
            declared="x", prefix="test", metrics={"loss": value},
        )  # fmt: skip
    return rundir


def test_what_is_known_of_a_checkpoint(tmp_path: Path) -> None:
    rundir = leave(tmp_path)
    assert registry.measured(rundir, MODEL) == {
        "val_loss": Measured(4.0, "v", 2500), "test/loss": Measured(1.0, "t", 3000),
    }  # fmt: skip
    unknown: registry.Model = {**MODEL, "data": ""}
    assert list(registry.measured(rundir, unknown)) == ["test/loss"]
    averaged: registry.Model = {**MODEL, "weights": "ema"}
    assert registry.measured(rundir, averaged) == {"test/loss": Measured(2.0, "t", 3000)}


def test_what_is_wanted_is_written_once(tmp_path: Path) -> None:
    rundir = RunDir.create(tmp_path / "run")
    assert registry.read(rundir) == {"models": [], "promotions": []}
    for names in (["a"], [], ["b", "a"]):
        registry.add(rundir, {**MODEL, "names": names})
    [model] = registry.read(rundir)["models"]
    assert model["names"] == ["a", "b"]
    for condition in ("", "a>1"):
        promotion: registry.Promotion = {
            "digest": "d", "weights": "raw", "name": "a", "alias": "x", "condition": condition
        }  # fmt: skip
        registry.ask(rundir, promotion)
    assert [each["condition"] for each in registry.read(rundir)["promotions"]] == ["a>1"]
    registry.settle(rundir, promotion)
    assert registry.read(rundir)["promotions"] == []


@pytest.mark.parametrize("path", ["/etc", "exports/../4", "exports/.x/4", "exports/a/b", "a/b/4"])
def test_a_forged_path(tmp_path: Path, path: str) -> None:
    rundir = RunDir.create(tmp_path / "run")
    text = json.dumps({"models": [{**MODEL, "path": path}], "promotions": []})
    rundir.registry.write_text(text)
    with pytest.raises(DamagedFile, match=r"registry.json: models\[0\].path"):
        registry.read(rundir)
