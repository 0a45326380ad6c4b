"""The processes of ``python -m dtrain export``: one that writes, and one that compares.

What is written is run in another process than the one that wrote it, so that it can use nothing but
its files. Besides what is the same for all frameworks: how a model is built for an export, and how
a file of ONNX is run.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dtrain import secrets
from dtrain.config.tree import Config
from dtrain.data.failures import before_training
from dtrain.data.sources import Splits
from dtrain.errors import DtrainError, refuse
from dtrain.export import sample
from dtrain.export.sample import Run
from dtrain.files.fields import Json
from dtrain.run import checkpoint
from dtrain.run.cluster import Cluster
from dtrain.run.exports import FORMATS, SAMPLE
from dtrain.run.folder import RunDir
from dtrain.run.samples import Sample, read_encoding
from dtrain.task.backends.runtime import runtime
from dtrain.task.backends.step_logs import has_own
from dtrain.task.data import dataset
from dtrain.task.model import train_state
from dtrain.task.model.checks import stateful_layers
from dtrain.task.model.walk import inputs
from dtrain.task.process.answer import answer
from dtrain.task.strategies import Default
from dtrain.task.train.session import untrained

#: By what a model is exported: a module that has ``named``, ``write`` and ``load``.
_OF = {"tensorflow": "dtrain.export.formats", "torch": "dtrain.export.modules"}
_LONGEST = 300  # characters of what a library says
#: Sends a clause about what is being done.
Doing = Callable[[str], None]


def child(*arguments: Any) -> None:
    """Answer as :func:`dtrain.task.process.answer.answer` what ``asked["do"]`` names."""
    answer(_done, _failed, *arguments)


def _done(config: Config, cluster: Cluster, doing: Doing, asked: Json) -> Any:
    runtime().configure(config.hardware, cluster, cluster.chief, config.trainer.deterministic)
    does: Callable[..., object] = written if asked.pop("do") == "write" else checked
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
    config: Config, doing: Doing, run: str, folder: str, work: str, path: str, averaged: bool,
    names: list[str],
) -> Json:  # fmt: skip
    """Write formats of a model.

    Args:
        config: of the run.
        doing: reports.
        run: its folder.
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
        made, splits = built(config, run)
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
        "encoding": None if named.table is None else named.table.encoding.to_json(),
        "examples": len(examples),
        "refused": refused,
    }


def checked(
    config: Config, doing: Doing, run: str, folder: str, work: str, names: list[str]
) -> dict[str, float | str]:
    """Run formats, and compare them with Keras.

    Args:
        config: of the run.
        doing: reports.
        run: its folder.
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
            loaded = kit.load(name, path, lambda: kit.named(*built(config, run), config))
            results[name] = sample.compared(loaded, examples, FORMATS[name].limit)
        except DtrainError as error:
            results[name] = str(error)
        except Exception as error:
            results[name] = f"it cannot be run: {_message(error)}"
    return results


def built(config: Config, run: str) -> tuple[keras.Model, Splits]:
    """Build the model of a run, and open its data; the model is as new.

    Args:
        config: of the run.
        run: its folder, which has the encoding of a table.

    Raises:
        UsageError: it cannot be exported.
    """
    splits = dataset.load(config, encoding=read_encoding(RunDir(run))).splits
    model = untrained(config, splits, Default([]))
    if has_own(model, "train_step") and not has_own(model, "call") and not inputs(model):
        refuse("model", "has no call: it cannot be run on examples", type(model).__name__,
               accepted="a model with a call, such as the part that is to be served")  # fmt: skip
    if layers := stateful_layers(model):
        refuse("model", "carries its state from batch to batch, which a request to an exported "
               "model must not", layers[0].name, accepted="layers of stateful=False")  # fmt: skip
    model.compiled = False  # what is saved is there to be run, with no optimizer, loss or metrics
    return model, splits


def onnx_run(path: Path) -> Run:
    """Load a file of ONNX into onnxruntime, as a function of arrays."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # errors alone
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = session.run(names, {name: _each(v, bytes.decode) for name, v in batch.items()})
        return {
            name: _each(np.asarray(value), str.encode)
            for name, value in zip(names, values, strict=True)
        }

    return run


def _each(value: np.ndarray, change: Callable[..., object]) -> np.ndarray:
    """Return texts, changed one by one; they are bytes here, and not in onnxruntime."""
    return np.vectorize(change, otypes=[object])(value) if value.dtype.kind == "O" else value
