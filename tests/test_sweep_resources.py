"""Cores and GPUs of the jobs of a sweep."""

from __future__ import annotations

import dataclasses
import random

import pytest

from dtrain.controller.resources.devices import Machine
from dtrain.controller.sweep.compose import Slot, Slots, at_once, gpu_names, gpus, keep_to
from dtrain.run.cluster import Cluster, Task


def cluster(*tasks: Task, kind: str = "cpu") -> Cluster:
    return Cluster(tasks, kind, 1, {})


@pytest.mark.parametrize(
    ("wanted", "needs", "machine", "parallel"),
    [
        (None, [0] * 6, Machine(0, 2), 2),
        (None, [0] * 6, Machine(0, 64), 6),
        (1, [0] * 6, Machine(0, 64), 1),
        (4, [0] * 6, Machine(0, 64), 4),
        (9, [0] * 6, Machine(0, 2), 2),  # cores are not shared
        (None, [1] * 6, Machine(4, 64), 4),
        (None, [2] * 6, Machine(4, 64), 2),
        (None, [4, 1, 1, 1], Machine(4, 64), 3),
        (None, [0, 0, 4, 4], Machine(4, 64), 3),
        (None, [1, 1], Machine(2, 1), 1),
        (None, [], Machine(0, 4), 1),
    ],
)
def test_how_many_at_once(
    wanted: int | None, needs: list[int], machine: Machine, parallel: int
) -> None:
    assert at_once(wanted, needs, machine) == parallel


def test_no_two_jobs_share_anything() -> None:
    """Of many jobs that come and go at random."""
    machine, generator = Machine(6, 16), random.Random(0)
    names = [f"GPU-{index}" for index in range(6)]
    slots, held = Slots(machine, names, 5), []
    assert slots.share == 3
    refused = 0
    for _ in range(2000):
        if held and generator.random() < 0.5:
            slots.give(held.pop(generator.randrange(len(held))))
            continue
        need = generator.choice([0, 0, 1, 2, 4])
        slot = slots.take(need)
        free = 6 - sum(len(each.gpus) for each in held)
        assert (slot is None) == (len(held) == 5 or need > free)
        if slot is None:
            refused += 1
            continue
        held.append(slot)
        assert len(slot.gpus) == need
        cores = [core for each in held for core in each.cores]
        taken = [name for each in held for name in each.gpus]
        assert len(set(cores)) == len(cores) == 3 * len(held)
        assert set(cores) <= set(range(16))
        assert len(set(taken)) == len(taken)
        assert slots.free == (len(held) < 5)
    assert refused > 100


def test_gpus_of_a_job() -> None:
    two = (Task("chief", 0, 2), Task("worker", 0, 2))
    assert gpus(cluster(*two)) == 0
    assert gpus(cluster(*two, kind="gpu")) == 4
    assert gpus(cluster(Task("chief", 0, 0), Task("worker", 0, 1), kind="gpu")) == 1


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["0", "1"]), ("3,5", ["3", "5"]), ("GPU-a,GPU-b,-1", ["GPU-a", "GPU-b"]), ("", [])],
)
def test_names_of_gpus(
    visible: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_names(Machine(len(names), 4)) == names


def test_a_job_keeps_to_its_slot() -> None:
    slot, machine = Slot((4, 5), ()), Machine(0, 8)
    [alone] = keep_to(cluster(Task("chief", 0, 1)), slot, machine).tasks
    assert (alone.cores, alone.threads) == ((4, 5), 2)
    planned = [Task("chief", 0, 1, threads=1, cores=(0,)), Task("worker", 0, 1, cores=(1,))]
    chief, worker = keep_to(cluster(*planned), slot, machine).tasks
    assert (chief.cores, chief.threads) == ((4,), 1)
    assert (worker.cores, worker.threads) == ((5,), 1)
    # More tasks than cores: they share what the job has.
    crowd = [Task("worker", index, 1, threads=1) for index in range(3)]
    assert {task.cores for task in keep_to(cluster(*crowd), slot, machine).tasks} == {(4, 5)}


def test_a_job_that_has_the_machine_is_as_one_alone() -> None:
    planned = cluster(Task("chief", 0, 1))
    assert keep_to(planned, Slot((0, 1), ()), Machine(0, 2)) == planned
    given = dataclasses.replace(planned, tasks=(Task("chief", 0, 1, threads=7),))
    assert keep_to(given, Slot((1,), ()), Machine(0, 2)).chief.threads == 7
