"""Arrays in files of NumPy's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from dtrain.data import nest
from dtrain.data.data_file import is_address
from dtrain.data.file_arrays import Archive, is_large, of_files
from dtrain.data.files import files
from dtrain.data.holdout import Holdout, HoldoutKeys, divided
from dtrain.data.sources import Arrays, Splits
from dtrain.data.stored import StoredArrays, Targets, as_input
from dtrain.data.target_kind import of_labels
from dtrain.errors import UsageError

#: Names of arrays: one, several that are a tuple, or by the names of inputs or outputs.
Names = str | Sequence[Any] | Mapping[str, Any]


def npz(
    path: str,
    inputs: Names = "x",
    target: Names | None = "y",
    weight: Names | None = None,
    validation: str | None = None,
    validation_inputs: Names | None = None,
    validation_target: Names | None = None,
    validation_weight: Names | None = None,
    scale: float = 1.0,
    **holdout: Unpack[HoldoutKeys],
) -> Splits:
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
                raise UsageError(
                    "dataset.validation", validation, f"there is dataset.{key}={name}, too",
                    "a file, or arrays in the one file", "dataset.validation=null",
                )  # fmt: skip
        beside = _in_archive(validation, "dataset.validation", keys)
    elif _is_whole(held, target is not None, "NAME"):
        beside = _in_archive(path, "dataset.path", held)
    return train.splits(beside, float(scale), Holdout(**holdout))


def _in_archive(path: str, key: str, keys: Mapping[str, Names | None]) -> _Examples:
    """Return arrays of a file, by the keys that name them."""
    first, *others = files(path, key)
    if others:
        raise UsageError(
            key, path, f"names {len(others) + 1} files", "one file", f"{key}={first.name}"
        )
    archive = Archive(first)

    def arrays(key: str, names: Names | None) -> Any:
        return nest.mapped(lambda name: archive.array(f"dataset.{key}", name), names)

    return _Examples({key: arrays(key, names) for key, names in keys.items()})


def _is_whole(held: Mapping[str, Any], has_targets: bool, name: str) -> bool:
    """Say whether there is what to evaluate on: inputs, and targets where there are any."""
    present = {key: value for key, value in held.items() if value is not None}
    for key in list(held)[: 1 + has_targets]:
        if present and key not in present:
            other, value = next(iter(present.items()))
            raise UsageError(
                f"dataset.{key}", None, f"is missing beside dataset.{other}={value}",
                "inputs and targets to evaluate on, or neither", f"dataset.{key}={name}",
            )  # fmt: skip
    return bool(present)


def npy(
    path: str | Sequence[str],
    target: str | Sequence[str] | None = None,
    weight: str | Sequence[str] | None = None,
    validation: str | Sequence[str] | None = None,
    validation_target: str | Sequence[str] | None = None,
    validation_weight: str | Sequence[str] | None = None,
    scale: float = 1.0,
    **holdout: Unpack[HoldoutKeys],
) -> Splits:
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

    def array(key: str, paths: Any) -> Any:
        return None if paths is None else of_files(files(paths, f"dataset.{key}"), f"dataset.{key}")

    def arrays(keys: Mapping[str, Any]) -> _Examples:
        return _Examples({key: array(key, paths) for key, paths in keys.items()})

    train = arrays({"path": path, "target": target, "weight": weight})
    held = {
        "validation": validation, "validation_target": validation_target,
        "validation_weight": validation_weight,
    }  # fmt: skip
    beside = arrays(held) if _is_whole(held, target is not None, "FILE.npy") else None
    return train.splits(beside, float(scale), Holdout(**holdout))


class _Examples:
    """Arrays with a row for each example.

    Args:
        arrays: structures of :class:`FileArray`, or None, by the keys that name them: of inputs,
            targets and weights.

    Raises:
        UsageError: they are no numbers, or have other numbers of rows.
    """

    def __init__(self, arrays: Mapping[str, Any]):
        (self.key, self.x), (self._target, self.y), (_, self.weight) = arrays.items()
        self._rows = len(nest.leaves(self.x)[0]) if nest.leaves(self.x)[0].shape else 0
        self.arrays = [a for part in arrays.values() for a in nest.leaves(part) if a is not None]
        for role, part in arrays.items():
            for array in [] if part is None else nest.leaves(part):
                key, problem, accepted = f"dataset.{role}", None, f"{self._rows} rows"
                if array.dtype.kind not in "biuf" or not array.shape:
                    problem = f"has type {array.dtype} and shape {array.shape}"
                    accepted = "numbers in rows, one row an example"
                elif len(array) != self._rows:
                    problem = f"has {len(array)} rows and the inputs {self._rows}"
                if problem is not None:
                    raise UsageError(key, array.name, problem, accepted, f"{key}=NAME")

    def _source(self, scale: float, stored: bool) -> Any:
        """Return the source that reads rows from the files, or that holds all of them."""
        targets = nest.mapped(lambda array: Targets(array, f"dataset.{self._target}"), self.y)
        if stored:
            return StoredArrays(self.x, targets, self.weight, scale)
        return Arrays(
            lambda: nest.mapped(lambda a: as_input(a.whole(), np.float32(scale)), self.x),
            nest.mapped(lambda target: target.take(np.arange(self._rows)), targets),
            nest.mapped(lambda array: array.whole().astype(np.float32), self.weight), self._rows,
        )  # fmt: skip

    def splits(self, held: _Examples | None, scale: float, holdout: Holdout) -> Splits:
        """Return them with others to evaluate on, or with a part of them held out.

        Where they are large together, or at an address, they stay in their files.

        Raises:
            UsageError: the others have another structure, or other shapes.
        """
        arrays = [*self.arrays, *([] if held is None else held.arrays)]
        far = any(is_address(file.name) for array in arrays for file in array.files)
        stored = far or is_large(sum(array.nbytes for array in arrays))
        train = self._source(scale, stored)
        if held is not None:
            self._compare(held)
            validation = held._source(scale, stored)
            count = train.counted(validation) if stored else of_labels(train.y, validation.y)
            return Splits(train, validation, count)
        count = train.counted() if stored else of_labels(train.y)
        return Splits(*divided(train, holdout), count)

    def _compare(self, held: _Examples) -> None:
        ours, theirs = (dict(nest.named(each.x)) for each in (self, held))
        key, hint = f"dataset.{held.key}", f"dataset.{held.key}=NAME"
        if list(ours) != list(theirs):
            own, other = (nest.mapped(lambda array: array.name, each.x) for each in (self, held))
            problem = f"is no structure like that of {own}"
            raise UsageError(key, other, problem, "an array for each input", hint)
        for name, array in ours.items():
            other = theirs[name]
            if other.shape[1:] != array.shape[1:]:
                problem = f"holds examples of shape {other.shape[1:]}"
                accepted = f"the shape of {array.name}, {array.shape[1:]}"
                raise UsageError(key, other.name, problem, accepted, hint)
