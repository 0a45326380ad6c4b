"""``launcher=auto``: from recorded environments to the cluster, or to the sentence."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from dtrain.controller.launchers import Env, Local, auto
from dtrain.controller.launchers.cluster_env.base import Platform, Started, check
from dtrain.controller.launchers.cluster_env.platforms import SageMaker
from dtrain.controller.launchers.external import ENVIRONMENTS as PLATFORMS
from dtrain.controller.launchers.external import found
from dtrain.controller.launchers.rendezvous.sides import Place
from dtrain.controller.resources.devices import Machine
from dtrain.errors import TrainingError, UsageError
from dtrain.run.cluster import Cluster, Task
from tests.cluster_environments import ENVIRONMENTS, Recorded, mpi, sagemaker, step, tf, torchrun
from tests.test_launchers import SETTINGS
from tests.test_tf_config import planned

RIGHT = [name for name, each in ENVIRONMENTS.items() if each.sentence is None]
WRONG = [name for name, each in ENVIRONMENTS.items() if each.sentence is not None]


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Iterator[Recorded]:
    """Have one of the recorded environments and nothing else."""
    found: Recorded = ENVIRONMENTS[request.param]
    with mock.patch.dict(os.environ, found.variables, clear=True):
        yield found


@pytest.mark.parametrize("recorded", RIGHT, indirect=True)
def test_what_is_found(recorded: Recorded) -> None:
    platform = found()
    if platform is None:
        assert recorded.platform is None and type(auto(**SETTINGS)) is Local
        return
    environment, started = platform
    assert type(environment).__name__ == recorded.platform
    assert {name: getattr(started, name) for name in recorded.says} == recorded.says
    launcher = auto(**SETTINGS)
    assert type(launcher) is (Local if started.is_alone else Env)
    assert launcher.commands == started.number
    assert launcher.start_timeout == 60  # what the settings say
    if recorded.task is not None and started.number is not None:
        cluster, task = environment.find(
            planned("multiworker", started.number - 1), "multiworker", True
        )
        assert task.name == recorded.task
        addresses = [each.address for each in cluster.tasks]
        assert addresses == list(started.addresses or [None] * started.number)


@pytest.mark.parametrize("recorded", WRONG, indirect=True)
def test_what_cannot_be(recorded: Recorded) -> None:
    assert recorded.sentence is not None
    with pytest.raises(UsageError) as caught:
        auto(**SETTINGS)
    assert recorded.sentence in str(caught.value)


def test_there_are_many() -> None:
    assert len(ENVIRONMENTS) >= 40
    platforms = {each.platform for each in ENVIRONMENTS.values()} - {None}
    assert platforms == {kind.__name__ for kind in PLATFORMS}
    assert all(issubclass(kind, Platform) for kind in PLATFORMS)


def test_a_timeout_of_its_own() -> None:
    settings = {**SETTINGS, "start_timeout": None}
    with mock.patch.dict(os.environ, {}, clear=True):
        assert auto(**settings).start_timeout == 60
    with mock.patch.dict(os.environ, step(0, "n[1-3]", "1(x3)", 3), clear=True):
        assert auto(**settings).start_timeout == 600


# --- what was planned


def cluster(*roles: str) -> Cluster:
    tasks = [Task(role, roles[:place].count(role), 1) for place, role in enumerate(roles)]
    return Cluster(tuple(tasks), "cpu", 1, {})


def apart(number: int) -> Cluster:
    """Return the plan of one host with a process for each device."""
    plan = cluster("chief", *["worker"] * (number - 1))
    tasks = [dataclasses.replace(task, device=n) for n, task in enumerate(plan.tasks)]
    return dataclasses.replace(plan, tasks=tuple(tasks))


STEP = Started("SLURM step 7.0", 0, 3, typed="srun -n")


@pytest.mark.parametrize(
    ("number", "plan", "said"),
    [
        (3, cluster("chief"), "strategy=mine: is one process, and SLURM step 7.0 has 3 tasks, "
         "each of which would train by itself; accepted: a strategy of several tasks, or "
         "srun -n1; type: strategy=multiworker"),
        (None, cluster("chief"), "strategy=mine: is one process, and SLURM step 7.0 has several "
         "tasks, each of which"),
        (3, cluster("chief", "worker"), "hardware.hosts=2: makes 2 tasks (1 chief, 1 worker), and "
         "SLURM step 7.0 has 3 tasks; accepted: srun -n2, or hardware.hosts=3; type: "
         "hardware.hosts=3"),
        (3, cluster("chief", "worker", "worker", "ps"), "strategy.workers=2: makes 4 tasks (1 "
         "chief, 2 workers, 1 ps), and SLURM step 7.0 has 3 tasks; accepted: srun -n4, or "
         "strategy.workers=1; type: strategy.workers=1"),
        (4, apart(3), "hardware.devices=3: makes 3 tasks (1 chief, 2 workers), and SLURM step 7.0 "
         "has 4 tasks; accepted: srun -n3, or hardware.devices=4; type: hardware.devices=4"),
        (2, cluster("chief", "worker", "ps", "ps"), "strategy.workers=1: makes 4 tasks (1 chief, "
         "1 worker, 2 parameter servers), and SLURM step 7.0 has 2 tasks; accepted: srun -n4; "),
    ],
)  # fmt: skip
def test_a_plan_of_another_number(number: int | None, plan: Cluster, said: str) -> None:
    started = Started("SLURM step 7.0", 0, number, typed="srun -n")
    with pytest.raises(UsageError) as caught:
        check(started, plan, "mine", on_hosts=len(plan.tasks) > 1)
    assert said in str(caught.value)


def test_a_rank_beyond_the_plan() -> None:
    """A platform that does not say how many there are."""
    started = Started("a Job", 4, None)
    with pytest.raises(UsageError, match="this command is task 4, counted from 0, and 2 are plann"):
        check(started, cluster("chief", "worker"), "multiworker", True)
    check(Started("a Job", 1, None), cluster("chief", "worker"), "multiworker", True)


def test_ranks_and_roles() -> None:
    plan = cluster("chief", "worker", "worker", "ps")
    names = []
    for rank in range(4):
        with mock.patch.dict(os.environ, mpi(rank, 4, (rank, 4)), clear=True):
            environment = auto(**SETTINGS)._environment  # type: ignore[attr-defined]
            names.append(environment.find(plan, "ps", False)[1].name)
    assert names == ["chief-0", "worker-0", "worker-1", "ps-0"]


def test_an_environment_that_is_not_there() -> None:
    with (
        mock.patch.dict(os.environ, {}, clear=True),
        pytest.raises(UsageError, match="the environment says nothing of a training job of SageM"),
    ):
        SageMaker().find(cluster("chief", "worker"), "multiworker", True)


# --- parts of a machine


@pytest.mark.parametrize(
    ("variables", "gpus", "first"),
    [
        (step(1, "n1", "2", 2, SLURM_NODEID="0", SLURM_LOCALID="1"), 2, 2),
        (step(1, "n1", "2", 2, SLURM_NODEID="0", SLURM_LOCALID="1", SLURM_GPUS_PER_TASK="4"), 4, 0),
        (mpi(3, 4, (1, 4)), 1, 1),
        (torchrun(3, 4, (1, 2)), 2, 2),
        (step(1, "n[1-2]", "1(x2)", 2), 4, 0),
    ],
)
def test_gpus_that_tasks_of_one_node_share(
    variables: dict[str, str], gpus: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mock.patch.dict(os.environ, variables, clear=True):
        launcher = auto(**SETTINGS)
    part = launcher.part(Machine(4, 8))
    assert isinstance(launcher, Env)
    assert (part.gpus, part.shared, part.hosts) == (gpus, False, int(launcher.commands or 0))
    assert launcher._first_gpu(Task("worker", 0, part.gpus)) == first


@pytest.mark.parametrize(("cores", "beside"), [(8, 4), (2, 1)])
def test_cores_that_nothing_divides(
    cores: int, beside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    with mock.patch.dict(os.environ, mpi(3, 4, (1, 4)), clear=True):
        launcher = auto(**SETTINGS)
    assert launcher.part(Machine(0, cores)).beside == beside


# --- SageMaker without its toolkit


def test_hosts_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "resourceconfig.json"
    with mock.patch.dict(os.environ, {}, clear=True):
        file.write_text('{"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}')
        assert SageMaker(file).started() is None  # not on SageMaker
    with mock.patch.dict(os.environ, {"TRAINING_JOB_NAME": "digits-7"}, clear=True):
        started = SageMaker(file).started()
        assert started is not None and (started.rank, started.number) == (1, 2)
        file.write_text("{")
        assert SageMaker(file).started() is None
        assert SageMaker(tmp_path / "nothing").started() is None


# --- what the launcher makes of it

FACTS = {"strategy.name": "multiworker", "strategy.on_hosts": "True"}


def launched(variables: dict[str, str], tmp_path: Path, **settings: str) -> tuple[Env, Cluster]:
    """Return a launcher in an environment, without a key of the user's, and what it has checked."""
    with mock.patch.dict(os.environ, {**variables, "HOME": str(tmp_path)}, clear=True):
        launcher = auto(**{**SETTINGS, **settings})
        assert isinstance(launcher, Env)
        return launcher, launcher.check(cluster("chief", "worker"), FACTS)


def test_addresses_that_were_agreed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launcher, placed = launched(step(0, "127.0.0.[1-2]", "1(x2)", 2), tmp_path)
    assert capsys.readouterr().err == "dtrain: SLURM step 41.0: 2 tasks on 127.0.0.[1-2]\n"
    assert [task.address for task in placed.tasks] == [None, None]
    assert launcher.where == "127.0.0.[1-2]"
    place = Place("2026-01-01", "run", "ab" * 16)
    assert launcher.placed(placed, place) is placed
    found = launcher.placed(placed, place._replace(addresses=("n1:7", "[fd00::2]:8")))
    assert found.spec() == {"chief": ["n1:7"], "worker": ["[fd00::2]:8"]}
    assert launcher.own(found).address == "n1:7"
    for wrong in (("n1:7",), ("n1:7", ""), ("n1:7", "n2:99999")):
        with pytest.raises(TrainingError, match="no addresses of 2 tasks: "):
            launcher.placed(placed, place._replace(addresses=wrong))


def test_hosts_without_a_home_in_common_need_a_key(tmp_path: Path) -> None:
    for variables in (
        sagemaker("algo-1", "algo-1", "algo-2"),
        tf({"type": "chief", "index": 0}, chief=["a:1"], worker=["b:1"]),
    ):
        with pytest.raises(UsageError, match="its hosts must know a common key"):
            launched(variables, tmp_path)
    launched(mpi(1, 2, (0, 1)), tmp_path)
    assert not list(tmp_path.iterdir()), "one is made when the job starts, not when it is checked"


@pytest.mark.parametrize("key", ["network", "chief"])
def test_addresses_that_are_given_stay(key: str, tmp_path: Path) -> None:
    variables = tf({"type": "chief", "index": 0}, chief=["a:1"], worker=["b:1"])
    with pytest.raises(UsageError, match=f"launcher.{key}=lo: the environment has the addresses"):
        launched(variables, tmp_path, **{key: "lo"})
    launched(step(0, "n[1-2]", "1(x2)", 2), tmp_path, **{key: "lo"})
