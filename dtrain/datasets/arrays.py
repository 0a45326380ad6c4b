"""Arrays in files of NumPy's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.data_file import DataFile, is_address
from dtrain.data.file_arrays import Archive, FileArray, is_large, of_files
from dtrain.data.files import files
from dtrain.data.holdout import Holdout
from dtrain.data.sources import Arrays, Splits
from dtrain.data.splits import (
    as_targets,
    numbers,
    same_length,
    split,
    split_indices,
)
from dtrain.data.stored import StoredArrays, Targets, as_input
from dtrain.data.target_kind import of_labels
from dtrain.errors import UsageError

#: Names of arrays: one, several that are a tuple, or by the names of inputs or outputs.
Names = str | Sequence[Any] | Mapping[str, Any]


def npz(
    path: str,
    x: Names = "x",
    y: Names | None = "y",
    weight: Names | None = None,
    x_validation: Names | None = None,
    y_validation: Names | None = None,
    weight_validation: Names | None = None,
    scale: float = 1.0,
    validation_split: float = 0.2,
    split_seed: int = 0,
) -> Splits:
    """Arrays of a NumPy ``.npz`` file.

    Where they are less than 64 MB together they are held in memory. Else, and where the file is at
    an address, their rows are read when they are needed: at their place in the file where they are
    stored without compression (``numpy.savez``), or from a copy in the cache.

    Args:
        path: the file, or its address.
        x, y: names of the arrays to train on: ``[n, ...]`` and ``[n]`` or ``[n, ...]``. A mapping
            or a list of names is a dict or a tuple of arrays, for several inputs or outputs.
        weight: names of the weights of the examples; None for none.
        x_validation, y_validation, weight_validation: names of the arrays to evaluate on; where
            they are None a part of the training arrays is split off.
        scale: inputs are multiplied by it (0.00392156862745098 turns bytes into 0..1).
        validation_split: fraction to split off.
        split_seed: of the shuffle before the split.
    """
    archive = Archive(_one_file(path))

    def arrays(role: str, names: Any) -> _Role | None:
        if names is None:
            return None
        key = f"dataset.{role}"
        return _Role(key, names, nest.mapped(lambda name: archive.array(key, name), names))

    train_x = arrays("x", x)
    assert train_x is not None
    train = _Examples(train_x, arrays("y", y), arrays("weight", weight))
    given = {"x": x_validation, "y": y_validation, "weight": weight_validation}
    if all(names is None for names in given.values()):
        return train.split(float(scale), validation_split, split_seed)
    for role, missing, there in (("x", x_validation, True), ("y", y_validation, y is not None)):
        if missing is None and there:
            beside = next(names for names in given.values() if names is not None)
            raise UsageError(
                f"dataset.{role}_validation", None, f"is missing beside {beside}",
                "both x_validation and y_validation, or neither",
                f"dataset.{role}_validation=NAME",
            )  # fmt: skip
    held_x = arrays("x_validation", x_validation)
    assert held_x is not None
    held = _Examples(
        held_x, arrays("y_validation", y_validation), arrays("weight_validation", weight_validation)
    )
    return train.beside(held, float(scale))


def _one_file(path: str) -> DataFile:
    found = files(path)
    if len(found) > 1:
        raise UsageError(
            "dataset.path", path, f"names {len(found)} files", "one file",
            f"dataset.path={found[0].name}",
        )  # fmt: skip
    return found[0]


def npy(
    path: str | Sequence[str],
    target_path: str | Sequence[str] | None = None,
    weight_path: str | Sequence[str] | None = None,
    validation_path: str | Sequence[str] | None = None,
    validation_target_path: str | Sequence[str] | None = None,
    validation_weight_path: str | Sequence[str] | None = None,
    scale: float = 1.0,
    validation_split: float = 0.2,
    split_seed: int = 0,
) -> Splits:
    """Arrays of NumPy ``.npy`` files, each of which a file, or several that are joined, has.

    Where they are less than 64 MB together they are held in memory. Else, and where the files are
    at addresses, their rows are read when they are needed.

    Args:
        path: of the inputs ``[n, ...]``: a file, a pattern, or a list of them, in the order of
            their names.
        target_path: of the targets, ``[n]`` or ``[n, ...]``; None for none.
        weight_path: of the weights of the examples; None for none.
        validation_path, validation_target_path, validation_weight_path: of what to evaluate on;
            where they are None a part of the training examples is split off.
        scale: inputs are multiplied by it (0.00392156862745098 turns bytes into 0..1).
        validation_split: fraction to split off.
        split_seed: of the shuffle before the split.
    """

    def array(role: str, paths: str | Sequence[str] | None) -> _Role | None:
        if paths is None:
            return None
        key = f"dataset.{role}"
        return _Role(key, paths, of_files(files(paths, key), key))

    train_x = array("path", path)
    assert train_x is not None
    train = _Examples(train_x, array("target_path", target_path), array("weight_path", weight_path))
    held_x = array("validation_path", validation_path)
    held_y = array("validation_target_path", validation_target_path)
    held_weight = array("validation_weight_path", validation_weight_path)
    for one, other, key in (
        (held_x, held_y or held_weight, "validation_path"),
        (held_y, held_x if target_path is not None else None, "validation_target_path"),
    ):
        if one is None and other is not None:
            raise UsageError(
                f"dataset.{key}", None, f"is missing beside {other.key}={other.names}",
                "inputs and targets to evaluate on, or neither", f"dataset.{key}=FILE.npy",
            )  # fmt: skip
    if held_x is None:
        return train.split(float(scale), validation_split, split_seed)
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

    def __post_init__(self) -> None:
        for array in nest.leaves(self.arrays):
            numbers(array, self.key, array.name)

    def converted(self, convert: Callable[[FileArray], Any]) -> Any:
        """Return the structure with what ``convert`` makes of each array."""
        return nest.mapped(convert, self.arrays)

    def of_classes(self) -> Any:
        """Return targets that are read in memory."""
        return self.converted(lambda a: as_targets(a.whole(), self.key, a.name))


@dataclasses.dataclass(frozen=True)
class _Examples:
    """Arrays with a row for each example."""

    x: _Role
    y: _Role | None
    weight: _Role | None

    def __post_init__(self) -> None:
        first = nest.leaves(self.x.arrays)[0]
        for role in (self.x, self.y, self.weight):
            for array in [] if role is None else nest.leaves(role.arrays):
                same_length(first, array, role.key if role else "", array.name)

    def is_stored(self, *others: _Examples) -> bool:
        """Whether they, with others, stay in their files: they are large, or at an address."""
        roles = [role for part in (self, *others) for role in (part.x, part.y, part.weight)]
        arrays = [a for role in roles if role is not None for a in nest.leaves(role.arrays)]
        far = any(is_address(file.name) for array in arrays for file in array.files)
        return far or is_large(sum(array.nbytes for array in arrays))

    def __len__(self) -> int:
        return len(nest.leaves(self.x.arrays)[0])

    def _inputs(self, scale: float) -> Callable[[], Any]:
        return lambda: self.x.converted(lambda a: as_input(a.whole(), np.float32(scale)))

    def _targets(self) -> Any:
        return None if self.y is None else self.y.of_classes()

    def _weights(self) -> Any:
        if self.weight is None:
            return None
        return self.weight.converted(lambda a: a.whole().astype(np.float32))

    def in_memory(self, scale: float) -> Arrays:
        """Return the source that holds them; the inputs are read when they are needed."""
        return Arrays(self._inputs(scale), self._targets(), self._weights(), len(self))

    def stored(self, scale: float) -> StoredArrays:
        """Return the source that reads rows."""
        targets, weight = self.y, self.weight
        y = None if targets is None else targets.converted(lambda a: Targets(a, targets.key))
        return StoredArrays(self.x.arrays, y, weight and weight.arrays, scale)

    def split(self, scale: float, fraction: float, seed: int) -> Splits:
        """Hold a part out."""
        Holdout(fraction)
        if not self.is_stored():
            return split(
                self._inputs(scale),
                self._targets(),
                Holdout(fraction, seed),
                self._weights(),
                len(self),
            )
        whole = self.stored(scale)
        count = whole.counted()
        train, held = split_indices(len(self), fraction, seed)
        if not len(held):
            return Splits(whole, None, count)
        return Splits(whole.subset(train), whole.subset(held), count)

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
        if not self.is_stored(held):
            memory = self.in_memory(scale), held.in_memory(scale)
            return Splits(*memory, of_labels(*(part.y for part in memory)))
        parts = self.stored(scale), held.stored(scale)
        return Splits(*parts, parts[0].counted(parts[1]))
