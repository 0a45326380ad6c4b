"""What becomes of pods, in words."""

from __future__ import annotations

from typing import Any

from dtrain import errors
from dtrain.controller.launchers.k8s.manifest import CONTAINER, Object
from dtrain.run.cluster import Cluster

_PREFIX = "jobset.sigs.k8s.io"
#: Why a pod was ended that did nothing wrong; reasons of its condition DisruptionTarget.
#: https://kubernetes.io/docs/concepts/workloads/pods/disruptions (read in November 2026)
_DISRUPTIONS = {
    "PreemptionByScheduler": "a pod of higher priority took its place",
    "DeletionByTaintManager": "its node is not to be used any more",
    "EvictionByEvictionAPI": "it was evicted",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node ran out of something, or was shut down",
}
#: Why a container does not start; of many that are possible those that a user meets.
_WAITING = {
    "ErrImagePull": "its image cannot be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "InvalidImageName": "its image has no valid name",
    "ErrImageNeverPull": "its image is not on the node",
    "CreateContainerConfigError": "its container cannot be made",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be started",
    "CrashLoopBackOff": "it ends again and again",
}


def task(pod: Object, cluster: Cluster) -> str:
    """Return the name of a pod's task."""
    labels = pod["metadata"].get("labels", {})
    role = labels.get(f"{_PREFIX}/replicatedjob-name")
    if role is not None:
        return f"{role}-{labels.get(f'{_PREFIX}/job-index', '0')}"
    index = str(labels.get("batch.kubernetes.io/job-completion-index", "0"))
    number = int(index) if index.isdigit() else 0
    return cluster.tasks[number].name if number < len(cluster.tasks) else f"pod {number}"


def state(pod: Object) -> str:
    """Return what is to be said of a pod, as a clause."""
    status: Object = pod.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or []}
    container = _container(status)
    ended = container.get("terminated")
    disrupted = conditions.get("DisruptionTarget", {})
    if disrupted.get("status") == "True" and (ended or status.get("phase") == "Failed"):
        why = _DISRUPTIONS.get(disrupted.get("reason", ""), disrupted.get("reason", ""))
        return _with(f"was ended: {why}", disrupted.get("message"))
    if status.get("reason") == "Evicted":
        return _with("was evicted", status.get("message"))
    if ended:
        return _ended(ended)
    if "deletionTimestamp" in pod["metadata"]:
        return "is being ended"
    waiting = container.get("waiting", {})
    if (why := _WAITING.get(waiting.get("reason", ""))) is not None:
        return _with(why, waiting.get("message"))
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return _with("waits for a node", scheduled.get("message"))
    if container.get("running"):
        return "runs" if conditions.get("Ready", {}).get("status") == "True" else "has started"
    if status.get("phase") == "Failed":
        return _with("failed", status.get("message") or status.get("reason"))
    return "is being started"


def exit_code(pod: Object) -> int | None:
    """Return the exit code of a pod's command, None if it has none (yet)."""
    found: int | None = _container(pod.get("status") or {}).get("terminated", {}).get("exitCode")
    return found


def has_log(pod: Object) -> bool:
    """Say whether a pod's command was started."""
    return bool(_container(pod.get("status") or {}).keys() & {"running", "terminated"})


def _container(status: Object) -> Object:
    """Return the state of the container that runs dtrain: another may be beside it."""
    for each in status.get("containerStatuses") or []:
        if each.get("name") == CONTAINER:
            found: Object = each.get("state") or {}
            return found
    return {}


def _ended(ended: Object) -> str:
    code = ended.get("exitCode")
    if ended.get("reason") == "OOMKilled":
        return "used more memory than it may (launcher.memory), and was ended"
    if code == errors.OK:
        return "is done"
    if code == errors.INTERRUPTED:
        return "was asked to stop, and has saved a checkpoint"
    return _with(f"ended with exit code {code}", _last(ended.get("message")))


def _last(message: Any) -> str:
    """Return the last line of a log that says something."""
    lines = [line.strip() for line in str(message or "").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _with(text: str, more: Any) -> str:
    said = " ".join(str(more or "").split())
    return f"{text}: {said}" if said else text
