"""Names that can be known before TensorFlow starts: what is in files is read, and not imported.

Of Keras these are its public names, and those that its losses and metrics have as texts; of a
user's module what it defines. Where a file could make names in other ways, nothing is refused here:
the task finds out.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from dtrain.config import early_stopping, keras_source
from dtrain.config.callables import KNOWN
from dtrain.errors import UsageError, nearest

#: What a model is compiled with as text, beside the names of metrics.
_CHOSEN = ("accuracy", "acc", "crossentropy", "ce")
#: Metrics of classes that dtrain makes of Keras': a mean over the classes, or of all together.
SCORES = (
    "f1", "f1_macro", "f1_micro", "f1_weighted", "precision_macro", "precision_micro",
    "precision_weighted", "recall_macro", "recall_micro", "recall_weighted", "auc_macro",
    "auc_micro",
)  # fmt: skip
#: Value of ``trainer.loss`` and ``trainer.metrics``: by the targets; and what the metrics may be.
AUTO, OF_AUTO = "auto", ("accuracy", "mae")
#: Callbacks of Keras' that look at a number by its name, and what they look at by default.
_MONITORS = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
MONITORED = "val_loss"


def check(config: Mapping[str, Any]) -> None:
    """Refuse names of what does not exist.

    Args:
        config: plain, and what may be called in it is known to be trusted.

    Raises:
        UsageError: naming the key, with the nearest name.
    """
    nodes = list(_nodes(config, ""))
    targets = [(f"{key}._target_", node["_target_"]) for key, node in nodes]
    for (key, target), (place, node) in zip(targets, nodes, strict=True):
        if target.split(".")[0] == "keras":
            _check_keras(key, target)
            keras_source.check_arguments(place, node)
        elif target.split(".")[0] not in KNOWN:
            _check_own(key, target)
    if all(target.split(".")[0] in KNOWN for _, target in targets):  # else it may register names
        trainer = config.get("trainer") or {}
        _check_texts("trainer.loss", trainer.get("loss"), "loss", "losses", ())
        _check_texts(
            "trainer.metrics", trainer.get("metrics"), "metric", "metrics", (*_CHOSEN, *SCORES)
        )
        _check_monitors(trainer)


def _nodes(node: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what names a function or class, by its key."""
    if isinstance(node, Mapping):
        if isinstance(target := node.get("_target_"), str) and "." in target:
            yield key, node
        for name, value in node.items():
            yield from _nodes(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from _nodes(value, f"{key}[{index}]")


def _missing(key: str, target: str, position: int, names: set[str]) -> UsageError:
    parts = target.split(".")
    near = nearest(parts[position], sorted(n for n in names if not n.startswith("_")))
    whole = ".".join([*parts[:position], near or "NAME", *parts[position + 1 :]])
    return UsageError(
        key, target, f"{parts[position]!r} does not exist",
        "a function or class that can be imported from here", f"{key}={whole}",
    )  # fmt: skip


# -- Keras ---------------------------------------------------------------------------------------


def _check_keras(key: str, target: str) -> None:
    """Refuse a name that a public package of Keras' does not have."""
    _, *parts = target.split(".")
    folder = keras_source.folder()
    for position, part in enumerate(parts, 1):
        names = None if folder is None else _public(folder)
        if names is None or folder is None:
            return  # a class, whose attributes are not known
        if part not in names:
            raise _missing(key, target, position, names)
        folder = folder / part


@functools.cache
def _public(folder: Path) -> set[str] | None:
    """Return the names of a package of Keras', and the modules in it."""
    names = _defined(folder / "__init__.py")
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
    elif isinstance(value, str) and value != AUTO:
        names = _texts(package)
        if names is None or value in {*names, *more}:
            return
        lower = sorted(name for name in {*names, *more} if name == name.lower())
        begun = (name for name in lower if name.startswith(f"{value.lower()}_"))
        near = next(begun, None) or nearest(value, lower) or (more[0] if more else "mse")
        hint = f"{key}={near}" if what == "loss" else f"'{key}=[{near}]'"
        raise UsageError(
            key, value, f"is no {what} that Keras knows",
            f"names of keras.{package}, or nodes with _target_", hint,
        )  # fmt: skip


@functools.cache
def _texts(package: str) -> frozenset[str] | None:
    """Return the texts that ``keras.losses.get`` or ``keras.metrics.get`` takes."""
    folder = keras_source.folder()
    tree = None if folder is None else _tree(folder / "src" / package / "__init__.py")
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
    near = nearest(name.removeprefix("val_"), names, cutoff=0.3) or "loss"
    if name.startswith("val_") and f"val_{near}" in names:
        near = f"val_{near}"
    raise UsageError(
        key, name, "is not among the metrics of this run, and the callback would never act",
        ", ".join(names), f"monitor:{near} in the callback",
    )  # fmt: skip


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
    for key, name in monitored(callbacks, trainer.get("early_stopping")):
        check_monitor(key, name, names)


# -- modules of the user's -----------------------------------------------------------------------


def _check_own(key: str, target: str) -> None:
    """Refuse a name that a user's module does not define, and a class that is no callback."""
    parts = target.split(".")
    found = _module(parts)
    if found is None:
        return
    path, depth = found
    names = _defined(path)
    if names is None:
        return
    if parts[depth] not in names:
        raise _missing(key, target, depth, names)
    if not key.startswith("trainer.callbacks") or depth != len(parts) - 1:
        return
    tree = _tree(path)
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


def _module(parts: list[str]) -> tuple[Path, int] | None:
    """Return the file of the module that a name begins with, and of how many parts its name is."""
    path: list[str] = [*sys.path, os.getcwd()]
    found = None
    for depth in range(1, len(parts)):
        name = ".".join(parts[:depth])
        if name in sys.modules:  # of the caller of the Python API, who may have changed it
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            break
        found = Path(spec.origin), depth
        if spec.submodule_search_locations is None:
            break
        path = list(spec.submodule_search_locations)
    return found if found is not None and found[0].suffix == ".py" else None


def _tree(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _defined(path: Path) -> set[str] | None:
    """Return the names that a module defines; None where it may have others."""
    tree = _tree(path)
    if tree is None:
        return None
    names: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue  # what is inside of it is no name of the module
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(each.asname or each.name).split(".")[0] for each in node.names}
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
        pending += ast.iter_child_nodes(node)
    changed = {"*", "__getattr__", "globals", "vars", "locals", "exec", "eval", "setattr"}
    return None if names & changed else names
