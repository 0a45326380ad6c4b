"""What makes a resumed run the same run: hashes of what decides its numbers, and versions."""

from __future__ import annotations

import hashlib
import json
from types import ModuleType

from dtrain import secrets
from dtrain.config import tree
from dtrain.config.node import to_plain
from dtrain.config.tree import Config
from dtrain.data import draws, options
from dtrain.files.fields import Json, JsonValue, Values
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.host.packages import version


def fixed() -> tuple[str, ...]:
    """Return the keys that a resumed run may not change: its numbers would be of no one run."""
    return _schema().having("data", "numbers")


def of_data() -> tuple[str, ...]:
    """Return the keys that decide which examples a step sees."""
    return _schema().having("data")


def _schema() -> ModuleType:
    # Not above: a task reads the models when it needs them, and not while it starts.
    from dtrain.config import schema

    return schema


def value(config: Config, key: str) -> JsonValue:
    """Return what ``config`` has under ``key`` as plain values, enumerations by their names.

    Secrets are hidden: another password makes no other run.
    """
    found = tree.select(config, key)
    if key == "dataset" and isinstance(found, dict):
        found = deciding(found)
    single = isinstance(found, str) or (isinstance(found, dict) and "_target_" in found)
    if key == "trainer.metrics" and single:
        found = [found]  # as it is meant
    return secrets.hide(found, key)


def deciding(node: Values) -> Json:
    """Return of a ``dataset`` node what decides which examples a step sees.

    An option at its default is left out: whether it is written does not matter.
    """
    schema = _schema()
    other = {name for kind in schema.kinds("dataset") for name in kind.model_fields
             if schema.scope_of(kind, name).of != "data"}  # fmt: skip
    return {name: value for name, value in node.items()
            if name not in other and not options.is_default(name, value)}  # fmt: skip


def fingerprints(config: Config) -> dict[str, str]:
    """Return a hash of what ``config`` has under each of :func:`fixed`.

    That of the dataset is also one of how examples are drawn (:data:`dtrain.data.draws.VERSION`).
    """
    found = {key: _hash(value(config, key)) for key in fixed()}
    return found | {"dataset": _hash([draws.VERSION, found["dataset"]])}


def changed(saved: dict[str, str], now: dict[str, str]) -> set[str]:
    """Return the keys of :func:`fixed` whose fingerprints differ.

    Args:
        saved: those in a checkpoint.
        now: of a configuration.
    """
    return {key for key in fixed() if saved.get(key) != now[key]}


def config_hash(config: Config) -> str:
    """Return one hash of everything that decides the numbers of a run."""
    return _hash(fingerprints(config))


def job_hash(config: Config) -> str:
    """Return one hash of everything that makes a job of a sweep this very one.

    That is more than decides its numbers: how long it trains, its strategy, its hardware.
    """
    whole, outside = to_plain(config), _schema().having("record", "command")
    for group, _, key in (each.partition(".") for each in outside):
        whole.get(group, {}).pop(key, None) if key else None
    return _hash(
        {key: value for key, value in whole.items() if key not in outside or key == "fork"}
    )


def _hash(found: object) -> str:
    # Twice: keys of a mapping may be of several types, which cannot be sorted, and become text.
    text = json.dumps(json.loads(json.dumps(found, default=str)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def versions(backend: str) -> dict[str, str]:
    """Return the versions of what computes the numbers, of what is installed of it."""
    packages = ("dtrain", *FRAMEWORKS[backend].packages, "keras", "numpy")
    installed = {name: version(name) for name in packages}
    return {name: text for name, text in installed.items() if text is not None}
