"""A job of Kubernetes by child processes of ``kubectl``: created, followed, deleted."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from dtrain import errors
from dtrain.controller.launchers.k8s import COMPONENT, INSTANCE, Object
from dtrain.errors import TrainingError, UsageError
from dtrain.host import terminal

#: Seconds until a child that has ended is started again, and that one waits for a condition.
_AGAIN, _LOOK = 1.0, 5
#: Seconds until a pod that was asked to end is gone, beyond its own grace.
_GONE = 60.0
_INDEX = "batch.kubernetes.io/job-completion-index"
_CONTAINER = '.status.containerStatuses[?(@.name=="dtrain")].state'
#: Of a pod: its name, its phase, and why it is not further, as far as it says so.
_STATE = "{.metadata.name} {.status.phase} {.status.reason} " + " ".join(
    f"{{{path}.{name}}}"
    for path in ('.status.conditions[?(@.status=="False")]', f"{_CONTAINER}.*")
    for name in ("reason", "message")
)
_EXIT_CODES = f"{{range .items[*]}}{{{_CONTAINER}.terminated.exitCode}} {{end}}"


class Job:
    """A job in a cluster.

    Args:
        context: of the kubeconfig; None for the current one.
        namespace: None for that of the context.
        objects: of :func:`dtrain.controller.launchers.k8s.render`.

    Raises:
        UsageError: ``kubectl`` is not installed.
    """

    def __init__(self, context: str | None, namespace: str | None, objects: list[Object]):
        if shutil.which("kubectl") is None:
            raise UsageError(
                "launcher.apply", "true", "is done by kubectl, which is not on PATH",
                "false, which writes the manifest, or kubectl", "launcher.apply=false",
            )  # fmt: skip
        options = {"context": context, "namespace": namespace}
        self._kubectl = ["kubectl", *(f"--{k}={v}" for k, v in options.items() if v is not None)]
        *self._others, self._job = objects
        self._name, kind = self._job["metadata"]["name"], self._job["kind"]
        self._reference = f"{kind}/{self._name}".lower()
        self._pods = f"--selector={INSTANCE}={self._name}"
        chief = f"{COMPONENT}=chief" if kind == "JobSet" else f"{_INDEX}=0"
        self._chief = f"{self._pods},{chief}"
        self._success = "Completed" if kind == "JobSet" else "Complete"

    def create(self) -> str:
        """Create the job; one that is there already, and is the very same, is left as it is.

        It is suspended until all that belongs to it is there, and owns it: it goes with the job.

        Returns:
            Its namespace.

        Raises:
            UsageError: there is another job of this name.
            TrainingError: the cluster refuses it, or does not answer.
        """
        there = self._run("get", self._reference, "--ignore-not-found", "--output=json")
        if there:
            job = json.loads(there)
            meta, mine = job["metadata"], self._job["metadata"]["annotations"]
            if not mine.items() <= (meta.get("annotations") or {}).items():
                raise UsageError(
                    "launcher.job_name", self._name, "the cluster has another job of this name",
                    "a name that is free, or the very command that created it, which follows it",
                    f"kubectl delete {self._reference}, or launcher.job_name=ANOTHER",
                )  # fmt: skip
            if not job["spec"].get("suspend") or self._job["spec"].get("suspend"):
                return str(meta["namespace"])
            # Else the command that created it was killed before all was there.
        spec = self._job["spec"]
        meta = self._apply({**self._job, "spec": {**spec, "suspend": True}})["metadata"]
        owner = {"apiVersion": self._job["apiVersion"], "kind": self._job["kind"],
                 "name": self._name, "uid": meta["uid"], "blockOwnerDeletion": True}  # fmt: skip
        try:
            for each in self._others:
                self._apply({**each, "metadata": {**each["metadata"], "ownerReferences": [owner]}})
            self._apply({**self._job, "spec": {"suspend": False, **spec}})  # Kueue's stays so
        except BaseException:
            self._run("delete", self._reference, "--wait=false")
            raise
        return str(meta["namespace"])

    def _apply(self, body: Object) -> Any:
        words = ("apply", "--server-side", "--force-conflicts", "--filename=-", "--output=json")
        return json.loads(self._run(*words, content=json.dumps(body)))

    def follow(self, grace: float) -> int:
        """Print the states of the pods and the chief's log, until the job is over.

        Args:
            grace: seconds that a pod has to end.

        Returns:
            The exit code of the job, or that of an interrupted one: Ctrl-C deletes it.

        Raises:
            SystemExit: this command was asked to end by another signal; the job goes on.
        """
        states: dict[str, str] = {}
        last = ""

        def say_state(line: str) -> None:
            name, _, state = " ".join(line.split()).partition(" ")
            if states.get(name) != state:
                say(f"{name}: {state}")
            states[name] = state

        def print_line(line: str) -> None:
            nonlocal last
            moment, _, text = line.partition(" ")
            if moment > last:  # else it was printed before a connection ended
                last = moment
                print(text, flush=True)

        def since() -> list[str]:
            return [f"--since-time={last}"] if last else []

        watch = ("get", "pods", self._pods, "--watch", f'--output=jsonpath={_STATE}{{"\\n"}}')
        log = ("logs", self._chief, "--container=dtrain", "--follow", "--timestamps", "--tail=-1",
               "--max-log-requests=1000")  # fmt: skip
        streams = [
            Stream(lambda: [*self._kubectl, *watch], say_state),
            Stream(lambda: [*self._kubectl, *log, *since()], print_line),
        ]
        for number in set(terminal.stops()) - {signal.SIGINT}:  # Ctrl-C alone deletes the job
            signal.signal(number, lambda *_: sys.exit(errors.INTERRUPTED))
        patience = 0.0
        try:
            code, patience = self._wait(), 10.0
            return code
        except KeyboardInterrupt:
            return self._delete(grace)
        finally:
            streams[0].end(0.0)
            streams[1].end(patience)

    def _wait(self) -> int:
        """Wait until the job is over, and return its exit code."""
        problem = ""
        while True:
            for condition in (self._success, "Failed"):
                words = (f"--for=condition={condition}", f"--timeout={_LOOK}s")
                done = self._call("wait", self._reference, *words)
                text = _problem(done)
                if done.returncode == 0:
                    return self._end(condition == self._success)
                if "(NotFound)" in text:
                    say(f"{self._name} was deleted")
                    return errors.FAILED
                away = "timed out waiting for the condition" not in text
                if away and text != problem:
                    say(f"{text}; the job goes on, and kubectl asks again")
                problem = text if away else ""
                threading.Event().wait(_AGAIN if away else 0)

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
        words = ("--cascade=foreground", "--ignore-not-found", f"--timeout={grace + _GONE:g}s")
        try:
            self._run("delete", self._reference, *words)
            say(f"{self._name} is deleted; its run folder stays")
            return errors.INTERRUPTED
        except (TrainingError, KeyboardInterrupt) as error:
            why = str(error) or "it was not waited for"
            say(f"{why}; type: kubectl get {self._reference}")
            return errors.FAILED

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


class Stream(threading.Thread):
    """Hands on the lines that a command prints. One that ends is started again.

    Args:
        command: returns it.
        line: takes a line.
    """

    def __init__(self, command: Callable[[], list[str]], line: Callable[[str], None]):
        super().__init__(daemon=True)
        self._command, self._line, self._over = command, line, threading.Event()
        self._child: subprocess.Popen[str] | None = None
        self._closed = False
        self.start()

    def run(self) -> None:
        """Start it, until it has ended once more after all is over."""
        last = False
        while not (last or self._closed):
            last = self._over.wait(_AGAIN if self._child else 0)
            with subprocess.Popen(
                self._command(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                errors="replace",
            ) as self._child:  # fmt: skip
                for line in self._child.stdout or ():
                    self._line(line.rstrip("\n"))

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


def say(text: str) -> None:
    """Print a line about the job."""
    print(f"dtrain: {errors.printable(text)}", file=sys.stderr, flush=True)
