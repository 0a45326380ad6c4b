"""The groups of ``conf/`` and their keys: the schema of each option, help, and what Hydra gets.

The lines of help are the ``Attributes`` of the docstrings of :mod:`dtrain.config.schema`,
:mod:`dtrain.config.presets` and :mod:`dtrain.config.strategies`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from omegaconf import MISSING, OmegaConf

import dtrain
from dtrain.config import schema, strategies
from dtrain.config.overrides import parse
from dtrain.config.presets import datasets, debug, launchers, models, optimizers
from dtrain.config.ranges import accepted, typed
from dtrain.errors import refuse

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


def _of_functions(module: ModuleType, base: type = object) -> dict[str, type]:
    """Return classes of keys by their functions or classes: ``sgd``, ``schedule_free_adamw``.

    Args:
        module: of the classes.
        base: of each of them.
    """
    schemas: dict[str, type] = {}
    for kind in vars(module).values():
        target = vars(kind).get("_target_", MISSING) if isinstance(kind, type) else MISSING
        if target != MISSING and issubclass(kind, base):
            name = re.sub("(?<=[a-z])(?=[A-Z][a-z])", "_", target.rpartition(".")[2])
            schemas[name.lower()] = kind
    return schemas


#: Schema of each option, by the group and name that ``conf/`` refers to it with.
SCHEMAS: dict[str, dict[str, type]] = {
    "model": _of_functions(models),
    "dataset": _of_functions(datasets),
    "optimizer": _of_functions(optimizers, optimizers.Optimizer),
    "optimizer/schedule": _of_functions(optimizers, optimizers.Schedule),
    "strategy": strategies.SCHEMAS,
    "action": {"action": schema.Action, "evaluate": schema.Evaluate, "predict": schema.Predict},
    "debug": {
        "debug": debug.Debug,
        "nan": debug.Nan,
        "overfit": debug.Overfit,
        "one_batch": debug.OneBatch,
    },
    "launcher": {
        "launcher": schema.Launcher,
        "env": launchers.Env,
        "auto": launchers.Auto,
        "ray": launchers.Ray,
        "ssh": launchers.Ssh,
        "k8s": launchers.Kubernetes,
        "slurm": launchers.Slurm,
    },
    "tracking": {"tracking": schema.Tracking, "mlflow": schema.MLflow},
}


def of_hosts(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a launcher, and their values, that say what runs where on other hosts.

    Args:
        node: of the launcher, as plain values. Those of a user's own class are under its trust.
    """
    own = {field.name for field in dataclasses.fields(schema.Launcher)}
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


def options(group: str) -> list[str]:
    """Return the options of a group of dtrain's."""
    return sorted(path.stem for path in (folder("conf") / group).glob("*.yaml"))


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
            refuse(
                group, "a group cannot be left out", "null", accepted="one of its options",
                typed=f"{group}={'none' if 'none' in options(group) else default}",
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
    store.store(name="config_schema", node=schema.Config)
    for group, known in SCHEMAS.items():
        for name, kind in known.items():
            store.store(group=f"schema/{group}", name=name, node=kind)


# -- help: type, default, accepted values, and a line or two --------------------------------------

#: An attribute of a docstring, with the lines that are further in than its name.
_LINE = re.compile(r"^( +)(\w+): (.+(?:\n\1 +.+)*)$", re.M)


class Help(NamedTuple):
    """The help of one key.

    Attributes:
        type: of its values.
        default: as it is typed; None where the user has to give a value.
        accepted: the values, in words.
        help: a sentence or two.
    """

    type: str
    default: str | None
    accepted: str
    help: str


def help_of(key: str) -> Help:
    """Return the help of a key, such as ``trainer.batch_size``, ``model.units`` or ``strategy``.

    A key that several options of a group have is that of the group's default option, where it has
    it, else of the first one that has it.

    Args:
        key: dotted.

    Raises:
        UsageError: no option has such a key.
    """
    group, _, name = key.replace("/", ".").rpartition(".")
    for kind in kinds(group):
        field = next((each for each in dataclasses.fields(kind) if each.name == name), None)
        if field is not None:
            return _help(kind, field, key)
    refuse("--help", "there is no such key", key, accepted="the keys that --cfg job prints",
           typed="python -m dtrain --cfg job")  # fmt: skip


def keys() -> list[str]:
    """Return all keys that have a help: of the whole and of every option of every group."""
    found = []
    inner = (group.replace("/", ".") for group in SCHEMAS)
    for group in ("", *sections(), *inner, "strategy.mesh"):
        for kind in kinds(group):
            found += [f"{group}.{field.name}" if group else field.name
                      for field in dataclasses.fields(kind)]  # fmt: skip
    return list(dict.fromkeys(found))


def lines(kind: type) -> dict[str, str]:
    """Return the help of each field of a dataclass, those that it inherits as well."""
    help_by_name: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        _, _, attributes = (each.__doc__ or "").partition("Attributes:\n")
        help_by_name |= {
            name: " ".join(text.split()) for _, name, text in _LINE.findall(attributes)
        }
    return help_by_name


def described(kind: type, group: str) -> dict[str, Help]:
    """Return the help of each field of a dataclass that stands at ``group``, ``""`` for the top."""
    return {
        field.name: _help(kind, field, f"{group}.{field.name}".lstrip("."))
        for field in dataclasses.fields(kind)
    }


def _help(kind: type, field: dataclasses.Field[Any], key: str) -> Help:
    line = lines(kind)[field.name]
    group = key.replace(".", "/")
    if group in GROUPS:
        return Help("group", GROUPS[group], ", ".join(options(group)), line)
    if key in sections():
        return Help("group", None, f"{key}.KEY=VALUE", line)
    return Help(_type(field), _default(field), accepted(field), line)


def sections() -> dict[str, Any]:
    """Return the dataclasses of groups that are not open, and of what is in them."""
    return {
        field.name: field.default_factory
        for field in dataclasses.fields(schema.Config)
        if dataclasses.is_dataclass(field.default_factory)
    }


def kinds(group: str) -> list[type]:
    """Return the dataclasses of what may stand at ``group``, that of the default option first."""
    if not group:
        return [schema.Config]
    if group == "strategy.mesh":
        return [strategies.Mesh]
    if group in sections():
        return [sections()[group]]
    path = group.replace(".", "/")
    first, known = GROUPS.get(path), SCHEMAS.get(path, {})
    return [known[name] for name in sorted(known, key=lambda name: name != first)]


def _type(field: dataclasses.Field[Any]) -> str:
    if isinstance(field.default, enum.Enum):
        return "one of several names"
    words = str(field.type).replace("list[", "list of ").replace("]", "").split(" | ")
    names = {"str": "text", "None": "null", "Any": "any value", "bool": "true or false",
             "Switch": "true, false or auto",
             "int": "whole number", "float": "number", "list of int": "list of whole numbers",
             "list of str": "list of texts", "list of Any": "list"}  # fmt: skip
    return " or ".join(names.get(word, word) for word in words)


def _default(field: dataclasses.Field[Any]) -> str | None:
    value = field.default
    if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    return None if value == "???" else typed(value)
