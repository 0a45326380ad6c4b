"""From the overrides of a sweep to its jobs: composed by Hydra, checked; and what each has.

No two jobs share a core or a GPU.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from dtrain.config import guard, private, schema, targets, tree
from dtrain.config.check import check_node, settle
from dtrain.config.overrides import of_sources, parse
from dtrain.config.tree import Config
from dtrain.data.sources import Splits
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.job import resume
from dtrain.job.checks import Checked, check, check_address
from dtrain.job.folders import check_name, place
from dtrain.job.plan import Plan, plan, sizes
from dtrain.launchers import Launcher
from dtrain.run import identity
from dtrain.run.cluster import Cluster, Task
from dtrain.run.devices import Machine

#: What is raised of overrides that do not compose.
NOT_COMPOSED = (HydraException, OmegaConfBaseException)


@dataclasses.dataclass
class Draft:
    """One job: what it is, and what it needs.

    Attributes:
        number: counted from 0.
        overrides: all of its own.
        differs: those that are not the same in all jobs, by key.
        config: settled.
        hash: of all that makes it this job.
        checked: None before :meth:`Composer.check`.
    """

    number: int
    overrides: list[str]
    differs: dict[str, str]
    config: Config
    hash: str
    checked: Checked | None = None

    @property
    def gpus(self) -> int:
        """How many GPUs of this machine it takes."""
        assert self.checked is not None
        return gpus(self.plan().cluster) if self.checked.launcher.shares_machine else 0

    def plan(self, machine: Machine | None = None) -> Plan:
        """Return its processes on a machine, or if it has this one to itself."""
        assert self.checked is not None
        if machine is None:
            return self.checked.planned
        return plan(self.config, self.checked.splits, machine)


class Master:
    """The configuration of a sweep, without what is swept over.

    Args:
        loader: Hydra's, which has composed it.
        node: what it composed.

    Attributes:
        config: typed; of ``sweep`` the values are checked.
        overrides: of the command line, as they were typed: what they refer to is each job's own.
        config_dir: the folder of ``--config-dir``; None without one.

    Raises:
        UsageError: a value of ``sweep`` is wrong.
    """

    def __init__(self, loader: Any, node: DictConfig):
        self._loader, self._node = loader, node
        check_node(node, "sweep", schema.sections()["sweep"])
        self.config = tree.typed(node)
        overrides: Any = OmegaConf.to_container(node.hydra.overrides, resolve=False)
        self.overrides: dict[str, list[str]] = overrides
        sources = {source.provider: source.path for source in node.hydra.runtime.config_sources}
        self.config_dir: str | None = sources.get("command-line")

    def compose(self, number: int, overrides: list[str]) -> DictConfig:
        """Compose a job; what is Hydra's own is in Hydra's ``HydraConfig`` afterwards."""
        words = [schema.option_as_text(override) for override in overrides]
        node: DictConfig = self._loader.load_sweep_config(self._node, words)
        with open_dict(node):
            node.hydra.job.id, node.hydra.job.num = str(number), number
        HydraConfig.instance().set_config(node)
        with open_dict(node):
            del node["hydra"]  # of which that is a copy
        return node

    @property
    def has_chosen_folder(self) -> bool:
        """Whether the user has said where the sweep goes."""
        return private.reserved() is None and guard.is_chosen(self._node, "sweep")

    def folder(self, name: str) -> Path:
        """Return where the folder of a sweep of this name goes."""
        self._node.name = check_name(name)
        if (reserved := private.reserved_in(self.config.output_dir)) is not None:
            return reserved
        HydraConfig.instance().set_config(self._node)
        return place(str(self._node.hydra.sweep.dir), "hydra.sweep.dir")


class Composer:
    """Makes jobs of overrides.

    Args:
        master: the configuration without what is swept over.
        jobs: the overrides of those that are known.
    """

    def __init__(self, master: Master, jobs: Sequence[Sequence[str]]):
        self._master = master
        self._fixed = _fixed(jobs, master.overrides["task"])
        self._first: tuple[DictConfig, Config] | None = None
        self._sizes: dict[str, Splits | None] = {}
        self._pinned: dict[str, str] = {}
        self._prepared: list[dict[str, str]] = []

    def compose(self, number: int, overrides: Sequence[str]) -> Draft:
        """Compose one job.

        Raises:
            UsageError: it cannot be one of this sweep. A note says which it is, of this and of
                what Hydra and OmegaConf raise of overrides that do not compose.
        """
        with _named(number, self._differs(overrides)):
            node = self._master.compose(number, list(overrides))
            config = settle(node)
            check_address(config)
            check_name(config.name)
            words = private.as_written(list(overrides), node)
            differs = self._differs(words)
            self._refuse(config, differs)
            if config.fork is not None:
                if config.fork not in self._pinned:
                    given = config.fork
                    resume.pin(config)
                    self._pinned[given] = config.fork
                config.fork = self._pinned.get(config.fork, config.fork)
        self._first = self._first or (node, config)
        return Draft(number, words, differs, config, identity.job_hash(config))

    def _differs(self, words: Sequence[str]) -> dict[str, str]:
        return {key: value for key, value in map(_key_and_value, words) if key not in self._fixed}

    def _refuse(self, config: Config, differs: dict[str, str]) -> None:
        for key in differs:
            if key.startswith("sweep."):
                refuse(key, "is one for the whole sweep", differs[key],
                       typed=f"{key}={differs[key]}")  # fmt: skip
        if config.resume is not None:
            refuse("resume", "is for a single run", config.resume,
                   hint="sweep.resume=outputs/multirun/DATE/TIME_NAME, or no -m")  # fmt: skip
        if config.debug is not None:
            refuse("debug", "checks one training, and a sweep has several", "...",
                   hint="a command for each, without -m")  # fmt: skip
        first = self._first[1] if self._first else config
        for key in schema.having(mark="sweep"):
            ours, theirs = identity.value(config, key), identity.value(first, key)
            if ours != theirs:
                refuse(key, f"is one for the whole sweep, and {theirs} in another job", ours,
                       accepted="one value", typed=f"{key}={theirs}")  # fmt: skip

    def check(self, draft: Draft, past: str | None) -> None:
        """Check one job against this machine and its data, and begin the import of the framework.

        Args:
            draft: is changed.
            past: a run folder to resume in place.

        Raises:
            UsageError: it cannot be run.
        """
        config = draft.config
        with _named(draft.number, draft.differs):
            if past is not None:
                config.resume = past
                resume.check(config, draft.overrides)
            launcher: Launcher = targets.instantiate(config.launcher, "launcher")
            if not launcher.several:
                raise launcher.no_sweep()
            draft.checked = check(config, self._look, prepare=False)
        cluster = draft.plan().cluster
        if not config.dry_run and cluster.environment not in self._prepared:
            self._prepared.append(cluster.environment)
            draft.checked.launcher.prepare(cluster)

    def _look(self, config: Config) -> Splits | None:
        """Return how much data there is, read once for all jobs that have the same."""
        key = json.dumps(dict(config.dataset), sort_keys=True, default=str)
        if key not in self._sizes:
            self._sizes[key] = sizes(config)
        return self._sizes[key]

    def command(self, draft: Draft) -> Json:
        """Return the contents of a job's ``command.json``."""
        sweep = {"number": draft.number, "differs": draft.differs}
        places = tree.places(draft.config)
        words = [*of_sources(self._master.overrides["hydra"]), *draft.overrides]
        return {**resume.command(words, self._master.config_dir, places), "sweep": sweep}

    def whole(self) -> Json:
        """Return what the whole sweep is composed of, for ``sweep.resume=``."""
        typed = self._master.overrides
        hydra = [override for override in typed["hydra"] if not override.startswith("hydra.mode=")]
        given = [*hydra, *typed["task"]]
        if self._first is not None:
            given = private.as_written(given, self._first[0])
        kept = []
        for override in given:
            key, value = _key_and_value(override)
            if key == "fork" and value in self._pinned:  # its newest checkpoint may be another soon
                override = f"fork={self._pinned[value]}"
            if not schema.has_mark(key, "once"):
                kept.append(override)
        return private.sign_command(kept, self._master.config_dir, None)


def common_name(names: Sequence[str]) -> str:
    """Return what the names of all jobs begin with, in whole words."""
    parts = [name.split("_") for name in names]
    same = 0
    while all(len(p) > same and p[same] == parts[0][same] for p in parts):
        same += 1
    return "_".join(parts[0][:same]) or "sweep"


def _key_and_value(override: str) -> tuple[str, str]:
    given = parse(override)
    return given.name, given.value or ""


def _fixed(jobs: Sequence[Sequence[str]], words: list[str]) -> set[str]:
    """Return the keys that are the same in all jobs; of unknown jobs, in the command."""
    if not jobs:
        parsed = OverridesParser.create().parse_overrides(words)
        return {each.key_or_group for each in parsed if not each.is_sweep_override()}
    alike = set.intersection(*({_key_and_value(override) for override in job} for job in jobs))
    return {key for key, _ in alike}


@contextmanager
def _named(number: int, differs: dict[str, str]) -> Iterator[None]:
    """Say of an error which job it is about."""
    try:
        yield
    except Exception as error:
        words = " ".join(f"{key}={value}" for key, value in differs.items())
        error.add_note(f"in job {number}" + (f": {words}" if words else ""))
        raise


@dataclasses.dataclass(frozen=True)
class Slot:
    """What one job has to itself.

    Attributes:
        cores: counted from 0, of those that this process may use.
        gpus: names, as in ``CUDA_VISIBLE_DEVICES``.
    """

    cores: tuple[int, ...]
    gpus: tuple[str, ...]


def gpu_names(machine: Machine) -> list[str]:
    """Return the names of a machine's GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(machine.gpus)]
    return [name for name in names if name.strip() not in ("", "-1")][: machine.gpus]


def gpus(cluster: Cluster) -> int:
    """Return how many GPUs a job takes."""
    return sum(task.devices for task in cluster.tasks) if cluster.device_kind == "gpu" else 0


def at_once(wanted: int | None, needs: Sequence[int], machine: Machine) -> int:
    """Return how many jobs run at once.

    Args:
        wanted: at most; None for as many as the machine has room for.
        needs: GPUs of each job.
        machine: that they share.
    """
    fit, left = 0, machine.gpus
    for need in sorted(needs):
        left -= need
        fit += left >= 0
    return max(1, min(fit, machine.cores, wanted or machine.cores))


class Slots:
    """Gives equal parts of the cores, and as many GPUs as a job takes.

    The parts stay the same to the end, even when few jobs are left: their speeds can be compared.

    Args:
        machine: what there is.
        names: of its GPUs.
        parallel: jobs at once (:func:`at_once`).
    """

    def __init__(self, machine: Machine, names: Sequence[str], parallel: int):
        self.share = machine.cores // parallel  # cores of each job
        self._cores = [
            tuple(range(first * self.share, (first + 1) * self.share)) for first in range(parallel)
        ]
        self._gpus = list(names)

    @property
    def free(self) -> bool:
        """Whether a job that takes no GPU could have a slot."""
        return bool(self._cores)

    def take(self, gpus: int) -> Slot | None:
        """Return a slot with so many GPUs, None where there is none free."""
        if not self._cores or gpus > len(self._gpus):
            return None
        taken, self._gpus = self._gpus[:gpus], self._gpus[gpus:]
        return Slot(self._cores.pop(0), tuple(taken))

    def give(self, slot: Slot) -> None:
        """Take a slot back."""
        self._cores.append(slot.cores)
        self._gpus.extend(slot.gpus)


def keep_to(cluster: Cluster, slot: Slot, machine: Machine) -> Cluster:
    """Keep a job to its slot.

    Args:
        cluster: planned for a machine with as many cores as the slot has.
        slot: of the job.
        machine: the whole of it.
    """
    if len(slot.cores) == machine.cores:  # as if it ran alone
        return cluster

    def keep(task: Task) -> Task:
        own = tuple(slot.cores[position] for position in task.cores) or slot.cores
        return dataclasses.replace(task, cores=own, threads=task.threads or len(own))

    return dataclasses.replace(cluster, tasks=tuple(keep(task) for task in cluster.tasks))
