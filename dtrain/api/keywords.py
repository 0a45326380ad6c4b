"""Keywords of the Python API, and the overrides that they stand for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from dtrain.api import hints, values
from dtrain.config.overrides import key_of, parse
from dtrain.errors import UsageError, nearest
from dtrain.run.folder import CHECKS

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
    "tracking": "tracking",
    "validation_split": "dataset.validation_split",
    "workers": "strategy.workers",
}
#: What a call says by itself, and no override may.
_OF_CALLS = ("resume", "fork", "sweep.resume", "dry_run", "hydra.run.dir", "hydra.sweep.dir",
             "hydra.mode")  # fmt: skip


def plain(
    given: Mapping[str, Any], call: str, own: Iterable[str] = (), swept: bool = False
) -> list[str]:
    """Return the overrides that keywords stand for.

    Args:
        given: keywords of :data:`TABLE`.
        call: the function of the API, for messages.
        own: keywords that it takes besides.
        swept: a list is several values.

    Raises:
        UsageError: a keyword is not known, or a value is none of a configuration.
    """
    found = []
    for name, value in given.items():
        if name not in TABLE:
            raise _unknown(name, value, call, [*own, *TABLE])
        if name == "output_dir" and isinstance(value, str):  # no shell has seen it
            value = os.path.expanduser(value)
        several = value if swept and isinstance(value, list | tuple) else [value]
        if isinstance(value, list | tuple) and not several:
            raise UsageError(name, "[]", "has no value", "one value or more", f"{name}=[VALUE]")
        texts = [values.written(each, name, hints.OPTIONS.get(name)) for each in several]
        found.append(f"{TABLE[name]}={','.join(texts)}")
    return found


def _unknown(name: str, value: Any, call: str, known: list[str]) -> UsageError:
    near = nearest(name, known)
    usual = hints.OF_KERAS.get(name)
    if call == "Run.resume" and name in hints.OF_FORKS:
        usual = f"run.fork({name}=...), which begins a new run with the weights of this one"
    return UsageError(
        name, values.shortened(value), f"is no keyword of dtrain.{call}",
        f"{', '.join(sorted(known))}; any other key in overrides=[...]",
        usual or (f"{near}=..., or overrides=['KEY=VALUE']" if near else "overrides=['KEY=VALUE']"),
    )  # fmt: skip


def checked(overrides: Iterable[str] | str) -> list[str]:
    """Return the overrides of a call.

    Raises:
        UsageError: one is an option of the command line, or says what the call itself says.
    """
    found = [overrides] if isinstance(overrides, str) else [str(each) for each in overrides]
    for text in found:
        if text.startswith("-") or "=" not in text:
            raise UsageError(
                "overrides", text, "is no override", "KEY=VALUE or GROUP=OPTION",
                "overrides=['trainer.epochs=3']",
            )  # fmt: skip
        if key_of(text) in _OF_CALLS:
            raise UsageError(
                key_of(text), parse(text).value or "", "is what the call itself says",
                "run.resume(), run.fork(), and overrides of the configuration",
                "the call without it; the command line has it all",
            )  # fmt: skip
    return found


def place(overrides: Iterable[str]) -> str:
    """Return the folder that runs, or checks, go to.

    Raises:
        UsageError: it is no folder of this machine.
    """
    given = {key_of(text): (parse(text).value or "").strip("'\"") for text in overrides}
    found = given.get("output_dir", "outputs")
    if "://" in found or "${" in found:
        raise UsageError(
            "output_dir", found, "is not where the Python API can follow a run",
            "a folder of this machine", "output_dir=outputs, or the command line",
        )  # fmt: skip
    return found if given.get("debug", "none") == "none" else f"{found}/{CHECKS}"
