"""What a caller gives: functions and classes (by import, source or cloudpickle), and arrays.

Arrays become files in the run folder, of which the tasks read rows.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import inspect
import io
import os
import site
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.api import keywords
from dtrain.api.source import NoSource, Place, arguments_of, is_importable, text_of
from dtrain.config.trust import KNOWN
from dtrain.data import nest
from dtrain.data.example import Example
from dtrain.data.nest import Ragged
from dtrain.errors import UsageError, refuse
from dtrain.files import writing
from dtrain.files.fields import Json
from dtrain.host import python_path

#: Bytes of a pickle: arrays do not travel so.
_LARGEST = 8_000_000
_PICKLED = '''"""{name}, pickled by cloudpickle under Python {version}: it has no source."""

import base64
import functools
import pickle

_given = pickle.loads(
    base64.b64decode(
        "{data}"
    )
)
if isinstance(_given, type):
    _given.__module__ = __name__
    {name} = _given
else:

    @functools.wraps(_given)
    def {name}(*args, **kwargs):
        return _given(*args, **kwargs)
'''
#: Where Keras has its names.
_SPACES = ("applications", "models", "layers", "losses", "metrics", "callbacks", "optimizers")
#: Where what was given from this process stands in the caller's files, by module.
PLACES: dict[str, list[Place]] = {}
#: What was reported already.
_told: set[str] = set()


class Objects:
    """Gives functions and classes to one run.

    Args:
        folder: ``given/`` of the run.
        tell: reports a sentence.

    Attributes:
        trusted: names that the command may call.
        paths: folders in which it finds modules.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]):
        self._folder, self._tell = folder, tell
        self.trusted: list[str] = []
        self.paths: list[str] = []

    def target(self, value: Any, key: str) -> str:
        """Return the name by which tasks find a function or class.

        Args:
            value: a function, a class, or its dotted name.
            key: that it is for, in messages.

        Raises:
            UsageError: it is none, or cannot be sent.
        """
        if isinstance(value, str):
            return value
        if not callable(value) or not hasattr(value, "__name__"):
            raise keywords.refusal(value, key)
        if is_importable(value):
            return self._imported(value)
        name = value.__name__ if value.__name__.isidentifier() else "given"
        try:
            text, places = text_of(value)
            self._trust_imports(text)
        except NoSource as reason:
            places = []
            text = self._pickled(value, name, key)
            if name not in _told:
                _told.add(name)
                self._tell(f"{name} travels by cloudpickle, for this version of Python: {reason}")
        module = python_path.given_name(text.encode())
        self._folder.mkdir(parents=True, exist_ok=True)
        writing.write_bytes(self._folder / f"{module}.py", text.encode())
        self.trusted.append(module)
        PLACES[module] = places
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

    def _imported(self, value: Any) -> str:
        module = sys.modules[value.__module__]
        top = module.__name__.partition(".")[0]
        if top in KNOWN:
            return _public(value)
        self.trusted.append(top)
        self._find(top)
        return f"{module.__name__}.{value.__qualname__}"

    def _find(self, top: str) -> bool:
        """Have the command look where this process has found a package; say if it is the user's."""
        file = getattr(sys.modules.get(top), "__file__", None)
        if file is None:
            return False
        folder = Path(file).absolute().parent
        folder = folder.parent if Path(file).name == "__init__.py" else folder
        installed = {*site.getsitepackages(), os.path.dirname(os.__file__)}
        if str(folder) in installed or {"site-packages", "lib-dynload"} & set(folder.parts):
            return False
        if str(folder) != os.getcwd():
            self.paths.append(str(folder))
        return True

    def _trust_imports(self, text: str) -> None:
        for line in text.splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                self._trust_own(words[1].partition(".")[0])

    def _trust_own(self, top: str) -> None:
        if top in sys.modules and top not in {*KNOWN, "__main__"} and self._find(top):
            self.trusted.append(top)

    def _pickled(self, value: object, name: str, key: str) -> str:
        try:
            data, tops = _pickle(value)
        except Exception as error:  # of whatever it refers to
            raise UsageError(key, f"cannot be sent to the processes that train ({error})", name,
                             accepted="a function of a module, or one that uses plain values alone",
                             hint=f"{key}=build, of a module of your own") from error  # fmt: skip
        if len(data) > _LARGEST:
            refuse(key, f"takes {len(data):,} bytes with all that it refers to", name,
                   accepted=f"up to {_LARGEST:,}", hint="data=(x, y) for arrays")  # fmt: skip
        for top in sorted(tops):
            self._trust_own(top)
        version = ".".join(map(str, sys.version_info[:2]))
        return _PICKLED.format(
            name=name, version=version, data=base64.b64encode(data).decode("ascii")
        )


def _pickle(value: object) -> tuple[bytes, set[str]]:
    """Return a pickle, and the packages that it may import."""
    import cloudpickle  # MLflow brings it

    tops: set[str] = set()

    class Pickler(cloudpickle.Pickler):
        dispatch_table = {**cloudpickle.Pickler.dispatch_table, type(functools.cache(len)): _cached}

        def reducer_override(self, obj: Any) -> Any:
            if inspect.ismodule(obj) or is_importable(obj):
                name: str = obj.__name__ if inspect.ismodule(obj) else obj.__module__
                tops.add(name.partition(".")[0])
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue(), tops


def _cached(value: Any) -> Any:
    """Return how a function behind ``functools.cache`` is made again.

    By itself it is pickled by its name in ``__main__``, which is another module in a task.
    """
    return value.__qualname__ if is_importable(value) else (functools.cache, (value.__wrapped__,))


def _public(value: Any) -> str:
    """Return the public name of what dtrain or Keras has, such as ``keras.losses.Huber``."""
    keras: Any = sys.modules.get("keras")
    for space in _SPACES if value.__module__.startswith("keras.") else ():
        if vars(getattr(keras, space)).get(value.__name__) is value:
            return f"keras.{space}.{value.__name__}"
    return f"{value.__module__}.{value.__qualname__}"


#: The parts of an example, and the keys of ``dataset=npz`` for them.
_PARTS = {"x": "inputs", "y": "target", "weight": "weight"}


_ANY = "data=FUNCTION, which returns any dataset (docs/data.md)"
_CONVERTED = (
    "x.astype('float32'), of labels numpy.unique(y, return_inverse=True)[1], or data=FUNCTION, "
    "which returns any dataset (docs/data.md)"
)
_PART = "validation=(x, y), or validation_split=0.1 for a part of data"
_ARRAYS = "arrays [n, ...] of numbers, and dicts and tuples of them"


def overrides(folder: Path, data: object, validation: object = None) -> list[str]:
    """Write arrays into one file, without compression, and return the overrides that read it.

    The same arrays have a file of the same name: it is their digest.

    Args:
        folder: that the file goes to.
        data: ``x``, ``(x, y)`` or ``(x, y, weight)``, of which each is an array ``[n, ...]`` or a
            dict or tuple of arrays.
        validation: likewise, to evaluate on; None: a part of ``data`` is split off.

    Raises:
        UsageError: something is no array of numbers, or has other parts.
        OSError: the file cannot be written.
    """
    arrays: dict[str, np.ndarray] = {}
    names: Json = dict.fromkeys(_PARTS.values())
    _take(data, "data", "", arrays, names)
    if validation is not None:
        held = _take(validation, "validation", "validation_", arrays, names)
        if held != (wanted := len([key for key in _PARTS.values() if names[key] is not None])):
            refuse("validation", f"has not the {wanted} parts of data", f"{held} parts",
                   hint="validation=x, (x, y) or (x, y, weight), as data is")  # fmt: skip
    keys = {"path": _stored(folder, arrays), **names}
    return [
        "dataset=npz",
        *(f"dataset.{key}={keywords.written(value, key)}" for key, value in keys.items()),
    ]


def _stored(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
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


def evaluated(folder: Path, data: object) -> tuple[list[str], str]:
    """Write arrays to evaluate or predict on.

    Returns:
        The overrides that read them, and a name for them.

    Raises:
        UsageError, OSError: as of :func:`overrides`.
    """
    found = overrides(folder, data)
    roles = tuple(f"dataset.{key}=" for key in _PARTS.values())
    held = [text.replace(".", ".validation_", 1) for text in found if text.startswith(roles)]
    path = next(text for text in found if text.startswith("dataset.path="))
    return [*found, *held], Path(path.strip("'")).stem


def _take(data: object, key: str, before: str, arrays: dict[str, np.ndarray], given: Json) -> int:
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
