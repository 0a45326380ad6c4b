"""Values from files against the types that annotations give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtrain.errors import DamagedFile
from dtrain.run import schemas

RESULT = {"status": "FINISHED", "metrics": {"loss": 0.5, "none": None}, "seconds": 1}
JOB = {"number": 0, "folder": "0", "status": "FAILED", "differs": {}}
SWEEP = {"name": "a", "status": "FAILED", "jobs": [JOB]}
TASK = {"role": "chief", "index": 0, "devices": 1}
CLUSTER = {"tasks": [TASK], "device_kind": "cpu", "replicas": 1, "environment": {"A": "b"}}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (RESULT, schemas.Result), ({**RESULT, "of_a_later_version": [1]}, schemas.Result),
        ({**RESULT, "metrics": {"loss": float("nan")}}, schemas.Result), (SWEEP, schemas.Sweep),
        (CLUSTER, schemas.Cluster), ({**CLUSTER, "tasks": (TASK,)}, schemas.Cluster),
        ({}, schemas.Step),
    ],
)  # fmt: skip
def test_what_fits_is_returned_as_it_is(value: Any, kind: Any) -> None:
    assert schemas.check(value, kind, "f.json") is value


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ([], schemas.Result, " a list is not a mapping"),
        ({}, schemas.Result, ": status is not there"),
        *(({**RESULT, key: value}, schemas.Result, message) for key, value, message in (
            ("status", [], ": status a list is none of FINISHED"),
            ("status", "DONE", ": status 'DONE' is none of"),
            ("seconds", -1, ": seconds -1 is not from 0 to"),
            ("seconds", float("nan"), ": seconds nan is not from"),
            ("seconds", "1", ": seconds '1' is not a number"),
            ("step", True, ": step True is not a number"),
            ("step", 1.0, ": step 1.0 is not a number"),
            ("metrics", {"a": 10**5000}, ": metrics.a is too large"),
            ("pruned", 0, ": pruned 0 is not true or false"),
        )),
        ({**SWEEP, "jobs": {}}, schemas.Sweep, ": jobs a mapping is not a list"),
        ({**SWEEP, "jobs": [1]}, schemas.Sweep, r": jobs\[0\] 1 is not a mapping"),
        *(({**SWEEP, "jobs": [{**JOB, "folder": folder}]}, schemas.Sweep,
           r": jobs\[0\].folder ")
          for folder in ("../x", "..", ".", "", "a/b", "/etc", "a\0", "\u202e", "x" * 300)),
        ({**CLUSTER, "tasks": []}, schemas.Cluster, ": tasks a list is empty"),
        ({**CLUSTER, "tasks": [{**TASK, "role": "../x"}]}, schemas.Cluster,
         r": tasks\[0\].role '../x' is not a role"),
        ({**CLUSTER, "environment": {"A": 1}}, schemas.Cluster, ": environment.A 1 is not text"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(value: Any, kind: Any, message: str) -> None:
    with pytest.raises(DamagedFile, match=f"f.json{message}"):
        schemas.check(value, kind, "f.json")


def test_a_damaged_file_is_named_or_outlived(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert schemas.read(path, schemas.Result) is schemas.glance(path, schemas.Result) is None
    for content, message in (("{", "is not valid JSON"), ('{"status": 1}', "status 1 is none of")):
        path.write_text(content)
        with pytest.raises(DamagedFile, match=f"{path}.*{message}"):
            schemas.read(path, schemas.Result)
        assert schemas.glance(path, schemas.Result) is None
    path.write_text('{"status": "FAILED"}')
    assert schemas.read(path, schemas.Result) == schemas.glance(path, schemas.Result)
