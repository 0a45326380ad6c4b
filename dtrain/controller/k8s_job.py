"""A job that runs in pods of Kubernetes: this command, once more, in each of them."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import secrets
import time
from pathlib import Path
from typing import Any

import yaml

from dtrain import errors
from dtrain.config import environment, load
from dtrain.config.consent import PREFIX
from dtrain.config.overrides import key_of
from dtrain.config.schema import Config
from dtrain.controller import kubectl
from dtrain.controller.backend import reads
from dtrain.controller.launchers import Kubernetes
from dtrain.controller.launchers.k8s import MARGIN, Object, Workload, render
from dtrain.controller.plan import Plan
from dtrain.errors import UsageError
from dtrain.files import addresses, writing

#: Below ``output_dir``, of the run folders in the cluster and of the manifests here.
FOLDER = "kubernetes"
#: Variables of this command that those in the pods need, too.
_HANDED_ON = ("DTRAIN_TRUST", "DTRAIN_ENV")
_NAME = 28  # characters of a job's name that are of the run's


def run(
    config: Config, planned: Plan, launcher: Kubernetes, command: dict[str, Any], chosen: bool
) -> int:
    """Print or write the manifest of a job, or create it and follow it.

    Args:
        config: settled.
        planned: its tasks.
        launcher: with the user's settings.
        command: contents of ``command.json``.
        chosen: the user has named the run folder.

    Returns:
        The exit code.

    Raises:
        UsageError: it cannot run there, or its name is another job's.
        TrainingError: the cluster refuses it, or does not answer.
    """
    _refuse(config, launcher, chosen)
    work = workload(config, planned, launcher, command)
    objects = render(launcher, work, secrets.token_hex(32))
    pods = launcher.pods
    if config.dry_run:
        print(text(objects), end="")
        return errors.OK
    if not pods.apply:
        _write(Path(config.output_dir) / FOLDER / f"{work.name}.yaml", objects, pods.namespace)
        return errors.OK
    job = kubectl.Job(pods.context, pods.namespace, objects)
    kubectl.say(f"{work.name} is in the namespace {job.create()}; run folder: "
                f"{work.output_dir}/{FOLDER}/{work.name} of the claim {pods.volume}")  # fmt: skip
    if pods.queue is not None:
        kubectl.say(f"it waits for room in the queue {pods.queue}")
    return job.follow(launcher.grace_seconds + MARGIN) if pods.follow else errors.OK


def workload(
    config: Config, planned: Plan, launcher: Kubernetes, command: dict[str, Any]
) -> Workload:
    """Return what the pods run: the user's command, with the launcher that is right there.

    Args:
        config, planned, launcher, command: as of :func:`run`.

    Raises:
        UsageError: it needs what the pods do not have.
    """
    pods, cluster = launcher.pods, planned.cluster
    name = pods.job_name or _name(config.name)
    output_dir = _output_dir(Path(config.output_dir))
    if planned.strategy.on_hosts and cluster.together > 1:
        raise UsageError(
            "hardware.devices", cluster.together, "the command in a pod is one process, which "
            f"computes on one device with backend={config.backend.name}",
            "1, and launcher.gpus=1, with as many pods as devices (hardware.hosts)",
            f"hardware.devices=1 launcher.gpus=1 hardware.hosts={len(cluster.tasks)}",
        )  # fmt: skip
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
            if getattr(config.hardware, key) is None and reads(config, f"hardware.{key}")
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
        raise UsageError(
            "output_dir", address, "run folders of pods are on the volume of launcher.volume",
            "a path in the pods", "output_dir=outputs",
        )  # fmt: skip
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
        raise UsageError(
            "hydra.run.dir", "a folder", "the run folder is in the cluster", "launcher.job_name, "
            f"which names it there: OUTPUT_DIR/{FOLDER}/NAME", "launcher.job_name=NAME",
        )  # fmt: skip
    for key, value in (("resume", config.resume), ("fork", config.fork)):
        if value is not None:
            raise UsageError(
                key, value, "is a folder of this machine, and the pods do not have it",
                "the command with the launcher.job_name of a job that has not finished, "
                "which resumes its run", "launcher.job_name=NAME",
            )  # fmt: skip
    if launcher.pods.volume is None:
        raise UsageError(
            "launcher.volume", "null", "the run folder would be lost with its pod",
            "the name of a PersistentVolumeClaim", "launcher.volume=NAME",
        )  # fmt: skip
    for key, value in load.flatten(load.written(config)).items():
        for name in sorted(environment.variables(value)):
            if name.startswith(PREFIX):
                raise UsageError(
                    key, "(a secret)", "a secret that is typed would be in the manifest",
                    "a variable that a Secret of the cluster has: launcher.variables_from=[NAME]",
                    f"{key}='${{oc.env:VARIABLE}}'",
                )  # fmt: skip
            if not launcher.pods.variables_from:
                raise UsageError(
                    key, value, f"the pods have no variable {name}",
                    f"a Secret of the cluster with the key {name}",
                    "launcher.variables_from=[NAME]",
                )  # fmt: skip


def _config_dir(path: str | None) -> list[str]:
    """Return the option for the user's own presets, which are in the image.

    Raises:
        UsageError: they are outside of the folder that this command was typed in.
    """
    if path is None:
        return []
    whole, here = Path(path.removeprefix("file://")).absolute(), Path.cwd()
    if not whole.is_relative_to(here):
        raise UsageError(
            "--config-dir", path, "is not below this folder, and the image has what is below it",
            "a folder below this one, at the same place in the image", "--config-dir=FOLDER",
        )  # fmt: skip
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
        raise UsageError(
            "output_dir", path.parent.parent, f"no manifest can be written there "
            f"({error.strerror})", "a folder that can be written", "output_dir=FOLDER",
        ) from None  # fmt: skip
    option = f" -n {namespace}" if namespace else ""
    kubectl.say(f"the manifest is written; type: kubectl apply -f {path}{option}")
    kubectl.say("launcher.apply=true creates the job and follows it")
