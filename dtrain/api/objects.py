"""What a caller gives: functions and classes by the name of their module, or pickled; arrays.

Arrays are a file in the run folder, of which the tasks read rows.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pickle
import site
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.api import keywords
from dtrain.config.trust import KNOWN
from dtrain.data import nest
from dtrain.data.example import Example
from dtrain.data.nest import Ragged
from dtrain.errors import UsageError, refuse
from dtrain.files import writing
from dtrain.files.fields import Json, Values
from dtrain.host import pickles

#: Where Keras has its names.
_SPACES = ("applications", "models", "layers", "losses", "metrics", "callbacks", "optimizers")


@dataclasses.dataclass
class Trust:
    """What a command may call and load besides what it may by itself.

    Attributes:
        names: packages, and modules of none.
        paths: folders in which it finds modules.
        files: pickles.
    """

    names: list[str] = dataclasses.field(default_factory=list)
    paths: list[str] = dataclasses.field(default_factory=list)
    files: list[str] = dataclasses.field(default_factory=list)

    def __add__(self, other: Trust) -> Trust:
        return Trust(self.names + other.names, self.paths + other.paths, self.files + other.files)


class Objects:
    """Gives functions and classes to one run.

    Args:
        folder: ``given/`` of the run.

    Attributes:
        trust: that the command needs for them.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.trust = Trust()

    def target(self, value: Any, key: str) -> str:
        """Return the name by which tasks find a function or class.

        Args:
            value: a function, a class, or its dotted name.
            key: that it is for, in messages.

        Raises:
            UsageError: it is none, or refers to what cannot be pickled.
        """
        if isinstance(value, str):
            return value
        if not callable(value) or not hasattr(value, "__name__"):
            raise keywords.refusal(value, key)
        from dtrain.api import pickler  # which imports cloudpickle

        if pickler.is_importable(value):
            return self._name_import(value)
        name = value.__name__ if value.__name__.isidentifier() else "given"
        try:
            body, tops = pickler.pickle_by_value(value, name)
        except pickle.PicklingError as error:
            raise UsageError(key, f"cannot be sent to the processes that train ({error})", name,
                             accepted="a function that makes what it uses, or takes it from a "
                             "module", hint=f"what cannot be sent, made inside of {name}"
                             ) from error  # fmt: skip
        data = pickles.written(filter(self._is_own, tops), body)
        if len(data) > pickles.LARGEST:
            refuse(key, f"takes {len(data):,} bytes with all that it uses", name,
                   accepted=f"up to {pickles.LARGEST:,}", hint="data=(x, y)")  # fmt: skip
        module = pickles.name_of(data)
        file = pickles.file(self._folder, module)
        self._folder.mkdir(parents=True, exist_ok=True)
        writing.write_bytes(file, data)
        self.trust.files.append(str(file.absolute()))
        return f"{module}.{name}"

    def node(self, value: object, key: str) -> Any:
        """Return what stands in the configuration for a function, a class, or a partial of one.

        Raises:
            UsageError: as of :meth:`target`.
        """
        if isinstance(value, str | None | bool | int | float):
            return value
        if isinstance(value, dict):
            return {name: self.node(part, f"{key}.{name}") for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.node(part, f"{key}[{index}]") for index, part in enumerate(value)]
        function, arguments = arguments_of(value)
        return {"_target_": self.target(function, key), **arguments}

    def _name_import(self, value: Any) -> str:
        module = sys.modules[value.__module__]
        top = module.__name__.partition(".")[0]
        if top in KNOWN:
            return _public(value)
        if not self._is_own(top):
            self.trust.names.append(top)
        return f"{module.__name__}.{value.__qualname__}"

    def _is_own(self, top: str) -> bool:
        """Say whether a package is the user's; have the command trust it, and look where it is."""
        file = getattr(sys.modules.get(top), "__file__", None)
        if file is None or top in {*KNOWN, "__main__"}:
            return False
        folder = Path(file).absolute().parent
        folder = folder.parent if Path(file).name == "__init__.py" else folder
        installed = {*site.getsitepackages(), os.path.dirname(os.__file__)}
        if str(folder) in installed or {"site-packages", "lib-dynload"} & set(folder.parts):
            return False
        self.trust.names.append(top)
        if str(folder) != os.getcwd():
            self.trust.paths.append(str(folder))
        return True


def arguments_of(value: object) -> tuple[Any, Values]:
    """Return what a ``functools.partial`` of names calls, with its arguments; else ``value``."""
    if isinstance(value, functools.partial) and not value.args:
        return value.func, value.keywords
    return value, {}


def _public(value: Any) -> str:
    """Return the public name of what dtrain or Keras has, such as ``keras.losses.Huber``."""
    keras: Any = sys.modules.get("keras")
    for space in _SPACES if value.__module__.startswith("keras.") else ():
        if vars(getattr(keras, space)).get(value.__name__) is value:
            return f"keras.{space}.{value.__name__}"
    return f"{value.__module__}.{value.__qualname__}"


# --- arrays

#: The parts of an example, and the keys of ``dataset=npz`` for them.
_PARTS = {"x": "inputs", "y": "target", "weight": "weight"}
_ANY = "data=FUNCTION, which returns any dataset (docs/data.md)"
_CONVERTED = (
    "x.astype('float32'), of labels numpy.unique(y, return_inverse=True)[1], or data=FUNCTION, "
    "which returns any dataset (docs/data.md)"
)
_PART = "validation=(x, y), or validation_split=0.1 for a part of data"
_ARRAYS = "arrays [n, ...] of numbers, and dicts and tuples of them"


def array_overrides(folder: Path, data: object, validation: object = None) -> list[str]:
    """Write arrays into one file, without compression, and return the overrides that read it.

    The same arrays have a file of the same name: it is their digest.

    Args:
        folder: that the file goes to.
        data: ``x``, ``(x, y)`` or ``(x, y, weight)``, of which each is an array ``[n, ...]`` or a
            dict or tuple of arrays.
        validation: arrays of the same form, to evaluate on; None: a part of ``data`` is split off.

    Raises:
        UsageError: something is no array of numbers, or has other parts.
        OSError: the file cannot be written.
    """
    return _words(_write(folder, data, validation))


def evaluation_overrides(folder: Path, data: object) -> tuple[list[str], str]:
    """Write arrays to evaluate or predict on.

    Returns:
        The overrides that read them, and a name for them.

    Raises:
        UsageError, OSError: as of :func:`array_overrides`.
    """
    keys = _write(folder, data, None)
    held = {f"validation_{key}": keys[key] for key in _PARTS.values()}
    return _words({**keys, **held}), Path(keys["path"]).stem


def _words(keys: Json) -> list[str]:
    values = (f"dataset.{key}={keywords.write_value(value, key)}" for key, value in keys.items())
    return ["dataset=npz", *values]


def _write(folder: Path, data: object, validation: object) -> Json:
    """Write a file, and return the keys of ``dataset=npz`` for it."""
    arrays: dict[str, np.ndarray] = {}
    names: Json = dict.fromkeys(_PARTS.values())
    _add(data, "data", "", arrays, names)
    if validation is not None:
        held = _add(validation, "validation", "validation_", arrays, names)
        if held != (wanted := len([key for key in _PARTS.values() if names[key] is not None])):
            refuse("validation", f"has not the {wanted} parts of data", f"{held} parts",
                   hint="validation=x, (x, y) or (x, y, weight), as data is")  # fmt: skip
    return {"path": str(_store(folder, arrays)), **names}


def _store(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write a file of arrays; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder.absolute() / f"aside-{os.getpid()}-{time.time_ns()}.npz"
    try:
        np.savez(aside, **arrays)  # type: ignore[arg-type] # the names are those of arrays
        with aside.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        path = aside.with_name(f"data_{digest[:12]}.npz")
        writing.replace(aside, path)
    finally:
        writing.remove(aside)
    return path


def _add(data: object, key: str, before: str, arrays: dict[str, np.ndarray], given: Json) -> int:
    """Put the arrays of one split beside those that are there; return how many parts it has."""
    parts = data if isinstance(data, tuple | list) else (data,)
    if not len(parts):
        raise _nothing(key, data)
    if isinstance(data, list) and not any(nest.is_nest(p) or np.ndim(p) for p in data):
        parts = (np.asarray(data),)
    if len(parts) > len(_PARTS):
        refuse(key, "are not x, (x, y) or (x, y, weight)", f"{len(parts)} parts",
               hint=f"{key}=(numpy.asarray(x), numpy.asarray(y)), an array each")  # fmt: skip
    parts = Example.of(tuple(parts)).parts
    for part, value in zip(_PARTS, parts, strict=False):
        if value is None:
            continue
        root = f"{before}{part}"
        if not nest.leaves(value):
            raise _nothing(f"{key} ({part})", value)
        for place, leaf in nest.named(value, root):
            if place in arrays:
                refuse(key, "is what two arrays are called", place,
                       hint="other names, without dots")  # fmt: skip
            arrays[place] = _array(leaf, f"{key} ({place})")
        given[f"{before}{_PARTS[part]}"] = nest.packed(
            value, [place for place, _ in nest.named(value, root)]
        )
    return sum(part is not None for part in parts)


def _nothing(key: str, given: object) -> UsageError:
    return UsageError(key, "has no array", given, accepted=_ARRAYS,
                      hint="data=x, data=(x, y) or data={'image': x}")  # fmt: skip


def _array(leaf: object, key: str) -> np.ndarray:
    """Return an array of numbers.

    Raises:
        UsageError: it is something else.
    """
    array: Any
    try:
        array = leaf if isinstance(leaf, Ragged) else np.asarray(leaf)
    except Exception:  # of whatever library it is, such as a PyDataset of Keras'
        array = np.asarray(None)
    if not isinstance(array, Ragged) and array.dtype == object and not array.ndim:
        dense = "x.toarray()" if hasattr(leaf, "toarray") else None  # of a sparse matrix
        function = f"def load(): return ..., and {key.partition(' ')[0]}=load"
        refuse(key, "is read in this process, and the processes that train read their own",
               type(leaf).__name__, accepted=f"{_ARRAYS}; or a function",
               hint=dense or function)  # fmt: skip
    if not isinstance(array, Ragged) and array.ndim and not len(array):
        refuse(key, "has no example", f"shape {list(array.shape)}", hint="a row or more")
    if isinstance(array, Ragged) or array.dtype.kind not in "biuf" or not array.ndim:
        what = "rows of different lengths" if isinstance(array, Ragged) else str(array.dtype)
        is_text = not isinstance(array, Ragged) and array.dtype.kind in "OUS"
        instead = _PART if key.startswith("validation") else _ANY
        refuse(key, "is no array of numbers with a row for each example", what, accepted=_ARRAYS,
               hint=_CONVERTED if is_text else instead)  # fmt: skip
    return array
