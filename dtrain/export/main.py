"""The processes of ``python -m dtrain export``: one that writes, and one that compares.

What is written is run in another process than the one that wrote it, so that it can use nothing but
its files.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from dtrain import secrets
from dtrain.config.schema import Config
from dtrain.data.failures import before_training
from dtrain.errors import DtrainError
from dtrain.export import sample
from dtrain.export.built import built, onnx_run
from dtrain.run import checkpoint
from dtrain.run.cluster import Cluster
from dtrain.run.exports import FORMATS, SAMPLE
from dtrain.run.samples import Sample
from dtrain.task.backends.runtime import runtime
from dtrain.task.model import train_state
from dtrain.task.process.answer import answer
from dtrain.task.strategies import Default

#: By what a model is exported: a module that has ``named``, ``write`` and ``load``.
_OF = {"tensorflow": "dtrain.export.formats", "torch": "dtrain.export.modules"}
_LONGEST = 300  # characters of what a library says
#: Sends a clause about what is being done.
Doing = Callable[[str], None]


def child(*arguments: Any) -> None:
    """Answer as :func:`dtrain.task.process.answer.answer` what ``asked["do"]`` names."""
    answer(_done, _failed, *arguments)


def _done(config: Config, cluster: Cluster, doing: Doing, asked: dict[str, Any]) -> Any:
    runtime().configure(config.hardware, cluster, cluster.chief, config.trainer.deterministic)
    does: Callable[..., Any] = written if asked.pop("do") == "write" else checked
    return does(config, doing, **asked)


def _failed(error: Exception) -> str:
    if isinstance(error, OSError):  # of a full disk
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    print(secrets.mask(traceback.format_exc()), file=sys.stderr)
    return _message(error)


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {text}"


def _kit() -> Any:
    return importlib.import_module(_OF[keras.config.backend()])


def written(
    config: Config, doing: Doing, folder: str, work: str, path: str, averaged: bool,
    names: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Write formats of a model.

    Args:
        config: of the run.
        doing: reports.
        folder: that the formats go to.
        work: takes what is needed until all is compared.
        path: of the checkpoint.
        averaged: whether the trainable weights are the optimizer's averages.
        names: of the formats.

    Returns:
        The ``signature``, names of ``classes``, the ``encoding`` of a table, how many ``examples``
        there are, and by name what is wrong with a format: ``refused``.

    Raises:
        UsageError, CheckpointError: the model cannot be made.
    """
    kit = _kit()
    doing("building the model")
    restored = checkpoint.load(Path(path))
    with before_training(config.dataset):
        made, splits = built(config)
        train_state.restore_weights(made, Default([]), restored.arrays, averaged)
        named = kit.named(made, splits, config)
        doing("computing the trained model's outputs")
        examples = sample.sample_of(named, splits)
    examples.save(Path(work, SAMPLE))
    examples.shortened().save(Path(folder, SAMPLE))
    saved = Path(folder if "savedmodel" in names else work)
    refused: dict[str, str] = {}
    through = kit.ONNX_THROUGH_SAVEDMODEL and "onnx" in names
    for name in dict.fromkeys(["savedmodel", *names] if through else names):
        doing(f"writing {name}")
        if name == "onnx" and "savedmodel" in refused:
            refused[name] = f"there is no SavedModel to convert: {refused['savedmodel']}"
            continue
        try:
            place = saved if name == "savedmodel" else folder
            kit.write(named, name, Path(place, FORMATS[name].files[-1]), saved)
        except DtrainError as error:
            refused[name] = str(error)
        except Exception as error:  # of a model that Keras cannot serialize, or of a converter
            refused[name] = _message(error)
    return {
        "signature": named.signature(splits.train),
        "classes": list(splits.train.info.class_names()),
        "encoding": None if named.encoding is None else named.encoding.to_json(),
        "examples": len(examples),
        "refused": refused,
    }


def checked(
    config: Config, doing: Doing, folder: str, work: str, names: list[str]
) -> dict[str, float | str]:
    """Run formats, and compare them with Keras.

    Args:
        config: of the run.
        doing: reports.
        folder: that the formats are in.
        work: of :func:`written`.
        names: of the formats.

    Returns:
        By name the largest deviation, or what is wrong.
    """
    examples, kit = Sample.load(Path(work, SAMPLE)), _kit()
    results: dict[str, float | str] = {}
    for name in names:
        doing(f"running {name}")
        try:
            path = Path(folder, FORMATS[name].files[-1])
            run = onnx_run(path) if name == "onnx" else kit.load(
                name, path, lambda: kit.named(*built(config), config)
            )  # fmt: skip
            results[name] = sample.compared(run, examples, FORMATS[name].limit)
        except DtrainError as error:
            results[name] = str(error)
        except Exception as error:
            results[name] = f"it cannot be run: {_message(error)}"
    return results
