"""A job that runs in pods of Kubernetes: this command, once more, in each of them.

``launcher.apply=true`` has ``kubectl`` apply it, wait for it, show its log and delete it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import yaml

from dtrain import errors
from dtrain.config import private, schema, tree
from dtrain.config.overrides import key_of
from dtrain.config.private import PREFIX
from dtrain.config.tree import Config
from dtrain.errors import TrainingError, refuse
from dtrain.files import addresses, writing
from dtrain.files.fields import Json
from dtrain.host.terminal import say, stops
from dtrain.job.folders import unwritable
from dtrain.job.plan import Plan
from dtrain.job.run import JobSpec
from dtrain.launchers import Kubernetes
from dtrain.launchers.k8s import COMPONENT, INSTANCE, MARGIN, Object, Workload, render
from dtrain.run.outcome import Outcome

#: Below ``output_dir``, of the run folders in the cluster and of the manifests here.
FOLDER = "kubernetes"
#: Variables of this command that those in the pods need, too.
_HANDED_ON = ("DTRAIN_TRUST", "DTRAIN_ENV")
_NAME = 28  # characters of a job's name that are of the run's
#: Seconds until a child that has ended is started again, and that one waits for a condition.
_AGAIN, _LOOK = 1.0, 5
#: Seconds until a pod that was asked to end is gone, beyond its own grace.
_GONE = 60.0
_INDEX = "batch.kubernetes.io/job-completion-index"
_EXIT_CODES = (
    '{range .items[*]}{.status.containerStatuses[?(@.name=="dtrain")].state.terminated.exitCode}'
    " {end}"
)


def run(spec: JobSpec) -> Outcome:
    """Print or write the manifest of a job, or create it and follow it.

    Args:
        spec: of the job; its launcher is a :class:`Kubernetes`.

    Raises:
        UsageError: it cannot run there, or its name is another job's.
        TrainingError: the cluster refuses it, or does not answer.
    """
    config, launcher = spec.config, spec.launcher
    _refuse(config, launcher, spec.chosen)
    work = workload(config, spec.planned, launcher, spec.command)
    objects = render(launcher, work, secrets.token_hex(32))
    pods = launcher.settings
    if config.dry_run:
        print(text(objects), end="")
        return Outcome(errors.OK)
    if not pods.apply:
        _write(Path(config.output_dir) / FOLDER / f"{work.name}.yaml", objects, pods.namespace)
        return Outcome(errors.OK)
    job = KubernetesJob(pods.context, pods.namespace, objects)
    job.create()
    say(f"{work.name} is applied; run folder: {work.output_dir}/{FOLDER}/{work.name} of the claim "
         f"{pods.volume}; its pods: kubectl get pods -l {INSTANCE}={work.name}")  # fmt: skip
    if not pods.follow:
        return Outcome(errors.OK)
    return Outcome(job.follow(launcher.grace_seconds + MARGIN))


def workload(config: Config, planned: Plan, launcher: Kubernetes, command: Json) -> Workload:
    """Return what the pods run: the user's command, with the launcher that is right there.

    Args:
        config, planned, launcher, command: as of :class:`dtrain.job.run.JobSpec`.

    Raises:
        UsageError: it needs what the pods do not have.
    """
    pods, cluster = launcher.settings, planned.cluster
    name = pods.job_name or _name(config.name)
    output_dir = _output_dir(Path(config.output_dir))
    hosts = len(cluster.tasks)
    if planned.strategy.on_hosts and cluster.together > 1:
        refuse("hardware.devices", f"a pod has one process, of one device of {config.backend}",
               cluster.together, accepted="1, with a pod for each",
               typed=f"hardware.devices=1 launcher.gpus=1 hardware.hosts={hosts}")  # fmt: skip
    # A pod has the processes of one host.
    tasks = tuple(task for task in cluster.tasks if task.device == 0)
    replaced = r"(launcher|output_dir)(\.|$)"
    if planned.strategy.on_hosts:  # what the pods find there could be another number
        replaced += r"|hardware\.hosts$"
    words = [word for word in command["overrides"] if not re.match(replaced, key_of(word))]
    for key in ("grace_seconds", "stall_timeout", "peer_timeout", "start_timeout"):
        value = getattr(launcher, key)
        words.append(f"launcher.{key}={'null' if value is None else f'{value:g}'}")
    if planned.strategy.on_hosts:
        words.append(f"hardware.hosts={len(tasks)}")
    if pods.cpus is not None:  # TensorFlow would start a thread for each core of the node
        words += [
            f"hardware.{key}={math.ceil(pods.cpus / cluster.together)}"
            for key in ("intra_op_threads", "inter_op_threads")
            if getattr(config.hardware, key) is None
            and f"hardware.{key}" not in schema.UNREAD[config.backend]
        ]
    words += [
        f"launcher={'auto' if len(tasks) > 1 else 'local'}", f"output_dir={output_dir}",
        f"hydra.run.dir={output_dir}/{FOLDER}/{name}", "resume=auto",
    ]  # fmt: skip
    return Workload(
        name, dataclasses.replace(cluster, tasks=tasks),
        [*_config_dir(command["config_dir"]), *words], output_dir,
        {key: os.environ[key] for key in _HANDED_ON if key in os.environ},
    )  # fmt: skip


def _output_dir(path: Path) -> str:
    """Return where the volume is in the pods: the same path, from the root where it is relative.

    Raises:
        UsageError: it is an address.
    """
    if (address := addresses.address_of(path)) is not None:
        refuse("output_dir", "run folders of pods are on the volume of launcher.volume", address)
    here = Path.cwd()
    return str(Path("/") / (path.relative_to(here) if path.is_relative_to(here) else path))


def text(objects: list[Object]) -> str:
    """Return objects of Kubernetes as YAML, without anchors and aliases."""
    plain = json.loads(json.dumps(objects))
    dumped: str = yaml.safe_dump_all(plain, sort_keys=False, width=100)
    return dumped


def _refuse(config: Config, launcher: Kubernetes, chosen: bool) -> None:
    """Refuse what is of this machine, or what would be lost with its pod.

    Raises:
        UsageError: naming the key.
    """
    if chosen:
        refuse("hydra.run.dir", "the run folder is in the cluster", "a folder",
               hint=f"launcher.job_name=NAME for OUTPUT_DIR/{FOLDER}/NAME")  # fmt: skip
    for key, value in (("resume", config.resume), ("fork", config.fork)):
        if value is not None:
            refuse(key, "is a folder of this machine, and not of the pods", value, accepted="null",
                   hint="launcher.job_name=NAME of a job that has not finished")  # fmt: skip
    if launcher.settings.volume is None:
        refuse("launcher.volume", "the run folder would be lost with its pod", "null",
               hint="launcher.volume=NAME of a PersistentVolumeClaim")  # fmt: skip
    for key, value in tree.flatten(tree.written(config)).items():
        for name in sorted(private.variables(value)):
            if name.startswith(PREFIX):
                refuse(key, "a secret that is typed would be in the manifest", "(a secret)",
                       accepted="a variable of a Secret (launcher.variables_from)",
                       hint=f"{key}='${{oc.env:VARIABLE}}'")  # fmt: skip
            if not launcher.settings.variables_from:
                refuse(key, f"the pods have no variable {name}", value,
                       hint=f"launcher.variables_from=[SECRET] with the key {name}")  # fmt: skip


def _config_dir(path: str | None) -> list[str]:
    """Return the option for the user's own presets, which are in the image.

    Raises:
        UsageError: they are outside of the folder that this command was typed in.
    """
    if path is None:
        return []
    whole, here = Path(path.removeprefix("file://")).absolute(), Path.cwd()
    if not whole.is_relative_to(here):
        refuse("--config-dir", "is not below this folder, and the image has what is below it", path,
               hint="--config-dir=FOLDER below it, at the same place in the image")  # fmt: skip
    return [f"--config-dir={whole.relative_to(here)}"]


def _name(run: str) -> str:
    """Return a name for a job of Kubernetes: the run's, as far as it may be, and the time."""
    plain = re.sub("[^a-z0-9]+", "-", run.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"run-{plain}".rstrip("-")
    return f"{plain[:_NAME].rstrip('-')}-{time.strftime('%m%d-%H%M%S')}"


def _write(path: Path, objects: list[Object], namespace: str | None) -> None:
    """Write a manifest, which may hold a key, for its user alone.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writing.remove(path)
        writing.write_key(path, text(objects).encode())
    except OSError as error:
        problem = "no manifest can be written there"
        raise unwritable("output_dir", path.parent.parent, problem, error) from None
    option = f" -n {namespace}" if namespace else ""
    say(f"the manifest is written; type: kubectl apply -f {path}{option}")
    say("launcher.apply=true creates the job and follows it")


class KubernetesJob:
    """A job in a cluster.

    Args:
        context: of the kubeconfig; None for the current one.
        namespace: None for that of the context.
        objects: of :func:`dtrain.launchers.k8s.render`.

    Raises:
        UsageError: ``kubectl`` is not installed.
    """

    def __init__(self, context: str | None, namespace: str | None, objects: list[Object]):
        if shutil.which("kubectl") is None:
            refuse("launcher.apply", "needs kubectl on PATH; false writes the manifest", "true")
        options = {"context": context, "namespace": namespace}
        self._kubectl = ["kubectl", *(f"--{k}={v}" for k, v in options.items() if v is not None)]
        self._objects, job = objects, objects[-1]
        self._name, kind = job["metadata"]["name"], job["kind"]
        self._annotations = job["metadata"]["annotations"]
        self._reference = f"{kind}/{self._name}".lower()
        self._pods = f"--selector={INSTANCE}={self._name}"
        chief = f"{COMPONENT}=chief" if kind == "JobSet" else f"{_INDEX}=0"
        self._chief = f"{self._pods},{chief}"
        self._success = "Completed" if kind == "JobSet" else "Complete"

    def create(self) -> None:
        """Create the job; one that is there already, and is the very same, is left as it is.

        Raises:
            UsageError: there is another job of this name.
            TrainingError: the cluster refuses it, or does not answer.
        """
        there = self._run("get", self._reference, "--ignore-not-found", "--output=json")
        if there:
            annotations = json.loads(there)["metadata"].get("annotations") or {}
            if not self._annotations.items() <= annotations.items():
                refuse("launcher.job_name", "the cluster has another job of this name", self._name,
                       accepted="a free name, or the command that created it, to follow it",
                       hint=f"kubectl delete {self._reference}, or another name")  # fmt: skip
            return
        try:
            # ORDER: the job is the last: its pods find what belongs to it.
            words = ("--server-side", "--force-conflicts", "--filename=-")
            self._run("apply", *words, content=text(self._objects))
        except BaseException:
            self._remove("--wait=false")
            raise

    def follow(self, grace: float) -> int:
        """Print the chief's log until the job is over.

        Args:
            grace: seconds that a pod has to end.

        Returns:
            The exit code of the job, or that of an interrupted one: Ctrl-C deletes it.

        Raises:
            SystemExit: this command was asked to end by another signal; the job goes on.
        """
        log = _Log([*self._kubectl, "logs", self._chief, "--container=dtrain", "--follow",
                    "--timestamps", "--tail=-1", "--max-log-requests=1000"])  # fmt: skip
        for number in set(stops()) - {signal.SIGINT}:  # Ctrl-C alone deletes the job
            signal.signal(number, lambda *_: sys.exit(errors.INTERRUPTED))
        patience = 0.0
        try:
            code, patience = self._wait(), 10.0
            return code
        except KeyboardInterrupt:
            return self._delete(grace)
        finally:
            log.end(patience)

    def _wait(self) -> int:
        """Wait until the job is over, and return its exit code."""
        problem = ""
        while True:
            for condition in (self._success, "Failed"):
                words = (f"--for=condition={condition}", f"--timeout={_LOOK}s")
                done = self._call("wait", self._reference, *words)
                message = _problem(done)
                if done.returncode == 0:
                    return self._end(condition == self._success)
                if "(NotFound)" in message:
                    say(f"{self._name} was deleted")
                    return errors.FAILED
                away = "timed out waiting for the condition" not in message
                if away and message != problem:
                    say(f"{message}; the job goes on, and kubectl asks again")
                problem = message if away else ""
                time.sleep(_AGAIN if away else 0)

    def _end(self, success: bool) -> int:
        """Say that the job is over, and return its exit code: that of the chief's last pod."""
        code = errors.OK
        if not success:
            words = ("--sort-by=.metadata.creationTimestamp", f"--output=jsonpath={_EXIT_CODES}")
            codes = [c for s in (self._pods, self._chief) for c in
                     map(int, self._run("get", "pods", s, *words).split())]  # fmt: skip
            kept = (errors.OK, errors.INTERRUPTED)
            code = next((c for c in reversed(codes) if c not in kept), errors.FAILED)
        how = f"failed with exit code {code}; type: kubectl describe {self._reference}"
        say(f"{self._name} {'is done' if success else how}")
        return code

    def _delete(self, grace: float) -> int:
        say(f"{self._name} is being deleted; its pods have {grace:g} s to save a checkpoint")
        try:
            self._remove("--cascade=foreground", f"--timeout={grace + _GONE:g}s")
            say(f"{self._name} is deleted; its run folder stays")
            return errors.INTERRUPTED
        except (TrainingError, KeyboardInterrupt) as error:
            why = str(error) or "it was not waited for"
            say(f"{why}; type: kubectl get {self._reference}")
            return errors.FAILED

    def _remove(self, *words: str) -> None:
        """Delete the job, and then what belongs to it: its policy protects pods to their end."""
        *others, job = self._objects
        for objects in filter(None, ([job], others)):
            self._run("delete", "--ignore-not-found", "--filename=-", *words, content=text(objects))

    def _call(self, *words: str, content: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._kubectl, *words], input=content, capture_output=True, text=True, check=False
        )

    def _run(self, *words: str, content: str | None = None) -> str:
        """Return what ``kubectl`` prints.

        Raises:
            TrainingError: it failed.
        """
        done = self._call(*words, content=content)
        if done.returncode != 0:
            raise TrainingError(f"kubectl {words[0]}: {_problem(done)}")
        return done.stdout


class _Log(threading.Thread):
    """Prints a log that ``kubectl`` reads, each line once. Where that ends it is read again.

    Args:
        command: prints the lines, each after its time.
    """

    def __init__(self, command: list[str]):
        super().__init__(daemon=True)
        self._command, self._over, self._last = command, threading.Event(), ""
        self._child: subprocess.Popen[str] | None = None
        self._closed = False
        self.start()

    def run(self) -> None:
        """Read it, until it has ended once more after all is over."""
        ends = False
        while not (ends or self._closed):
            ends = self._over.wait(_AGAIN if self._child else 0)
            since = [f"--since-time={self._last}"] if self._last else []
            with subprocess.Popen(
                [*self._command, *since], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, errors="replace",
            ) as self._child:  # fmt: skip
                for line in self._child.stdout or ():
                    moment, _, text = line.rstrip("\n").partition(" ")
                    if moment > self._last:  # else it was printed before a connection ended
                        self._last = moment
                        print(text, flush=True)

    def end(self, seconds: float) -> None:
        """Wait so long for the last lines, and end what runs then."""
        self._over.set()
        self.join(seconds)
        self._closed = True
        while self.is_alive():
            if self._child is not None:
                self._child.kill()
            self.join(0.1)


def _problem(done: subprocess.CompletedProcess[str]) -> str:
    """Return what kubectl says of its failure, without the lines of its own log."""
    lines = [line for line in done.stderr.splitlines() if not re.match(r"[IWEF]\d{4} ", line)]
    return " ".join(" ".join(lines).split())
