"""From what Hydra has composed to a configuration in order: resolved, checked, and typed."""

from __future__ import annotations

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from dtrain.config import environment, groups, load, names, references, targets, values
from dtrain.config.presets.debug import TRAIN
from dtrain.config.schema import Config
from dtrain.data.files import is_address
from dtrain.files import addresses


def settle(node: DictConfig) -> Config:
    """Resolve a configuration that Hydra has composed, and refuse what is wrong with it.

    Args:
        node: is resolved in place.

    Raises:
        UsageError: it has a key that nothing reads, a reference to what is not there, or a value
            that its key does not take.
    """
    if HydraConfig.initialized():
        groups.refuse_removed(HydraConfig.get().runtime.choices)
    values.refuse_unknown(node)
    references.check_sizes(node)
    try:
        environment.resolve(node)
    except OmegaConfBaseException:
        references.check(node)  # finds the key, which the exception does not say
        raise
    plain = targets.plain(node)
    targets.check(plain)
    values.check(node)
    names.check(plain)
    if HydraConfig.initialized():
        values.check_overrides(node, HydraConfig.get().overrides.task)
    config = load.typed(node)
    if is_address(config.output_dir):
        config.output_dir = str(addresses.local(config.output_dir, "output_dir"))
    config.output_dir = str(Path(config.output_dir).absolute())
    if config.debug["_target_"] == TRAIN:  # the file of a training has no such group
        config.debug = None  # type: ignore[assignment]
    return config
