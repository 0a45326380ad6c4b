"""The whole configuration: its groups, the models of their options, and what Hydra gets of them.

Beside each key stands what it takes, what it decides, and its help. ``conf/`` gives the values; a
key that is not here is refused. A group for which users bring YAML files of their own is open: what
its ``_target_`` names decides which model it is held to.
"""

import functools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Literal, Self

from omegaconf import MISSING, OmegaConf
from pydantic import model_validator

import dtrain
from dtrain.config import fields as f
from dtrain.config.fields import Group, Plain, Scope, scope
from dtrain.config.node import nodes
from dtrain.config.overrides import parse
from dtrain.config.schema import datasets, launchers, models, running, strategies
from dtrain.config.schema.running import Sweep
from dtrain.config.schema.training import Checkpointing, FineTuning, Hardware, Init, Trainer
from dtrain.errors import refuse
from dtrain.host.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from dtrain.config.node import Node as Open
else:
    Open = Plain


#: By backend, the keys that it does not read: the value that they have then, and why there is no
#: other.
UNREAD: dict[str, dict[str, tuple[str, str]]] = {
    "tensorflow": {
        "trainer.compile": ("false", "TensorFlow compiles steps by XLA (hardware.jit_compile)")
    },
    "jax": {
        "hardware.inter_op_threads": (
            "null", "JAX has one pool of threads (hardware.intra_op_threads)"
        ),
        "hardware.onednn": ("true", "JAX does not use these kernels"),
        "hardware.jit_compile": ("false", "every step of JAX is compiled by XLA"),
        "trainer.compile": ("false", "every step of JAX is compiled by XLA"),
        "strategy.communication": ("auto", "JAX has gloo on CPUs, and NCCL on NVIDIA GPUs"),
        "strategy.tpu": ("local", "a process of JAX runs on a host of the TPU itself"),
        "strategy.zone": ("null", "a process of JAX runs on a host of the TPU itself"),
        "strategy.project": ("null", "a process of JAX runs on a host of the TPU itself"),
    },
    "torch": {
        "hardware.jit_compile": ("false", "PyTorch has torch.compile (trainer.compile)"),
        "strategy.communication": ("auto", "PyTorch has gloo on CPUs, and NCCL on NVIDIA GPUs"),
        "strategy.rules": ("auto", "fully_shard divides the first axis of each parameter"),
    },
}  # fmt: skip


class Config(Group):
    """The whole configuration. Groups for which users bring YAML files of their own are open.

    Rules over keys of several groups are validators of it, each of which names its keys.
    """

    model: Annotated[Open, scope("numbers")]
    """The model: a function that returns a keras.Model."""
    dataset: Annotated[Open, scope("data")]
    """The data: a function that returns dtrain.datasets.Splits."""
    strategy: Annotated[Open, scope("host")]
    """How the training is distributed over devices and hosts."""
    optimizer: Annotated[Open, scope("numbers")]
    """A Keras optimizer, and its learning-rate schedule."""
    action: Annotated[Open, scope("length", "training")]
    """Train; python -m dtrain evaluate and predict set the others."""
    debug: Annotated[Open, scope("length", "training")]
    """A check instead of the training: what is wrong."""
    launcher: Annotated[Open, scope("command")]
    """What starts the tasks of a run."""
    hardware: Hardware = Hardware()
    """Devices, their memory, and the arithmetic on them."""
    trainer: Trainer = Trainer()
    """Batch size, epochs, loss, metrics and callbacks."""
    tracking: Annotated[Open, scope("record", "training")]
    """Where a run is recorded besides its folder."""
    init: Annotated[Init, scope("numbers", "training")] = Init()
    """Weights that a new run begins with."""
    finetune: FineTuning = FineTuning()
    """Frozen weights, unfreezing, learning rates by layer, LoRA."""
    checkpoint: Checkpointing = Checkpointing()
    """When checkpoints are saved, and which are kept."""
    sweep: Annotated[Sweep, scope("command", "training")] = Sweep()
    """Many jobs by one command (-m)."""
    project: Annotated[dict[str, Plain], scope("record")] = {}
    """Keys of your own, for references such as ${project.paths.data}."""
    name: Annotated[f.FileName, scope("record")]
    """Name of the run; by default the chosen model and strategy."""
    backend: Annotated[Literal["tensorflow", "jax", "torch", "auto"], scope("host")] = "auto"
    """Framework on which Keras computes; auto: TensorFlow, if it has the strategy."""
    seed: Annotated[f.Seed, scope("numbers")] = 0
    """Seed of weights, of the order of examples, and of all that is random."""
    output_dir: Annotated[f.Path, scope("record", "training", "sweep")] = "outputs"
    """Folder of the run folders and of the embedded tracking store; or s3://BUCKET/DIR."""
    objective: Annotated[f.Metric, scope("length", "training", "sweep")] = "auto"
    """Metric that the job returns, and by which the best checkpoint is chosen; auto: the first of
    val_accuracy, val_loss, accuracy and loss that the run has."""
    objective_mode: Annotated[Literal["max", "min", "auto"], scope("length", "sweep")] = "auto"
    """Is a larger one better (max) or not (min); auto: min for losses and errors."""
    resume: Annotated[f.Path | None, scope("command", "once", "call", "training")] = None
    """Run folder to resume; latest: the newest; auto: the unfinished one of this command."""
    fork: Annotated[f.Path | None, scope("command", "call", "training")] = None
    """Run folder (latest: the newest) or its checkpoint, whose weights begin a new run."""
    record_code: Annotated[bool, scope("record")] = True
    """Record commit, changes and untracked files for replay."""
    report: Annotated[bool, scope("record", "training")] = True
    """Write report.html at the end: curves, predictions of held-out examples, scores."""
    dry_run: Annotated[bool, scope("command", "once", "call", "sweep")] = False
    """Print the plan and stop."""

    @model_validator(mode="after")
    def _backend_has_strategy(self) -> Self:
        """Refuse a strategy that the backend does not have."""
        backend, having = self._backend(), strategies.backends(self.strategy["_target_"])
        if backend not in having:
            titles = " and ".join(FRAMEWORKS[name].title for name in having)
            other = f"backend={having[0]}"
            refuse("strategy", f"is one of {titles}, and not of {FRAMEWORKS[backend].title}",
                   self.strategy["name"], accepted=f"those of docs/backends.md, or {other}",
                   typed=other)  # fmt: skip
        return self

    @model_validator(mode="after")
    def _backend_reads_keys(self) -> Self:
        """Refuse another value than the default of a key that the backend does not read."""
        backend = self._backend()
        having = strategies.backends(self.strategy["_target_"])
        for key, (accepted, why) in UNREAD[backend].items():
            group, _, name = key.partition(".")
            chosen = getattr(self, group)
            values = vars(chosen) if isinstance(chosen, Group) else chosen
            value = f.typed(values.get(name, accepted))
            if value != accepted:
                readers = [f"backend={name}" for name in having if key not in UNREAD[name]]
                refuse(key, f"is for {' and '.join(readers) or 'other strategies'}: {why}", value,
                       accepted=", or ".join([accepted, *readers[:1]]),
                       typed=f"{key}={accepted}")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _functions_are_of_the_backend(self) -> Self:
        """Refuse PyTorch's losses, metrics and optimizers beside another framework."""
        texts = {"loss": self.trainer.loss, "metrics": self.trainer.metrics}
        groups = {"model": self.model, "optimizer": self.optimizer, "trainer": texts}
        title = FRAMEWORKS[self._backend()].title
        for key, node, _ in nodes(groups, "") if self._backend() != "torch" else ():
            if node["_target_"].split(".")[0] in ("torch", "torchmetrics"):
                refuse(f"{key}._target_", f"is PyTorch's, and {title} takes Keras'",
                       node["_target_"], typed="backend=torch")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _weights_have_rules(self) -> Self:
        """Refuse rules for names of weights where none are read."""
        if self.init.weights is None and self.init.rules:
            refuse("init.rules", "are of init.weights, which is null", "[...]",
                   accepted="init.weights with what they are for",
                   typed="'init.rules=[]'")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _logged_model_is_kept(self) -> Self:
        """Refuse the name of a model that is not logged, and the best one where none is kept."""
        which, name = self.tracking.get("model", "none"), self.tracking.get("register")
        if name is not None and which == "none":
            refuse("tracking.register", "tracking.model=none logs no model that could have a name",
                   name, typed=f"tracking.model=best tracking.register={name}")  # fmt: skip
        if which == "best" and not self.checkpoint.best:
            refuse("tracking.model", "checkpoint.best=false keeps the newest checkpoints alone",
                   which, accepted="final, or checkpoint.best=true",
                   typed="tracking.model=final")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _workers_apply_gradients(self) -> Self:
        """Refuse a sum of gradients that asynchronous workers would share."""
        accumulated = self.optimizer.get("gradient_accumulation_steps")
        if accumulated is not None and self.strategy.get("update") == "async":
            refuse("optimizer.gradient_accumulation_steps", "asynchronous workers would add their "
                   "gradients to one sum", accumulated, accepted="null, or strategy.update=sync",
                   typed="strategy.update=sync")  # fmt: skip
        return self

    def _backend(self) -> str:
        having = strategies.backends(self.strategy["_target_"])
        return having[0] if self.backend == "auto" else self.backend


#: Groups of a project's presets, and of its own keys.
OWN_GROUPS = ("experiment", "project")
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
#: What every option of an open group has, whoever wrote it.
BASES: dict[str, type[Group]] = {
    "dataset": datasets.Dataset,
    "strategy": strategies.Strategy,
    "launcher": launchers.Launcher,
    "tracking": running.Tracking,
    "action": running.Action,
    "debug": running.Debug,
}


def _of_functions(base: type[Group]) -> dict[str, type[Group]]:
    """Return the classes below ``base`` by their functions: ``sgd``, ``schedule_free_adamw``."""
    targets = {kind: target_of(kind) for kind in _below(base)}
    return {_snake(name.rpartition(".")[2]): kind for kind, name in targets.items() if name}


def _of_classes(base: type[Group]) -> dict[str, type[Group]]:
    """Return ``base`` and the classes below it by their own names: ``no_tracker``."""
    return {_snake(kind.__name__): kind for kind in (base, *_below(base))}


def _snake(name: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z][a-z])", "_", name).lower()


def _below(base: type[Group]) -> Iterator[type[Group]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _below(kind)


def target_of(kind: type[Group]) -> str | None:
    """Return the function or class that a model is of; None where several options are of it."""
    field = kind.model_fields.get("target_")
    return None if field is None or field.is_required() else str(field.default)


#: Model of each option, by the group and name that ``conf/`` refers to it with.
SCHEMAS: dict[str, dict[str, type[Group]]] = {
    "model": _of_functions(models.Model),
    "dataset": _of_functions(datasets.Dataset),
    "optimizer": _of_functions(models.Optimizer),
    "optimizer/schedule": _of_functions(models.Schedule),
    **{group: _of_classes(base) for group, base in BASES.items() if group != "dataset"},
}
#: Model of each tracker that stands in a node of its own, ``tracking.NAME``.
SINKS = _of_functions(running.Sink)


def sections() -> dict[str, type[Group]]:
    """Return the groups that are no open ones, and whose options have the same keys."""
    return {
        name: type(field.default)
        for name, field in Config.model_fields.items()
        if isinstance(field.default, Group)
    }


def kinds(group: str) -> list[type[Group]]:
    """Return the models of what may stand at ``group``, that of the default option first."""
    if not group:
        return [Config]
    if group == "strategy.mesh":
        return [strategies.Mesh]
    if group in sections():
        return [sections()[group]]
    if group.startswith("tracking."):
        return [kind for name, kind in SINKS.items() if group == f"tracking.{name}"]
    path = group.replace(".", "/")
    first, known = GROUPS.get(path), SCHEMAS.get(path, {})
    return [known[name] for name in sorted(known, key=lambda name: name != first)]


def kind_of(group: str, node: Mapping[str, Plain]) -> type[Group] | None:
    """Return the model of what stands at an open group, by its function; None for none.

    Of a function that has none it is the model of what every option has.
    """
    schemas = [*SCHEMAS[group].values(), *(SINKS.values() if group == "tracking" else ())]
    target = node.get("_target_")
    return next((kind for kind in schemas if target_of(kind) == target), BASES.get(group))


# -- scopes ----------------------------------------------------------------------------------------


def scope_of(kind: type[Group], name: str) -> Scope:
    """Return the scope of a field: its own, else that of its group."""
    marks = kind.model_fields[name].metadata
    own = next((each for each in marks if isinstance(each, Scope)), None)
    inner = kind.model_fields[name].default
    scope = own or (type(inner) if isinstance(inner, Group) else kind).group_scope
    assert scope is not None, f"{kind.__name__}.{name} has no scope"
    return scope


def having(*of: str, mark: str | None = None) -> tuple[str, ...]:
    """Return the keys with one of some scopes, or with a mark: whole groups, or single keys.

    The options of an open group count by the group.
    """
    keys: list[str] = []
    for name, field in Config.model_fields.items():
        inner = sections().get(name)
        own = inner is None or any(isinstance(each, Scope) for each in field.metadata)
        if own and _fits(scope_of(Config, name), of, mark):
            keys.append(name)
        elif inner is not None:
            fits = [each for each in inner.model_fields if _fits(scope_of(inner, each), of, mark)]
            whole = len(fits) == len(inner.model_fields)
            keys += [name] if whole else [f"{name}.{each}" for each in fits]
    return tuple(keys)


def has_mark(key: str, mark: str) -> bool:
    """Say whether a key, its group, or the key of one of its group's options has a mark."""
    group, _, name = key.rpartition(".")
    top = key.partition(".")[0]
    if top in Config.model_fields and mark in scope_of(Config, top).marks:
        return True
    having = (kind for kind in kinds(group) if name in kind.model_fields)
    return any(mark in scope_of(kind, name).marks for kind in having)


def deciding(kind: type[Group]) -> list[str]:
    """Return the keys of a model that decide data or numbers."""
    return [name for name in kind.model_fields
            if name != "target_" and scope_of(kind, name).of in ("data", "numbers")]  # fmt: skip


def _fits(scope: Scope, of: tuple[str, ...], mark: str | None) -> bool:
    return scope.of in of or mark in scope.marks


def of_hosts(node: Mapping[str, Plain]) -> Iterator[tuple[str, Plain]]:
    """Yield the keys of a launcher, and their values, that say what runs where on other hosts.

    Args:
        node: of the launcher, as plain values. Those of a user's own class are under its trust.
    """
    for kind in SCHEMAS["launcher"].values():
        if target_of(kind) != node.get("_target_"):
            continue
        for name in kind.model_fields.keys() - launchers.Launcher.model_fields.keys():
            if name in node and node[name] != kind.model_fields[name].default:
                yield name, node[name]


# -- files ---------------------------------------------------------------------------------------


def folder(name: str) -> File:
    """Return ``conf`` or ``experiments``: inside an installed package, else in the checkout."""
    package = File(dtrain.__file__).parent
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


def refuse_left_out(choices: Mapping[str, str | None]) -> None:
    """Refuse ``~GROUP`` and ``GROUP=null``: what would be left is no choice.

    Args:
        choices: the option of each group, as Hydra has composed them.

    Raises:
        UsageError: for the first one found.
    """
    for group, default in GROUPS.items():
        if choices.get(group) is None:
            option = "none" if "none" in options(group) else default
            refuse(group, "a group cannot be left out", "null", accepted="one of its options",
                   typed=f"{group}={option}")  # fmt: skip


def defaults(kind: type[Group]) -> dict[str, Plain]:
    """Return the default of each key of a model, ``???`` where the user has to give a value."""
    return {
        name: MISSING if field.is_required()
        else defaults(type(field.default)) if isinstance(field.default, Group) else field.default
        for name, field in f.keyed(kind).items()
    }  # fmt: skip


def register() -> None:
    """Put the defaults and the experiments into Hydra's store, and our plugins where it looks."""
    from hydra.core.config_store import ConfigStore  # not above: some read the models without Hydra

    plugins = str(File(dtrain.__file__).parent / "plugins")
    if plugins not in sys.path:  # at its end: it is for the package `hydra_plugins` alone
        sys.path.append(plugins)
    _register_schemas()
    store = ConfigStore.instance()
    for path in sorted(folder("experiments").glob("*.yaml")):
        # `experiment=NAME` reads experiments/NAME.yaml, whose keys stand at the top.
        node = _experiment(path, path.stat().st_mtime_ns)
        store.store(group="experiment", name=path.stem, node=node, package="_global_")


@functools.cache
def _experiment(path: File, changed: int) -> Plain:
    """Read a file once for all commands of this process; ``changed`` is when it was written."""
    return OmegaConf.load(path)


@functools.cache
def _register_schemas() -> None:
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    # What every tracker has: one in a node of its own brings nothing but that node.
    general = {"tracking": defaults(running.Tracking)}
    store.store(name="config_schema", node=defaults(Config) | general)
    for group, known in [*SCHEMAS.items(), ("tracking", SINKS)]:
        for name, kind in known.items():
            store.store(group=f"schema/{group}", name=name, node=defaults(kind))
