"""From a configuration to a job: checked together, planned, done in the way of its launcher."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dtrain.config import private, schema, targets, tree
from dtrain.config.node import to_plain
from dtrain.config.tree import Config
from dtrain.data.files import is_address
from dtrain.data.sources import Splits
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.host import forkserver
from dtrain.job import exporting, start_times
from dtrain.job.plan import Plan, check_framework, plan, sizes
from dtrain.job.run import Job, JobSpec, run_job
from dtrain.launchers import Launcher
from dtrain.run import initial
from dtrain.run.devices import machine
from dtrain.run.outcome import Outcome
from dtrain.tracking.chosen import make_tracker

#: Models whose inputs are images.
_OF_IMAGES = ("dtrain.models.cnn", "dtrain.models.resnet")


@dataclasses.dataclass(frozen=True)
class Checked:
    """A job that can be started.

    Attributes:
        config: resolved.
        launcher: starts its tasks.
        planned: its tasks, if it has the machine to itself.
        splits: its data, where that is known.
    """

    config: Config
    launcher: Launcher
    planned: Plan
    splits: Splits | None


def check_address(config: Config) -> None:
    """Refuse addresses of stores and of data, and keys of hosts, that the user has not named.

    Raises:
        UsageError: a run folder, or a preset of it, names one.
    """
    uri = tree.address(config)
    if uri is not None and make_tracker(config).address is not None:
        private.check_named("tracking.uri", uri, "tracking.uri=ADDRESS, or tracking=none")
    if inner := tree.trackers(config.tracking):
        private.check_named("tracking", f"[{','.join(inner)}]", "tracking=none")
    for key, value in _texts(to_plain(config.dataset), "dataset"):
        if is_address(value):
            private.check_named(key, value, f"{key}={value}")
    for name, value in schema.of_hosts(to_plain(config.launcher)):
        key = f"launcher.{name}"
        private.check_named(key, value, f"{key}=..., or launcher=local")


def _texts(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of a node, each with its key; those of a list have the key of the list."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _texts(part, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part, key)
    elif isinstance(value, str):
        yield key, value


def check(
    config: Config,
    look: Callable[[Config], Splits | None] = sizes,
    prepare: bool = True,
    kind: type[Job] = Job,
) -> Checked:
    """Check the values of a job, its devices, its data and its launcher together.

    Args:
        config: settled.
        look: finds out how much data there is.
        prepare: have the launcher begin what takes long, while the data is looked at.
        kind: of job.

    Raises:
        UsageError: they do not go together.
    """
    launcher: Launcher = targets.instantiate(config.launcher, "launcher")
    if not kind.is_run:
        launcher = launcher.here(kind.trains)
    exporting.check_logged(config, make_tracker(config))
    if kind.trains:
        _check_model(config)
        begins = config.resume is None and config.fork is None  # others have their weights
        if launcher.sees_data and config.init.weights is not None and begins:
            initial.kind(config.init.weights)
    try:
        here = launcher.part(machine())
        early = kind.spread(config, plan(config, None, here, kind.trains), here)
        facts = {
            key: text for key, text in tree.flatten(tree.written(config)).items() if _shared(key)
        }
        facts["strategy.on_hosts"] = str(early.strategy.on_hosts)
        if launcher.sees_data:
            check_framework(early.cluster)
        cluster = launcher.check(early.cluster, facts)
        if prepare:
            launcher.prepare(cluster)
            forkserver.end_guessed()  # of a launcher that forks nothing
        splits = look(config) if launcher.sees_data else None
        planned = dataclasses.replace(
            plan(config, splits, here, kind.trains), cluster=cluster, where=launcher.where
        )
    except BaseException:
        launcher.kill()  # it may have asked other hosts
        raise
    return Checked(config, launcher, planned, splits)


def _shared(key: str) -> bool:
    """Say whether a key has to be alike in all commands of one cluster."""
    return key.partition(".")[0] not in schema.having("record", "command") and key != "action.run"


def _check_model(config: Config) -> None:
    """Refuse a model of images for a table of text: that is known before any row is read."""
    model, dataset = str(config.model.get("_target_")), config.dataset
    is_table = dataset.get("_target_") == "dtrain.datasets.table"
    if model in _OF_IMAGES and is_table and dataset.get("format") in ("csv", "json"):
        refuse("model", "takes images, and a table has rows of columns", model.rpartition(".")[2],
               accepted="mlp, or a model of your own", typed="model=mlp")  # fmt: skip


def start(
    config: Config, folder: Path, command: Json, chosen: bool = False, kind: type[Job] = Job
) -> Outcome:
    """Do one job from its configuration to its result.

    Args:
        config: composed by Hydra, settled, and taken over from the run where it resumes one.
        folder: where a new run folder goes.
        command: contents of ``command.json``.
        chosen: the user has named ``folder``.
        kind: of job.

    Raises:
        UsageError: the configuration is wrong; nothing is left behind.
    """
    checked = check(config, prepare=not config.dry_run, kind=kind)
    start_times.ended("plan")
    return run_job(JobSpec(
        config, checked.planned, checked.launcher, folder, command, chosen, kind, alone=True
    ))  # fmt: skip
