"""The processes of ``python -m dtrain export``: one that writes, and one for each format.

What is written is run in another process than the one that wrote it, so that it can use nothing but
its files; and a converter or a runtime that crashes ends no more than the export of its format.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain import secrets
from dtrain.config.schema import Config
from dtrain.data import class_names
from dtrain.data.checked import before_training
from dtrain.errors import DtrainError, TrainingError
from dtrain.run import checkpoint
from dtrain.run.cluster import Cluster
from dtrain.run.exports import FORMATS, SAMPLE
from dtrain.run.samples import Sample
from dtrain.task import train_state
from dtrain.task.export import model, runtimes, sample, write
from dtrain.task.process import hardware
from dtrain.task.process.answer import answer
from dtrain.task.strategies import Default

_LONGEST = 300  # characters of what a library says
#: Sends a clause about what is being done.
Doing = Callable[[str], None]


def child(*arguments: Any) -> None:
    """Answer as :func:`dtrain.task.process.answer.answer` what ``asked["do"]`` names."""
    answer(_done, _failed, *arguments)


def _done(config: Config, cluster: Cluster, doing: Doing, asked: dict[str, Any]) -> Any:
    hardware.configure(config.hardware, cluster, cluster.chief, config.trainer.deterministic)
    return _ANSWERS[asked["do"]](config, doing, **{k: v for k, v in asked.items() if k != "do"})


def _failed(error: Exception, asked: dict[str, Any]) -> str:
    if isinstance(error, OSError):  # of a full disk
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if asked.get("name") is None:
        print(secrets.mask(traceback.format_exc()), file=sys.stderr)
    return _message(error)


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {text}"


def written(
    config: Config,
    doing: Doing,
    folder: str,
    work: str,
    path: str,
    averaged: bool,
    names: list[str],
) -> dict[str, Any]:
    """Write the formats that are made of the model itself, and what the others need.

    Args:
        config: of the run.
        doing: reports.
        folder: that the formats go to.
        work: takes what is needed until all is compared.
        path: of the checkpoint.
        averaged: whether the trainable weights are the optimizer's averages.
        names: of all formats that are asked for.

    Returns:
        The ``signature``, the ``structure`` of the inputs with their names, the user's own
        ``classes``, how many ``examples`` there are, and by name what is wrong with a format:
        ``refused``.

    Raises:
        UsageError, CheckpointError: the model cannot be made.
    """
    doing("building the model")
    restored = checkpoint.load(Path(path))
    with before_training(config.dataset):
        made, splits = model.built(config)
        train_state.restore_weights(made, Default([]), restored.arrays, averaged)
        exportable = model.exportable(made, splits, config)
        doing("computing Keras' own outputs")
        found = sample.of(exportable, splits)
    found.save(Path(work, SAMPLE))
    found.shortened().save(Path(folder, SAMPLE))
    doing("tracing the model")
    function = exportable.function()
    refused: dict[str, str] = {}
    for name, writer in write.OF_MODEL.items():
        converted = name == "savedmodel" and set(write.OF_SAVED) & set(names)
        if name in names or converted:
            doing(f"writing {name}")
            try:
                writer(exportable, function, Path(folder if name in names else work))
            except Exception as error:  # of a model that Keras cannot serialize
                refused[name] = _message(error)
                for other in write.OF_SAVED if converted else ():
                    refused[other] = f"there is no SavedModel to convert: {refused[name]}"
    return {
        "signature": exportable.signature(function, splits.train),
        "structure": exportable.structure,
        "names": class_names.names(splits.train),
        "classes": exportable.classes(),
        "examples": len(found),
        "refused": {name: problem for name, problem in refused.items() if name in names},
    }


def checked(
    config: Config, doing: Doing, folder: str, saved: str, work: str, name: str, structure: Any,
    outputs: list[str], classes: dict[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Convert a format that is made of the SavedModel, then run it and compare it with Keras.

    Args:
        config: of the run.
        doing: reports.
        folder: that the formats are in.
        saved: that the SavedModel is in.
        work: of :func:`written`.
        name: of the format.
        structure: of the inputs, with their names.
        outputs: their names, in order.
        classes: the user's own, with their modules.

    Returns:
        ``deviation`` and, of a format that is served, ``latency_ms``.

    Raises:
        TrainingError: it is not what Keras computes.
    """
    if name in write.OF_SAVED:
        doing(f"converting to {name}")
        write.OF_SAVED[name](Path(saved), Path(folder))
    doing(f"running {name}")
    of_keras = {
        "keras": runtimes.of_keras(classes, structure, outputs),
        "weights": runtimes.weights(config, structure, outputs),
    }
    run = (of_keras.get(name) or runtimes.of_file(name))(Path(folder))
    examples = Sample.load(Path(work, SAMPLE))
    try:
        found: dict[str, Any] = {"deviation": sample.compared(run, examples, FORMATS[name].limit)}
    except DtrainError:
        raise
    except Exception as error:
        raise TrainingError(f"it cannot be run: {_message(error)}") from error
    if FORMATS[name].served:
        found["latency_ms"] = sample.latency(run, examples)
    return found


_ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {"write": written, "check": checked}
