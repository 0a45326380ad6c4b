"""Tables of a caller's: paths of files, DataFrames, and datasets of Hugging Face's.

What is no file yet becomes one in the run folder, which tasks read as they read any table.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dtrain.api.keywords import write_value
from dtrain.errors import refuse
from dtrain.files import writing
from dtrain.files.fields import Json

_SPLITS = ("validation", "test")
#: Columns of datasets of Hugging Face's that are the target, where none is named.
_LABELS = ("label", "labels")


def is_path(data: object) -> bool:
    """Whether data is named by the path of files, and not by an option of the group dataset."""
    if isinstance(data, os.PathLike):
        return True
    return isinstance(data, str) and (bool(Path(data).suffix) or "/" in data or os.sep in data)


def is_table(data: object) -> bool:
    """Whether data has columns with names that are of a table, and no array alone."""
    return is_path(data) or _is_frame(data) or hasattr(data, "save_to_disk") or _is_pair(data)


def overrides(
    folder: Path, data: Any, validation: Any = None, others: Iterable[str] = ()
) -> list[str]:
    """Return the overrides that read a table.

    Args:
        folder: that files go to.
        data: :func:`is_table`: a path, a DataFrame, ``(DataFrame, targets)`` with texts, or a
            dataset of Hugging Face's.
        validation: the same, to evaluate on; None: a part of the rows is split off.
        others: overrides of the call, which may name a target.

    Raises:
        UsageError: the validation is no table, too.
        OSError: a file cannot be written.
    """
    keys = _keys(folder, data)
    if validation is not None:
        if not is_table(validation):
            refuse("validation", "is no table, and data is one", type(validation).__name__,
                   accepted="a path, a DataFrame or a dataset, as data is")  # fmt: skip
        keys["validation"] = _keys(folder, validation)["path"]
    if any(each.lstrip("+").startswith("dataset.target=") for each in others):
        keys.pop("target", None)
    preset = keys.pop("preset")
    values = (f"dataset.{key}={write_value(value, key)}" for key, value in keys.items())
    return [f"dataset={preset}", *values]


def evaluation_overrides(folder: Path, data: Any) -> list[str]:
    """Return the overrides that evaluate or predict a table; a training knows its columns."""
    keys = _keys(folder, data)
    words = [f"dataset={keys['preset']}", f"dataset.path={write_value(keys['path'], 'path')}"]
    return words + ["dataset.target=null"] * (keys["preset"] == "huggingface")


def _keys(folder: Path, data: Any) -> Json:
    """Return the preset of a table, and its keys in the group dataset."""
    if is_path(data):
        path = os.path.expanduser(os.fspath(data))
        is_saved = any(
            (Path(path) / name).is_file() for name in ("state.json", "dataset_dict.json")
        )
        preset = "npz" if Path(path).suffix == ".npz" else "table"
        return {"preset": "huggingface" if is_saved else preset, "path": path}
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(data, "save_to_disk"):
        return _save_dataset(folder, data)
    if _is_frame(data):
        return {
            "preset": "table",
            "path": _store_frame(folder, data),
            "target": str(data.columns[-1]),
        }
    x, *others = data
    frame, keys = x.copy(deep=False), dict[str, str]()
    for key, values in zip(("target", "weight"), others, strict=False):
        keys[key] = str(getattr(values, "name", None) or key)
        frame[keys[key]] = getattr(values, "to_numpy", lambda each=values: each)()
    return {"preset": "table", "path": _store_frame(folder, frame), **keys}


def _is_frame(data: object) -> bool:
    return hasattr(data, "columns") and hasattr(data, "to_parquet")


def _is_pair(data: object) -> bool:
    """Whether data is ``(DataFrame, targets)``, of which something is no number."""
    if not isinstance(data, tuple) or len(data) not in (2, 3) or not _is_frame(data[0]):
        return False
    frame: Any = data[0]
    kinds = [*frame.dtypes, getattr(data[1], "dtype", None)]
    return any(getattr(kind, "kind", "O") not in "biuf" for kind in kinds)


def _store_frame(folder: Path, frame: Any) -> str:
    """Write a DataFrame; return its path, which the same rows have again."""
    frame = frame.copy(deep=False)
    frame.columns = [str(name) for name in frame.columns]
    try:
        rows: bytes = frame.to_parquet(index=False)
    except Exception as error:  # of pyarrow's, about a column of several types
        refuse("data", f"cannot be written as Parquet: {str(error).splitlines()[0]}",
               type(frame).__name__, accepted="columns of one type each",
               hint="frame['NAME'] = frame['NAME'].astype(str)")  # fmt: skip
    path = folder.absolute() / f"data_{hashlib.sha256(rows).hexdigest()[:12]}.parquet"
    writing.write_bytes(path, rows)
    return str(path)


def _save_dataset(folder: Path, data: Any) -> Json:
    """Save a dataset of Hugging Face's; return its keys."""
    train = data["train"] if isinstance(data, dict) and "train" in data else data
    if isinstance(train, dict):
        refuse("data", "has no split train", ", ".join(data), hint="data=DATASET[NAME]",
               accepted="a Dataset, or a DatasetDict with train")  # fmt: skip
    parts = data if isinstance(data, dict) else {"train": data}
    # No public name tells which rows a dataset has; its package names its caches by this one, too.
    rows = [f"{name} {part._fingerprint}" for name, part in parts.items()]
    path = folder.absolute() / f"data_{hashlib.sha256(repr(rows).encode()).hexdigest()[:12]}"
    if not path.exists():
        aside = writing.aside(path)
        with _without_bars():
            _flatten(data).save_to_disk(str(aside))
        writing.rename(aside, path)
    names = train.column_names
    keys = {"target": next((name for name in _LABELS if name in names), names[-1])}
    if isinstance(data, dict) and (held := next((n for n in _SPLITS if n in data), None)):
        keys["validation"] = held
    return {"preset": "huggingface", "path": str(path), **keys}


def _flatten(data: Any) -> Any:
    """Return a dataset without indices: its files then have its rows, and no others."""
    if isinstance(data, dict):
        return type(data)({name: _flatten(part) for name, part in data.items()})
    # Of a dataset without indices flatten_indices() would write all rows once more.
    return data if data._indices is None else data.flatten_indices()


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Let the package draw no progress inside."""
    from datasets.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
