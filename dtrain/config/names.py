"""Names that can be known before TensorFlow starts: what is in files is read, and not imported.

Of Keras these are its public names, and those that its losses and metrics have as texts; of a
user's module what it defines; of both what a function or class takes. Where a file could make
names in other ways, nothing is refused here: the task finds out.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dtrain.config import early_stopping, kinds, sources, suggest, targets
from dtrain.config.callables import KNOWN, bind, check_kinds
from dtrain.config.objective import SPEED
from dtrain.data.options import divided
from dtrain.errors import UsageError, nearest

#: What a model is compiled with as text, beside the names of metrics.
_CHOSEN = ("accuracy", "acc", "crossentropy", "ce")
#: Metrics of classes that dtrain makes of Keras': a mean over the classes, or of all together.
SCORES = (
    "f1", "f1_macro", "f1_micro", "f1_weighted", "precision_macro", "precision_micro",
    "precision_weighted", "recall_macro", "recall_micro", "recall_weighted", "auc_macro",
    "auc_micro",
)  # fmt: skip
#: Begins the names of losses of PyTorch's, which are given as they are imported.
TORCH = "torch."
#: Value of ``objective``, ``trainer.loss`` and ``trainer.metrics``; and what the metrics may be.
AUTO, OF_AUTO = "auto", ("accuracy", "mae", "binary_accuracy")
#: Arguments of Keras' optimizers that clip gradients: optimizers of PyTorch's have them here, too.
CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")
_NO_RATE = ("learning_rate", None)
#: Callbacks of Keras' that look at a number by its name, and what they look at by default.
_MONITORS = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
MONITORED = "val_loss"
#: Arguments that a run fills in.
_FILLED = {
    "model": ("input_shape", "classes", "outputs", "encoding"),
    "optimizer": (
        "params", "parameters", "param_groups", "named_parameters", "model", "module",
    ),
    "optimizer.schedule": (
        "learning_rate", "total_steps", "steps_per_epoch", "initial_learning_rate", "decay_steps",
        "optimizer", "max_lr", "T_max",
    ),
}  # fmt: skip


def check(config: Mapping[str, Any]) -> None:
    """Refuse names of what does not exist.

    Args:
        config: plain, and what may be called in it is known to be trusted.

    Raises:
        UsageError: naming the key, with the nearest name.
    """
    named = list(nodes(config, ""))
    for key, node in named:
        target = node["_target_"]
        if target.split(".")[0] == "keras":
            _check_keras(f"{key}._target_", target)
        elif target.split(".")[0] not in KNOWN:
            _check_own(f"{key}._target_", target)
        if kinds.takes_own(key):
            _check_arguments(key, node)
    if all(node["_target_"].split(".")[0] in KNOWN for _, node in named):
        # Code of the user's may register names.
        trainer = config.get("trainer") or {}
        _check_texts("trainer.loss", trainer.get("loss"), "loss", "losses", ())
        _check_texts(
            "trainer.metrics", trainer.get("metrics"), "metric", "metrics", (*_CHOSEN, *SCORES)
        )
        _check_monitors(trainer)
        _check_objective(config, trainer)


def nodes(node: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what names a function or class, by its key."""
    if isinstance(node, Mapping):
        if isinstance(target := node.get("_target_"), str) and "." in target:
            yield key, node
        for name, value in node.items():
            yield from nodes(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from nodes(value, f"{key}[{index}]")


def _check_arguments(key: str, node: Mapping[str, Any]) -> None:
    """Refuse arguments that a function or class does not take, as far as its file says so."""
    target = node["_target_"]
    signature = sources.signature(target)
    if signature is None:
        return
    arguments = divided(node)[0] if key == "dataset" or key.startswith("dataset.members.") else node
    filled = _FILLED.get(key, ())
    made = {
        name: object() if isinstance(value, Mapping) and "_target_" in value else value
        for name, value in arguments.items()
        if name not in ("_target_", "_partial_")
        # A schedule makes the rate; without one, null leaves it to the optimizer.
        and not (key == "optimizer" and (name == "schedule" or (name, value) == _NO_RATE))
    }
    names = signature.parameters
    by_lr = "lr" in names and "learning_rate" not in names  # of PyTorch's kind
    if key == "optimizer" and (target.startswith("torch.") or by_lr):
        made = {{"learning_rate": "lr"}.get(name, name): value for name, value in made.items()}
        made = {name: value for name, value in made.items() if name not in CLIPS}
    made = dict.fromkeys(name for name in filled if name in names) | made
    partial = bool(node.get("_partial_")) or key == "action.function"
    if key.startswith(("trainer.", "dataset.augment")) and not sources.is_class(target):
        partial = True  # a function of (y_true, y_pred)
    bind(target, signature, made, key, partial)
    if target.split(".")[0] in KNOWN:
        check_kinds(target, signature, made, key)


# -- Keras ---------------------------------------------------------------------------------------


@functools.cache
def _keras() -> Path | None:
    spec = importlib.util.find_spec("keras")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _check_keras(key: str, target: str) -> None:
    """Refuse a name that a public package of Keras' does not have."""
    _, *parts = target.split(".")
    folder = _keras()
    for position, part in enumerate(parts, 1):
        names = None if folder is None else _public(folder)
        if names is None or folder is None:
            return  # a class, whose attributes are not known
        if part not in names:
            raise targets.missing(key, target, position, names)
        folder = folder / part


@functools.cache
def _public(folder: Path) -> set[str] | None:
    """Return the names of a package of Keras', and the modules in it."""
    names = sources.defined(folder / "__init__.py")
    if names is None:
        return None
    modules = {path.stem for path in folder.glob("*.py")}
    return names | modules | {path.parent.name for path in folder.glob("*/__init__.py")}


def _check_texts(key: str, value: Any, what: str, package: str, more: tuple[str, ...]) -> None:
    """Refuse a loss or a metric that is a text and none of Keras'."""
    if isinstance(value, Mapping):
        if "_target_" not in value:
            for each in value.values():
                _check_texts(key, each, what, package, more)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_texts(key, each, what, package, more)
    elif isinstance(value, str) and value.startswith(TORCH):
        targets.check({"_target_": value}, key)
    elif isinstance(value, str) and value != AUTO:
        names = _texts(package)
        if names is None or value in {*names, *more}:
            return
        lower = sorted(name for name in {*names, *more} if name == name.lower())
        begun = (name for name in lower if name.startswith(f"{value.lower()}_"))
        near = next(begun, None) or nearest(value, lower) or "NAME"
        hint = f"{key}={near}" if what == "loss" else f"'{key}=[{near}]'"
        if what == "loss":
            hint = suggest.corrected("trainer.loss", value) or hint
        raise UsageError(
            key, value, f"is no {what} that Keras knows",
            f"names of keras.{package}, or nodes with _target_", hint,
        )  # fmt: skip


@functools.cache
def _texts(package: str) -> frozenset[str] | None:
    """Return the texts that ``keras.losses.get`` or ``keras.metrics.get`` takes."""
    folder = _keras()
    tree = None if folder is None else sources.tree(folder / "src" / package / "__init__.py")
    names: set[str] = set()
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ALL_OBJECTS":
            names |= {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.Dict):
            keys = (k.value for k in node.keys if isinstance(k, ast.Constant))
            names |= {key for key in keys if isinstance(key, str)}
    if len(names) < 10:
        return None  # another version has them in another way
    return frozenset(names | {_snake(name) for name in names})


def _snake(name: str) -> str:
    """Return the name of a class as Keras writes it in texts."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def monitored(callbacks: Any, stopping: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys of Keras' callbacks that look at a number, each with its name.

    Args:
        callbacks: ``trainer.callbacks``.
        stopping: ``trainer.early_stopping``.
    """
    if (name := early_stopping.monitor(stopping)) is not None:
        yield f"{early_stopping.KEY}.monitor", name
    for index, node in enumerate(callbacks or ()):
        head, _, name = str(node.get("_target_")).rpartition(".")
        if head != "keras.callbacks" or name not in _MONITORS:
            continue
        if name != "ModelCheckpoint" or node.get("save_best_only"):
            yield f"trainer.callbacks[{index}].monitor", node.get("monitor", MONITORED)


def check_monitor(key: str, name: str, names: list[str]) -> None:
    """Refuse a callback that looks at a number which the run does not have.

    Raises:
        UsageError: naming the number that is meant.
    """
    if name in names or name == "learning_rate":
        return
    near = _number(name, names)
    raise UsageError(
        key, name, "is not among the metrics of this run, and the callback would never act",
        ", ".join(names), f"monitor:{near} in the callback" if near else "one of these",
    )  # fmt: skip


def check_objective(name: str, names: list[str]) -> None:
    """Refuse an objective that the run does not have.

    Raises:
        UsageError: naming the number that is meant.
    """
    if name in (AUTO, SPEED, *names):
        return
    near = _number(name, names)
    raise UsageError(
        "objective", name, "is not among the metrics of this run", ", ".join(names),
        f"objective={near}" if near else "objective=auto, or one of these",
    )  # fmt: skip


def _number(name: str, names: list[str]) -> str | None:
    """Return the metric that is meant by a name: of the validation where that is said."""
    bare = nearest(name.removeprefix("val_"), [each for each in names if "val_" not in each])
    if name.startswith("val_") and f"val_{bare}" in names:
        return f"val_{bare}"
    return nearest(name, names) or bare


def _check_monitors(trainer: Mapping[str, Any]) -> None:
    """Look at what callbacks look at, where metrics are texts: these are their names."""
    metrics = trainer.get("metrics")
    if metrics == AUTO:
        metrics = OF_AUTO
    if not isinstance(metrics, list | tuple) or not all(isinstance(m, str) for m in metrics):
        return
    callbacks = trainer.get("callbacks") or ()
    if any(not str(node.get("_target_")).startswith("keras.") for node in callbacks):
        return
    if not isinstance(trainer.get("loss"), str):  # of several outputs there are more numbers
        return
    names = [name for each in ("loss", *metrics) for name in (each, f"val_{each}")]
    names += trainer.get("log") or ()
    for key, name in monitored(callbacks, trainer.get("early_stopping")):
        check_monitor(key, name, names)


def _check_objective(config: Mapping[str, Any], trainer: Mapping[str, Any]) -> None:
    """Look at the objective where model, loss and metrics are such that all numbers are known."""
    metrics = OF_AUTO if trainer.get("metrics") == AUTO else trainer.get("metrics")
    metric_names = {*(_texts("metrics") or ()), *_CHOSEN}
    model = (config.get("model") or {}).get("_target_")
    if (
        not re.match(r"dtrain\.models\.|keras\.applications\.", str(model))
        or not isinstance(trainer.get("loss"), str)
        or not isinstance(metrics, list | tuple)
        or not all(isinstance(each, str) and each in metric_names for each in metrics)
    ):
        return
    names = list(dict.fromkeys(["loss", *metrics, *map(_snake, metrics)]))
    check_objective(str(config.get("objective")), [*names, *(f"val_{name}" for name in names)])


# -- modules of the user's -----------------------------------------------------------------------


def _check_own(key: str, target: str) -> None:
    """Refuse a name that a user's module does not define, and a class that is no callback."""
    parts = target.split(".")
    module = sources.module(target)
    if module is None:
        return
    path, depth = module
    names = sources.defined(path)
    if names is None:
        return
    if parts[depth] not in names:
        raise targets.missing(key, target, depth, names)
    if (home := sources.imported(target, depth)) and not targets.is_home_trusted(home, target):
        raise targets.imported(key, target, home)
    if not key.startswith("trainer.callbacks") or depth != len(parts) - 1:
        return
    tree = sources.tree(path)
    for node in [] if tree is None else tree.body:
        if isinstance(node, ast.ClassDef) and node.name == parts[depth] and _is_nothing(node):
            raise UsageError(
                key, target, "is a class that is no callback",
                "a subclass of keras.callbacks.Callback",
                f"class {node.name}(keras.callbacks.Callback) in {path.name}",
            )  # fmt: skip


def _is_nothing(node: ast.ClassDef) -> bool:
    """Whether a class inherits nothing, and has not what a list of callbacks calls."""
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return not (node.bases or node.keywords or node.decorator_list or "set_model" in methods)
