"""Arrays in files of NumPy's."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Unpack

import numpy as np

from dtrain.data import nest
from dtrain.data.example import trimmed
from dtrain.data.file_arrays import Archive, FileArray, in_pieces, is_large, of_files
from dtrain.data.files import Paths, files, is_address
from dtrain.data.holdout import Holdout, HoldoutKeys, divided
from dtrain.data.nest import DType, Nest, Parts
from dtrain.data.sources import Arrays, Info, Source, Splits
from dtrain.data.target_kind import Counted, of_labels
from dtrain.errors import DataError, refuse, typed
from dtrain.files.fields import Values

#: Names of arrays: one, several that are a tuple, or by the names of inputs or outputs.
Names = str | Sequence[Nest] | Values


def npz(
    path: str, inputs: Names = "x", target: Names | None = "y", weight: Names | None = None,
    validation: str | None = None, validation_inputs: Names | None = None,
    validation_target: Names | None = None, validation_weight: Names | None = None,
    scale: float = 1.0, **holdout: Unpack[HoldoutKeys],
) -> Splits:  # fmt: skip
    """Arrays of a NumPy ``.npz`` file.

    Where they are less than 64 MB together they are held in memory. Else, and where the file is at
    an address, their rows are read when they are needed: at their place in the file where they are
    stored without compression (``numpy.savez``), or from a copy in the cache.

    Args:
        path: the file, or its address.
        inputs, target: names of the arrays to train on: ``[n, ...]`` and ``[n]`` or ``[n, ...]``. A
            mapping or a list of names is a dict or a tuple of arrays, for several inputs or
            outputs.
        weight: names of the weights of the examples; None for none.
        validation: a file to evaluate on, which has arrays of the same names.
        validation_inputs, validation_target, validation_weight: names of the arrays to evaluate on,
            in the one file; where they are None a part of the training arrays is split off.
        scale: inputs are multiplied by it (0.00392156862745098 turns bytes into 0..1).
        **holdout: how a part is held out (:class:`dtrain.data.holdout.Holdout`).
    """
    keys = {"inputs": inputs, "target": target, "weight": weight}
    held = {
        "validation_inputs": validation_inputs, "validation_target": validation_target,
        "validation_weight": validation_weight,
    }  # fmt: skip
    train, beside = _in_archive(path, "dataset.path", keys), None
    if validation is not None:
        for key, name in held.items():
            if name is not None:
                refuse("dataset.validation", f"there is dataset.{key}={name}, too", validation)
        beside = _in_archive(validation, "dataset.validation", keys)
    elif _is_whole(held, target is not None):
        beside = _in_archive(path, "dataset.path", held)
    return _splits(train, beside, scale, Holdout(**holdout))


def _in_archive(path: str, key: str, keys: Mapping[str, Names | None]) -> dict[str, Nest]:
    """Return arrays of a file, by the keys that name them."""
    first, *others = files(path, key)
    if others:
        refuse(key, f"names {len(others) + 1} files", path, accepted="one file",
               typed=typed(key, first.name))  # fmt: skip
    archive = Archive(first)

    def arrays(key: str, names: Names | None) -> Nest:
        return nest.mapped(lambda name: archive.array(f"dataset.{key}", name), names)

    return {key: arrays(key, names) for key, names in keys.items()}


def _is_whole(held: Mapping[str, Nest], has_targets: bool) -> bool:
    """Say whether there is what to evaluate on: inputs, and targets where there are any."""
    present = {key: value for key, value in held.items() if value is not None}
    for key in list(held)[: 1 + has_targets]:
        if present and key not in present:
            other, value = next(iter(present.items()))
            refuse(f"dataset.{key}", f"is missing beside dataset.{other}={value}", None,
                   accepted="inputs and targets to evaluate on, or neither")  # fmt: skip
    return bool(present)


def npy(
    path: Paths, target: Paths | None = None, weight: Paths | None = None,
    validation: Paths | None = None, validation_target: Paths | None = None,
    validation_weight: Paths | None = None, scale: float = 1.0, **holdout: Unpack[HoldoutKeys],
) -> Splits:  # fmt: skip
    """Arrays of NumPy ``.npy`` files, each of which a file, or several that are joined, has.

    Where they are less than 64 MB together they are held in memory. Else, and where the files are
    at addresses, their rows are read when they are needed.

    Args:
        path: of the inputs ``[n, ...]``: a file, a pattern, or a list of them, in the order of
            their names.
        target: of the targets, ``[n]`` or ``[n, ...]``; None for none.
        weight: of the weights of the examples; None for none.
        validation, validation_target, validation_weight: of what to evaluate on;
            where they are None a part of the training examples is split off.
        scale: inputs are multiplied by it (0.00392156862745098 turns bytes into 0..1).
        **holdout: how a part is held out (:class:`dtrain.data.holdout.Holdout`).
    """

    def array(key: str, paths: Paths | None) -> FileArray | None:
        return None if paths is None else of_files(files(paths, f"dataset.{key}"), f"dataset.{key}")

    def arrays(keys: Mapping[str, Nest]) -> dict[str, Nest]:
        return {key: array(key, paths) for key, paths in keys.items()}

    train = arrays({"path": path, "target": target, "weight": weight})
    held = {
        "validation": validation, "validation_target": validation_target,
        "validation_weight": validation_weight,
    }  # fmt: skip
    beside = arrays(held) if _is_whole(held, target is not None) else None
    return _splits(train, beside, scale, Holdout(**holdout))


def _splits(
    arrays: Mapping[str, Nest], held: Mapping[str, Nest] | None, scale: float, holdout: Holdout
) -> Splits:
    """Return examples of arrays with others to evaluate on, or with a part of them held out.

    Where they are large together, or at an address, they stay in their files.

    Args:
        arrays: structures of :class:`FileArray`, or None, by the keys that name them: of inputs,
            targets and weights.
        held: the same of what is evaluated on; None: a part is held out.
        scale: the inputs are multiplied by it.
        holdout: how a part is held out.

    Raises:
        UsageError: they are no numbers, or have other numbers of rows; the others have another
            structure, or other shapes.
    """
    train = _examples(arrays, scale)
    validation = None
    if held is not None:
        validation = _examples(held, scale)
        _compare(arrays, held)
    every = [*train.arrays, *([] if validation is None else validation.arrays)]
    is_far = any(is_address(file.name) for array in every for file in array.files)
    if is_far or is_large(sum(array.nbytes for array in every)):
        if validation is not None:
            return Splits(train, validation, train.counted(validation))
        return Splits(*divided(train, holdout), train.counted())
    if validation is None:
        whole = train.in_memory()
        return Splits(*divided(whole, holdout), of_labels(whole.y))
    one, other = train.in_memory(), validation.in_memory()
    return Splits(one, other, of_labels(one.y, other.y))


def _examples(arrays: Mapping[str, Nest], scale: float) -> StoredArrays:
    """Return the examples of arrays, which have a row for each."""
    (_, x), (target, y), (_, weight) = arrays.items()
    first = nest.leaves(x)[0]
    count = len(first) if first.shape else 0
    for role, part in arrays.items():
        for array in [] if part is None else nest.leaves(part):
            key, problem, accepted = f"dataset.{role}", None, f"{count} rows"
            if array.dtype.kind not in "biuf" or not array.shape:
                problem = f"has type {array.dtype} and shape {array.shape}"
                accepted = "numbers in rows, one row an example"
            elif len(array) != count:
                problem = f"has {len(array)} rows and the inputs {count}"
            if problem is not None:
                refuse(key, problem, array.name, accepted=accepted, hint=f"{key}=NAME")
    targets = nest.mapped(lambda array: Targets(array, f"dataset.{target}"), y)
    return StoredArrays(x, targets, weight, scale)


def _compare(arrays: Mapping[str, Nest], held: Mapping[str, Nest]) -> None:
    """Refuse inputs to evaluate on that are unlike those to train on."""
    x, (key, y) = next(iter(arrays.values())), next(iter(held.items()))
    ours, theirs = dict(nest.named(x)), dict(nest.named(y))
    key = f"dataset.{key}"
    if list(ours) != list(theirs):
        own, other = (nest.mapped(lambda array: array.name, each) for each in (x, y))
        refuse(key, f"is no structure like that of {own}", other,
               accepted="an array for each input")  # fmt: skip
    for name, array in ours.items():
        other = theirs[name]
        if other.shape[1:] != array.shape[1:]:
            refuse(key, f"holds examples of shape {other.shape[1:]}", other.name,
                   accepted=f"the shape of {array.name}, {array.shape[1:]}")  # fmt: skip


class StoredArrays(Source):
    """Examples whose rows are read from files when they are taken.

    Args:
        x: inputs, a :class:`FileArray` or a structure of such; they become float32.
        y: :class:`Targets`, as ``x``; None for none.
        weight: of the examples, as ``x``; None for none.
        scale: the inputs are multiplied by it.

    Attributes:
        arrays: all of them.
    """

    thread_safe = True

    def __init__(self, x: Nest, y: Nest, weight: Nest, scale: float):
        self._x, self._y, self._weight, self._scale = x, y, weight, np.float32(scale)
        targets = nest.mapped(lambda target: target.array, y)
        leaves = [leaf for part in (x, targets, weight) for leaf in nest.leaves(part)]
        self.arrays: list[FileArray] = [leaf for leaf in leaves if leaf is not None]
        self._rows: np.ndarray | None = None  # all

    def subset(self, rows: np.ndarray) -> StoredArrays:
        """Return the source of some of the rows, in their order."""
        made = copy.copy(self)
        made._rows = self._at(rows)
        return made

    def _at(self, indices: np.ndarray | int) -> np.ndarray:
        indices = np.asarray(indices, np.int64)
        return indices if self._rows is None else self._rows[indices]

    def in_memory(self) -> Arrays:
        """Return all examples in memory, the inputs when they are first needed."""
        return Arrays(
            lambda: nest.mapped(lambda array: self._input(array.whole()), self._x),
            nest.mapped(lambda target: target[np.arange(len(self))], self._y),
            nest.mapped(lambda array: array.whole().astype(np.float32), self._weight), len(self),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.arrays[0]) if self._rows is None else len(self._rows)

    def _input(self, values: np.ndarray) -> np.ndarray:
        made = values.astype(np.float32, copy=False)
        return made if self._scale == 1 else made * self._scale

    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Read: int64 ``[b]`` to ``(x, y)``, ``(x, y, weight)`` or ``(x,)``.

        Raises:
            DataError: naming file and row.
            UsageError: the targets, all of which are looked at once, can be none.
        """
        rows = self._at(indices)
        x = nest.mapped(lambda array: self._input(array[rows]), self._x)
        y = nest.mapped(lambda target: target[rows], self._y)
        return trimmed([x, y, nest.mapped(lambda a: a[rows].astype(np.float32), self._weight)])

    @property
    def info(self) -> Info:
        """Its files, the targets and the places of examples there."""
        files = {file.name: file for array in self.arrays for file in array.files}
        return Info(
            files=lambda: list(files.values()), labels=self._labels,
            place=lambda index: self.arrays[0].where(int(self._at(index))),
        )  # fmt: skip

    def _labels(self) -> np.ndarray | None:
        return self._y[self._at(np.arange(len(self)))] if isinstance(self._y, Targets) else None

    def counted(self, *others: StoredArrays) -> Counted:
        """Return what counts the classes of all rows of the arrays, and of those of others."""
        targets = [each._y for each in (self, *others)]
        arrays = [y.array for y in targets if isinstance(y, Targets)]
        return Counted(functools.partial(_in_turn, arrays))


def _in_turn(arrays: list[FileArray]) -> Iterator[np.ndarray]:
    return itertools.chain.from_iterable(map(in_pieces, arrays))


class Targets:
    """An array of targets in files: whole numbers in one column are int64, others float32.

    Args:
        array: numbers.
        key: that names it.
    """

    def __init__(self, array: FileArray, key: str):
        self.array = array
        self._key = key

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_values"}

    @functools.cached_property
    def _values(self) -> FileArray | np.ndarray:
        """In memory where they are few: from files they would take as long as the inputs."""
        return self.array if is_large(self.array.nbytes) else self.array.whole()

    @functools.cached_property
    def _dtype(self) -> DType:
        """int64 where all are whole numbers, of several numbers a row by their type alone.

        Raises:
            UsageError: one is NaN or infinite.
        """
        whole = self.array.dtype.kind in "iub"
        if not whole and len(self.array.shape) == 1:
            whole = True
            for part in in_pieces(self._values):
                if not np.isfinite(part).all():
                    refuse(self._key, "holds NaN or infinity", self.array.name,
                           accepted="finite numbers")  # fmt: skip
                whole = whole and np.array_equal(part, np.floor(part))
        return np.dtype(np.int64 if whole else np.float32)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Read: int64 ``[b]`` to ``[b, ...]``, int64 or float32.

        Raises:
            DataError: naming file and row.
            UsageError: of one number a row, one can be no target.
        """
        dtype, found = self._dtype, self._values[rows]
        if found.dtype.kind == "f":
            finite = np.isfinite(found).all(axis=tuple(range(1, found.ndim)))
            if not finite.all():
                place = self.array.where(int(rows[int(np.argmin(finite))]))
                raise DataError(place, f"{self.array.name} is NaN or infinite there")
        return found.astype(dtype)
