"""Names of Keras and PyTorch, and arguments of functions and classes: those that there are.

A name is looked up in the list of its package (``config/public``), without an import. Names of the
user's modules, and what a function or class takes, are known in the process that has the framework
(:func:`check_arguments`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dtrain.config import trust
from dtrain.config.node import nodes
from dtrain.config.targets import bind, check_kinds, signature_of
from dtrain.config.trust import KNOWN
from dtrain.data.options import divided
from dtrain.errors import nearest, refuse
from dtrain.host.packages import version

#: Of the lists, one a package (``python -m tests.public_names`` writes them).
FOLDER = Path(__file__).with_name("public")
#: Metrics of classes that dtrain makes of Keras': a mean over the classes, or of all together.
SCORES = (
    "f1", "f1_macro", "f1_micro", "f1_weighted", "precision_macro", "precision_micro",
    "precision_weighted", "recall_macro", "recall_micro", "recall_weighted", "auc_macro",
    "auc_micro",
)  # fmt: skip
#: Begins the names of losses of PyTorch's, which are given as they are imported.
TORCH = "torch."
#: Value of ``trainer.loss`` and ``trainer.metrics``; and what the metrics may be.
AUTO, OF_AUTO = "auto", ("accuracy", "mae", "binary_accuracy")
#: By key of ``trainer``, what it is, and what is compiled as text beside the names of Keras'.
_TEXTS = {
    "loss": ("loss", "losses", (AUTO,)),
    "metrics": ("metric", "metrics", (AUTO, *SCORES, "accuracy", "acc", "crossentropy", "ce")),
}
#: Arguments of Keras' optimizers that optimizers of PyTorch's have here, too.
_OF_ALL = ("schedule", "learning_rate", "clipnorm", "global_clipnorm", "clipvalue")


def check(config: Mapping[str, Any]) -> None:
    """Refuse names of Keras and PyTorch that do not exist, where their lists say so.

    Args:
        config: plain, and what may be called in it is known to be trusted.

    Raises:
        UsageError: naming the key, with the nearest name.
    """
    own = False  # whose code may register names
    for key, node, _ in nodes(config, ""):
        _check_public(f"{key}._target_", node["_target_"])
        own = own or node["_target_"].split(".")[0] not in KNOWN
    for name in () if own else _TEXTS:
        for text in _texts((config.get("trainer") or {}).get(name)):
            _check_text(name, text)


@functools.cache
def _public(package: str) -> dict[str, list[str]]:
    """Return the names of each module of a package that its list has."""
    file = FOLDER / f"{package}.txt"
    lines = file.read_text(encoding="utf-8").splitlines()[1:] if file.is_file() else []
    return {line.partition(": ")[0]: line.partition(": ")[2].split() for line in lines}


@functools.cache
def _is_of_this_version(package: str) -> bool:
    """Say whether a package is installed in the version that its list was made for."""
    with (FOLDER / f"{package}.txt").open(encoding="utf-8") as file:
        return file.readline().split() == [package, str(version(package)).partition("+")[0]]


def _check_public(key: str, target: str) -> None:
    """Refuse a name that a module does not have, as far as there is a list."""
    package, *_ = parts = target.split(".")
    for position in range(1, len(parts)):
        names = _public(package).get(".".join(parts[:position]))
        if names is not None and parts[position] not in names and _is_of_this_version(package):
            raise trust.missing(key, target, position, names)


def _texts(value: Any) -> Iterator[str]:
    """Yield the losses or metrics of all outputs that are texts."""
    if isinstance(value, str):
        yield value
    elif not isinstance(value, Mapping):
        for each in value or ():
            yield from _texts(each)
    elif "_target_" not in value:
        yield from _texts([*value.values()])


def _check_text(name: str, value: str) -> None:
    """Refuse a loss or a metric that is a text and none of Keras'."""
    key, (what, module, more) = f"trainer.{name}", _TEXTS[name]
    if value.startswith(TORCH):
        trust.check({"_target_": value}, key)
        _check_public(key, value)
        return
    names = {*_public("keras")[f"keras.{module}.get"], *more}
    if value in names or not _is_of_this_version("keras"):
        return
    from dtrain.config import suggest  # with pydantic: a task that refuses nothing does without

    near = nearest(value, sorted(each for each in names if each == each.lower()))
    advice = suggest.rows().get(f"{key}={value.lower()}")
    typed = near and (f"{key}={near}" if name == "loss" else f"'{key}=[{near}]'")
    refuse(key, f"is no {what} that Keras knows", value,
           accepted=f"names of keras.{module}, or nodes with _target_",
           **(advice or ({"typed": typed} if typed else {"hint": f"{key}=NAME"})))  # fmt: skip


def check_arguments(config: Mapping[str, Any]) -> None:
    """Refuse names and arguments that there are not: what is named is imported, and not called.

    Args:
        config: plain; groups of a configuration.

    Raises:
        UsageError: naming the key, with the nearest name or argument.
    """
    for key, node, inner in nodes(config, ""):
        if trust.takes_own(key):
            function = trust.locate(node["_target_"], f"{key}._target_", inner)
            _check_arguments(key, node, function)


def _check_arguments(key: str, node: Mapping[str, Any], function: Any) -> None:
    target, signature = node["_target_"], _signature(function, key)
    if (
        key.startswith("trainer.callbacks")
        and inspect.isclass(function)
        and not hasattr(function, "set_model")
    ):
        refuse(f"{key}._target_", "is a class that is no callback", target,
               accepted="a subclass of keras.callbacks.Callback",
               hint="class NAME(keras.callbacks.Callback)")  # fmt: skip
    arguments = divided(node)[0] if key == "dataset" or key.startswith("dataset.members") else node
    passed = ("_target_", "_partial_", *(_OF_ALL if key == "optimizer" else ()))
    given = {
        name: object() if isinstance(value, Mapping) and "_target_" in value else value
        for name, value in arguments.items() if name not in passed
    }  # fmt: skip
    bind(target, signature, given, key, partial=True)  # a run fills in others
    if target.split(".")[0] in KNOWN:
        check_kinds(target, signature, given, key)


def _signature(function: Any, key: str) -> inspect.Signature:
    """Return the parameters; of Keras' optimizers those behind ``**kwargs``, too."""
    signature = signature_of(function)
    module = str(getattr(function.__init__, "__module__", ""))
    if key != "optimizer" or not module.startswith("keras."):
        return signature
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    base = next(each for each in function.__mro__ if each.__name__ == "BaseOptimizer")
    names = inspect.signature(base.__init__).parameters.keys() - {"self", "kwargs", *_OF_ALL}
    more = sorted(names - signature.parameters.keys())
    return inspect.Signature(
        [*own, *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in more)]
    )
