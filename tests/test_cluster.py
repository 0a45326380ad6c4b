from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dtrain.errors import DamagedFile
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import read_json, write_json

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


def test_an_unknown_field_is_not_passed_over() -> None:
    with pytest.raises(DamagedFile, match="colour is not known"):
        Cluster.from_json({**CLUSTERS["one"].to_json(), "colour": "red"})


def test_the_addresses_of_a_cluster(tmp_path: Path) -> None:
    roles = (("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0))
    tasks = tuple(Task(role, index, 1, serves=role != "chief") for role, index in roles)
    planned = Cluster(tasks, "cpu", 1, {"A": "b"})
    assert planned.spec() == {}, "nobody has an address before it is placed"

    placed = planned.at(["h:1", "h:2", "h:3", "h:4"])
    assert placed.spec() == {"chief": ["h:1"], "worker": ["h:2", "h:3"], "ps": ["h:4"]}
    assert [task.address for task in planned.tasks] == [None] * 4, "the plan is as it was"
    # Nothing else is another's, and a second placing replaces the first.
    assert [dataclasses.replace(task, address=None) for task in placed.tasks] == list(tasks)
    assert dataclasses.replace(placed, tasks=tasks) == planned
    assert placed.at(["n:1", "n:2", "n:3", "n:4"]).spec()["worker"] == ["n:2", "n:3"]
    for addresses in (["h:1"], ["h:1"] * 5):
        with pytest.raises(ValueError, match=r"shorter|longer"):
            planned.at(addresses)

    write_json(tmp_path / "cluster.json", placed.to_json())
    assert Cluster.from_json(read_json(tmp_path / "cluster.json") or {}) == placed
