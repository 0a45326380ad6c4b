"""``dataset=huggingface``: a folder that ``save_to_disk`` of Hugging Face's datasets has written.

The package says what is in the folder; the files, Arrow streams, are read as those of
``dataset=arrow``. The package would keep in memory what it has read of them.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.data.files import DataFile
from dtrain.data.formats.arrow import Arrow
from dtrain.data.formats.columns import Form
from dtrain.data.tables import Column
from dtrain.errors import DataError, UsageError, nearest

_SHAPED = ("Array2D", "Array3D", "Array4D", "Array5D")
_MEDIA = ("Image", "Audio", "Video", "Pdf")


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


class HuggingFace(Arrow):
    """Columns of one split.

    Images are bytes, as they are encoded.

    Args:
        files: of the split.
        features: what the package says of its columns.
        rows: how many the package says that there are.

    Raises:
        UsageError: a file is no Arrow file, or they have other rows.
    """

    def __init__(self, files: list[DataFile], features: Mapping[str, Any], rows: int):
        given = {}
        for name, feature in features.items():
            kind = type(feature).__name__
            if kind in _MEDIA:
                given[name] = Form(Column(np.dtype(object)), "bytes", (name, "bytes"))
            elif kind in _SHAPED:
                column = Column(np.dtype(feature.dtype), tuple(feature.shape))
                given[name] = Form(column, "number", (name,))
        super().__init__(files, given)
        if len(self) != rows:  # of versions of the package before 2, which kept an order beside it
            raise UsageError(
                "dataset.path", str(Path(files[0].name).parent),
                f"its files have {len(self):,} rows, and the dataset {rows:,} of them",
                "a folder that save_to_disk of datasets 2 or newer has written",
                "dataset.path=FOLDER",
            )  # fmt: skip
        self._labels = [n for n, each in features.items() if type(each).__name__ == "ClassLabel"]
        order = list(features)
        top = {name: form.path[0] for name, form in self._forms.items()}
        names = [name for name in top if name in given or top[name] not in given]
        names.sort(key=lambda name: order.index(top[name]))
        self.columns = {name: self._forms[name].column for name in names}
        self.refused = {n: why for n, why in self.refused.items() if n.split(".")[0] not in given}

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read columns at some rows.

        Raises:
            DataError: naming file, row and column.
        """
        found = super().read(rows, names)
        for name in self._labels:
            if name in found and np.any(found[name] < 0):
                row = int(rows[np.argmax(found[name] < 0)])
                raise DataError(f"{self.where(row)}, column {name!r}", "has no label (-1)")
        return found


def opened(path: str, split: str, validation: str | None) -> list[Part]:
    """Return the splits of a folder to train on and to evaluate on, the latter if it is named.

    Raises:
        UsageError: the package is not installed, the folder is none that it has written, or has no
            such split.
    """
    found = _loaded(path)
    if not isinstance(found, dict):
        if validation is not None:
            raise _alone(path, "dataset.validation", validation, "null")
        if split not in ("train", str(found.split)):
            raise _alone(path, "dataset.split", split, "train")
        return [_part(found, path)]
    if validation == split:
        raise UsageError(
            "dataset.validation", validation, "is the split that is trained on", "another split",
            "dataset.validation=null",
        )  # fmt: skip
    parts = []
    for key, name in (("dataset.split", split), ("dataset.validation", validation)):
        if name is not None and name not in found:
            near = nearest(name, found) or "NAME"
            raise UsageError(
                key, name, f"{path} has no such split", ", ".join(found), f"{key}={near}"
            )
        if name is not None:
            parts.append(_part(found[name], path))
    return parts


def _alone(path: str, key: str, value: str, instead: str) -> UsageError:
    return UsageError(
        key, value, f"{path} is one dataset, without splits", "the folder of a DatasetDict",
        f"{key}={instead}",
    )  # fmt: skip


def _part(found: Any, path: str) -> Part:
    files = [each["filename"] for each in found.cache_files]
    if not files:
        raise UsageError(
            "dataset.path", path, "has no file with rows", "a folder that save_to_disk has written",
            "dataset.path=FOLDER",
        )  # fmt: skip
    return Part(files, dict(found.features), found.num_rows)


def _loaded(path: str) -> Any:
    """Return the dataset of a folder, or a dict of them by split."""
    try:
        from datasets import DatasetDict, disable_progress_bars, load_from_disk
        from tqdm import tqdm
    except ImportError:
        raise UsageError(
            "dataset", "huggingface", "it needs the package datasets, which is not installed",
            "an installed package datasets", 'pip install "dtrain[hf]"',
        ) from None  # fmt: skip
    if not Path(path).is_dir():
        raise UsageError(
            "dataset.path", path, f"there is no such folder (looked in {Path.cwd()})",
            "a folder that save_to_disk has written", "dataset.path=FOLDER",
        )  # fmt: skip
    disable_progress_bars()
    # Else it makes one that processes could share, which is reported as leaked when a task ends.
    tqdm.set_lock(threading.RLock())
    try:
        found = load_from_disk(path)
    except Exception as error:  # of the package, of pyarrow and of json, for each way to be none
        raise UsageError(
            "dataset.path", path, "cannot be read as a dataset of Hugging Face's "
            f"({' '.join(str(error).split())})",
            "a folder that save_to_disk has written", "dataset.path=FOLDER",
        ) from None  # fmt: skip
    return dict(found) if isinstance(found, DatasetDict) else found
