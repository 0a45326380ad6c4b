"""What to type here in the place of what Keras' ``compile`` and ``fit`` take."""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

from dtrain.api import values
from dtrain.errors import UsageError

#: Arguments of Keras', and of older versions of it, that are called something else here.
OF_KERAS = {
    "x": "data=(x, y)",
    "y": "data=(x, y)",
    "dataset": "data=(x, y)",
    "sample_weight": "data=(x, y, weight)",
    "validation_data": "validation=(x, y)",
    "verbose": "show=False",
    "lr": "learning_rate=0.001",
    "initial_epoch": "run.resume(epochs=N)",
    "shuffle": "overrides=['dataset.shuffle=none']",
    "loss_weights": "overrides=['trainer.loss_weights={NAME: 1.0}']",
    "validation_steps": "overrides=['trainer.validation_steps=10']",
    "validation_freq": "overrides=['trainer.validation_freq=2']",
    "validation_batch_size": "overrides=['trainer.validation_batch_size=256']",
    "jit_compile": "overrides=['hardware.jit_compile=true']",
}
#: What a run that is resumed keeps as it is.
OF_FORKS = ("model", "data", "validation", "loss", "metrics", "callbacks", "checkpoint")
#: What a keyword of the API takes in the place of an object.
OPTIONS = {
    "learning_rate": "learning_rate=0.1, schedule='cosine'",
    "optimizer": "optimizer='sgd', learning_rate=0.1, overrides=['optimizer.momentum=0.9']",
    "strategy": "strategy='mirrored', devices=2",
    "schedule": "schedule='cosine', learning_rate=0.1",
}


def option(data: str) -> str:
    """Return an option of the group ``dataset``.

    Raises:
        UsageError: it is the path of a file.
    """
    if not re.search(r"[./\\]", data):
        return data
    raise UsageError(
        "data", data, "is no option of the group dataset, which says how a file is read",
        "csv, parquet, npz, tfrecord, ... (docs/data.md)",
        f"data='csv', overrides=['dataset.path={data}']",
    )  # fmt: skip


def refusal(value: Any, key: str) -> UsageError:
    """Return the refusal of an object where a function or class is asked for."""
    shown = f"{type(value).__name__} {values.shortened(value)}"
    accepted = "a function or class that makes it, in the processes that train"
    if isinstance(value, functools.partial):
        problem = "has arguments without their names"
        hint = f"{key}=functools.partial(build, width=64)"
    elif _is_model(value):
        problem = "was made in this process, and each process that trains makes its own"
        hint = "def build(): return keras.Sequential([...]), and model=build"
    elif callable(getattr(type(value), "get_config", None)) or hasattr(value, "on_epoch_end"):
        problem = "was made in this process, and each process that trains makes its own"
        hint = f"{key}=functools.partial({type(value).__name__}, NAME=VALUE)"
    else:
        problem = "is no function or class"
        hint = f"{key}=build, or functools.partial(build, width=64), of a function of yours"
    return UsageError(key, shown, problem, accepted, hint)


def _is_model(value: Any) -> bool:
    keras: Any = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Model)
