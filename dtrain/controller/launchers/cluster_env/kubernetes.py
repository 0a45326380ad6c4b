"""A pod of a JobSet or of an indexed Job, which knows its number, and the name of the first one.

Kubernetes sets ``JOB_COMPLETION_INDEX`` in every pod of an indexed Job, and gives it the host name
``<job>-<index>`` below the subdomain of its spec. A JobSet calls its jobs
``<jobset>-<replicated job>-<number>``, numbers all of them in one row, and says so in labels of the
pods, from which the manifest makes the variables below (:mod:`..k8s`).
https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication and
https://github.com/kubernetes-sigs/jobset/blob/main/api/jobset/v1alpha2/jobset_types.go
(read in November 2026).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from dtrain.controller.launchers.cluster_env.base import Ranked, Started
from dtrain.errors import UsageError

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
        return read(os.environ, socket.getfqdn())


def read(environ: Mapping[str, str], full_name: str) -> Started | None:
    """Return the pods of a job; None where they do not find each other.

    Args:
        environ: of a pod of an indexed Job.
        full_name: of the pod, with the domains that it is in.

    Raises:
        UsageError: a number is none, or the host name is not that of the pod.
    """
    index = _number(INDEX, environ)
    full, _, domains = full_name.partition(".")
    name = environ.get("HOSTNAME", "").partition(".")[0] or full
    jobset = environ.get("JOBSET_NAME", "")
    # Where the pod has no name of its own it is that of its node, in other domains.
    domain = (domains.partition(".")[0] if full == name else "") or jobset
    if not domain:
        return None
    if not name.endswith(f"-{index}"):
        raise UsageError(
            "HOSTNAME", name, f"is not the host name of pod {index} of an indexed Job",
            f"JOB-{index}, which Kubernetes gives it", "no spec.hostname in the pod's template",
        )  # fmt: skip
    job = name.removesuffix(f"-{index}")
    jobs = _number("GLOBAL_REPLICAS", environ, "1")
    if not jobset or jobs == 1:  # one Job, of so many pods as its manifest says
        chief = f"{job}-0.{domain}"
        return Started(f"Job {job}", index, None, chief=(chief,), job=chief,
                       own_gpus=True)  # fmt: skip
    rank, role = _number("JOB_GLOBAL_INDEX", environ), environ.get("REPLICATED_JOB_NAME", "chief")
    if rank >= jobs:
        raise UsageError("JOB_GLOBAL_INDEX", rank, f"GLOBAL_REPLICAS={jobs} has no such job",
                         f"0 to {jobs - 1}", "JOB_GLOBAL_INDEX=0")  # fmt: skip
    chief = f"{jobset}-{'chief' if role in _ROLES else role}-0-0.{domain}"
    return Started(f"JobSet {jobset}", rank, jobs, chief=(chief,), job=chief,
                   own_gpus=True)  # fmt: skip


def _number(name: str, environ: Mapping[str, str], default: str = "") -> int:
    """Return the number in a variable.

    Raises:
        UsageError: it is none.
    """
    text = environ.get(name, default)
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise UsageError(name, text or "(not set)", "is not the number of a pod or job",
                         "0, 1, 2, ...", f"{name}=0")  # fmt: skip
    return int(text)
