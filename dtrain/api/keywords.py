"""Keywords of the Python API, and the overrides that they stand for.

Their values as Hydra writes them; and what to type in the place of what Keras' ``compile`` and
``fit`` take.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dtrain.config.overrides import key_of, parse
from dtrain.errors import UsageError, nearest, quoted, refuse
from dtrain.files.fields import Values
from dtrain.host import pyproject
from dtrain.run.folder import CHECKS

_KEY = re.compile(r"[A-Za-z_][\w.-]*|\d+")


def write_value(value: object, key: str, hint: str | None = None) -> str:
    """Return a value as it stands behind the ``=`` of an override.

    Args:
        value: a number, text, path, None, truth value, or a list or mapping of these.
        key: for messages.
        hint: what to give instead.

    Raises:
        UsageError: it is something else.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # of NumPy
        value = value.item()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return quoted(str(value))
    if isinstance(value, list | tuple):
        return "[" + ",".join(write_value(part, key) for part in value) + "]"
    if isinstance(value, Mapping):
        for name in value:
            if isinstance(name, bool) or not _KEY.fullmatch(str(name)):
                refuse(key, "cannot be a name in a configuration", shortened(name),
                       hint=f"{key}=... with letters, digits, . and _")  # fmt: skip
        return "{" + ",".join(f"{n}:{write_value(part, key)}" for n, part in value.items()) + "}"
    if hasattr(value, "tolist"):  # an array
        hint = f"{key}=VALUES.tolist()"
    elif hint is None and callable(value):  # an argument of a partial: on_epoch_end=show
        hint = f"def make(): return KIND(NAME={getattr(value, '__name__', 'FUNCTION')}), and make"
    refuse(key, f"is {type(value).__name__}, and no value of a configuration", shortened(value),
           accepted="numbers, texts, lists and mappings", hint=hint or f"{key}=VALUE")  # fmt: skip


def shortened(value: object) -> str:
    """Return a value in one line of a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


#: What a run that is resumed keeps as it is.
OF_FORKS = ("model", "data", "validation", "loss", "metrics", "callbacks", "checkpoint")
#: What a keyword of the API takes in the place of an object.
OPTIONS = {
    "learning_rate": "learning_rate=0.1, schedule='cosine'",
    "optimizer": "optimizer='sgd', learning_rate=0.1, overrides=['optimizer.momentum=0.9']",
    "strategy": "strategy='mirrored', devices=2",
    "schedule": "schedule='cosine', learning_rate=0.1",
}


def refusal(value: object, key: str) -> UsageError:
    """Return the refusal of an object where a function or class is asked for."""
    keras: Any = sys.modules.get("keras")
    shown = f"{type(value).__name__} {shortened(value)}"
    accepted = "a function or class that makes it, in the processes that train"
    if isinstance(value, functools.partial):
        problem = "has arguments without their names"
        hint = f"{key}=functools.partial(build, width=64)"
    elif keras is not None and isinstance(value, keras.Model):
        problem = "was made in this process, and each process that trains makes its own"
        hint = "def build(): return keras.Sequential([...]), and model=build"
    elif callable(getattr(type(value), "get_config", None)) or hasattr(value, "on_epoch_end"):
        problem = "was made in this process, and each process that trains makes its own"
        hint = f"{key}=functools.partial({type(value).__name__}, NAME=VALUE)"
    else:
        problem = "is no function or class"
        hint = f"{key}=build, or functools.partial(build, width=64), of a function of yours"
    return UsageError(key, problem, shown, accepted=accepted, hint=hint)


#: Short words for keys; everything else is typed in ``overrides=[...]``.
TABLE = {
    "backend": "backend",
    "batch_size": "trainer.batch_size",
    "class_weight": "trainer.class_weight",
    "debug": "debug",
    "devices": "hardware.devices",
    "epochs": "trainer.epochs",
    "experiment": "experiment",
    "hardware": "hardware",
    "hosts": "hardware.hosts",
    "launcher": "launcher",
    "learning_rate": "optimizer.learning_rate",
    "name": "name",
    "objective": "objective",
    "optimizer": "optimizer",
    "output_dir": "output_dir",
    "precision": "hardware.precision",
    "schedule": "optimizer/schedule",
    "seed": "seed",
    "steps_per_epoch": "trainer.steps_per_epoch",
    "strategy": "strategy",
    "target": "dataset.target",
    "tracking": "tracking",
    "validation_split": "dataset.validation_split",
    "workers": "strategy.workers",
}
#: What a call says by itself, and no override may, as of the keys with the mark ``call``.
_OF_HYDRA = ("hydra.run.dir", "hydra.sweep.dir", "hydra.mode")


def words_of(values: Values, call: str, own: Iterable[str] = (), swept: bool = False) -> list[str]:
    """Return the overrides that keywords stand for.

    Args:
        values: keywords of :data:`TABLE`.
        call: the function of the API, for messages.
        own: keywords that it takes besides.
        swept: a list is several values.

    Raises:
        UsageError: a keyword is not known, or a value is none of a configuration.
    """
    words = []
    for name, value in values.items():
        if name not in TABLE:
            raise _unknown(name, value, call, [*own, *TABLE])
        if name == "output_dir" and isinstance(value, str):  # no shell has seen it
            value = os.path.expanduser(value)
        several = value if swept and isinstance(value, list | tuple) else [value]
        if isinstance(value, list | tuple) and not several:
            refuse(name, "has no value", "[]", hint=f"{name}=[VALUE]")
        texts = [write_value(each, name, OPTIONS.get(name)) for each in several]
        words.append(f"{TABLE[name]}={','.join(texts)}")
    return words


def _unknown(name: str, value: object, call: str, known: list[str]) -> UsageError:
    from dtrain.config import suggest  # `import dtrain` imports no library

    near = nearest(name, known)
    usual = suggest.tables()["keyword"].get(name, {}).get("typed")
    if usual and suggest.VALUE in usual:
        usual = usual.replace(suggest.VALUE, write_value(value, name))
    if call == "Run.resume" and name in OF_FORKS:
        usual = f"run.fork({name}=...), which begins a new run with the weights of this one"
    usual = usual or (f"{near}=..., or " if near else "") + "overrides=['KEY=VALUE']"
    return UsageError(name, f"is no keyword of dtrain.{call}", shortened(value), hint=usual,
                      accepted=f"{', '.join(sorted(known))}; others in "
                      "overrides=[...]")  # fmt: skip


def check(overrides: Iterable[str] | str) -> list[str]:
    """Return the overrides of a call.

    Raises:
        UsageError: one is an option of the command line, or says what the call itself says.
    """
    words = [overrides] if isinstance(overrides, str) else [str(each) for each in overrides]
    from dtrain.config import schema  # `import dtrain` imports no library

    for text in words:
        if text.startswith("-") or "=" not in text:
            refuse("overrides", "is no override", text, accepted="KEY=VALUE or GROUP=OPTION",
                   typed="overrides=['trainer.epochs=3']")  # fmt: skip
        if key_of(text) in (*schema.having(mark="call"), *_OF_HYDRA):
            refuse(key_of(text), "is what the call itself says", parse(text).value or "",
                   accepted="overrides of the configuration",
                   hint="run.resume(), run.fork(), or the command line")  # fmt: skip
    return words


def place(overrides: Iterable[str]) -> str:
    """Return the folder that runs, or checks, go to.

    Raises:
        UsageError: it is no folder of this machine.
    """
    values = {key_of(text): (parse(text).value or "").strip("'\"") for text in overrides}
    folder = values.get("output_dir") or pyproject.output_dir()
    if "://" in folder or "${" in folder:
        refuse("output_dir", "is no folder of this machine, as the Python API needs one", folder)
    return folder if values.get("debug", "none") == "none" else f"{folder}/{CHECKS}"
