"""What makes a resumed run the same run: hashes of what decides its numbers, and versions."""

from __future__ import annotations

import hashlib
import json

from dtrain import secrets
from dtrain.config import load, section
from dtrain.config.schema import Backend, Config
from dtrain.data import draws, options
from dtrain.files.fields import JsonValue
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.host.packages import version

#: Which examples a step sees.
DATA = ("dataset", "trainer.batch_size", "trainer.steps_per_epoch")
#: What a resumed run may not change: its numbers would no longer be those of one run.
FIXED = (
    "model",
    *DATA,
    "optimizer",
    "seed",
    "trainer.loss",
    "trainer.loss_weights",
    "trainer.gradient_reduction",
    "trainer.class_weight",
    "trainer.validation_steps",
    "trainer.metrics",
    "trainer.callbacks",
    "trainer.early_stopping",
    "trainer.log",
    "hardware.precision",
    "init",
    "finetune",
)
#: What may be otherwise about two jobs that are the same one.
OUTSIDE = (
    "debug",  # a job of a sweep has none
    "name",
    "output_dir",
    "resume",
    "record_code",
    "dry_run",
    "tracking",
    "launcher",
    "checkpoint",
    "sweep",
)


def value(config: Config, key: str) -> JsonValue:
    """Return what ``config`` has under ``key`` as plain values, enumerations by their names.

    Secrets are hidden: another password makes no other run.
    """
    found = load.select(config, key)
    if key == "dataset" and isinstance(found, dict):
        found = options.deciding(found)
    single = isinstance(found, str) or (isinstance(found, dict) and "_target_" in found)
    if key == "trainer.metrics" and single:
        found = [found]  # as it is meant
    return secrets.hide(found, key)


def fingerprints(config: Config) -> dict[str, str]:
    """Return a hash of what ``config`` has under each of :data:`FIXED`.

    That of the dataset is also one of how examples are drawn (:data:`dtrain.data.draws.VERSION`).
    """
    found = {key: _hash(value(config, key)) for key in FIXED}
    return found | {"dataset": _hash([draws.VERSION, found["dataset"]])}


def changed(saved: dict[str, str], now: dict[str, str]) -> set[str]:
    """Return the keys of :data:`FIXED` whose fingerprints differ.

    Args:
        saved: those in a checkpoint.
        now: of a configuration.
    """
    return {key for key in FIXED if saved.get(key) != now[key]}


def config_hash(config: Config) -> str:
    """Return one hash of everything that decides the numbers of a run."""
    return _hash(fingerprints(config))


def job_hash(config: Config) -> str:
    """Return one hash of everything that makes a job of a sweep this very one.

    That is more than decides its numbers: how long it trains, its strategy, its hardware.
    """
    whole = section.plain(config)
    return _hash({key: value for key, value in whole.items() if key not in OUTSIDE})


def _hash(found: object) -> str:
    # Twice: keys of a mapping may be of several types, which cannot be sorted, and become text.
    text = json.dumps(json.loads(json.dumps(found, default=str)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def versions(backend: Backend) -> dict[str, str]:
    """Return the versions of what computes the numbers, of what is installed of it."""
    packages = ("dtrain", *FRAMEWORKS[backend.name].packages, "keras", "numpy")
    installed = {name: version(name) for name in packages}
    return {name: text for name, text in installed.items() if text is not None}
