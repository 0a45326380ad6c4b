from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dtrain.cluster import Cluster, Task
from dtrain.rundir import read_json, write_json

CLUSTERS = {
    "one": Cluster((Task("chief", 0, 1),), "cpu", 1, {}),
    "many": Cluster(
        (Task("chief", 0, 2), Task("worker", 0, 2), Task("worker", 1, 2)),
        "gpu",
        6,
        {"KERAS_BACKEND": "tensorflow", "EMPTY": ""},
    ),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_task_reads_what_the_controller_decided(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "cluster.json", CLUSTERS[name].to_json())
    found = Cluster.from_json(read_json(tmp_path / "cluster.json") or {})
    assert found == CLUSTERS[name]
    assert isinstance(found.tasks, tuple) and isinstance(found.tasks[0], Task)


def test_task_names() -> None:
    assert [task.name for task in CLUSTERS["many"].tasks] == ["chief-0", "worker-0", "worker-1"]


def test_a_plan_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CLUSTERS["one"].replicas = 2  # type: ignore[misc]


def test_an_unknown_field_is_not_passed_over() -> None:
    with pytest.raises(TypeError, match="colour"):
        Cluster.from_json({**CLUSTERS["one"].to_json(), "colour": "red"})
