"""The groups of ``conf/``: which there are, the schema of each option, and what Hydra gets."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import dtrain
from dtrain.config import strategies
from dtrain.config.overrides import parse
from dtrain.config.presets import datasets, debug, launchers, models, optimizers
from dtrain.config.schema import Action, Config, Evaluate, Launcher, MLflow, Predict, Tracking
from dtrain.errors import UsageError

#: Option of each group that has to be chosen, as in ``conf/config.yaml``.
GROUPS = {
    "model": "cnn",
    "dataset": "digits",
    "strategy": "default",
    "hardware": "auto",
    "optimizer": "adam",
    "optimizer/schedule": "constant",
    "trainer": "default",
    "action": "train",
    "debug": "none",
    "tracking": "mlflow",
    "launcher": "auto",
}

#: Schema of each option, by the group and name that ``conf/`` refers to it with.
SCHEMAS: dict[str, dict[str, type]] = {
    "model": {
        "mlp": models.Mlp,
        "wide_deep": models.WideDeep,
        "cnn": models.Cnn,
        "resnet": models.Resnet,
        "transformer": models.Transformer,
    },
    "dataset": {
        "digits": datasets.Digits,
        "synthetic": datasets.Synthetic,
        "npz": datasets.Npz,
        "npy": datasets.Npy,
        "table": datasets.TableFiles,
        "huggingface": datasets.HuggingFace,
        "image_folder": datasets.ImageFolder,
        "text": datasets.Text,
        "mixture": datasets.Mixture,
        "tfrecord": datasets.TFRecord,
        "array_record": datasets.ArrayRecord,
        "tfds": datasets.Tfds,
    },
    "optimizer": {
        "adadelta": optimizers.Adadelta,
        "adafactor": optimizers.Adafactor,
        "adagrad": optimizers.Adagrad,
        "adam": optimizers.Adam,
        "adamax": optimizers.Adamax,
        "adamw": optimizers.AdamW,
        "ftrl": optimizers.Ftrl,
        "lamb": optimizers.Lamb,
        "lion": optimizers.Lion,
        "muon": optimizers.Muon,
        "nadam": optimizers.Nadam,
        "rmsprop": optimizers.RmsProp,
        "schedule_free_adamw": optimizers.ScheduleFreeAdamW,
        "sgd": optimizers.Sgd,
    },
    "optimizer/schedule": {"cosine": optimizers.Cosine, "warmup": optimizers.Warmup},
    "strategy": strategies.SCHEMAS,
    "action": {"action": Action, "evaluate": Evaluate, "predict": Predict},
    "debug": {
        "debug": debug.Debug,
        "nan": debug.Nan,
        "overfit": debug.Overfit,
        "one_batch": debug.OneBatch,
    },
    "launcher": {
        "launcher": Launcher,
        "env": launchers.Env,
        "auto": launchers.Auto,
        "ray": launchers.Ray,
        "ssh": launchers.Ssh,
        "k8s": launchers.Kubernetes,
        "slurm": launchers.Slurm,
    },
    "tracking": {"tracking": Tracking, "mlflow": MLflow},
}


def of_hosts(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a launcher, and their values, that say what runs where on other hosts.

    Args:
        node: of the launcher, as plain values. Those of a user's own class are under its trust.
    """
    own = {field.name for field in dataclasses.fields(Launcher)}
    for kind in SCHEMAS["launcher"].values():
        fields = {field.name: field for field in dataclasses.fields(kind)}
        if fields["_target_"].default != node.get("_target_"):
            continue
        for name in fields.keys() - own:
            default = getattr(kind(), name)
            if name in node and node[name] != default:
                yield name, node[name]


def folder(name: str) -> Path:
    """Return ``conf`` or ``experiments``: inside an installed package, else in the checkout."""
    package = Path(dtrain.__file__).parent
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def option_as_text(override: str) -> str:
    """Return an override with the option of a group in quotes where Hydra would take a number.

    ``debug=nan`` chooses an option, whose name is a number in Hydra's grammar.
    """
    sign, group, option = parse(override)
    is_number = group in GROUPS and option is not None and option.lower() in ("nan", "inf")
    if is_number and (folder("conf") / group / f"{option}.yaml").is_file():
        return f"{sign}{group}='{option}'"
    return override


def refuse_removed(choices: Mapping[str, str | None]) -> None:
    """Refuse ``~GROUP`` and ``GROUP=null``: what would be left is no choice.

    Args:
        choices: the option of each group, as Hydra has composed them.

    Raises:
        UsageError: for the first one found.
    """
    for group, default in GROUPS.items():
        if choices.get(group) is None:
            options = {path.stem for path in (folder("conf") / group).glob("*.yaml")}
            raise UsageError(
                group, "null", "a group cannot be left out", "one of its options",
                f"{group}={'none' if 'none' in options else default}",
            )  # fmt: skip


def register() -> None:
    """Put the schemas and the experiments into Hydra's store, and our plugins where it looks."""
    from hydra.core.config_store import ConfigStore  # not above: tasks read the types without Hydra

    plugins = str(Path(dtrain.__file__).parent / "plugins")
    if plugins not in sys.path:  # at its end: it is for the package `hydra_plugins` alone
        sys.path.append(plugins)
    _register_schemas()
    store = ConfigStore.instance()
    for path in sorted(folder("experiments").glob("*.yaml")):
        # `experiment=NAME` reads experiments/NAME.yaml, whose keys stand at the top.
        node = _experiment(path, path.stat().st_mtime_ns)
        store.store(group="experiment", name=path.stem, node=node, package="_global_")


@functools.cache
def _experiment(path: Path, changed: int) -> Any:
    """Read a file once for all commands of this process; ``changed`` is when it was written."""
    return OmegaConf.load(path)


@functools.cache
def _register_schemas() -> None:
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="config_schema", node=Config)
    for group, options in SCHEMAS.items():
        for name, schema in options.items():
            store.store(group=f"schema/{group}", name=name, node=schema)
