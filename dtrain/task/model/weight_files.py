"""The arrays of files of weights, and no code of them: Keras' by the paths of their layers.

Those of ``.safetensors`` and of PyTorch have the names that they have there.

In ``.weights.h5``, and in the file of that kind in a ``.keras``, a layer lies where it is found in
the model, under the name of its class (``layers/dense_1/vars/0``), and has its own name as an
attribute. In whole files and weights of Keras 2 (``.h5``) each layer has a list of names of its
weights. Here an array is called by the names of the layers that lead to it and its place among
those of its layer: ``backbone/conv/0``.
"""

from __future__ import annotations

import collections
import contextlib
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import safetensors.numpy

from dtrain.run import initial
from dtrain.task.backends.runtime import runtime

#: What a file has beside the layers.
_OTHERS = ("optimizer", "metrics", "optimizer_weights")
_MEMBER = "model.weights.h5"
_UNREADABLE = (
    OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, safetensors.SafetensorError,
    pickle.UnpicklingError,
)  # fmt: skip


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name, in its order.

    Raises:
        UsageError: it is no such file, or has what lies in other files.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == initial.SAFETENSORS:
            return dict(safetensors.numpy.load_file(path))
        if suffix in initial.TORCH:
            if (plain := runtime().PLAIN) is None:
                raise initial.refused(str(path), "is a file of PyTorch's: backend=torch reads it")
            return plain.weights(path)
        with _opened(path) as file:
            if "layer_names" in file.attrs:
                return dict(_of_keras_2(path, file))
            if "model_weights" in file:
                return dict(_of_keras_2(path, file["model_weights"]))
            return dict(_of_keras_3(path, file))
    except (AttributeError, TypeError) as error:  # of NumPy, about such as float8
        problem = f"has a type of numbers that cannot be read ({error})"
        raise initial.refused(str(path), problem) from None
    except _UNREADABLE as error:
        raise initial.refused(str(path), f"cannot be read ({error})") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if path.suffix.lower() != ".keras":
        with h5py.File(path, "r") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        if _MEMBER not in archive.namelist():
            raise initial.refused(str(path), f"has no {_MEMBER} in it")
        with archive.open(_MEMBER) as member, h5py.File(member, "r") as file:
            yield file


def _of_keras_3(path: Path, file: Any) -> Iterator[tuple[str, np.ndarray]]:
    items: list[tuple[str, Any]] = []
    file.visititems(lambda name, item: items.append((name, item)))  # follows no link
    for place, item in items:
        group, _, rest = f"/{place}".rpartition("/vars/")
        if not isinstance(item, h5py.Dataset) or not rest or place.split("/")[0] in _OTHERS:
            continue
        names, above = [], file
        for part in group.split("/")[1:]:
            above = above[part]
            if "vars" in above and (name := above["vars"].attrs.get("name")) is not None:
                names.append(str(name))
        yield "/".join([*names, rest]), _array(path, place, item)


def _of_keras_2(path: Path, group: Any) -> Iterator[tuple[str, np.ndarray]]:
    count: collections.Counter[str] = collections.Counter()
    for layer in map(_text, group.attrs["layer_names"]):
        for weight in group[layer].attrs["weight_names"]:
            name = _text(weight).partition(":")[0]
            # A Sequential of Keras 3 is the first part: sequential/dense/kernel.
            if name.split("/")[1:2] == [layer]:
                name = name.partition("/")[2]
            elif not name.startswith(f"{layer}/"):
                name = f"{layer}/{name}"
            above = name.rpartition("/")[0]
            yield f"{above}/{count[above]}", _array(path, name, group[layer][weight])
            count[above] += 1


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _array(path: Path, name: str, item: Any) -> np.ndarray:
    if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
        raise initial.refused(str(path), f"{name} lies in another file")
    return np.asarray(item[()])
