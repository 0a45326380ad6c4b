"""Arrays in files of NumPy's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from dtrain.data import nest
from dtrain.data.data_file import is_address
from dtrain.data.file_arrays import Archive, FileArray, is_large, of_files
from dtrain.data.files import files
from dtrain.data.holdout import Holdout, HoldoutKeys
from dtrain.data.sources import Arrays, Splits
from dtrain.data.splits import split
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
    names = {"inputs": inputs, "target": target, "weight": weight}
    train = _in_archive(path, "dataset.path", names)
    held = {
        "inputs": validation_inputs, "target": validation_target, "weight": validation_weight,
    }  # fmt: skip
    beside = next((each for each in held.values() if each is not None), None)
    if validation is not None:
        if beside is not None:
            raise UsageError(
                "dataset.validation", validation, f"there is {beside} in the other file, too",
                "a file, or arrays in the one file", "dataset.validation=null",
            )  # fmt: skip
        return train.beside(_in_archive(validation, "dataset.validation", names), float(scale))
    if beside is None:
        return train.split(float(scale), Holdout(**holdout))
    for role in ("inputs", "target"):
        if held[role] is None and names[role] is not None:
            raise UsageError(
                f"dataset.validation_{role}", None, f"is missing beside {beside}",
                "both validation_inputs and validation_target, or neither",
                f"dataset.validation_{role}=NAME",
            )  # fmt: skip
    return train.beside(_in_archive(path, "dataset.path", held, "validation_"), float(scale))


def _in_archive(
    path: str, key: str, names: Mapping[str, Names | None], before: str = ""
) -> _Examples:
    """Return arrays of a file, by their roles."""
    first, *others = files(path, key)
    if others:
        raise UsageError(
            key, path, f"names {len(others) + 1} files", "one file", f"{key}={first.name}"
        )
    archive = Archive(first)

    def arrays(role: str) -> _Role | None:
        key, name = f"dataset.{before}{role}", names[role]
        if name is None:
            return None
        return _Role(key, name, nest.mapped(lambda each: archive.array(key, each), name))

    inputs = arrays("inputs")
    assert inputs is not None
    return _Examples(inputs, arrays("target"), arrays("weight"))


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

    def array(role: str, paths: str | Sequence[str] | None) -> _Role | None:
        if paths is None:
            return None
        key = f"dataset.{role}"
        return _Role(key, paths, of_files(files(paths, key), key))

    train_x = array("path", path)
    assert train_x is not None
    train = _Examples(train_x, array("target", target), array("weight", weight))
    held_x = array("validation", validation)
    held_y = array("validation_target", validation_target)
    held_weight = array("validation_weight", validation_weight)
    for one, other, key in (
        (held_x, held_y or held_weight, "validation"),
        (held_y, held_x if target is not None else None, "validation_target"),
    ):
        if one is None and other is not None:
            raise UsageError(
                f"dataset.{key}", None, f"is missing beside {other.key}={other.names}",
                "inputs and targets to evaluate on, or neither", f"dataset.{key}=FILE.npy",
            )  # fmt: skip
    if held_x is None:
        return train.split(float(scale), Holdout(**holdout))
    return train.beside(_Examples(held_x, held_y, held_weight), float(scale))


@dataclasses.dataclass(frozen=True)
class _Role:
    """Arrays that are inputs, targets or weights.

    Attributes:
        key: that names them.
        names: as configured.
        arrays: of numbers, in the structure of the names.
    """

    key: str
    names: Any
    arrays: Any

    def map(self, convert: Callable[[FileArray], Any]) -> Any:
        """Return the structure with what ``convert`` makes of each array."""
        return nest.mapped(convert, self.arrays)


@dataclasses.dataclass(frozen=True)
class _Examples:
    """Arrays with a row for each example."""

    x: _Role
    y: _Role | None
    weight: _Role | None

    def __post_init__(self) -> None:
        for role in filter(None, (self.x, self.y, self.weight)):
            for array in nest.leaves(role.arrays):
                key, name, hint = role.key, array.name, f"{role.key}=NAME"
                if array.dtype.kind not in "biuf" or not array.shape:
                    raise UsageError(
                        key, name, f"has type {array.dtype} and shape {array.shape}",
                        "numbers in rows, one row an example", hint,
                    )  # fmt: skip
                if len(array) != len(self):
                    problem = f"has {len(array)} rows and the inputs {len(self)}"
                    raise UsageError(key, name, problem, f"{len(self)} rows", hint)

    def is_stored(self, *others: _Examples) -> bool:
        """Whether they, with others, stay in their files: they are large, or at an address."""
        roles = [role for part in (self, *others) for role in (part.x, part.y, part.weight)]
        arrays = [a for role in roles if role is not None for a in nest.leaves(role.arrays)]
        far = any(is_address(file.name) for array in arrays for file in array.files)
        return far or is_large(sum(array.nbytes for array in arrays))

    def __len__(self) -> int:
        return len(nest.leaves(self.x.arrays)[0])

    def source(self, scale: float, stored: bool) -> Any:
        """Return the source that reads rows from the files, or that holds all of them."""
        x, y, weight = self.x, self.y, self.weight
        targets = None if y is None else y.map(lambda array: Targets(array, y.key))
        if stored:
            return StoredArrays(x.arrays, targets, None if weight is None else weight.arrays, scale)
        return Arrays(
            lambda: x.map(lambda array: as_input(array.whole(), np.float32(scale))),
            nest.mapped(lambda target: target.take(np.arange(len(self))), targets),
            None if weight is None else weight.map(lambda a: a.whole().astype(np.float32)),
            len(self),
        )

    def split(self, scale: float, holdout: Holdout) -> Splits:
        """Hold a part out."""
        stored = self.is_stored()
        whole = self.source(scale, stored)
        if not stored:
            return split(whole, holdout)
        train, held = holdout.rows(len(self), whole.info.labels)
        if not len(held):
            return Splits(whole, None, whole.counted())
        return Splits(whole.subset(train), whole.subset(held), whole.counted())

    def beside(self, held: _Examples, scale: float) -> Splits:
        """Return them with others to evaluate on.

        Raises:
            UsageError: those have another structure, or other shapes.
        """
        ours, theirs = (dict(nest.named(part.x.arrays)) for part in (self, held))
        if list(ours) != list(theirs):
            raise UsageError(
                held.x.key, held.x.names, f"is no structure like that of {self.x.names}",
                "an array for each input", f"{held.x.key}=NAME",
            )  # fmt: skip
        for name, array in ours.items():
            other = theirs[name]
            if other.shape[1:] != array.shape[1:]:
                raise UsageError(
                    held.x.key, other.name, f"holds examples of shape {other.shape[1:]}",
                    f"the shape of {array.name}, {array.shape[1:]}", f"{held.x.key}=NAME",
                )  # fmt: skip
        stored = self.is_stored(held)
        train, validation = (part.source(scale, stored) for part in (self, held))
        count = train.counted(validation) if stored else of_labels(train.y, validation.y)
        return Splits(train, validation, count)
