"""Platforms that number the commands which they start, by the variables that they set.

torchrun and others: ``RANK``, ``WORLD_SIZE`` and ``MASTER_ADDR`` are what ``torch.distributed``
reads; ``torchrun`` adds ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE`` and its own
(pytorch.org/docs/stable/elastic/run.html). A PyTorchJob of Kubeflow and Vertex AI's images set the
first three. At ``MASTER_PORT`` torchrun itself may listen: ports are agreed.

Open MPI: ``OMPI_COMM_WORLD_*`` are those of its manual ("Environment variables that Open MPI
sets"). Of other hosts they say nothing but where ``mpirun`` itself is, which mostly starts the
first process beside itself; a scheduler's list of hosts is looked at besides.

Vertex AI: ``CLUSTER_SPEC`` of a custom job.
https://cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-spec-format

Amazon SageMaker: the variables of its training toolkit. A container without that toolkit finds the
same in a file.
https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md
https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html

Kubernetes sets ``JOB_COMPLETION_INDEX`` in every pod of an indexed Job, and gives it the host name
``<job>-<index>`` below the subdomain of its spec. A JobSet calls its jobs
``<jobset>-<replicated job>-<number>``, numbers all of them in one row, and says so in labels of the
pods, from which the manifest makes variables (:mod:`..k8s`).
https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication
https://github.com/kubernetes-sigs/jobset/blob/main/api/jobset/v1alpha2/jobset_types.go
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from dtrain.errors import refuse
from dtrain.launchers.platforms import slurm
from dtrain.launchers.platforms.base import (
    ClusterEnvironment,
    Ranked,
    Started,
    Variables,
    wrong_variable,
)
from dtrain.launchers.platforms.tf_config import TFConfig, host_port, is_local

_WORLD = "OMPI_COMM_WORLD"
#: Names of the number of a run of mpirun: of releases 4 and 5, and of older ones.
_MPI_RUN = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")
#: Without one of these torch.distributed has not several processes.
_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
#: Set by torchrun alone, and counted up when it starts the processes again.
_TORCH_RUN, _RESTARTS = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"


class OpenMPI(Ranked):
    """A process of ``mpirun`` is a command of the job."""

    name = "Open MPI"

    def started(self) -> Started | None:
        """Return what mpirun has started, None if it has not started this command.

        Raises:
            UsageError: a variable is not as Open MPI sets it.
        """
        if f"{_WORLD}_RANK" not in os.environ:
            return None
        variables = Variables(os.environ, "mpirun", "in a process of Open MPI")
        rank, number = variables.rank(f"{_WORLD}_RANK", f"{_WORLD}_SIZE")
        local = tuple(
            variables.number(f"{_WORLD}_{name}", default)
            for name, default in (("LOCAL_RANK", 0), ("LOCAL_SIZE", 1))
        )
        run = next((os.environ[name] for name in _MPI_RUN if name in os.environ), "")
        return Started(
            "Open MPI", rank, number,
            where="this machine" if local[1] == number else "",
            chief=tuple(dict.fromkeys(_mpi_hosts(os.environ))),
            job=f"Open MPI {run}", local=(local[0], local[1]), same_home=True, typed="mpirun -n ",
        )  # fmt: skip


def _mpi_hosts(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the hosts that the first process of mpirun may be on."""
    # 1000144896.0;tcp://192.0.2.2,10.0.0.2:47451;tcp6://[fd00::2]:45933
    for addresses in re.findall(r"tcp6?://([^;]*):\d+", environ.get("OMPI_MCA_orte_hnp_uri", "")):
        yield from (address.strip("[]") for address in addresses.split(","))
    yield from filter(None, [slurm.first_host(environ.get("SLURM_JOB_NODELIST", ""))])
    yield from environ.get("LSB_HOSTS", "").split()[:1]  # of LSF


class TorchVariables(Ranked):
    """A process with the variables of ``torch.distributed`` is a command of the job."""

    name = "RANK and WORLD_SIZE"

    def started(self) -> Started | None:
        """Return the processes of the job, None if the variables are not there.

        Raises:
            UsageError: a variable is not as torchrun sets it.
        """
        environ = os.environ
        if any(name not in environ for name in _TORCH):
            return None
        variables = Variables(environ, "torchrun", "in the variables of torch.distributed")
        rank, number = variables.rank("RANK", "WORLD_SIZE")
        chief = environ["MASTER_ADDR"]
        alone = (rank, number) if is_local(chief) else (0, 1)  # by hand, all on this machine
        local = tuple(map(variables.number, ("LOCAL_RANK", "LOCAL_WORLD_SIZE"), alone))
        names = ("MASTER_PORT", _TORCH_RUN, _RESTARTS)
        by_torchrun = _TORCH_RUN in environ
        return Started(
            "torchrun" if by_torchrun else "the job of RANK and WORLD_SIZE", rank, number,
            where="this machine" if local[1] == number else "", chief=(chief,),
            job=" ".join(["torch", str(number), *(environ.get(n, "") for n in names)]),
            local=(local[0], local[1]), typed="torchrun --nproc-per-node=" * by_torchrun,
        )  # fmt: skip


class Torchrun(TorchVariables):
    """A process of ``torchrun`` is a command of the job."""

    name = "torchrun"

    def started(self) -> Started | None:
        """Return what torchrun has started, None if it has not started this command."""
        return super().started() if _TORCH_RUN in os.environ else None


def of_variables() -> ClusterEnvironment:
    """Return the environment of ``launcher=env``: ``TF_CONFIG``, else PyTorch's variables."""
    is_torch = "TF_CONFIG" not in os.environ and all(name in os.environ for name in _TORCH)
    return TorchVariables() if is_torch else TFConfig()


class SageMaker(Ranked):
    """A host of a training job has one command of it: the first of the hosts leads.

    Args:
        file: where SageMaker describes the hosts, for containers without its toolkit.
    """

    name = "a training job of SageMaker"

    def __init__(self, file: str | os.PathLike[str] = "/opt/ml/input/config/resourceconfig.json"):
        self._file = Path(file)

    def started(self) -> Started | None:
        """Return the hosts of the job, None if this command is not on one of them.

        Raises:
            UsageError: a variable is not as SageMaker sets it.
        """
        text, job = os.environ.get("SM_HOSTS", ""), os.environ.get("TRAINING_JOB_NAME", "")
        described = {"hosts": text, "current_host": os.environ.get("SM_CURRENT_HOST")}
        try:
            if text.strip():
                described["hosts"] = json.loads(text)
            elif job:
                described = json.loads(self._file.read_text())
            else:
                return None
        except (OSError, ValueError):
            if not text.strip():
                return None
            raise wrong_variable("SageMaker", "SM_HOSTS", text, "is not JSON") from None
        hosts, own = described.get("hosts"), described.get("current_host")
        if not isinstance(hosts, list) or own not in hosts:
            problem = f"does not list {own}, SM_CURRENT_HOST"
            raise wrong_variable("SageMaker", "SM_HOSTS", json.dumps(hosts), problem)
        return Started(
            f"SageMaker{' job ' if job else ''}{job}", hosts.index(own), len(hosts),
            where=", ".join(hosts[:8]) + (", ..." if len(hosts) > 8 else ""),
            chief=(hosts[0],), job=f"SageMaker {job}",
        )  # fmt: skip


class Vertex(Ranked):
    """A replica of a worker pool is a command of the job: the pools in order, the first leads."""

    name = "a custom job of Vertex AI"

    def started(self) -> Started | None:
        """Return the replicas of the job, None if this command is not one of them.

        Raises:
            UsageError: the variable is not as Vertex AI sets it.
        """
        text = os.environ.get("CLUSTER_SPEC", "")
        if not text.strip():
            return None
        try:
            value = json.loads(text)
            pools, own, index = value["cluster"], value["task"]["type"], value["task"]["index"]
            names = sorted(pools, key=_number_of)
            if not 0 <= int(index) < len(pools[own]):
                raise ValueError(f"{own} has no {index}")
            addresses = tuple(str(address) for name in names for address in pools[name])
            for address in addresses:
                host_port(address)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            problem = f"is no JSON of cluster and task ({type(error).__name__}: {error})"
            raise wrong_variable("Vertex AI", "CLUSTER_SPEC", text, problem) from None
        rank = sum(len(pools[name]) for name in names[: names.index(own)]) + int(index)
        return Started("Vertex AI", rank, len(addresses), addresses=addresses)


def _number_of(pool: str) -> tuple[int, str]:
    """Return what pools are ordered by: ``workerpool10`` comes after ``workerpool2``."""
    digits = re.search(r"(\d{1,9})$", pool)
    return (int(digits[1]) if digits else -1, pool)


INDEX, POD = "JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"
#: What the labels of a JobSet's pods become.
VARIABLES = {
    "JOBSET_NAME": "jobset-name",
    "REPLICATED_JOB_NAME": "replicatedjob-name",
    "JOB_GLOBAL_INDEX": "job-global-index",
    "GLOBAL_REPLICAS": "global-replicas",
}
_ROLES = ("chief", "worker", "ps")


class KubernetesPod(Ranked):
    """The cluster environment of a pod.

    The jobs of a JobSet, one pod each, are the tasks in the order of their global numbers: that of
    the chief is in the replicated job ``chief``, or in the only one there is. The pods of any other
    indexed Job are the tasks in the order of their own numbers; where they have no subdomain they
    do not find each other, and each is by itself.
    """

    name = "Kubernetes"

    def started(self) -> Started | None:
        """Return the pods of this one's job, None outside of such a job.

        Raises:
            UsageError: a number is none, or the host name is not that of the pod.
        """
        if INDEX not in os.environ or POD not in os.environ:
            return None
        return read_pod(os.environ, socket.getfqdn())


def read_pod(environ: Mapping[str, str], full_name: str) -> Started | None:
    """Return the pods of a job; None where they do not find each other.

    Args:
        environ: of a pod of an indexed Job.
        full_name: of the pod, with the domains that it is in.

    Raises:
        UsageError: a number is none, or the host name is not that of the pod.
    """
    variables = Variables(environ, "Kubernetes", "in a pod of an indexed Job")
    index = variables.number(INDEX)
    full, _, domains = full_name.partition(".")
    name = environ.get("HOSTNAME", "").partition(".")[0] or full
    jobset = environ.get("JOBSET_NAME", "")
    # Where the pod has no name of its own it is that of its node, in other domains.
    domain = (domains.partition(".")[0] if full == name else "") or jobset
    if not domain:
        return None
    if not name.endswith(f"-{index}"):
        refuse("HOSTNAME", f"is not JOB-{index}, as Kubernetes names pod {index} of an indexed Job",
               name, hint="no spec.hostname in the pod's template")  # fmt: skip
    job = name.removesuffix(f"-{index}")
    jobs = variables.number("GLOBAL_REPLICAS", 1)
    if not jobset or jobs == 1:  # one Job, of so many pods as its manifest says
        chief = f"{job}-0.{domain}"
        return Started(f"Job {job}", index, None, chief=(chief,), job=chief,
                       own_gpus=True)  # fmt: skip
    rank, _ = variables.rank("JOB_GLOBAL_INDEX", "GLOBAL_REPLICAS")
    role = environ.get("REPLICATED_JOB_NAME", "chief")
    chief = f"{jobset}-{'chief' if role in _ROLES else role}-0-0.{domain}"
    return Started(f"JobSet {jobset}", rank, jobs, chief=(chief,), job=chief,
                   own_gpus=True)  # fmt: skip
