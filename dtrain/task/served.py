"""The process that runs one version of a served model: a SavedModel and TensorFlow, nothing else.

It is asked over a socket, in messages of :mod:`dtrain.host.frames`, one after the other.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.errors import DtrainError, TrainingError
from dtrain.host import frames
from dtrain.run.exports import RECORD, SAMPLE
from dtrain.run.folder import read_json
from dtrain.run.samples import Sample
from dtrain.task.export import sample
from dtrain.task.export.runtimes import SIGNATURE
from dtrain.task.export.sample import Run
from dtrain.task.process import parent_death

#: How far from the stored outputs those of another machine may be.
_LIMIT = 1e-4
#: How far a row's numbers may be from those that it has alone; beyond that its neighbours count.
_ALONE = 1e-3
_LONGEST = 300  # characters of what TensorFlow says
#: How much less than others it gets of a core while it loads.
_NICE = 10
#: In TensorFlow's messages: lines about where an operation was made, and what it is called.
_PLACE = re.compile(r"Graph execution error|Detected at|File \"|\[\[|\d+ root error|\(\d\) ")
_NODE = re.compile(r"\[\[.*|\[Op:.*")
_TYPES = {
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
    "float32", "float64", "bfloat16", "string",
}  # fmt: skip


def child(path: str, options: Mapping[str, Any], given: Connection, pipe: Any) -> None:
    """Load the SavedModel at ``path``, then answer until the socket is closed.

    Args:
        path: of its folder.
        options: ``max_batch``, rows of a batch at most; ``threads`` of an operation, 0 for one on
            each core; ``nice``, whether it gives way to others while it loads.
        given: the socket.
        pipe: to the process that has started this one; not used.
    """
    parent_death.end_with_the_parent()
    pipe.close()
    stream = socket.socket(fileno=os.dup(given.fileno()))
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(options["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(1)
    try:
        tf.constant(0)  # ORDER: TensorFlow's own threads begin before, and do not give way
        with ThreadPoolExecutor(1, initializer=_give_way if options["nice"] else None) as loading:
            served = loading.submit(Served, path, options["max_batch"]).result()
        first, arrays = served.about, served.example
    except DtrainError as error:
        first, arrays = {"failed": str(error)}, {}
    except (OSError, MemoryError, ValueError, RuntimeError, tf.errors.OpError) as error:
        first, arrays = {"failed": f"it cannot be loaded: {_text(error)}"}, {}
    with contextlib.suppress(OSError):  # the server has ended
        stream.sendall(frames.packed(first, arrays))
        if "failed" not in first:
            _answer(served, stream)
    os._exit(0)


def _give_way() -> None:
    """Let other threads have the cores first; of this one alone, which nothing could undo."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _answer(served: Served, stream: socket.socket) -> None:
    with stream.makefile("rb") as reader:
        while len(sizes := reader.read(frames.SIZES.size)) == frames.SIZES.size:
            head, body = map(reader.read, frames.SIZES.unpack(sizes))
            asked, arrays = frames.unpacked(head, body)
            try:
                stream.sendall(frames.packed({}, served(arrays, asked["rows"])))
            except (tf.errors.ResourceExhaustedError, MemoryError) as error:
                stream.sendall(frames.packed({"error": _text(error), "kind": "memory"}))
            except (tf.errors.OpError, ValueError, TypeError) as error:
                kind = "model" if isinstance(error, tf.errors.InternalError) else "input"
                stream.sendall(frames.packed({"error": _text(error), "kind": kind}))


def _text(error: BaseException) -> str:
    text = getattr(error, "message", None) or str(error)
    # Of the graph's operations come first where they stand in the model's code, then the problem.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not _PLACE.match(line)]
    line = _NODE.sub("", said[-1] if said else "").strip() or type(error).__name__
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


class Served:
    """A loaded model, which has run once for each size of a batch.

    Args:
        path: of the SavedModel.
        max_batch: rows of a batch, at most.

    Attributes:
        about: what the server is to know: ``signature``, ``deviation`` from the stored outputs on
            so many ``examples``, ``seconds`` of loading, and a ``note`` for the user.
        example: inputs of one row, as it was stored; empty where none was.

    Raises:
        TrainingError: it cannot be served, or computes other numbers than are stored.
    """

    def __init__(self, path: str, max_batch: int):
        began = time.monotonic()
        # In a model of MLflow's, what is known of it stands beside the folder of the SavedModel.
        places = (Path(path), Path(path).parent)
        self._model = tf.saved_model.load(path)  # kept: its variables are in it
        self._function = _signature(self._model)
        inputs, outputs = (
            _ordered(specs, _names(places, role))
            for role, specs in (
                ("inputs", self._function.structured_input_signature[1]),
                ("outputs", self._function.structured_outputs),
            )
        )
        self._dtypes = {name: spec.dtype for name, spec in inputs.items()}
        _check({**inputs, **outputs})
        lengths = [_first(spec) for spec in inputs.values()]
        heads = [_first(spec) for spec in outputs.values()]
        same = len(set(lengths)) == 1 and set(heads) <= {None, lengths[0]}
        #: Of the batches that the model takes; None for any.
        self._rows = lengths[0] if same and isinstance(lengths[0], int) else None
        self._batched = bool(lengths) and same and lengths[0] != "none"
        self._sizes = [self._rows] if self._rows else _sizes(max_batch)
        files = [place / SAMPLE for place in places if (place / SAMPLE).is_file()]
        found, note = (Sample.load(files[0]) if files else None), ""
        self.example: dict[str, np.ndarray] = {}
        deviation = None
        if found is not None:
            if found.inputs.keys() != inputs.keys():
                raise TrainingError(f"{files[0]} has other inputs than the model")
            deviation = sample.compared(self._plain, found, _LIMIT)
            self.example = {name: value[:1] for name, value in found.inputs.items()}
            if self._batched and self._rows is None and not self._independent(found):
                self._batched = False
                note = (
                    "the numbers of a row depend on its neighbours: no two requests share a batch"
                )
        self._warm_up({**self.example} or _made_up(inputs))
        self.about: dict[str, Any] = {
            "signature": {
                "inputs": _listed(inputs),
                "outputs": _listed(outputs),
                "batched": self._batched,
                "rows": self._rows,
            },
            "deviation": deviation,
            "examples": 0 if found is None else len(found),
            "seconds": round(time.monotonic() - began, 3),
            "note": note,
        }

    def _plain(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Call the model as it is."""
        tensors = {name: tf.constant(value, self._dtypes[name]) for name, value in arrays.items()}
        return {name: value.numpy() for name, value in self._function(**tensors).items()}

    def __call__(self, arrays: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        """Return the outputs of a batch, padded to one of the sizes that it is ready for.

        Args:
            arrays: by name.
            rows: that each has.
        """
        size = next((size for size in self._sizes if size >= rows), rows)
        if not self._batched or size == rows:
            return self._plain(arrays)
        at = np.minimum(np.arange(size), rows - 1)
        found = self._plain({name: value[at] for name, value in arrays.items()})
        return {name: value[:rows] for name, value in found.items()}

    def _independent(self, found: Sample) -> bool:
        """Say whether a row has the numbers that it has alone, whatever stands beside it."""
        count = min(len(found), 4)
        batch = {name: value[:count] for name, value in found.inputs.items()}
        together = self._plain(batch)
        run: Run = self._plain
        for row in range(count):
            alone = run({name: value[row : row + 1] for name, value in batch.items()})
            part = {name: value[row : row + 1] for name, value in together.items()}
            if sample.deviation(alone, part)[0] > _ALONE:
                return False
        return True

    def _warm_up(self, inputs: dict[str, np.ndarray]) -> None:
        """Run once for each size, and see that the outputs have as many rows."""
        if not self._batched:
            return
        for size in self._sizes:
            batch = {name: np.repeat(value[:1], size, axis=0) for name, value in inputs.items()}
            try:
                found = self._plain(batch)
            except tf.errors.OpError:
                if self.example:
                    raise
                return  # the values were made up
            if any(value.shape[:1] != (size,) for value in found.values()):
                self._batched = False
                return


def _signature(model: Any) -> Any:
    names = list(model.signatures)
    if SIGNATURE in names:
        return model.signatures[SIGNATURE]
    if len(names) == 1:
        return model.signatures[names[0]]
    there = f"it has {', '.join(names)}" if names else "it has none"
    raise TrainingError(f"a SavedModel is served by its signature {SIGNATURE}: {there}")


def _check(specs: Mapping[str, Any]) -> None:
    for name, spec in specs.items():
        if not isinstance(spec, tf.TensorSpec) or spec.dtype.name not in _TYPES:
            kind = spec.dtype.name if isinstance(spec, tf.TensorSpec) else type(spec).__name__
            raise TrainingError(f"{name!r} is a tensor of a kind that is not served: {kind}")


def _first(spec: Any) -> int | str | None:
    """Return the first length: None where it is open, ``none`` where there is none."""
    if spec.shape.rank in (None, 0):
        return "none"
    length: int | None = spec.shape[0]
    return length


def _names(places: tuple[Path, ...], role: str) -> list[str]:
    """Return the names of inputs or outputs as an export has them, in order; or nothing."""
    for place in places:
        record = read_json(place / RECORD)
        if record is not None:
            return [each["name"] for each in record["signature"][role]]
    return []


def _ordered(specs: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Return them as they are listed, else by name: a SavedModel has them in no order."""
    order = names if set(names) == set(specs) else sorted(specs)
    return {name: specs[name] for name in order}


def _sizes(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and ``most``."""
    return [*(1 << n for n in range(most.bit_length()) if 1 << n < most), most]


def _made_up(specs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return one row of zeros, with 1 for each open length."""
    return {
        name: np.full([1, *(n or 1 for n in spec.shape[1:])], b"", object)
        if spec.dtype == tf.string
        else np.zeros([1, *(n or 1 for n in spec.shape[1:])], spec.dtype.as_numpy_dtype)
        for name, spec in specs.items()
        if spec.shape.rank
    }


def _listed(specs: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "dtype": spec.dtype.name,
            "shape": None if spec.shape.rank is None else spec.shape.as_list(),
        }
        for name, spec in specs.items()
    ]
