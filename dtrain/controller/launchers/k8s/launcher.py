"""The settings of ``launcher=k8s``; :mod:`dtrain.controller.k8s_job` does what they say."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from dtrain.controller.launchers.base import Elsewhere, Work
from dtrain.controller.outcome import Outcome
from dtrain.controller.resources.devices import Machine
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster


class Kubernetes(Elsewhere):
    """Hands a whole job to a cluster of Kubernetes. Its tasks are started by commands in the pods.

    Args:
        kind: ``jobset`` or ``job``.
        image: of all pods.
        job_name: of the job; None for one that the run's name and the time make.
        namespace: None for that of the context.
        context: of the kubeconfig; None for the current one.
        apply: create the job.
        follow: follow it then.
        cpus, memory, gpus, gpu_resource: of each pod.
        volume: claim of the run folders.
        mounts: ``CLAIM:/PATH`` each.
        variables_from: names of Secrets with variables.
        key_from: name of the Secret with the cluster's key; None: one is made.
        queue: of Kueue.
        user: number of the pods' user.
        pod: more of their spec.
        kwargs: as of every launcher.
    """

    several = False
    sees_data = False
    where = "a pod of its own"
    patience = 600.0

    def __init__(
        self,
        kind: str = "jobset",
        image: str | None = None,
        job_name: str | None = None,
        namespace: str | None = None,
        context: str | None = None,
        apply: bool = False,
        follow: bool = True,
        cpus: float | None = None,
        memory: str | None = None,
        gpus: int = 0,
        gpu_resource: str = "nvidia.com/gpu",
        volume: str | None = None,
        mounts: list[str] | None = None,
        variables_from: list[str] | None = None,
        key_from: str | None = None,
        queue: str | None = None,
        user: int = 1000,
        pod: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.kind = kind
        self.image = image
        self.job_name = job_name
        self.namespace = namespace
        self.context = context
        self.apply = apply
        self.follow = follow
        self.cpus = cpus
        self.memory = memory
        self.gpus_of_a_pod = gpus
        self.gpu_resource = gpu_resource
        self.volume = volume
        self.mounts = mounts or []
        self.variables_from = variables_from or []
        self.key_from = key_from
        self.queue = queue
        self.user = user
        self.pod = pod

    def part(self, machine: Machine) -> Machine:
        """Return what each pod has, as far as it is declared."""
        cores = machine.cores if self.cpus is None else math.ceil(self.cpus)
        return dataclasses.replace(super().part(machine), cores=cores, gpus=self.gpus_of_a_pod)

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Return the cluster as it is: its addresses are known in the pods alone.

        Raises:
            UsageError: there is no image to start.
        """
        if self.image is None:
            raise UsageError(
                "launcher.image", "null", "the pods are started from an image, which holds dtrain "
                "and your code", "the name of an image that the cluster can pull",
                "launcher.image=NAME",
            )  # fmt: skip
        return cluster

    def show(self, work: Work) -> Outcome:
        """Print the manifest."""
        return work.in_pods()

    def do(self, work: Work) -> Outcome:
        """Write the manifest, or create the job and follow it."""
        return work.in_pods()
