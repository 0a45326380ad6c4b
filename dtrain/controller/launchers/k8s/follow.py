"""Creates a job in a cluster of Kubernetes, follows it to its end, and ends it if that is asked."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from dtrain import errors
from dtrain.controller.launchers.k8s import pods
from dtrain.controller.launchers.k8s.api import Api, Away, Taken
from dtrain.controller.launchers.k8s.manifest import QUEUE, SAME, Object
from dtrain.errors import TrainingError, UsageError
from dtrain.run.cluster import Cluster

#: Seconds between two looks, and that a second request to stop is waited for.
INTERVAL, SECOND = 1.0, 5.0
#: Seconds until a pod that was asked to end is gone, beyond its own grace.
GONE = 60.0
#: How often the log of a pod that is over is asked for where the server does not answer.
_TRIES = 5


def create(api: Api, objects: list[Object]) -> None:
    """Create a job; one that is there already, and is the very same, is left as it is.

    The job is suspended until all that belongs to it is there, and owns it: it goes with the job.

    Args:
        api: of the cluster.
        objects: of :func:`dtrain.controller.launchers.k8s.manifest.render`.

    Raises:
        UsageError: the cluster refuses it, or has another job of this name.
        TrainingError: it does not answer.
    """
    *others, job = objects
    kind, name = job["kind"], job["metadata"]["name"]
    waits = bool(job["spec"].get("suspend"))
    try:
        try:
            made = api.create({**job, "spec": {**job["spec"], "suspend": True}})
        except Taken:
            _check_same(api.read(kind, name), job)
            _say(f"{name} is in the cluster already: it is followed")
            return
        meta = made["metadata"]
        owner = {"apiVersion": job["apiVersion"], "kind": kind, "name": name, "uid": meta["uid"]}
        try:
            for each in others:
                _create_owned(api, each, {**owner, "blockOwnerDeletion": True})
            if not waits:
                api.change(kind, name, {"spec": {"suspend": False}})
        except BaseException:
            api.delete(kind, name)
            raise
    except Away as error:
        raise TrainingError(str(error)) from None
    except Taken as error:  # what an earlier job has left, and is being deleted
        raise TrainingError(f"{name}: {error}; the same command will do in a moment") from None


def _create_owned(api: Api, body: Object, owner: Object) -> None:
    body = {**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}}
    try:
        api.create(body)
    except Taken:  # of a job of this name that is gone; the cluster has not looked yet
        api.delete(body["kind"], body["metadata"]["name"])
        api.create(body)


def _check_same(there: Object | None, job: Object) -> None:
    """Refuse a name that another job has.

    Raises:
        UsageError: it has.
    """
    mine = job["metadata"]["annotations"][SAME]
    if ((there or {}).get("metadata", {}).get("annotations") or {}).get(SAME) != mine:
        name = job["metadata"]["name"]
        raise UsageError(
            "launcher.job_name", name, f"the cluster has another {job['kind']} of this name",
            "a name that is free, or the very command that created it, which follows it",
            f"kubectl delete {job['kind'].lower()} {name}, or launcher.job_name=ANOTHER",
        )  # fmt: skip


class Follower:
    """Follows a job: what becomes of its pods, and what its chief prints.

    Args:
        api: of the cluster.
        job: its JobSet or Job.
        cluster: its tasks.
        grace: seconds that a pod has to end.
    """

    def __init__(self, api: Api, job: Object, cluster: Cluster, grace: float):
        self._api, self._cluster, self._grace = api, cluster, grace
        self._kind, self._name = job["kind"], job["metadata"]["name"]
        self._queue = job["metadata"]["labels"].get(QUEUE)
        self._states: dict[str, str] = {}  # of pods, as they were printed last
        self._logs: dict[str, Log] = {}
        self._away: str | None = None
        self._waits = False
        self._restarts = 0
        self._code: int | None = None  # of the chief's last command

    def run(self) -> int:
        """Follow it to its end, and return the exit code of this command.

        A first request to stop leaves the job as it is; a second one within some seconds ends it.
        """
        try:
            while (code := self._look()) is None:
                time.sleep(INTERVAL)
            for log in self._logs.values():
                log.over.set()
            for log in self._logs.values():
                log.join()
            return code
        except KeyboardInterrupt:
            return self._asked()

    def _look(self) -> int | None:
        """Print what is new; return the exit code where the job is over."""
        try:
            job = self._api.read(self._kind, self._name)
            there = self._api.pods(self._name) if job is not None else []
        except Away as error:
            if str(error) != self._away:
                _say(f"{error}; the job goes on, and the server is asked again")
            self._away = str(error)
            return None
        if self._away is not None:
            _say("the API server answers again")
            self._away = None
        if job is None:
            _say(f"{self._name} was deleted")
            return errors.FAILED
        for pod in there:
            self._take(pod)
        for name in self._logs.keys() - {pod["metadata"]["name"] for pod in there}:
            self._logs[name].over.set()
        return self._end(job)

    def _take(self, pod: Object) -> None:
        name, state = pod["metadata"]["name"], pods.state(pod)
        task = pods.task(pod, self._cluster)
        if self._states.get(name) != state:
            _say(f"{task}: {state} ({name})")
        self._states[name] = state
        if task != self._cluster.chief.name:
            return
        if (code := pods.exit_code(pod)) is not None:
            self._code = code
        if pods.has_log(pod) and name not in self._logs:
            self._logs[name] = Log(self._api, name)
            self._logs[name].start()
        if code is not None and name in self._logs:
            self._logs[name].over.set()

    def _end(self, job: Object) -> int | None:
        """Return the exit code of a job that is over; print that it waits, or starts anew."""
        status: Object = job.get("status") or {}
        restarts = int(status.get("restarts") or 0)
        if restarts > self._restarts:
            _say(f"all pods are started again ({restarts} in all), from the last checkpoint")
        self._restarts = restarts
        waits = bool(job["spec"].get("suspend")) and self._queue is not None
        if waits and not self._waits:
            _say(f"{self._name} waits in the queue {self._queue}")
        self._waits = waits
        for each in status.get("conditions") or []:
            if each.get("status") != "True":
                continue
            if each["type"] in ("Completed", "Complete"):
                _say(f"{self._name} is done")
                return errors.OK
            if each["type"] == "Failed":
                why = " ".join(str(each.get("message") or each.get("reason") or "").split())
                _say(f"{self._name} failed: {why}")
                return errors.USAGE if self._code == errors.USAGE else errors.FAILED
        return None

    def _asked(self) -> int:
        try:
            _say(f"{self._name} goes on without this command, which follows it if it is typed "
                 f"again; Ctrl-C once more within {SECOND:g} s ends it")  # fmt: skip
            time.sleep(SECOND)
            return errors.OK
        except KeyboardInterrupt:
            pass
        try:
            self._api.delete(self._kind, self._name)
            deadline = time.monotonic() + self._grace + GONE
            while time.monotonic() < deadline:
                if self._api.read(self._kind, self._name) is None:
                    _say(f"{self._name} is deleted; its run folder stays")
                    return errors.INTERRUPTED
                time.sleep(INTERVAL)
            problem = f"its pods have not ended within {self._grace + GONE:g} s"
        except Away as error:
            problem = str(error)
        except KeyboardInterrupt:
            problem = "it was not waited for"
        _say(f"{self._name} is to be deleted, and {problem}; type: kubectl get "
             f"{self._kind.lower()} {self._name}")  # fmt: skip
        return errors.FAILED


class Log(threading.Thread):
    """Prints the log of a pod while it is written, until the pod is over.

    Args:
        api: of the cluster.
        pod: its name.
        echo: prints a line.

    Attributes:
        over: set when the pod has ended, or is gone: what it has not printed yet is the rest.
    """

    def __init__(self, api: Api, pod: str, echo: Callable[[str], None] = print):
        super().__init__(daemon=True)
        self._api, self._pod, self._echo = api, pod, echo
        self._last: str | None = None
        self.over = threading.Event()

    def run(self) -> None:
        """Print all lines; one that was printed is known by its time when a connection ends."""
        tries = _TRIES
        while tries:
            over = self.over.is_set()  # ORDER: looked at before the lines are
            try:
                self._print()
                if over:
                    return
            except Away:
                tries -= over
            except UsageError as error:
                _say(f"the log of {self._pod} cannot be read: {error}")
                return
            time.sleep(INTERVAL)
        _say(f"the end of the log of {self._pod} could not be read")

    def _print(self) -> None:
        seen = self._last
        for moment, text in self._api.log(self._pod, seen):
            if seen is None or moment > seen:
                self._echo(text)
                self._last = moment

    def join(self, timeout: float | None = 10.0) -> None:
        """Wait until all is printed, for so many seconds."""
        super().join(timeout)


def _say(text: str) -> None:
    print(f"dtrain: {errors.printable(text)}", file=sys.stderr)
