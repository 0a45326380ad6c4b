"""``launcher=auto``, from recorded environments to the cluster; mistakes in TF_CONFIG."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dtrain.errors import TrainingError, UsageError
from dtrain.launchers import Env, Local, auto
from dtrain.launchers.env import ENVIRONMENTS as PLATFORMS
from dtrain.launchers.env import found
from dtrain.launchers.platforms.base import Platform, Started, check
from dtrain.launchers.platforms.numbered import SageMaker
from dtrain.launchers.platforms.slurm import first_host
from dtrain.launchers.platforms.tf_config import host_port, is_local, read
from dtrain.launchers.rendezvous.sides import Place
from dtrain.run.cluster import Cluster, Task
from dtrain.run.devices import Machine
from tests.cluster_environments import ENVIRONMENTS, Recorded, mpi, sagemaker, step, tf, torchrun
from tests.test_launchers import SETTINGS


def planned(strategy: str, workers: int = 2, servers: int = 1) -> Cluster:
    """Plan a cluster: of multiworker, ``workers`` besides the chief."""
    ps = strategy == "ps"
    tasks = [Task("chief", 0, 2)]
    tasks += [Task("worker", index, 2, serves=ps) for index in range(workers)]
    tasks += [Task("ps", index, 1, serves=True) for index in range(servers if ps else 0)]
    return Cluster(tuple(tasks), "cpu", 2, {"KERAS_BACKEND": "tensorflow"})


def config(
    task: Any = ("worker", 0), chief: Any = ("a:1",), worker: Any = ("b:2", "c:3"), **other: Any
) -> str:
    """Write a TF_CONFIG; a role that is None is not in it."""
    roles = {"chief": chief, "worker": worker, **other}
    cluster = {role: addresses for role, addresses in roles.items() if addresses is not None}
    if isinstance(task, tuple):
        task = {"type": task[0], "index": task[1]}
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


def test_the_addresses_of_a_cluster_with_a_chief() -> None:
    cluster, task = read(config(), planned("multiworker"), "multiworker", True)
    assert cluster.spec() == {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
    assert cluster.replicas == 2 and cluster.environment == {"KERAS_BACKEND": "tensorflow"}
    assert task == Task("worker", 0, 2, address="b:2")
    assert cluster.chief == Task("chief", 0, 2, address="a:1")
    assert (
        read(config(("chief", 0)), planned("multiworker"), "multiworker", True)[1] == cluster.chief
    )


@pytest.mark.parametrize("other", [{}, {"chief": []}, {"chief": [], "ps": [], "evaluator": []}])
def test_workers_alone_keep_their_role(other: dict[str, Any]) -> None:
    text = config(("worker", 1), **{"chief": None, **other}, worker=["a:1", "b:1", "c:1"])
    cluster, task = read(text, planned("multiworker"), "multiworker", True)
    assert cluster.spec() == {"worker": ["a:1", "b:1", "c:1"]}
    assert [t.name for t in cluster.tasks] == ["worker-0", "worker-1", "worker-2"]
    assert cluster.chief.address == "a:1"
    assert task == Task("worker", 1, 2, address="b:1")


@pytest.mark.parametrize("role", ["chief", "worker"])
def test_a_cluster_of_one(role: str) -> None:
    text = json.dumps({"cluster": {role: ["a:1"]}, "task": {"type": role, "index": 0}})
    cluster, task = read(text, planned("multiworker", 0), "mine", True)
    assert cluster.spec() == {role: ["a:1"]} and task is cluster.chief


def test_parameter_servers() -> None:
    text = config(("ps", 0), ps=["[fe80::1]:65535"])
    cluster, task = read(text, planned("ps"), "ps", False)
    assert cluster.spec() == {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["[fe80::1]:65535"]}
    assert task == Task("ps", 0, 1, serves=True, address="[fe80::1]:65535")


@pytest.mark.parametrize("hosts", [("localhost", "127.0.0.1", "[::1]"), ("pod-0.svc", "n_1", "é")])
def test_hosts_that_go_together(hosts: tuple[str, str, str]) -> None:
    chief, *workers = [f"{host}:{port}" for port, host in enumerate(hosts, start=1000)]
    cluster, _ = read(
        config(chief=[chief], worker=workers), planned("multiworker"), "multiworker", True
    )
    assert [task.address for task in cluster.tasks] == [chief, *workers]


#: Each mistake: strategy, TF_CONFIG, and what the sentence says.
MISTAKES = {
    "single": ("mirrored", config(), "strategy=mirrored: is one process and has no use for a "
               "cluster; accepted: .*; hint: strategy=multiworker, or launcher=local"),
    "not set": ("multiworker", None, "TF_CONFIG=(not set): says nothing of the cluster.*"
                "launcher=local; hint: export TF_CONFIG='{"),
    "quotes": ("multiworker", "{'cluster': 1}",
               "TF_CONFIG={'cluster': 1}: is not JSON: Expecting property name enclosed in double "
               "quotes: line 1 column 2 (char 1); accepted: .*; hint: export TF_CONFIG="),
    "cut off": ("multiworker", '{"cluster":\n {"worker": ["a:1", "a:2", "a:3", "a:4", "a:55555"]',
                "...: is not JSON: .* line 2 column 52 (char 63)"),
    "a list": ("multiworker", "[1]", "TF_CONFIG=[1]: is no cluster and task of it (TypeError"),
    "no cluster": ("multiworker", '{"task": {}}', "(KeyError: 'cluster')"),
    "cluster a list": ("multiworker", '{"cluster": [], "task": {}}', "is no cluster and task of"),
    "task null": ("multiworker", '{"cluster": {}, "task": null}', "is no cluster and task of it"),
    "master": ("multiworker", config(chief=None, master=["a:1"]),
               "TF_CONFIG=master: is an old name of the role: name it chief"),
    "evaluator": ("multiworker", config(evaluator=["a:9"]), "dtrain evaluate RUN follow=true"),
    "ps": ("multiworker", config(ps=["a:9"]), "TF_CONFIG=ps: is of strategy=ps alone"),
    "unknown role": ("ps", config(workers=["a:9"]), 'is no role of a task.*hint: "worker"'),
    "task unknown": ("multiworker", config(("wroker", 0)), "TF_CONFIG=wroker: is no role of a task"
                     '.*hint: "worker"'),
    "one address": ("multiworker", config(worker="b:2"), "'b' is not host:port"),
    "no port": ("multiworker", config(worker=["b:2", "c"]), "'c' is not host:port"),
    "no text": ("multiworker", config(worker=[None]), "is no cluster and task of it"),
    "two chiefs": ("multiworker", config(chief=["a:1", "b:1"]),
                   "TF_CONFIG=2 chief, 2 workers: the configuration asks for 1 chief, 2 workers; "),
    "hosts": ("multiworker", config(worker=["b:2"]), "TF_CONFIG=1 chief, 1 worker: the "
              "configuration asks for 1 chief, 2 workers; .*type: hardware.hosts=2"),
    "no task": ("multiworker", config(chief=None, worker=None), "TF_CONFIG=no task: the conf"),
    "servers": ("ps", config(worker=["b:2"], ps=["d:4", "e:5"]), "1 chief, 1 worker, 2 parameter "
                "servers: .*type: strategy.workers=1 strategy.servers=2"),
    "ps without chief": ("ps", config(chief=None, ps=["d:4"]), "TF_CONFIG=2 workers, 1 ps: "),
    "duplicate": ("multiworker", config(worker=["b:2", "B:2"]), "two tasks have one address"),
    "localhost": ("multiworker", config(chief=["localhost:1"]), "TF_CONFIG=localhost:1: is another "
                  "machine on each host, and the cluster has other hosts"),
    "task not listed": ("multiworker",
                        config(("chief", 0), chief=None, worker=["a:1", "b:2", "c:3"]),
                        'TF_CONFIG=chief 0: is the task, and "cluster" lists no such one'),
    "index text": ("multiworker", config(("worker", "0")), "lists no such one"),
    "index large": ("multiworker", config(("worker", 2)), "worker 2: is the task"),
    "index negative": ("multiworker", config(("chief", -1)), "chief -1: is the task"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name: str) -> None:
    strategy, text, said = MISTAKES[name]
    plan = planned(strategy, 0 if strategy == "mirrored" else 2)
    with pytest.raises(UsageError) as caught:
        read(text, plan, strategy, strategy == "multiworker")
    rest = str(caught.value)
    for part in said.split(".*"):  # everything is literal but this
        assert part in rest, str(caught.value)
        rest = rest.split(part, 1)[1]


@pytest.mark.parametrize(
    ("address", "parts"),
    [("a.b-c_d:1", ("a.b-c_d", 1)), ("1.0.0.1:65535", ("1.0.0.1", 65535)), ("[::1]:2", ("::1", 2))],
)  # fmt: skip
def test_an_address(address: str, parts: tuple[str, int]) -> None:
    assert host_port(address) == parts


@pytest.mark.parametrize(
    ("address", "said"),
    [(address, "is not host:port") for address in
     ("", "a", ":1", "a:", "a:b", "a:-1", "a:1 ", "a:1\n", "a b:1", "grpc://a:1", "::1:2", "a:٣",
      *(f"a:{port}" for port in ("0", "00000", "65536", "1" * 5000)))]
    + [("[a]:1", "At least 3 parts"), ("[127.0.0.1]:1", "At least 3 parts")],
)  # fmt: skip
def test_no_address(address: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        host_port(address)


def test_hosts_that_are_here() -> None:
    assert all(map(is_local, ["localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "::1"]))
    assert not any(map(is_local, ["host", "10.0.0.1", "128.0.0.1", "fe80::1", "localhost2"]))


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
        (3, cluster("chief"), "strategy=mine: is one process, and SLURM step 7.0 has 3 tasks; "
         "accepted: a strategy of several tasks, or srun -n1; type: strategy=multiworker"),
        (None, cluster("chief"), "strategy=mine: is one process, and SLURM step 7.0 has several "
         "tasks"),
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
    with pytest.raises(UsageError, match=r"task 4, from 0, of 2.*type: hardware.hosts=5"):
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


def test_the_first_host_of_a_list_of_slurm() -> None:
    for text, first in {
        "n1": "n1", "n1,n10": "n1", "n[1-2],n10": "n1", "[1-3]": "1", "": "", "n[1-": "",
        "r[1-2]n[01-02]-ib": "r1n01-ib", "a.b.org,c": "a.b.org",
    }.items():  # fmt: skip
        assert first_host(text) == first


@pytest.mark.parametrize("key", ["network", "chief"])
def test_addresses_that_are_given_stay(key: str, tmp_path: Path) -> None:
    variables = tf({"type": "chief", "index": 0}, chief=["a:1"], worker=["b:1"])
    with pytest.raises(UsageError, match=f"launcher.{key}=lo: the environment has the addresses"):
        launched(variables, tmp_path, **{key: "lo"})
    launched(step(0, "n[1-2]", "1(x2)", 2), tmp_path, **{key: "lo"})
