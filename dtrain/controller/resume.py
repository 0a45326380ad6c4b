"""``resume=RUN_DIR``: the run's own command line, with what this one changes."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from dtrain import checkpoint, targets
from dtrain.errors import UsageError
from dtrain.rundir import RunDir, read_json

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


def command(overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    """Return the contents of ``command.json``: what a later ``resume=`` composes from."""
    kept = [word for word in overrides if _key(word) != "resume"]
    return {"overrides": kept, "config_dir": config_dir}


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~").replace("/", ".")


def arguments(given: list[str]) -> list[str]:
    """Put the run's own words before those ``given``, less what these replace.

    Args:
        given: the command line, without the program's name.

    Raises:
        UsageError: ``resume=`` names no run folder.
    """
    folder = next((word.partition("=")[2] for word in given if _key(word) == "resume"), "null")
    if folder == "null":
        return given
    rundir = RunDir(folder)
    past = read_json(rundir.command)
    if past is None or not rundir.config.is_file():
        raise UsageError(
            "resume", folder, f"is not a run folder (it has no {rundir.command.name})",
            "a folder that a run printed as its run folder", "resume=outputs/DATE/TIME_NAME",
        )  # fmt: skip
    new = {_key(word) for word in given}
    kept = [
        word
        for word in past["overrides"]
        if not any(_key(word) == key or _key(word).startswith(f"{key}.") for key in new)
    ]
    flags = []
    if past["config_dir"] and not any(word.startswith(("--config-dir", "-cd")) for word in given):
        flags = ["--config-dir", past["config_dir"]]
    return [*flags, *kept, *given]


def check(config: DictConfig, overrides: list[str]) -> None:
    """Refuse to go on with what would not be the same run.

    Args:
        config: composed from :func:`arguments`.
        overrides: the whole command line.

    Raises:
        UsageError: the run has no sound checkpoint, or a key that decides its numbers differs.
    """
    rundir = RunDir(config.resume)
    found, problems = checkpoint.newest(rundir.checkpoints)
    if found is None:
        detail = f" ({problems[0]})" if problems else ""
        raise UsageError(
            "resume", config.resume, f"holds no sound checkpoint{detail}",
            "a run that saved one", "the command that began the run, to start anew",
        )  # fmt: skip
    past = OmegaConf.load(rundir.config)
    for fixed in FIXED:
        old = targets.plain(OmegaConf.select(past, fixed))
        new = targets.plain(OmegaConf.select(config, fixed))
        if old == getattr(new, "name", new):
            continue
        words = [w for w in overrides if f"{_key(w)}.".startswith(f"{fixed}.")]
        key = _key(words[-1]) if words else fixed
        value = words[-1].partition("=")[2] if words else new
        raise UsageError(
            key, value, f"would change the numbers of a run that is resumed ({fixed})",
            "changes of trainer.epochs, strategy, hardware, tracking, checkpoint, launcher",
            f"resume={config.resume} without {key}=...",
        )  # fmt: skip
