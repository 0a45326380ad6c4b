"""A cluster of Kubernetes on this machine, as far as a job notices it: nodes, controllers, names.

Each pod is the real command of the manifest, as the pod's user and process 1, in namespaces of its
own: network (:mod:`tests.network`), host name, processes, mounts. Volumes are folders. Names are in
each pod's hosts file, where a pod's own stands at once and the others' when they are published.
JobSets and indexed Jobs are restarted as their controllers do it. Needs root and Linux.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain.config import schema
from tests import network
from tests.network import Host, Network

Object = dict[str, Any]
PREFIX = "jobset.sigs.k8s.io"
DOMAIN = "team.svc.cluster.local"


@functools.cache
def lacking() -> str | None:
    """Return why there can be no pods here, None if there can."""
    if (why := network.lacking()) is not None:
        return why
    done = subprocess.run(
        ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "sh", "-c",
         "mount --make-rprivate / && mount -t tmpfs tmpfs /mnt && hostname pod && setpriv true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return None if done.returncode == 0 else f"no namespaces for pods here: {done.stderr}"


class Pod:
    """One pod, from its start to its end.

    Attributes:
        task: such as ``worker-0``.
        name: its host name.
        code: exit code of its command, None while it runs.
        disrupted: the cluster has ended it.
    """

    def __init__(self, cluster: Cluster, task: str, name: str, template: Object, own: Object):
        self.task, self.name, self.code, self.disrupted = task, name, None, False
        spec = template["spec"]
        self.grace: int = spec["terminationGracePeriodSeconds"]
        self.labels = {**template["metadata"]["labels"], **own["labels"]}
        self.host: Host = cluster.network.host(task)
        self.folder = cluster.folder / f"pod-{len(list(cluster.folder.glob('pod-*')))}-{task}"
        self.folder.mkdir()
        self.log = self.folder / "log.txt"
        self.hosts = self.folder / "hosts"
        subdomain = own["subdomain"]
        names = f"{name}.{subdomain}.{DOMAIN} {name}.{subdomain} {name}" if subdomain else name
        self.line = f"{self.host.address}\t{names}\n"
        self.hosts.write_text(f"127.0.0.1\tlocalhost\n{self.line}")
        [container] = spec["containers"]
        self._probe: list[str] = container.get("readinessProbe", {}).get("exec", {}).get("command")
        variables = {**cluster.image, **own["environment"], **self._environment(cluster, container)}
        variables["HOSTNAME"] = name
        words = [*container["command"], *container["args"]]
        words = [re.sub(r"\$\$\(", "$(", word) for word in words]
        self._ended_by: float | None = None
        script = self._script(cluster, spec, container, variables, words)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.host.space, "unshare", "--mount", "--uts", "--ipc",
                 "--pid", "--fork", "--kill-child=SIGKILL", "sh", "-ec", script],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _environment(self, cluster: Cluster, container: Object) -> dict[str, str]:
        found = {}
        for each in container.get("envFrom", []):
            found.update(cluster.secrets[each["secretRef"]["name"]])
        for each in container["env"]:
            source = each.get("valueFrom", {})
            if "fieldRef" in source:
                path = re.fullmatch(r"metadata\.labels\['(.+)'\]", source["fieldRef"]["fieldPath"])
                assert path is not None
                found[each["name"]] = self.labels[path[1]]
            elif "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                found[each["name"]] = cluster.secrets[reference["name"]][reference["key"]]
            else:
                found[each["name"]] = each["value"]
        return found

    def _script(
        self, cluster: Cluster, spec: Object, container: Object, variables: dict[str, str],
        words: list[str],
    ) -> str:  # fmt: skip
        """Return what makes the pod's root and becomes its command."""
        user = spec["securityContext"]["runAsUser"]
        root, base = self.folder / "root", Path(sys.base_prefix)
        root.mkdir()
        lines = ["mount --make-rprivate /", f"mount -t tmpfs tmpfs {root}"]
        for entry in sorted(Path("/").iterdir()):
            if entry.is_symlink():
                lines.append(f"cp -P {entry} {root}{entry}")
            elif entry.is_dir() and entry.name not in ("root", "proc", "mnt"):
                lines += [f"mkdir {root}{entry}", f"mount --rbind {entry} {root}{entry}"]
        if base.is_relative_to("/root"):  # Python is there, which all may run
            lines += [f"mkdir -p {root}{base}", f"mount --bind {base} {root}{base}"]
        lines += [f"mkdir {root}/proc", f"mount -t proc proc {root}/proc"]
        lines += [f"mount --bind {self.hosts} {root}/etc/hosts", f"hostname {self.name}"]
        places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        for volume in spec["volumes"]:
            claim = volume.get("persistentVolumeClaim")
            path = cluster.folder / "claims" / claim["claimName"] if claim else (
                self.folder / volume["name"]
            )  # fmt: skip
            path.mkdir(parents=True, exist_ok=True)
            os.chown(path, user, spec["securityContext"]["fsGroup"])
            place = f"{root}{places[volume['name']]}"
            read_only = "-o ro " if claim and claim.get("readOnly") else ""
            lines += [f"mkdir -p {place}", f"mount {read_only}--bind {path} {place}"]
        lines += [f"mkdir {root}/app", f"mount --bind {cluster.app} {root}/app"]
        settings = [f"{key}={value}" for key, value in variables.items()]
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        as_user = [
            "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs",
            "--bounding-set=-all", "--inh-caps=-all", "env", "-i", "-C", "/app", *settings, *words,
        ]  # fmt: skip
        return "\n".join([*lines, f"exec chroot {root} {shlex.join(as_user)}"])

    def first(self) -> int | None:
        """Return the process that is the pod's process 1."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            return int(path.read_text().split()[0])
        return None

    def is_ready(self) -> bool:
        """Run the probe of the pod."""
        pid = self.first()
        if self.look() is not None or pid is None:
            return False
        done = subprocess.run(
            ["nsenter", "-t", str(pid), "-m", "-p", "-r", *self._probe], capture_output=True,
            check=False,
        )  # fmt: skip
        return done.returncode == 0

    def end(self, seconds: float | None = None) -> None:
        """Ask it to end, as a node does, and end it by force after its grace."""
        if self._ended_by is None and self.look() is None:
            self._ended_by = time.monotonic() + (self.grace if seconds is None else seconds)
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all of it at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if (pid := self.first()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def look(self) -> int | None:
        """Return its exit code as Kubernetes shows it, None while it runs."""
        if self._ended_by is not None and time.monotonic() > self._ended_by:
            self.kill()
        code = self.process.poll()
        if code is not None and self.code is None:
            self.code = code if code >= 0 else 128 - code
        return self.code


@dataclasses.dataclass
class Cluster:
    """Runs the JobSet or the Job among some objects.

    Attributes:
        network: the pods are hosts of it.
        folder: of all that they write.
        objects: of the manifest.
        app: folder that is the image's working directory.
        slow: seconds after which the names of a task's pods are published; at once otherwise.
        pods: those that there are.
        past: those that there were.
        restarts: how often all were started again, and of these how often it has counted.
        state: ``Completed`` or ``Failed`` when it is over.
    """

    network: Network
    folder: Path
    objects: list[Object]
    app: Path
    slow: dict[str, float] = dataclasses.field(default_factory=dict)
    pods: list[Pod] = dataclasses.field(default_factory=list)
    past: list[Pod] = dataclasses.field(default_factory=list)
    restarts: int = 0
    counted: int = 0
    state: str | None = None

    def __post_init__(self) -> None:
        self._job = self.objects[-1]
        self._name: str = self._job["metadata"]["name"]
        self.secrets = {
            each["metadata"]["name"]: each["stringData"]
            for each in self.objects
            if each["kind"] == "Secret"
        }
        self.image = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(schema.folder("conf").parent),
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        }
        self._published: dict[str, float] = {}
        self._start()

    # Pods, as the controllers make them

    def _start(self) -> None:
        if self._job["kind"] == "Job":
            for index in range(self._job["spec"]["completions"]):
                self._start_indexed(index)
            return
        jobs = self._job["spec"]["replicatedJobs"]
        total, number = sum(job["replicas"] for job in jobs), 0
        for job in jobs:
            for index in range(job["replicas"]):
                labels = {
                    f"{PREFIX}/jobset-name": self._name, f"{PREFIX}/job-index": str(index),
                    f"{PREFIX}/replicatedjob-name": job["name"],
                    f"{PREFIX}/job-global-index": str(number),
                    f"{PREFIX}/global-replicas": str(total),
                }  # fmt: skip
                own = {"labels": labels, "environment": {"JOB_COMPLETION_INDEX": "0"},
                       "subdomain": self._job["spec"]["network"]["subdomain"]}  # fmt: skip
                host = f"{self._name}-{job['name']}-{index}-0"
                template = job["template"]["spec"]["template"]
                self.pods.append(Pod(self, f"{job['name']}-{index}", host, template, own))
                number += 1

    def _start_indexed(self, index: int) -> None:
        template = self._job["spec"]["template"]
        own = {"labels": {"batch.kubernetes.io/job-completion-index": str(index)},
               "environment": {"JOB_COMPLETION_INDEX": str(index)},
               "subdomain": template["spec"].get("subdomain", "")}  # fmt: skip
        self.pods.append(Pod(self, f"pod-{index}", f"{self._name}-{index}", template, own))

    def pod(self, task: str) -> Pod:
        """Return the pod of a task that there is now."""
        [found] = [each for each in self.pods if each.task == task]
        return found

    def evict(self, task: str) -> None:
        """End a pod as for another of higher priority."""
        pod = self.pod(task)
        pod.disrupted = True
        pod.end()

    # What becomes of them

    def until(self, met: Callable[[], Any], seconds: float = 240) -> None:
        """Run the controllers until a condition is met, or the job is over."""
        deadline = time.monotonic() + seconds
        while not met() and self.state is None:
            assert time.monotonic() < deadline, self.said()
            self._names()
            self._control()
            time.sleep(0.1)

    def run(self, seconds: float = 240) -> str:
        """Run the job to its end."""
        self.until(lambda: False, seconds)
        assert self.state is not None
        return self.state

    def _names(self) -> None:
        """Publish the names of pods: a hosts file is changed in place, where it is mounted."""
        now = time.monotonic()
        for pod in self.pods:
            self._published.setdefault(pod.log.as_posix(), now + self.slow.get(pod.task, 0.0))
        known = [p for p in self.pods if self._published[p.log.as_posix()] <= now]
        for pod in self.pods:
            others = "".join(each.line for each in known if each is not pod)
            text = f"127.0.0.1\tlocalhost\n{pod.line}{others}"
            if pod.hosts.read_text() != text:
                pod.hosts.write_text(text)

    def _control(self) -> None:
        ended = [pod for pod in self.pods if pod.look() is not None]
        if self._job["kind"] == "Job":
            self._control_indexed(ended)
            return
        for pod in ended:
            if pod.code == 0:
                if (
                    pod.task.rpartition("-")[0]
                    in (self._job["spec"]["successPolicy"]["targetReplicatedJobs"])
                ):
                    self._end_all()
                    self.state = "Completed"
                    return
                continue
            self._failed(pod)
            return

    def _failed(self, pod: Pod) -> None:
        """Do what the JobSet's failure policy says of a job whose only pod has failed."""
        [job] = [each for each in self._job["spec"]["replicatedJobs"]
                 if each["name"] == pod.task.rpartition("-")[0]]  # fmt: skip
        rule = _rule(job["template"]["spec"]["podFailurePolicy"]["rules"], pod)
        reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        if rule is not None:
            reason = "PodFailurePolicy"
            message = f"Container dtrain failed with exit code {pod.code} matching FailJob rule "
            message += f"at index {rule}"
        policy = self._job["spec"]["failurePolicy"]
        action = "RestartJobSet"
        for each in policy["rules"]:
            patterns = each.get("onJobFailureMessagePatterns") or [""]
            if reason in each["onJobFailureReasons"] and any(
                re.search(p, message) for p in patterns
            ):
                action = each["action"]
                break
        assert policy["restartStrategy"] == "BlockingRecreate"
        self._end_all()
        counts = action == "RestartJobSet"
        if action == "FailJobSet" or (counts and self.counted >= policy["maxRestarts"]):
            self.state = "Failed"
            return
        self.restarts, self.counted = self.restarts + 1, self.counted + counts
        self._start()

    def _control_indexed(self, ended: list[Pod]) -> None:
        spec = self._job["spec"]
        if len(ended) == spec["completions"] and all(pod.code == 0 for pod in ended):
            self.past, self.pods, self.state = [*self.past, *self.pods], [], "Completed"
            return
        for pod in ended:
            if pod.code == 0:
                continue
            rule = _rule(spec["podFailurePolicy"]["rules"], pod)
            action = None if rule is None else spec["podFailurePolicy"]["rules"][rule]["action"]
            self.counted += action is None
            if action == "FailJob" or self.counted > spec["backoffLimit"]:
                self._end_all()
                self.state = "Failed"
                return
            self.restarts += 1
            self.pods.remove(pod)
            self.past.append(pod)
            self._start_indexed(int(pod.task.rpartition("-")[2]))

    def _end_all(self) -> None:
        for pod in self.pods:
            pod.end()
        deadline = time.monotonic() + 120
        while any(pod.look() is None for pod in self.pods):
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)
        self.past, self.pods = [*self.past, *self.pods], []

    def close(self) -> None:
        """End what is left."""
        for pod in self.pods:
            pod.kill()
            pod.process.wait()

    def said(self) -> str:
        """Return what all pods have printed."""
        return "\n".join(
            f"--- {pod.task} ({pod.code})\n{pod.log.read_text()}"
            for pod in [*self.past, *self.pods]
        )


def _rule(rules: list[Object], pod: Pod) -> int | None:
    """Return which rule for pods that failed is of this one."""
    for number, rule in enumerate(rules):
        codes = rule.get("onExitCodes", {}).get("values", [])
        if pod.code in codes or ("onPodConditions" in rule and pod.disrupted):
            return number
    return None
