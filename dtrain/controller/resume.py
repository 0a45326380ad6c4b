"""``resume=RUN_DIR``: the run's own configuration, with what this command line changes."""

from __future__ import annotations

from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from dtrain import checkpoint
from dtrain.errors import UsageError
from dtrain.rundir import RunDir

#: What a resumed run may not change: its numbers would no longer be those of one run.
FIXED = (
    "model",
    "dataset",
    "optimizer",
    "seed",
    "trainer.batch_size",
    "trainer.steps_per_epoch",
    "trainer.loss",
    "hardware.precision",
)


def resumed(config: DictConfig, overrides: list[str]) -> DictConfig:
    """Return the configuration of the run in ``config.resume`` with this command's overrides.

    Args:
        config: composed from this command line.
        overrides: the command line.

    Raises:
        UsageError: the folder is none of a run, holds no sound checkpoint, or an override would
            change the run's numbers.
    """
    rundir = RunDir(config.resume)
    if not rundir.config.is_file():
        raise UsageError(
            "resume", config.resume, "is not a run folder (it has no config.yaml)",
            "a folder that a run printed as its run folder", "resume=outputs/DATE/TIME_NAME",
        )  # fmt: skip
    found, problems = checkpoint.newest(rundir.checkpoints)
    if found is None:
        detail = f" ({problems[0]})" if problems else ""
        raise UsageError(
            "resume", config.resume, f"holds no sound checkpoint{detail}",
            "a run that saved one", "the command that began the run, to start anew",
        )  # fmt: skip
    past = OmegaConf.load(rundir.config)
    assert isinstance(past, DictConfig)
    # The schema of this version types what was read back, and fills in keys it did not have.
    base = config.copy()
    with open_dict(base):
        for group in ("model", "dataset", "optimizer"):
            base[group] = past[group]
    merged = OmegaConf.merge(base, past)
    assert isinstance(merged, DictConfig)
    for override in OverridesParser.create().parse_overrides(overrides):
        key = override.key_or_group.replace("/", ".")
        if key in ("resume", "experiment"):
            continue
        for fixed in FIXED:
            overlaps = key == fixed or key.startswith(f"{fixed}.") or fixed.startswith(f"{key}.")
            old, new = OmegaConf.select(past, fixed), OmegaConf.select(config, fixed)
            if overlaps and _plain(old) != _plain(new):
                raise UsageError(
                    key, override.get_value_element_as_str(),
                    f"would change the numbers of a run that is resumed ({fixed})",
                    "changes of trainer.epochs, strategy, hardware, tracking, checkpoint, launcher",
                    f"resume={config.resume} without {key}=...",
                )  # fmt: skip
        OmegaConf.update(merged, key, OmegaConf.select(config, key), merge=False, force_add=True)
    merged.resume = str(Path(config.resume).absolute())
    merged.dry_run = config.dry_run
    return merged


def _plain(value: object) -> object:
    plain = OmegaConf.to_container(value, enum_to_str=True) if OmegaConf.is_config(value) else value
    return getattr(plain, "name", plain)
