"""Names and arguments of functions and classes: those that there are.

A name of Keras or PyTorch is looked up in the list of its package (``config/public``), one of a
user's module in its file, without an import. What a function or class takes is known in the
process that has the framework (:func:`check_arguments`).
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from dtrain.config import early_stopping, kinds, suggest, targets
from dtrain.config.callables import KNOWN, bind, check_kinds, signature_of
from dtrain.config.objective import SPEED
from dtrain.data.options import divided
from dtrain.errors import UsageError, nearest

#: Of the lists, one a package (``python -m tests.public_names`` writes them).
FOLDER = Path(__file__).with_name("public")
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
#: Arguments that some layers of Keras' take and no signature has.
_BEHIND = (
    "alpha",
    "batch_input_shape",
    "implementation",
    "input_dim",
    "input_length",
    "input_shape",
    "rms_scaling",
    "vocabulary_size",
)
_HIDDEN = object()


def check(config: Mapping[str, Any]) -> None:
    """Refuse names of what does not exist.

    Args:
        config: plain, and what may be called in it is known to be trusted.

    Raises:
        UsageError: naming the key, with the nearest name.
    """
    targets_by_key = [(key, node["_target_"]) for key, node, _ in nodes(config, "")]
    for key, target in targets_by_key:
        if target.split(".")[0] in KNOWN:
            _check_public(f"{key}._target_", target)
        else:
            _check_own(f"{key}._target_", target)
    if all(target.split(".")[0] in KNOWN for _, target in targets_by_key):
        # Code of the user's may register names.
        trainer = config.get("trainer") or {}
        _check_texts("trainer.loss", trainer.get("loss"), "loss", "losses", ())
        _check_texts(
            "trainer.metrics", trainer.get("metrics"), "metric", "metrics", (*_CHOSEN, *SCORES)
        )
        _check_monitors(trainer)
        _check_objective(config, trainer)


def nodes(node: Any, key: str, inner: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """Yield what names a function or class, by its key, and whether it is an argument of another.

    Args:
        node: of the configuration.
        key: of it.
        inner: it is an argument.
    """
    if isinstance(node, Mapping):
        if isinstance(target := node.get("_target_"), str) and "." in target:
            yield key, node, inner
            inner = True
        for name, value in node.items():
            yield from nodes(value, f"{key}.{name}" if key else str(name), inner)
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from nodes(value, f"{key}[{index}]", inner)


# -- arguments -----------------------------------------------------------------------------------


def check_arguments(config: Mapping[str, Any]) -> None:
    """Refuse arguments that a function or class does not take: it is imported, and not called.

    Args:
        config: plain; groups of a configuration.

    Raises:
        UsageError: naming the key, with the nearest argument.
    """
    for key, node, inner in nodes(config, ""):
        if kinds.takes_own(key):
            _check_arguments(key, node, targets.locate(node["_target_"], f"{key}._target_", inner))


def _check_arguments(key: str, node: Mapping[str, Any], function: Any) -> None:
    target, signature = node["_target_"], _signature(function)
    if (
        key.startswith("trainer.callbacks")
        and inspect.isclass(function)
        and not hasattr(function, "set_model")
    ):
        raise UsageError(
            f"{key}._target_", target, "is a class that is no callback",
            "a subclass of keras.callbacks.Callback", "class NAME(keras.callbacks.Callback)",
        )  # fmt: skip
    arguments = divided(node)[0] if key == "dataset" or key.startswith("dataset.members") else node
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
    if target.startswith("keras.layers."):
        made = {n: value for n, value in made.items() if n in names or n not in _BEHIND}
    made = dict.fromkeys(name for name in filled if name in names) | made
    partial = bool(node.get("_partial_")) or key == "action.function"
    if key.startswith(("trainer.", "dataset.augment")) and not inspect.isclass(function):
        partial = True  # a function of (y_true, y_pred)
    bind(target, signature, made, key, partial)
    if target.split(".")[0] in KNOWN:
        check_kinds(target, signature, made, key)


def _signature(function: Any) -> inspect.Signature:
    """Return the parameters; of Keras' optimizers and layers those behind ``**kwargs``, too."""
    signature = signature_of(function)
    keras = sys.modules.get("keras")
    if keras is None or not inspect.isclass(function):
        return signature
    chain = [each for each in function.__mro__ if "__init__" in vars(each)]
    of_keras = chain[0].__module__.split(".")[0] == "keras"
    kind = keras.optimizers.Optimizer, keras.layers.Layer
    if not of_keras or not issubclass(function, kind) or issubclass(function, keras.Model):
        return signature
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    if len(own) == len(signature.parameters):
        return signature
    names = dict.fromkeys(
        name for each in chain for name in signature_of(vars(each)["__init__"]).parameters
    )
    hidden = {"self", "args", "kwargs", *signature.parameters}
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_HIDDEN)
        for name in names if name not in hidden
    ]  # fmt: skip
    return inspect.Signature([*own, *more])


# -- public names --------------------------------------------------------------------------------


@functools.cache
def _public(package: str) -> dict[str, list[str]]:
    """Return the names of each module of a package that its list has."""
    file = FOLDER / f"{package}.txt"
    lines = file.read_text(encoding="utf-8").splitlines()[1:] if file.is_file() else []
    return {line.partition(": ")[0]: line.partition(": ")[2].split() for line in lines}


def version(package: str) -> str | None:
    """Return the version of a package that is installed, without what it was built for."""
    import importlib.metadata  # where a name is missing: it takes time

    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _is_of_this_version(package: str) -> bool:
    """Say whether a package is installed in the version that its list was made for."""
    with (FOLDER / f"{package}.txt").open(encoding="utf-8") as file:
        return file.readline().split() == [package, version(package)]


def _check_public(key: str, target: str) -> None:
    """Refuse a name that a module of Keras or PyTorch does not have, as far as there is a list."""
    package, *_ = parts = target.split(".")
    for position in range(1, len(parts)):
        names = _public(package).get(".".join(parts[:position]))
        if names is None or parts[position] in names:
            continue
        if _is_of_this_version(package):
            raise targets.missing(key, target, position, names)


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
        names = _public("keras").get(f"keras.{package}.get", ())
        if value in {*names, *more} or not _is_of_this_version("keras"):
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


def _snake(name: str) -> str:
    """Return the name of a class as Keras writes it in texts."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


# -- metrics that callbacks and the objective name ----------------------------------------------


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
    metric_names = {*_public("keras").get("keras.metrics.get", ()), *_CHOSEN}
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
    """Refuse a name that a user's module does not define, by what its file says."""
    parts = target.split(".")
    path, depth = _module(parts)
    names = None if path is None else _defined(path)
    if names is not None and parts[depth] not in names:
        raise targets.missing(key, target, depth, names)


def _module(parts: list[str]) -> tuple[Path | None, int]:
    """Return the file of the module that a name begins with, and of how many parts its name is."""
    path: list[str] = [*sys.path, os.getcwd()]
    file, depth = None, 0
    for length in range(1, len(parts)):
        name = ".".join(parts[:length])
        if name in sys.modules:
            return None, 0  # of the caller of the Python API, who may have changed it
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            break
        file, depth = Path(spec.origin), length
        if spec.submodule_search_locations is None:
            break
        path = list(spec.submodule_search_locations)
    return (file if file is not None and file.suffix == ".py" else None), depth


def _defined(path: Path) -> set[str] | None:
    """Return the names that a module defines; None where it may have others."""
    try:
        pending: list[ast.AST] = [ast.parse(path.read_bytes())]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    names: set[str] = set()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(each.asname or each.name).split(".")[0] for each in node.names}
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
        pending += ast.iter_child_nodes(node)
    changed = {"*", "__getattr__", "globals", "vars", "locals", "exec", "eval", "setattr"}
    return None if names & changed else names
