"""Datasets of Hugging Face's package ``datasets``: folders, names of the Hub, and tar shards.

The package says what is there, and copies tar shards once; the files that it has written are Arrow
streams, which are read as all others. Nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dtrain.data import cache
from dtrain.data.files import DataFile
from dtrain.data.table import Column
from dtrain.data.tabular.forms import Form, column_of, is_list
from dtrain.data.tabular.parts import MappedFile, Reading
from dtrain.data.tabular.reader import ArrowTable
from dtrain.errors import DataError, UsageError, nearest

_SHAPED = ("Array2D", "Array3D", "Array4D", "Array5D")
_MEDIA = ("Image", "Audio", "Video", "Pdf", "Mesh")


@dataclasses.dataclass(frozen=True)
class Part:
    """A split of a dataset.

    Attributes:
        files: of it, in order.
        features: what the package says of its columns.
        rows: how many it has.
    """

    files: list[str]
    features: Mapping[str, Any]
    rows: int


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
        part: the split.
        declared: forms of columns beside those that the package says.
        shown: the files that messages name; None: those of the split.

    Raises:
        UsageError: a file is no Arrow file, or they have other rows.
    """

    def __init__(
        self,
        part: Part,
        declared: Mapping[str, Form] | None = None,
        shown: Sequence[DataFile] | None = None,
    ):
        forms = dict(declared or {})
        for name, feature in part.features.items():
            kind = type(feature).__name__
            if kind in _MEDIA:
                column = Column(np.dtype(object), kind="bytes")
                forms[name] = Form(column, (name, "bytes"))
            elif kind in _SHAPED:
                column = Column(np.dtype(feature.dtype), tuple(feature.shape))
                forms[name] = Form(column, (name,))
        title = None if shown is None else ", ".join(file.name for file in shown[:3])
        copies = [_Copy(file, title or file) for file in part.files]
        super().__init__(copies, Reading("arrow"), forms)
        if len(self) != part.rows:
            raise UsageError(
                "dataset.path", str(Path(part.files[0]).parent),
                f"its files have {len(self):,} rows, and the dataset {part.rows:,} of them",
                "a dataset that is flattened (flatten_indices) before it is saved",
                "dataset.path=FOLDER",
            )  # fmt: skip
        names = [
            name for name, form in self._forms.items() if name in forms or form.path[0] not in forms
        ]
        order = list(part.features)
        names.sort(key=lambda name: order.index(self._forms[name].path[0]))
        hidden = ("__key__", "__url__")
        self.columns = {n: self._forms[n].column for n in names if n not in hidden}
        self.refused = {n: why for n, why in self.refused.items() if n.split(".")[0] not in forms}
        self._labels = [
            n for n, each in part.features.items() if type(each).__name__ == "ClassLabel"
        ]
        if shown is not None:
            self.files = list(shown)

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read columns at some rows.

        Raises:
            DataError: naming file, row and column.
        """
        values = super().read(rows, names)
        for name in self._labels:
            if name in values and np.any(values[name] < 0):
                row = int(rows[np.argmax(values[name] < 0)])
                raise DataError(f"{self.where(row)}, column {name!r}", "has no label (-1)")
        return values


def opened(path: str | None, name: str | None, train: str, validation: str | None) -> list[Part]:
    """Return the splits to train on and to evaluate on, the latter if it is named.

    Args:
        path: a folder that ``save_to_disk`` has written.
        name: of a dataset in the package's cache, in the place of the path.
        train, validation: names of the splits.

    Raises:
        UsageError: the package is not installed, there is no such dataset, or it has no such split.
    """
    if (path is None) == (name is None):
        raise UsageError(
            "dataset.path", path, "no dataset is named" if path is None else "a name is given, too",
            "dataset.path=FOLDER, or dataset.name=NAME", "dataset.path=FOLDER dataset.name=null",
        )  # fmt: skip
    shown = str(path or name)
    dataset = _folder(shown) if path is not None else _named(shown)
    if not isinstance(dataset, dict):
        for key, value, own in (
            ("dataset.validation", validation, None), ("dataset.train", train, str(dataset.split)),
        ):  # fmt: skip
            if value not in (own, None, "train"):
                raise UsageError(
                    key, value, f"{shown} is one dataset, without splits",
                    "the folder of a DatasetDict", f"{key}={'null' if own is None else 'train'}",
                )  # fmt: skip
        return [_part(dataset, shown)]
    if validation == train:
        raise UsageError(
            "dataset.validation", validation, "is the split that is trained on", "another split",
            "dataset.validation=null",
        )  # fmt: skip
    parts = []
    for key, value in (("dataset.train", train), ("dataset.validation", validation)):
        if value is not None and value not in dataset:
            near = nearest(value, dataset) or "NAME"
            raise UsageError(
                key, value, f"{shown} has no such split", ", ".join(dataset), f"{key}={near}"
            )
        if value is not None:
            parts.append(_part(dataset[value], shown))
    return parts


def _part(dataset: Any, path: str) -> Part:
    files = [each["filename"] for each in dataset.cache_files]
    if not files:
        raise UsageError(
            "dataset.path", path, "has no file with rows", "a folder that save_to_disk has written",
            "dataset.path=FOLDER",
        )  # fmt: skip
    return Part(files, dict(dataset.features), dataset.num_rows)


def _package(option: str) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    try:
        import datasets
        from tqdm import tqdm
    except ImportError:
        raise UsageError(
            "dataset", option, "it needs the package datasets, which is not installed",
            "an installed package datasets", 'pip install "dtrain[hf]"',
        ) from None  # fmt: skip
    datasets.disable_progress_bars()
    # Else it makes one that processes could share, which is reported as leaked when a task ends.
    tqdm.set_lock(threading.RLock())
    return datasets


def _folder(path: str) -> Any:
    """Return the dataset of a folder, or a dict of them by split."""
    package = _package("huggingface")
    if not Path(path).is_dir():
        raise UsageError(
            "dataset.path", path, f"there is no such folder (looked in {Path.cwd()})",
            "a folder that save_to_disk has written", "dataset.path=FOLDER",
        )  # fmt: skip
    try:
        dataset = package.load_from_disk(path)
    except Exception as error:  # of the package, of pyarrow and of json, for each way to be none
        raise UsageError(
            "dataset.path", path, "cannot be read as a dataset of Hugging Face's "
            f"({' '.join(str(error).split())})",
            "a folder that save_to_disk has written", "dataset.path=FOLDER",
        ) from None  # fmt: skip
    return dict(dataset) if isinstance(dataset, package.DatasetDict) else dataset


def _named(name: str) -> Any:
    package = _package("huggingface")
    # A name may have a user before it: then the configuration is its third part.
    owner, _, rest = name.rpartition("/") if name.count("/") > 1 else (name, "", "")
    try:
        return dict(package.load_dataset(owner, rest or None))
    except Exception as error:  # of the package, for each way to be none
        raise UsageError(
            "dataset.name", name, f"is not in the package's cache ({' '.join(str(error).split())})",
            "a dataset that load_dataset has brought to this machine",
            f"python -c \"import datasets; datasets.load_dataset('{owner}')\"",
        ) from None  # fmt: skip


def tar_table(files: Sequence[DataFile]) -> HubTable:
    """Return the examples of tar files as of webdataset, which the package copies once.

    Raises:
        UsageError: a file is none, or is damaged.
    """
    package = _package("webdataset")
    paths = [str(file.local().absolute()) for file in files]
    for file in files:
        with file.open() as stream:
            if stream.read(2) in (b"\x1f\x8b", b"BZ", b"\xfd7"):
                raise UsageError(
                    "dataset.path", file.name, "is compressed", "tar files that are not",
                    f"gunzip {file.name}",
                )  # fmt: skip
    try:
        dataset = package.load_dataset(
            "webdataset", data_files=paths, split="train",
            cache_dir=str(cache.folder() / "datasets"),
        )  # fmt: skip
    except Exception as error:  # of the package wraps those of tarfile and of each decoder
        cause = error.__cause__ or error
        raise UsageError(
            "dataset.path", ", ".join(file.name for file in files[:3]),
            f"cannot be read as tar files of examples ({' '.join(str(cause).split())[:300]})",
            "tar files whose members' names are EXAMPLE.EXTENSION, alike in all examples",
            "dataset.path=FILE.tar",
        ) from None  # fmt: skip
    part = _part(dataset, files[0].name)
    return HubTable(part, _constant_lists(part.files), files)


def _constant_lists(files: Sequence[str]) -> dict[str, Form]:
    """Return the forms of columns of lists that have one shape in all rows, as arrays have."""
    forms: dict[str, Form] = {}
    tables = [pa.Table.from_batches(MappedFile(Path(file)).batches()) for file in files]
    for field in tables[0].schema:
        shapes = {_shape(chunk) for table in tables for chunk in table[field.name].chunks}
        shape = shapes.pop() if len(shapes) == 1 else None
        kind = field.type
        while is_list(kind):
            kind = kind.value_type
        inner = column_of(kind)
        if shape and inner is not None and inner.is_number:
            forms[field.name] = Form(dataclasses.replace(inner, shape=shape), (field.name,))
    return forms


def _shape(array: pa.Array) -> tuple[int, ...] | None:
    shape: list[int] = []
    while is_list(array.type):
        sizes = pc.min_max(pc.list_value_length(array)).as_py()
        if array.null_count or sizes["min"] != sizes["max"]:
            return None
        shape.append(sizes["min"])
        array = array.flatten()
    return tuple(shape)
