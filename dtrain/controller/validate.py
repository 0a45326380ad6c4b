"""What a job needs, checked together before anything starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from dtrain.config import consent, environment, references, schema, targets, values
from dtrain.controller.launchers import Launcher
from dtrain.controller.plan import Plan, check_values, plan, sizes
from dtrain.controller.resources.devices import machine
from dtrain.data.sources import Splits
from dtrain.tracking import choose
from dtrain.tracking.mlflow.tracker import flatten

#: Keys that may differ between the commands of one cluster.
_OF_A_HOST = ("tracking", "launcher", "output_dir", "resume", "fork", "dry_run", "name")


@dataclasses.dataclass(frozen=True)
class Checked:
    """A job that can be started.

    Attributes:
        config: resolved.
        launcher: starts its tasks.
        planned: its tasks, if it has the machine to itself.
        splits: its data, where that is known.
    """

    config: DictConfig
    launcher: Launcher
    planned: Plan
    splits: Splits | None


def settle(config: DictConfig) -> None:
    """Resolve a configuration that Hydra has composed, and take out what is not of the job.

    Raises:
        UsageError: it has a key that nothing reads, or a reference to what is not there.
    """
    if HydraConfig.initialized():
        schema.refuse_removed(HydraConfig.get().runtime.choices)
    schema.refuse_unknown(config)
    references.check_sizes(config)
    try:
        environment.resolve(config)
    except OmegaConfBaseException:
        references.check(config)  # finds the key, which the exception does not say
        raise
    targets.check(targets.plain(config))
    values.check(config)
    if HydraConfig.initialized():
        values.check_words(config, HydraConfig.get().overrides.task)
    if choose.tracker(config).address is not None:
        consent.check_address(environment.address(config))
    config.output_dir = str(Path(config.output_dir).absolute())
    with open_dict(config):
        del config["sweep"]  # how many run at once is no property of one


def check(
    config: DictConfig, look: Callable[[DictConfig], Splits | None] = sizes, prepare: bool = True
) -> Checked:
    """Check the values of a job, its devices, its data and its launcher together.

    Args:
        config: settled.
        look: finds out how much data there is.
        prepare: have the launcher begin what takes long, while the data is looked at.

    Raises:
        UsageError: they do not go together.
    """
    check_values(config)
    launcher: Launcher = targets.instantiate(targets.plain(config.launcher), "launcher")
    here = machine(launcher.shares_machine)
    early = plan(config, None, here)
    facts = {
        key: text for key, text in flatten(environment.written(config)).items() if _shared(key)
    }
    facts["strategy.on_hosts"] = str(early.strategy.on_hosts)
    cluster = launcher.check(early.cluster, facts)
    if prepare:
        launcher.prepare(cluster)
    splits = look(config)
    planned = dataclasses.replace(plan(config, splits, here), cluster=cluster)
    return Checked(config, launcher, planned, splits)


def _shared(key: str) -> bool:
    return key.partition(".")[0] not in _OF_A_HOST
