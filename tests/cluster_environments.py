"""Environments as platforms set them, and what they say: the clusters of ``launcher=auto``.

Each names where its form is from. Names, addresses and numbers are made up; ``mpirun 4.1.4`` and
``srun 22.05`` were printed by these programs of Debian 12 and shortened.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

SRUN = "srun(1), OUTPUT ENVIRONMENT VARIABLES"
SBATCH = "sbatch(1), OUTPUT ENVIRONMENT VARIABLES"
SALLOC = "salloc(1); LaunchParameters=use_interactive_step of slurm.conf(5)"
MPIRUN = "mpirun 4.1.4"
MANUAL = "docs.open-mpi.org, Environment variables that Open MPI sets"
TF = "tensorflow.org/guide/distributed_training, TF_CONFIG"
KUBEFLOW = "kubeflow.org/docs, TFJob: TF_CONFIG"
VERTEX = "cloud.google.com/vertex-ai/docs/training/distributed-training"
TORCHRUN = "pytorch.org/docs/stable/elastic/run.html, Environment Variables"
PYTORCHJOB = "kubeflow/training-operator, pkg/controller.v1/pytorch/envvar.go"
TOOLKIT = "aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md"

PODS = "kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication"
JOBSET = "kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go: labels of pods"


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One environment.

    Attributes:
        source: where its form is described, or what printed it.
        variables: the environment.
        platform: class of what is found; None where nothing is.
        task: the own one, of ``strategy=multiworker``.
        says: attributes of what was started.
        sentence: a part of the error, where it is one.
    """

    source: str
    variables: dict[str, str]
    platform: str | None = None
    task: str | None = None
    says: dict[str, Any] = dataclasses.field(default_factory=dict)
    sentence: str | None = None


def step(rank: int, nodes: str, counts: str, number: int, **more: str) -> dict[str, str]:
    """Return what a task of a step has, with ``more``; an empty value takes one away."""
    found = {
        "SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(number), "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": str(rank), "SLURM_LOCALID": "0",
        "SLURM_CLUSTER_NAME": "ci", "SLURM_JOB_NUM_NODES": "3", "SLURMD_NODENAME": "n1",
        "SLURM_JOB_NODELIST": nodes, "SLURM_NTASKS": str(number), "SLURM_GTIDS": str(rank),
        "SLURM_DISTRIBUTION": "cyclic", "SLURM_CPUS_ON_NODE": "2", "SLURM_TASK_PID": "4711",
        **more,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def pod(name: str, **more: str) -> dict[str, str]:
    """Return what a pod of an indexed Job has, whose name ends with its number."""
    return {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443",
        "HOSTNAME": name, "JOB_COMPLETION_INDEX": name.rpartition("-")[2], **more,
    }  # fmt: skip


def mpi(rank: int, number: int, local: tuple[int, int] | None, **more: str) -> dict[str, str]:
    """Return what a process of Open MPI has."""
    found = {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(number),
        "PMIX_NAMESPACE": "1000144897", "PMIX_RANK": str(rank), "OMPI_UNIVERSE_SIZE": "2",
        "OMPI_MCA_ess_base_jobid": "1000144897", "OMPI_MCA_orte_bound_at_launch": "1",
        "OMPI_MCA_orte_hnp_uri":
            "1000144896.0;tcp://192.0.2.2,10.0.0.2:47451;tcp6://[fd00::2]:45933",
    }  # fmt: skip
    if local is not None:
        found["OMPI_COMM_WORLD_LOCAL_RANK"], found["OMPI_COMM_WORLD_LOCAL_SIZE"] = map(str, local)
    return {name: value for name, value in {**found, **more}.items() if value}


def torchrun(rank: int, number: int, local: tuple[int, int], **more: str) -> dict[str, str]:
    """Return what a process of torchrun has, with ``more``."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(number), "LOCAL_RANK": str(local[0]),
        "LOCAL_WORLD_SIZE": str(local[1]), "MASTER_ADDR": "n1", "MASTER_PORT": "29500",
        "GROUP_RANK": str(rank // local[1]), "TORCHELASTIC_RUN_ID": "digits",
        "TORCHELASTIC_RESTART_COUNT": "1", **more,
    }  # fmt: skip


def tf(task: Any, **cluster: list[str]) -> dict[str, str]:
    """Return a TF_CONFIG."""
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def vertex(task: Any, **cluster: Any) -> dict[str, str]:
    """Return a CLUSTER_SPEC."""
    spec = {"cluster": cluster, "environment": "cloud", "task": task, "job": "{}"}
    return {"CLUSTER_SPEC": json.dumps(spec), "CLOUD_ML_JOB_ID": "123"}


def sagemaker(own: str, *hosts: str, **more: str) -> dict[str, str]:
    """Return what SageMaker's toolkit sets."""
    return {
        "SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": own, "TRAINING_JOB_NAME": "digits-7",
        "SM_NETWORK_INTERFACE_NAME": "eth0", "SM_NUM_GPUS": "0", **more,
    }  # fmt: skip


def pool(number: int, *indices: int) -> list[str]:
    """Return the addresses of a worker pool of Vertex AI."""
    return [f"cmle-training-workerpool{number}-d604394b4f-{index}:2222" for index in indices]


THREE = "n[1-2],n10"
HNP = ("192.0.2.2", "10.0.0.2", "fd00::2")
WHERE = "where and what: made up after what the page says of it"

ENVIRONMENTS: dict[str, Recorded] = {
    "nothing": Recorded("a shell", {"HOME": "/root", "PATH": "/bin"}),
    # --- SLURM
    "srun -N3": Recorded(
        "srun 22.05", step(0, THREE, "1(x3)", 3), "Slurm", "chief-0",
        {"what": "SLURM step 41.0", "where": THREE, "number": 3, "chief": ("n1",),
         "local": (0, 1), "own_gpus": False, "same_home": True, "addresses": ()},
    ),
    "srun -N3, the last": Recorded(
        "srun 22.05", step(2, THREE, "1(x3)", 3), "Slurm", "worker-1", {"rank": 2}
    ),
    "srun -n7 on three nodes": Recorded(
        SRUN, step(5, "rack[1-2]n[01-02]", "2(x3),1", 7, SLURM_NODEID="2", SLURM_LOCALID="1"),
        "Slurm", "worker-4", {"chief": ("rack1n01",), "local": (1, 2), "number": 7},
    ),
    "srun, the node with fewer tasks": Recorded(
        SRUN, step(6, "n[1-4]", "2(x3),1", 7, SLURM_NODEID="3"), "Slurm", "worker-5",
        {"local": (0, 1)},
    ),
    "srun, all tasks on one node": Recorded(
        SRUN, step(1, "n3", "4", 4, SLURM_NODEID="0", SLURM_LOCALID="1"), "Slurm", "worker-0",
        {"is_on_one_machine": True, "local": (1, 4)},
    ),
    "srun -n1": Recorded(
        SRUN, step(0, "n2", "1", 1), "Slurm", "chief-0", {"is_alone": True, "number": 1}
    ),
    "srun, zero-padded names": Recorded(
        SRUN, step(0, "node[008-011],login1", "1(x5)", 5), "Slurm", "chief-0",
        {"chief": ("node008",)},
    ),
    "srun -m arbitrary, from n10 to n1": Recorded(
        "srun 22.05", step(2, "n[1-2,10]", "1(x3)", 3, SLURM_DISTRIBUTION="arbitrary"),
        "Slurm", "worker-1", {"chief": ()},
    ),
    "srun -n2 --gpus-per-task=1": Recorded(
        "srun 22.05", step(1, "n1", "2", 2, SLURM_GPUS_ON_NODE="2", CUDA_VISIBLE_DEVICES="1",
                           SLURMD_TRES_BIND="gpu:per_task:1", SLURM_STEP_GPUS="1",
                           SLURM_NODEID="0", SLURM_LOCALID="1"),
        "Slurm", "worker-0", {"own_gpus": True, "local": (1, 2)},
    ),
    "srun -n2 --gpus-per-node=2": Recorded(
        "srun 22.05", step(1, "n1", "2", 2, SLURM_GPUS_ON_NODE="2", CUDA_VISIBLE_DEVICES="0,1",
                           SLURM_STEP_GPUS="0,1", SLURM_NODEID="0", SLURM_LOCALID="1"),
        "Slurm", "worker-0", {"own_gpus": False},
    ),
    "sbatch --gpus-per-task": Recorded(
        SBATCH, step(1, "n1", "2", 2, SLURM_GPUS_PER_TASK="1", SLURM_LOCALID="1", SLURM_NODEID="0"),
        "Slurm", "worker-0", {"own_gpus": True},
    ),
    "srun --tres-per-task": Recorded(
        SRUN, step(1, "n1", "2", 2, SLURM_TRES_PER_TASK="gres/gpu=1", SLURM_NODEID="0"),
        "Slurm", "worker-0", {"own_gpus": True},
    ),
    "srun --gpu-bind": Recorded(
        SRUN, step(1, "n1", "2", 2, SLURM_GPUS_ON_NODE="4", CUDA_VISIBLE_DEVICES="2,3"),
        "Slurm", "worker-0", {"own_gpus": True},
    ),
    "srun --gpus-per-node": Recorded(
        SRUN, step(1, "n1", "2", 2, SLURM_GPUS_ON_NODE="4", CUDA_VISIBLE_DEVICES="0,1,2,3"),
        "Slurm", "worker-0", {"own_gpus": False},
    ),
    "a second step of a job": Recorded(
        SRUN, step(0, "n[1-2]", "1(x2)", 2, SLURM_STEP_ID="3"), "Slurm", "chief-0",
        {"what": "SLURM step 41.3", "job": "SLURM step 41.3 of ci, start None"},
    ),
    "a requeued job": Recorded(
        SBATCH, step(0, "n[1-2]", "1(x2)", 2, SLURM_RESTART_COUNT="2"), "Slurm", "chief-0",
        {"job": "SLURM step 41.0 of ci, start 2"},
    ),
    "a job of an array": Recorded(
        SBATCH, step(0, "n[1-2]", "1(x2)", 2, SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="1"),
        "Slurm", "chief-0", {"what": "SLURM step 41.0"},
    ),
    "a batch script on one node": Recorded(
        "sbatch 22.05", step(0, "n1", "1", 1, SLURM_STEP_ID="", SLURM_JOB_NUM_NODES="1",
                             SLURM_STEP_NODELIST="", SLURM_STEP_NUM_TASKS=""),
    ),
    "a batch script on three nodes": Recorded(
        "sbatch 22.05", step(0, THREE, "1(x3)", 3, SLURM_STEP_ID=""),
        sentence="SLURM job 41 has 3 nodes, and this command is on one of them; accepted: srun",
    ),
    "a batch script, by its step's number": Recorded(
        "slurm.h, SLURM_BATCH_SCRIPT", step(0, THREE, "1(x3)", 3, SLURM_STEP_ID="4294967291"),
        sentence="launcher=auto: SLURM job 41 has 3 nodes",
    ),
    "salloc -N2, an interactive step": Recorded(
        SALLOC, step(0, "n1", "1", 1, SLURM_STEP_ID="4294967290", SLURM_JOB_NUM_NODES="2"),
        sentence="or local, which leaves the others idle",
    ),
    "salloc -N1": Recorded("salloc 22.05", {"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "1"}),
    "srun -n2 --pty bash": Recorded(
        "srun(1), --pty", step(0, "n[1-2]", "1(x2)", 2, SLURM_PTY_PORT="41234"),
        sentence="this shell is a task of 2 of SLURM step 41.0",
    ),
    "srun -n1 --pty bash": Recorded(
        "srun(1), --pty", step(0, "n1", "1", 1, SLURM_PTY_PORT="41234"), "Slurm", "chief-0",
        {"is_alone": True},
    ),
    "a task that is none": Recorded(
        WHERE, step(3, "n[1-3]", "1(x3)", 3),
        sentence="SLURM_PROCID=3: SLURM_STEP_NUM_TASKS=3 has no such rank",
    ),
    "a list of nodes that ends early": Recorded(
        WHERE, step(0, "n[1-3", "1(x3)", 3), sentence="SLURM_STEP_NODELIST=n[1-3: names no host",
    ),
    "a step that is no number": Recorded(
        WHERE, step(0, "n[1-3]", "1(x3)", 3, SLURM_STEP_ID="x"),
        sentence="SLURM_STEP_ID=x: is not a number, in a step of SLURM",
    ),
    "a step without its size": Recorded(
        WHERE, step(0, "n[1-3]", "1(x3)", 3, SLURM_STEP_NUM_TASKS=""),
        sentence="SLURM_STEP_NUM_TASKS=(not set): is not there",
    ),
    # --- Open MPI
    "mpirun -n 2": Recorded(
        MPIRUN, mpi(0, 2, (0, 2)), "OpenMPI", "chief-0",
        {"what": "Open MPI", "is_on_one_machine": True, "where": "this machine", "local": (0, 2)},
    ),
    "mpirun -n 2, the second": Recorded(MPIRUN, mpi(1, 2, (1, 2)), "OpenMPI", "worker-0"),
    "mpirun over two hosts": Recorded(
        MANUAL, mpi(3, 4, (1, 2)), "OpenMPI", "worker-2",
        {"chief": HNP, "is_on_one_machine": False, "local": (1, 2), "where": ""},
    ),
    "mpirun -n 1": Recorded(MPIRUN, mpi(0, 1, (0, 1)), "OpenMPI", "chief-0", {"is_alone": True}),
    "mpirun in a SLURM step": Recorded(
        "mpirun(1), plm slurm: a daemon a node is a task of srun",
        {**step(1, THREE, "1(x3)", 3), **mpi(4, 6, (0, 2))}, "OpenMPI", "worker-3",
        {"chief": (*HNP, "n1"), "number": 6},
    ),
    "mpirun in a batch script": Recorded(
        SBATCH, {**step(0, THREE, "1(x3)", 3, SLURM_STEP_ID=""), **mpi(0, 3, (0, 1))},
        "OpenMPI", "chief-0", {"number": 3},
    ),
    "mpirun 5, which says less": Recorded(
        MANUAL, mpi(1, 2, (0, 1), OMPI_MCA_orte_hnp_uri="", OMPI_MCA_ess_base_jobid=""),
        "OpenMPI", "worker-0", {"chief": (), "job": "Open MPI 1000144897"},
    ),
    "mpirun under LSF": Recorded(
        "LSF, LSB_HOSTS", mpi(1, 2, (0, 1), OMPI_MCA_orte_hnp_uri="", LSB_HOSTS="b1 b1 b2"),
        "OpenMPI", "worker-0", {"chief": ("b1",)},
    ),
    "an older mpirun": Recorded(MANUAL, mpi(1, 2, None), "OpenMPI", "worker-0", {"local": (0, 1)}),
    "a rank that is none": Recorded(
        WHERE, mpi(2, 2, (0, 1)),
        sentence="OMPI_COMM_WORLD_RANK=2: OMPI_COMM_WORLD_SIZE=2 has no such rank",
    ),
    "a rank without a size": Recorded(
        WHERE, {"OMPI_COMM_WORLD_RANK": "0"},
        sentence="OMPI_COMM_WORLD_SIZE=(not set): is not there, in a process of Open MPI",
    ),
    # --- TF_CONFIG
    "a chief and workers": Recorded(
        TF, tf({"type": "worker", "index": 1}, chief=["a:1"], worker=["b:1", "c:1"]), "TFConfig",
        "worker-1", {"number": 3, "addresses": ("a:1", "b:1", "c:1")},
    ),
    "workers alone": Recorded(
        KUBEFLOW, tf({"type": "worker", "index": 0}, worker=["d-worker-0.ns.svc:2222",
                                                          "d-worker-1.ns.svc:2222"]),
        "TFConfig", "worker-0", {"number": 2, "rank": 0},
    ),
    "a chief alone": Recorded(
        TF, tf({"type": "chief", "index": 0}, chief=["a:1"]), "TFConfig", "chief-0",
        {"is_alone": True},
    ),
    "one worker alone": Recorded(
        KUBEFLOW, tf({"type": "worker", "index": 0}, worker=["a:1"]), "TFConfig", "worker-0",
        {"is_alone": True},
    ),
    "a chief and an evaluator": Recorded(
        TF, tf({"type": "chief", "index": 0}, chief=["a:1"], evaluator=["b:1"]), "TFConfig", None,
        {"is_alone": False, "number": 2},
    ),
    "an evaluator that is not listed": Recorded(
        KUBEFLOW, tf({"type": "evaluator", "index": 0}, chief=["a:1"]), "TFConfig", None,
        {"is_alone": False, "number": 1},
    ),
    "TF_CONFIG in a SLURM step": Recorded(
        WHERE, {**step(0, THREE, "1(x3)", 3),
                **tf({"type": "worker", "index": 0}, chief=["a:1"], worker=["b:1"])},
        "TFConfig", "worker-0", {"number": 2},
    ),
    "an empty TF_CONFIG": Recorded(WHERE, {"TF_CONFIG": " "}),
    "a TF_CONFIG that is no JSON": Recorded(
        WHERE, {"TF_CONFIG": "{cluster: {}}"}, sentence="TF_CONFIG={cluster: {}}: is not JSON",
    ),
    "a TF_CONFIG without a task": Recorded(
        WHERE, {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'},
        sentence="KeyError: 'task'",
    ),
    # --- Vertex AI
    "two worker pools": Recorded(
        VERTEX, vertex({"type": "workerpool1", "index": 1, "trial": ""},
                       workerpool0=pool(0, 0), workerpool1=pool(1, 0, 1)),
        "Vertex", "worker-1",
        {"number": 3, "rank": 2, "addresses": (*pool(0, 0), *pool(1, 0, 1))},
    ),
    "three pools, the first's": Recorded(
        VERTEX, vertex({"type": "workerpool0", "index": 0}, workerpool2=pool(2, 0),
                       workerpool1=pool(1, 0), workerpool0=pool(0, 0)),
        "Vertex", "chief-0", {"addresses": (*pool(0, 0), *pool(1, 0), *pool(2, 0))},
    ),
    "one replica": Recorded(
        VERTEX, vertex({"type": "workerpool0", "index": 0}, workerpool0=pool(0, 0)), "Vertex",
        "chief-0", {"is_alone": True},
    ),
    "a pool that was left out": Recorded(
        VERTEX, vertex({"type": "workerpool2", "index": 0}, workerpool0=pool(0, 0),
                       workerpool1=[], workerpool2=pool(2, 0)),
        "Vertex", "worker-0", {"rank": 1},
    ),
    "a CLUSTER_SPEC of something else": Recorded(
        WHERE, {"CLUSTER_SPEC": "my-cluster"}, sentence="CLUSTER_SPEC=my-cluster: is no JSON",
    ),
    "a replica of no pool": Recorded(
        WHERE, vertex({"type": "workerpool1", "index": 5}, workerpool0=pool(0, 0),
                      workerpool1=pool(1, 0)),
        sentence="workerpool1 has no 5",
    ),
    "a replica without a port": Recorded(
        WHERE, vertex({"type": "workerpool0", "index": 0}, workerpool0=["a"], workerpool1=["b"]),
        sentence="is not host:port",
    ),
    # --- SageMaker
    "two instances": Recorded(
        TOOLKIT, sagemaker("algo-2", "algo-1", "algo-2"), "SageMaker", "worker-0",
        {"what": "SageMaker job digits-7", "number": 2, "chief": ("algo-1",), "same_home": False,
         "where": "algo-1, algo-2"},
    ),
    "ten instances": Recorded(
        TOOLKIT, sagemaker("algo-1", *(f"algo-{number}" for number in range(1, 11))), "SageMaker",
        "chief-0", {"number": 10, "where": f"{', '.join(f'algo-{n}' for n in range(1, 9))}, ..."},
    ),
    "one instance": Recorded(
        TOOLKIT, sagemaker("algo-1", "algo-1"), "SageMaker", "chief-0", {"is_alone": True}
    ),
    "mpirun on SageMaker": Recorded(
        "aws/sagemaker-training-toolkit, distribution mpi",
        {**sagemaker("algo-2", "algo-1", "algo-2"), **mpi(1, 2, (0, 1))}, "OpenMPI", "worker-0",
    ),
    "an instance that is not listed": Recorded(
        WHERE, sagemaker("algo-3", "algo-1", "algo-2"),
        sentence='SM_HOSTS=["algo-1", "algo-2"]: does not list algo-3, SM_CURRENT_HOST',
    ),
    "instances that are no list": Recorded(
        WHERE, {"SM_HOSTS": '"algo-1"', "SM_CURRENT_HOST": "algo-1"},
        sentence='SM_HOSTS="algo-1": does not list algo-1',
    ),
    # --- PyTorch
    "torchrun on two hosts": Recorded(
        TORCHRUN, torchrun(3, 4, (1, 2)), "Torchrun", "worker-2",
        {"what": "torchrun", "chief": ("n1",), "local": (1, 2), "is_on_one_machine": False,
         "job": "torch 4 29500 digits 1"},
    ),
    "torchrun on one machine": Recorded(
        TORCHRUN, torchrun(0, 2, (0, 2), MASTER_ADDR="127.0.0.1"), "Torchrun", "chief-0",
        {"is_on_one_machine": True, "where": "this machine"},
    ),
    "torchrun with one process": Recorded(
        TORCHRUN, torchrun(0, 1, (0, 1)), "Torchrun", "chief-0", {"is_alone": True}
    ),
    "torchrun in each task of a step": Recorded(
        TORCHRUN, {**step(1, "n[1-2]", "1(x2)", 2), **torchrun(2, 4, (0, 2))}, "Torchrun",
        "worker-1",
    ),
    "torchrun on Vertex AI": Recorded(
        TORCHRUN, {**tf({"type": "worker", "index": 0}, chief=["a:1"], worker=["b:1"]),
                   **torchrun(2, 4, (0, 2))}, "Torchrun", "worker-1",
    ),
    "a pod of a PyTorchJob": Recorded(
        PYTORCHJOB, {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "digits-master-0",
                     "MASTER_PORT": "23456"}, "TorchVariables", "worker-1",
        {"chief": ("digits-master-0",), "local": (0, 1), "job": "torch 3 23456  "},
    ),
    "two shells with PyTorch's variables": Recorded(
        TORCHRUN, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "TorchVariables",
        "worker-0", {"is_on_one_machine": True, "local": (1, 2)},
    ),
    "a rank without a world": Recorded(WHERE, {"RANK": "1", "MASTER_ADDR": "n1"}),
    "a rank beyond the world": Recorded(
        WHERE, torchrun(4, 4, (0, 2)), sentence="RANK=4: WORLD_SIZE=4 has no such rank"
    ),
    "a rank of PyTorch that is none": Recorded(
        WHERE, torchrun(0, 4, (0, 2), RANK="first"), sentence="RANK=first: is not a number"
    ),
    # --- Kubernetes
    "a pod of a JobSet of ours": Recorded(
        JOBSET, pod("digits-worker-1-0", REPLICATED_JOB_NAME="worker", JOB_GLOBAL_INDEX="2",
                    GLOBAL_REPLICAS="4", JOBSET_NAME="digits"), "KubernetesPod", "worker-1",
        {"what": "JobSet digits", "number": 4, "chief": ("digits-chief-0-0.digits",),
         "own_gpus": True},
    ),
    "the chief of a JobSet of ours": Recorded(
        JOBSET, pod("digits-chief-0-0", REPLICATED_JOB_NAME="chief", JOB_GLOBAL_INDEX="0",
                    GLOBAL_REPLICAS="4", JOBSET_NAME="digits"), "KubernetesPod", "chief-0",
        {"rank": 0},
    ),
    "a pod of a JobSet of one Job": Recorded(
        JOBSET, pod("digits-node-0-1", REPLICATED_JOB_NAME="node", JOBSET_NAME="digits"),
        "KubernetesPod", None,
        {"rank": 1, "number": None, "chief": ("digits-node-0-0.digits",)},
    ),
    "a pod of an indexed Job without a subdomain": Recorded(PODS, pod("train-3")),
    "a pod of a Deployment": Recorded(
        PODS, {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "web-5d4f8c7b9-x7k2p"}
    ),
    "a completion index outside of a cluster": Recorded(PODS, {"JOB_COMPLETION_INDEX": "1"}),
    "a pod of the training operator": Recorded(
        KUBEFLOW, {**pod("train-worker-1"), **tf({"type": "worker", "index": 0}, chief=["a:1"],
                                                 worker=["b:1"])}, "TFConfig", "worker-0",
    ),
    "a completion index that is none": Recorded(
        WHERE, pod("train-3", JOB_COMPLETION_INDEX="third"),
        sentence="JOB_COMPLETION_INDEX=third: is not a number, in a pod",
    ),
    "a pod with a host name of its own": Recorded(
        WHERE, pod("train-3", JOBSET_NAME="train", HOSTNAME="gpu-box"),
        sentence="HOSTNAME=gpu-box: is not JOB-3, ",
    ),
}  # fmt: skip
