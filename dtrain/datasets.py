"""The datasets that dtrain ships. A dataset function returns :class:`Splits`."""

from __future__ import annotations

import gzip
import importlib.util
import io
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dtrain.data import draws
from dtrain.data.lines import Lines
from dtrain.data.npz import Archive
from dtrain.data.sources import Arrays, ImageFiles, Source, Splits
from dtrain.data.splits import (
    as_targets,
    count_classes,
    existing_file,
    numbers,
    same_length,
    split,
    split_indices,
)
from dtrain.data.text import text
from dtrain.errors import UsageError, nearest

__all__ = [
    "Arrays",
    "ImageFiles",
    "Source",
    "Splits",
    "csv",
    "digits",
    "image_folder",
    "npz",
    "synthetic",
    "text",
]


#: Examples of synthetic data that get their patterns at once.
_ROWS = 1024
#: Of one example of :func:`synthetic`, and height and width in :func:`image_folder`.
_SHAPE, _SIZE = (28, 28, 1), (64, 64)


def digits(validation_split: float = 0.2, split_seed: int = 0) -> Splits:
    """Handwritten digits of scikit-learn: 1,797 images, float32 ``[8, 8, 1]`` in 0..1, 10 classes.

    The file is read where scikit-learn keeps it (``datasets/data/digits.csv.gz``), which spares
    the import of scikit-learn itself. Source: E. Alpaydin, C. Kaynak, Optical Recognition of
    Handwritten Digits, UCI repository, 1998.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise UsageError(
            "dataset", "digits", "scikit-learn carries it", "an installed scikit-learn",
            "pip install scikit-learn",
        )  # fmt: skip
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    x = (table[:, :-1] / 16.0).reshape(-1, 8, 8, 1)
    return split(x, table[:, -1].astype(np.int64), validation_split, split_seed)


def synthetic(
    examples: int = 10_000,
    validation_examples: int = 1_000,
    shape: Sequence[int] | None = _SHAPE,
    classes: int = 10,
    noise: float = 1.0,
    data_seed: int = 0,
) -> Splits:
    """Made-up data of any shape: one random pattern a class, plus normal noise.

    The numbers are those of :mod:`dtrain.data.draws`.

    Args:
        examples: how many to train on.
        validation_examples: how many to evaluate on; 0 for none.
        shape: of one example; None: the default.
        classes: number of classes.
        noise: standard deviation of the noise (that of the patterns is 1).
        data_seed: of the generator.
    """
    shape = list(_SHAPE if shape is None else shape)
    for name, value in (("examples", examples), ("classes", classes)):
        if value < 1:
            raise UsageError(
                f"dataset.{name}", value, "is too small", "1 or more", f"dataset.{name}=1"
            )
    patterns = draws.normal(classes * math.prod(shape), data_seed).reshape(classes, *shape)

    def make(n: int, stream: int) -> Arrays:
        y = draws.integers(n, classes, data_seed, stream)

        def inputs() -> np.ndarray:
            x = draws.normal(n * math.prod(shape), data_seed, stream + 1).reshape(n, *shape)
            x *= noise
            for begin in range(0, n, _ROWS):
                x[begin : begin + _ROWS] += patterns[y[begin : begin + _ROWS]]
            return x

        return Arrays(inputs, y)

    held = make(validation_examples, 3) if validation_examples > 0 else None
    return Splits(make(examples, 1), held, classes)


def npz(
    path: str,
    x: str = "x",
    y: str = "y",
    x_validation: str | None = None,
    y_validation: str | None = None,
    scale: float = 1.0,
    validation_split: float = 0.2,
    split_seed: int = 0,
) -> Splits:
    """Arrays of a NumPy ``.npz`` file.

    Args:
        path: the file.
        x, y: names of the arrays to train on: ``[n, ...]`` and ``[n]`` or ``[n, ...]``.
        x_validation, y_validation: names of the arrays to evaluate on; where they are None a part
            of the training arrays is split off.
        scale: inputs are multiplied by it (0.00392156862745098 turns bytes into 0..1).
        validation_split: fraction to split off.
        split_seed: of the shuffle before the split.
    """
    archive = Archive(path)

    def inputs(key: str, name: str) -> Callable[[], np.ndarray]:
        numbers(archive.header(key, name), f"dataset.{key}", name)
        return lambda: archive.read(key, name).astype(np.float32) * np.float32(scale)

    def labels(key: str, name: str, of: str) -> np.ndarray:
        found = as_targets(archive.read(key, name), f"dataset.{key}", name)
        same_length(archive.header(key.replace("y", "x"), of), found, f"dataset.{key}", name)
        return found

    train_x, train_y = inputs("x", x), labels("y", y, x)
    if x_validation is None and y_validation is None:
        return split(train_x, train_y, validation_split, split_seed)
    for given, key, missing in (
        (x_validation, "x", y_validation), (y_validation, "y", x_validation)
    ):  # fmt: skip
        if given is None:
            raise UsageError(
                f"dataset.{key}_validation", None, f"is missing beside {missing}",
                "both x_validation and y_validation, or neither", f"dataset.{key}_validation=NAME",
            )  # fmt: skip
    assert x_validation is not None and y_validation is not None
    held_x = inputs("x_validation", x_validation)
    held_y = labels("y_validation", y_validation, x_validation)
    shape, held = (archive.header("x", name).shape[1:] for name in (x, x_validation))
    if held != shape:
        raise UsageError(
            "dataset.x_validation", x_validation, f"holds examples of shape {held}",
            f"the shape of {x}, {shape}", "dataset.x_validation=NAME",
        )  # fmt: skip
    return Splits(Arrays(train_x, train_y), Arrays(held_x, held_y), count_classes(train_y, held_y))


def csv(
    path: str,
    label: str | None = None,
    separator: str = ",",
    validation_split: float = 0.2,
    split_seed: int = 0,
) -> Splits:
    """A table with a header line: one column is the label, all others are numbers.

    Args:
        path: the file.
        label: name of the label column; the last one if None. Whole numbers are classes, words
            are classes in alphabetical order, other numbers are targets of a regression.
        separator: between columns.
        validation_split: fraction to split off.
        split_seed: of the shuffle before the split.
    """
    import pandas as pd
    from pandas.io.common import get_handle

    file = existing_file(path)
    try:
        with get_handle(file, "rb", compression="infer", is_text=False) as opened:
            lines = io.BufferedReader(Lines(opened.handle))
            engine: Literal["c", "python"] = "c" if len(separator) == 1 else "python"
            # ORDER: of whole columns: in chunks a label "07" is 7 until the first word is met.
            whole = {"low_memory": False} if engine == "c" else {}
            table = pd.read_csv(lines, sep=separator, engine=engine, **whole)
    except Exception as error:  # of pandas, and of each of its unpackers another
        raise UsageError(
            "dataset.path", path, f"cannot be read as CSV ({str(error).strip()})",
            "a text table with a header line", "dataset.path=FILE.csv",
        ) from None  # fmt: skip
    names = [str(name) for name in table.columns]
    if len(names) == 1:
        guess = next((s for s in (";", "|", " ", ",") if s in names[0] and s != separator), "X")
        raise UsageError(
            "dataset.separator", separator, f"leaves {path} with one column, {names[0]!r}",
            "what stands between the columns of the file", f"dataset.separator={guess!r}",
        )  # fmt: skip
    label = names[-1] if label is None else label
    if label not in names:
        near = nearest(label, names) or names[-1]
        raise UsageError(
            "dataset.label", label, f"{path} has no such column",
            ", ".join(names), f"dataset.label={near}",
        )  # fmt: skip
    sound = (table.dtypes.map(lambda kind: kind.kind in "iufb") & table.notna().all()).to_numpy()
    for name in itertools.compress(names, ~sound):
        column = table[name]
        empty = column.isna().to_numpy()
        words = pd.to_numeric(column, errors="coerce").isna().to_numpy() & ~empty
        if empty.any() or (name != label and words.any()):
            row = int(np.argmax(empty if empty.any() else words))
            what = "empty" if empty.any() else f"{column.iloc[row]!r}, a text"
            raise UsageError(
                "dataset.path", path, f"column {name!r} is {what}, in line {row + 2}",
                "numbers in every column but the label's",
                f"dataset.label={name}, or take the column out",
            )  # fmt: skip
    target = table.pop(label)
    x = table.to_numpy(dtype=np.float32)
    y = target.to_numpy()
    if target.dtype.kind not in "iufb":
        y = np.unique(y.astype(str), return_inverse=True)[1]
    return split(x, as_targets(y, "dataset.label", label), validation_split, split_seed)


def image_folder(
    path: str,
    size: Sequence[int] | None = _SIZE,
    channels: int = 3,
    validation_split: float = 0.2,
    split_seed: int = 0,
) -> Splits:
    """Images in one sub-folder a class: ``path/cat/1.png``, ``path/dog/2.jpg``.

    Args:
        path: the folder; its sub-folders in alphabetical order are classes 0, 1, ...
        size: height and width to resize to, in pixels; None: the default.
        channels: 1 (grey) or 3 (RGB).
        validation_split: fraction to split off.
        split_seed: of the shuffle before the split.
    """
    size = list(_SIZE if size is None else size)
    if len(size) != 2 or min(size) < 1:
        raise UsageError(
            "dataset.size", size, "is not height and width", "two numbers, 1 or more",
            "'dataset.size=[64,64]'",
        )  # fmt: skip
    height, width = size
    if channels not in (1, 3):
        raise UsageError(
            "dataset.channels", channels, "is no image format", "1 or 3", "dataset.channels=3"
        )
    root = Path(path)
    if not root.is_dir():
        raise UsageError(
            "dataset.path", path, "there is no such folder",
            "a folder with one sub-folder a class", "dataset.path=FOLDER",
        )  # fmt: skip
    kinds = {".png", ".jpg", ".jpeg", ".bmp", ".gif"}
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    found = [
        (str(file), label)
        for label, folder in enumerate(folders)
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in kinds
    ]
    if not found:
        raise UsageError(
            "dataset.path", path, "holds no images in sub-folders",
            f"CLASS/NAME with {', '.join(sorted(kinds))}", "dataset.path=FOLDER",
        )  # fmt: skip
    grey = {".png", ".jpg", ".jpeg"}  # TensorFlow decodes the others in colour only
    colour = next((name for name, _ in found if Path(name).suffix.lower() not in grey), None)
    if channels == 1 and colour is not None:
        raise UsageError(
            "dataset.channels", channels, f"{colour} can be read in colour only",
            "1 for PNG and JPEG, 3 for all", "dataset.channels=3",
        )  # fmt: skip
    labels = np.array([label for _, label in found], np.int64)
    train, held = split_indices(len(found), validation_split, split_seed)

    def part(rows: np.ndarray) -> ImageFiles:
        return ImageFiles([found[i][0] for i in rows], labels[rows], (height, width), channels)

    return Splits(part(train), part(held) if len(held) else None, len(folders))
