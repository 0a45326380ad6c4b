"""Datasets of Hugging Face's package ``datasets``: folders, names of the Hub, and tar shards.

The package says what is there, and copies tar shards once; the files that it has written are Arrow
streams, which are read as all others. Nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dtrain.data import cache
from dtrain.data.example import Dataset
from dtrain.data.files import DataFile, files, not_installed
from dtrain.data.holdout import each_of
from dtrain.data.nest import Leaf
from dtrain.data.tabular.arrow import column_of, is_list
from dtrain.data.tabular.dialects import Reading
from dtrain.data.tabular.reader import ArrowTable
from dtrain.data.tabular.table import Column
from dtrain.errors import DataError, UsageError, nearest, refuse

_SHAPED = ("Array2D", "Array3D", "Array4D", "Array5D")
_SAVED = "a folder that save_to_disk has written"
_MEDIA = ("Image", "Audio", "Video", "Pdf", "Mesh")


class _Copy(DataFile):
    """A file that messages call by the name of those that it is a copy of."""

    def __init__(self, path: str, name: str):
        super().__init__(name)
        self._path = path

    def local(self) -> Path:
        """Return where it is."""
        return Path(self._path)


class HubTable(ArrowTable):
    """Columns of one split. Images are bytes, as they are encoded.

    Args:
        part: the split, a ``datasets.Dataset``.
        declared: columns beside those that the package says.
        shown: the files that messages name; None: those of the split.

    Attributes:
        labels: how many classes there are, by the columns that are of ``ClassLabel``.

    Raises:
        UsageError: a file is no Arrow file, or they have other rows.
    """

    def __init__(
        self,
        part: Dataset,
        declared: Mapping[str, Column] | None = None,
        shown: Sequence[DataFile] | None = None,
    ):
        paths = [each["filename"] for each in part.cache_files]
        own, self.labels = dict(declared or {}), dict[str, int]()
        for name, feature in part.features.items():
            kind = type(feature).__name__
            if kind == "ClassLabel":
                self.labels[name] = len(feature.names)
            elif kind in _MEDIA:
                own[name] = Column(np.dtype(object), kind="bytes", path=(name, "bytes"))
            elif kind in _SHAPED:
                dtype, shape = np.dtype(feature.dtype), tuple(feature.shape)
                own[name] = Column(dtype, shape)
        title = None if shown is None else ", ".join(file.name for file in shown[:3])
        super().__init__([_Copy(path, title or path) for path in paths], Reading("arrow"), own)
        if len(self) != part.num_rows:
            refuse("dataset.path", f"its files have {len(self):,} rows, and the dataset "
                   f"{part.num_rows:,} of them", str(Path(paths[0]).parent),
                   accepted="one that is flattened (flatten_indices) and then saved")  # fmt: skip
        for name in ("__key__", "__url__"):  # of tar files: what their examples are called
            self.columns.pop(name, None)
        if shown is not None:
            self.files = list(shown)

    def read(
        self, rows: np.ndarray, names: Sequence[str], with_empty: bool = False
    ) -> dict[str, Leaf]:
        """Read columns at some rows; a label that is missing is -1.

        Raises:
            DataError: naming file, row and column.
        """
        values = super().read(rows, names, with_empty)
        for name in () if with_empty else self.labels:
            if name in values and np.any(values[name] < 0):
                place = self.where(int(rows[np.argmax(values[name] < 0)]))
                raise DataError(f"{place}, column {name!r}", "has no label (-1)")
        return values


def opened(
    path: Any, name: str | None, train: str, validation: Any
) -> tuple[HubTable, HubTable | None]:
    """Return the splits to train on and to evaluate on, the latter if it is named.

    Args:
        path: a folder that ``save_to_disk`` has written, or tar files.
        name: of a dataset in the package's cache, in the place of the path.
        train, validation: names of the splits; of tar files those to evaluate on.

    Raises:
        UsageError: the package is not installed, there is no such dataset, or it has no such split.
    """
    if (path is None) == (name is None):
        refuse("dataset.path", "no dataset is named" if path is None else "a name is given, too",
               path, accepted="dataset.path=FOLDER, or dataset.name=NAME")  # fmt: skip
    paths = [path] if isinstance(path, str) else path or [""]
    if all(each.endswith(".tar") for each in paths):
        return each_of(lambda some: _tar_table(files(some)), path, validation)
    shown = str(path or name)
    splits = _folder(shown) if path is not None else _named(shown)
    if not isinstance(splits, dict):
        splits = dict.fromkeys(("train", str(splits.split or "train")), splits)
    parts: list[Dataset] = []
    for key, value in {"dataset.train": train, "dataset.validation": validation}.items():
        if value is None:
            continue
        if value not in splits:
            near = nearest(value, splits)
            refuse(key, f"{shown} has no such split", value, accepted=", ".join(splits),
                   typed=near and f"{key}={near}")  # fmt: skip
        if any(splits[value] is part for part in parts):
            refuse(key, "is the split that is trained on", value, accepted="another split",
                   typed=f"{key}=null")  # fmt: skip
        parts.append(splits[value])
    if not all(part.cache_files for part in parts):
        refuse("dataset.path", "has no file with rows", shown, accepted=_SAVED)
    return HubTable(parts[0]), HubTable(parts[1]) if len(parts) > 1 else None


def _package() -> ModuleType:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    try:
        import datasets
        from tqdm import tqdm
    except ImportError as error:
        raise not_installed("huggingface", "hf", error) from None
    datasets.disable_progress_bars()
    # Else it makes one that processes could share, which is reported as leaked when a task ends.
    tqdm.set_lock(threading.RLock())
    return datasets


@contextlib.contextmanager
def _refusing(key: str, value: str, problem: str, **words: str) -> Iterator[None]:
    """Raise what the package, pyarrow, json, tarfile or a decoder raises as a sentence."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise UsageError(key, f"{problem} ({reason})", value, **words) from None


def _folder(path: str) -> Dataset:
    """Return the dataset of a folder, or a dict of them by split."""
    package = _package()
    key = "dataset.path"
    if not Path(path).is_dir():
        problem = f"there is no such folder (looked in {Path.cwd()})"
        refuse(key, problem, path, accepted=_SAVED)
    with _refusing(key, path, "cannot be read as a dataset of Hugging Face's", accepted=_SAVED):
        dataset = package.load_from_disk(path)
    return dict(dataset) if isinstance(dataset, package.DatasetDict) else dataset


def _named(name: str) -> dict[str, Dataset]:
    package = _package()
    # A name may have a user before it: then the configuration is its third part.
    owner, _, rest = name.rpartition("/") if name.count("/") > 1 else (name, "", "")
    with _refusing(
        "dataset.name", name, "is not in the package's cache",
        accepted="a dataset that load_dataset has brought to this machine",
        typed=f"python -c \"import datasets; datasets.load_dataset('{owner}')\"",
    ):  # fmt: skip
        return dict(package.load_dataset(owner, rest or None))


def _tar_table(shards: Sequence[DataFile]) -> HubTable:
    """Return the examples of tar files as of webdataset, which the package copies once.

    Raises:
        UsageError: a file is none, or is damaged.
    """
    package, paths = _package(), [str(file.local().absolute()) for file in shards]
    with _refusing(
        "dataset.path", ", ".join(file.name for file in shards[:3]),
        "cannot be read as tar files of examples", accepted="tar files, not compressed, whose "
        "members' names are EXAMPLE.EXTENSION, alike in all",
    ):  # fmt: skip
        dataset = package.load_dataset(
            "webdataset", data_files=paths, split="train",
            cache_dir=str(cache.folder() / "datasets"),
        )  # fmt: skip
    return HubTable(dataset, _constant_lists(dataset.data.table), shards)


def _constant_lists(table: pa.Table) -> dict[str, Column]:
    """Return the columns of lists that have one shape in all rows, as arrays have."""
    own: dict[str, Column] = {}
    for field in table.schema:
        shapes = {_shape(chunk) for chunk in table[field.name].chunks}
        shape = shapes.pop() if len(shapes) == 1 else None
        kind = field.type
        while is_list(kind):
            kind = kind.value_type
        inner = column_of(kind)
        if shape and inner is not None and inner.is_number:
            own[field.name] = dataclasses.replace(inner, shape=shape)
    return own


def _shape(array: pa.Array) -> tuple[int, ...] | None:
    shape: list[int] = []
    while is_list(array.type):
        sizes = pc.min_max(pc.list_value_length(array)).as_py()
        if array.null_count or sizes["min"] != sizes["max"]:
            return None
        shape.append(sizes["min"])
        array = array.flatten()
    return tuple(shape)
