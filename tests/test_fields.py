"""Values from files against the types that annotations give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtrain.errors import DamagedFile
from dtrain.run import schemas

RESULT = {"status": "FINISHED", "metrics": {"loss": 0.5, "none": None}, "seconds": 1}
SWEEP: Any = {
    "name": "a",
    "status": "FAILED",
    "jobs": [{"number": 0, "folder": "0", "status": "FAILED", "differs": {}}],
}
TASK = {"role": "chief", "index": 0, "devices": 1}
CLUSTER = {"tasks": [TASK], "device_kind": "cpu", "replicas": 1, "environment": {"A": "b"}}


def changed(value: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**value, **fields}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (RESULT, schemas.Result),
        (changed(RESULT, of_a_later_version=[1]), schemas.Result),
        (changed(RESULT, metrics={"loss": float("nan")}), schemas.Result),
        (SWEEP, schemas.Sweep),
        (CLUSTER, schemas.Cluster),
        (changed(CLUSTER, tasks=(TASK,)), schemas.Cluster),  # as dataclasses make it
        ({}, schemas.Step),
    ],
)
def test_what_fits_is_returned_as_it_is(value: Any, kind: Any) -> None:
    assert schemas.check(value, kind, "f.json") is value


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ([], schemas.Result, "f.json a list is not a mapping"),
        ({}, schemas.Result, "f.json: status is not there"),
        (changed(RESULT, status=[]), schemas.Result, "f.json: status a list is none of FINISHED"),
        (changed(RESULT, status="DONE"), schemas.Result, "f.json: status 'DONE' is none of"),
        (changed(RESULT, seconds=-1), schemas.Result, "f.json: seconds -1 is not from 0 to"),
        (changed(RESULT, seconds=float("nan")), schemas.Result, "seconds nan is not from"),
        (changed(RESULT, seconds="1"), schemas.Result, "f.json: seconds '1' is not a number"),
        (changed(RESULT, step=True), schemas.Result, "f.json: step True is not a number"),
        (changed(RESULT, step=1.0), schemas.Result, "f.json: step 1.0 is not a number"),
        (
            changed(RESULT, metrics={"a": 10**5000}),
            schemas.Result,
            "f.json: metrics.a is too large",
        ),
        (changed(RESULT, pruned=0), schemas.Result, "f.json: pruned 0 is not true or false"),
        (changed(SWEEP, jobs={}), schemas.Sweep, "f.json: jobs a mapping is not a list"),
        (changed(SWEEP, jobs=[1]), schemas.Sweep, r"f.json: jobs\[0\] 1 is not a mapping"),
        (
            changed(SWEEP, jobs=[{**SWEEP["jobs"][0], "folder": "../x"}]),
            schemas.Sweep,
            r"f.json: jobs\[0\].folder '../x' is not one file name",
        ),
        (changed(CLUSTER, tasks=[]), schemas.Cluster, "f.json: tasks a list is empty"),
        (
            changed(CLUSTER, tasks=[changed(TASK, role="../x")]),
            schemas.Cluster,
            r"f.json: tasks\[0\].role '../x' is not a role",
        ),
        (changed(CLUSTER, environment={"A": 1}), schemas.Cluster, "environment.A 1 is not text"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, kind: Any, message: str) -> None:
    with pytest.raises(DamagedFile, match=message):
        schemas.check(value, kind, "f.json")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert schemas.read(tmp_path / "result.json", schemas.Result) is None
    assert schemas.glance(tmp_path / "result.json", schemas.Result) is None


def test_a_damaged_file_is_named_or_outlived(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for content, message in (("{", "is not valid JSON"), ('{"status": 1}', "status 1 is none of")):
        path.write_text(content)
        with pytest.raises(DamagedFile, match=f"{path}.*{message}"):
            schemas.read(path, schemas.Result)
        assert schemas.glance(path, schemas.Result) is None
    path.write_text('{"status": "FAILED"}')
    assert schemas.read(path, schemas.Result) == schemas.glance(path, schemas.Result)


def test_paths_of_a_sweep_stay_in_it(tmp_path: Path) -> None:
    for folder in ("..", ".", "", "a/b", "/etc", "a\\u0000", "\\u202e", "x" * 300):
        (tmp_path / "sweep.json").write_text(
            '{"name": "s", "status": "FAILED",'
            ' "jobs": [{"number": 0, "status": "FAILED", "differs": {},'
            f' "folder": "{folder}"}}]}}'
        )
        with pytest.raises(DamagedFile, match=r"jobs\[0\].folder"):
            schemas.read(tmp_path / "sweep.json", schemas.Sweep)
