"""TF_CONFIG against the planned cluster: what is taken over, and each mistake."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtrain.controller.launchers.cluster_env.tf_config import host_port, is_local, read
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster, Task


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


#: Each mistake: strategy, TF_CONFIG, the key, and what the sentence says.
MISTAKES = {
    "single": ("mirrored", config(), "strategy",
               "strategy=mirrored: is one process and has no use for a cluster; accepted: with "
               "launcher=env: one of several tasks; with launcher=local: any; "
               "hint: strategy=multiworker, or launcher=local"),
    "not set": ("multiworker", None, "TF_CONFIG",
                "TF_CONFIG=(not set): the environment says nothing of the cluster.*launcher=local; "
                "hint: export TF_CONFIG='{"),
    "quotes": ("multiworker", "{'cluster': 1}", "TF_CONFIG",
               "TF_CONFIG={'cluster': 1}: is not JSON: Expecting property name enclosed in double "
               "quotes: line 1 column 2 (char 1); accepted: .*; hint: export TF_CONFIG="),
    "cut off": ("multiworker", '{"cluster":\n {"worker": ["a:1", "a:2", "a:3", "a:4", "a:55555"]',
                "TF_CONFIG", "...: is not JSON: .* line 2 column 52 (char 63)"),
    "a list": ("multiworker", "[1]", "TF_CONFIG", "TF_CONFIG=[1]: is not a JSON object"),
    "no cluster": ("multiworker", '{"task": {}}', "TF_CONFIG", 'has no "cluster"'),
    "no task": ("multiworker", '{"cluster": {}}', "TF_CONFIG", 'has no "task"'),
    "cluster a list": ("multiworker", '{"cluster": [], "task": {}}', "TF_CONFIG.cluster",
                       "TF_CONFIG.cluster=[]: is not a JSON object"),
    "task null": ("multiworker", '{"cluster": {}, "task": null}', "TF_CONFIG.task",
                  "TF_CONFIG.task=null: is not a JSON object"),
    "master": ("multiworker", config(chief=None, master=["a:1"]), "TF_CONFIG.cluster.master",
               'TF_CONFIG.cluster.master=["a:1"]: is an old name of the role: name it chief'),
    "evaluator": ("multiworker", config(evaluator=["a:9"]), "TF_CONFIG.cluster.evaluator",
                  "dtrain evaluates in the training loop itself.*TF_CONFIG without the evaluator"),
    "ps": ("multiworker", config(ps=["a:9"]), "TF_CONFIG.cluster.ps",
           "strategy=multiworker has no use for parameter servers; .*; type: strategy=ps"),
    "unknown role": ("ps", config(workers=["a:9"]), "TF_CONFIG.cluster.workers",
                     'is no role of a task.*hint: "worker"'),
    "one address": ("multiworker", config(worker="b:2"), "TF_CONFIG.cluster.worker",
                    "is not a list of addresses"),
    "no port": ("multiworker", config(worker=["b:2", "c"]), "TF_CONFIG.cluster.worker[1]",
                "TF_CONFIG.cluster.worker[1]=c: is not host:port"),
    "no text": ("multiworker", config(worker=[None]), "TF_CONFIG.cluster.worker[0]",
                "TF_CONFIG.cluster.worker[0]=null: is not host:port"),
    "port": ("multiworker", config(chief=["a:70000"]), "TF_CONFIG.cluster.chief[0]",
             "TF_CONFIG.cluster.chief[0]=a:70000: has a port out of range, 70000"),
    "two chiefs": ("multiworker", config(chief=["a:1", "b:1"]), "TF_CONFIG.cluster.chief",
                   "TF_CONFIG.cluster.chief=2 tasks: a cluster has one chief"),
    "hosts": ("multiworker", config(worker=["b:2"]), "TF_CONFIG.cluster",
              "TF_CONFIG.cluster=2 tasks: hardware.hosts=3 asks for 3; .*type: hardware.hosts=2"),
    "nobody": ("multiworker", config(chief=None, worker=None), "TF_CONFIG.cluster",
               "TF_CONFIG.cluster=0 tasks: hardware.hosts=3 asks for 3"),
    "workers": ("ps", config(worker=["b:2"], ps=["d:4"]), "TF_CONFIG.cluster.worker",
                "TF_CONFIG.cluster.worker=1 task: strategy.workers=2 asks for 2; .*; "
                "type: strategy.workers=1"),
    "servers": ("ps", config(ps=["d:4", "e:5"]), "TF_CONFIG.cluster.ps",
                "strategy.servers=1 asks for 1; .*; type: strategy.servers=2"),
    "ps without chief": ("ps", config(chief=None, ps=["d:4"]), "TF_CONFIG.cluster",
                         "TF_CONFIG.cluster=worker, ps: has no chief"),
    "duplicate": ("multiworker", config(worker=["b:2", "B:2"]), "TF_CONFIG.cluster.worker[1]",
                  "TF_CONFIG.cluster.worker[1]=B:2: is the address of TF_CONFIG.cluster.worker[0]"),
    "localhost": ("multiworker", config(chief=["localhost:1"]), "TF_CONFIG.cluster.chief[0]",
                  "TF_CONFIG.cluster.chief[0]=localhost:1: is another machine on each host, and "
                  "the cluster has other hosts: b:2"),
    "task unknown": ("multiworker", config(("wroker", 0)), "TF_CONFIG.task.type",
                     'TF_CONFIG.task.type=wroker: is no role of a task.*hint: "worker"'),
    "task evaluator": ("multiworker", config(("evaluator", 0)), "TF_CONFIG.task.type",
                       "TF_CONFIG.task.type=evaluator: dtrain evaluates in the training loop"),
    "task ps": ("multiworker", config(("ps", 0)), "TF_CONFIG.task.type",
                "TF_CONFIG.task.type=ps: strategy=multiworker has no use for parameter servers"),
    "task not listed": ("multiworker",
                        config(("chief", 0), chief=None, worker=["a:1", "b:2", "c:3"]),
                        "TF_CONFIG.task.type", '"cluster" lists no chief'),
    "index text": ("multiworker", config(("worker", "0")), "TF_CONFIG.task.index",
                   "TF_CONFIG.task.index=0: is not an integer"),
    "index large": ("multiworker", config(("worker", 2)), "TF_CONFIG.task.index",
                    'TF_CONFIG.task.index=2: "cluster" lists 2 for worker'),
    "index negative": ("multiworker", config(("chief", -1)), "TF_CONFIG.task.index",
                       'TF_CONFIG.task.index=-1: "cluster" lists 1 for chief'),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name: str) -> None:
    strategy, text, key, said = MISTAKES[name]
    plan = planned(strategy, 0 if strategy == "mirrored" else 2)
    with pytest.raises(UsageError) as caught:
        read(text, plan, strategy, strategy == "multiworker")
    assert caught.value.key == key
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
     ("", "a", ":1", "a:", "a:b", "a:-1", "a:1 ", "a:1\n", "a b:1", "grpc://a:1", "::1:2", "a:٣")]
    + [(f"a:{port}", "port out of range") for port in ("0", "00000", "65536", "1" * 5000)]
    + [("[a]:1", "no IPv6 address"), ("[127.0.0.1]:1", "no IPv6 address")],
)  # fmt: skip
def test_no_address(address: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        host_port(address)


def test_hosts_that_are_here() -> None:
    assert all(map(is_local, ["localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "::1"]))
    assert not any(map(is_local, ["host", "10.0.0.1", "128.0.0.1", "fe80::1", "localhost2"]))
