"""Tables: columns of rows in files."""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dtrain.data.files import DataFile, files
from dtrain.data.holdout import Holdout
from dtrain.data.lines import Lines
from dtrain.data.sources import Splits
from dtrain.data.splits import as_targets, counted, of_tables, split, split_indices
from dtrain.data.tables import Names, TableSource
from dtrain.errors import UsageError

if TYPE_CHECKING:
    from dtrain.data.formats.csv_form import Form

#: Bytes of a text file that is read into memory, and of one that is compressed.
_SMALL, _SMALL_PACKED = 32 << 20, 4 << 20


def parquet(
    path: str | Sequence[str],
    target: Names,
    inputs: Names = None,
    weight: Names = None,
    validation_path: str | Sequence[str] | None = None,
    validation_split: float = 0.2,
    split_seed: int = 0,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Splits:
    """Columns of Parquet files, of which a row group is read at a time.

    Args:
        path: a file, a pattern, or a list of them.
        target, inputs, weight: columns (:class:`dtrain.data.tables.TableSource`).
        validation_path: files to evaluate on; None: a part of the rows is split off.
        validation_split, split_seed: of that part.
        classes: number of classes; None: those of the target's column, which is read for it.
        images: columns of encoded images, by name: height, width and channels of each.
    """
    from dtrain.data.formats.parquet import Parquet

    return of_tables(
        Parquet, path, inputs, target, weight, validation_path, validation_split, split_seed,
        classes, images,
    )  # fmt: skip


def arrow(
    path: str | Sequence[str],
    target: Names,
    inputs: Names = None,
    weight: Names = None,
    validation_path: str | Sequence[str] | None = None,
    validation_split: float = 0.2,
    split_seed: int = 0,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Splits:
    """Columns of Arrow files or streams, of which each row is read where it is in the file.

    Args:
        path: a file, a pattern, or a list of them.
        target, inputs, weight: columns (:class:`dtrain.data.tables.TableSource`).
        validation_path: files to evaluate on; None: a part of the rows is split off.
        validation_split, split_seed: of that part.
        classes: number of classes; None: those of the target's column, which is read for it.
        images: columns of encoded images, by name: height, width and channels of each.
    """
    from dtrain.data.formats.arrow import Arrow

    return of_tables(
        Arrow, path, inputs, target, weight, validation_path, validation_split, split_seed,
        classes, images,
    )  # fmt: skip


def huggingface(
    path: str,
    target: Names,
    inputs: Names = None,
    weight: Names = None,
    split: str = "train",
    validation: str | None = None,
    validation_split: float = 0.2,
    split_seed: int = 0,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Splits:
    """Columns of a folder that ``save_to_disk`` of Hugging Face's ``datasets`` has written.

    Args:
        path: the folder of a ``Dataset`` or a ``DatasetDict``.
        target, inputs, weight: columns (:class:`dtrain.data.tables.TableSource`). Images are bytes.
        split: name of the split to train on; a ``Dataset`` is that split.
        validation: name of the split to evaluate on; None: a part of the rows is split off.
        validation_split, split_seed: of that part.
        classes: number of classes; None: those of a ``ClassLabel``, else those of the target's
            column, which is read for it.
        images: columns of images, by name: height, width and channels of each.
    """
    from dtrain.data.formats.huggingface import HuggingFace, opened

    parts = opened(path, split, validation)
    if classes is None and isinstance(target, str):
        names = getattr(parts[0].features.get(target), "names", None)
        classes = None if names is None else len(names)

    def table(found: list[DataFile]) -> HuggingFace:
        part = next(each for each in parts if found[0].name in each.files)
        return HuggingFace(found, part.features, part.rows)

    held = None if validation is None else parts[1].files
    return of_tables(
        table, parts[0].files, inputs, target, weight, held, validation_split, split_seed, classes,
        images,
    )  # fmt: skip


def csv(
    path: str | Sequence[str],
    label: str | None = None,
    separator: str = ",",
    validation_split: float = 0.2,
    split_seed: int = 0,
    inputs: Sequence[str] | None = None,
    header: bool | None = None,
) -> Splits:
    """A table with a header line: one column is the label, all others are numbers.

    A small file is read into memory. Others are converted to Arrow files in the cache, once.

    Args:
        path: a file, a pattern, or a list of them, with the same header.
        label: name of the label column; None: the last one, or none where ``inputs`` are named.
            Words are classes in alphabetical order.
        separator: between columns; ``tab`` is one.
        validation_split: fraction to split off.
        split_seed: of the shuffle before the split.
        inputs: names of the columns of the inputs; all but the label if None.
        header: whether the first line names the columns; else they are called ``0``, ``1``, ...;
            None: it does, and is refused where all names are numbers.
    """
    from dtrain.data.formats.csv_form import TAB, Form

    found, separator = files(path), "\t" if separator == TAB else separator
    form = Form(separator, header, label, None if inputs is None else tuple(inputs))
    if len(found) == 1 and (len(separator) > 1 or _is_small(found[0])):
        return _in_memory(found[0], form, validation_split, split_seed)
    if len(separator) > 1:
        raise UsageError(
            "dataset.separator", separator, f"{len(found):,} files are read together by their "
            "lines, and not as pandas reads one", "one character", "dataset.separator=','",
        )  # fmt: skip
    from dtrain.data.formats.csv_convert import INPUTS, LABEL
    from dtrain.data.formats.csv_files import Csv

    table = Csv(found, form)
    _check_rows(table, found[0].name)
    if not np.isfinite([table.low, table.high]).all():
        raise UsageError(
            "dataset.label", table.chosen.target, "holds NaN or infinity", "finite numbers",
            "dataset.label=NAME",
        )  # fmt: skip
    rows, others = split_indices(len(table), validation_split, split_seed)
    target = None if table.chosen.target is None else LABEL
    whole = TableSource(table, INPUTS, target, words=table.words)
    held = whole.subset(others) if len(others) else None
    return Splits(
        whole.subset(rows), held, counted(whole), columns=dataclasses.asdict(table.chosen)
    )


def is_counted(
    path: str | Sequence[str],
    label: str | None = None,
    separator: str = ",",
    inputs: Sequence[str] | None = None,
    header: bool | None = None,
    **_: Any,
) -> bool:
    """Return whether the rows of a CSV can be counted without converting it.

    Args:
        path, label, separator, inputs, header: as of :func:`csv`.

    Raises:
        UsageError: there is no such file or column.
    """
    from dtrain.data.formats.csv_form import TAB, Form

    found, separator = files(path), "\t" if separator == TAB else separator
    if len(separator) > 1 or (len(found) == 1 and _is_small(found[0])):
        return True
    from dtrain.data.formats.csv_convert import is_converted
    from dtrain.data.formats.csv_files import names_of

    form = Form(separator, header, label, None if inputs is None else tuple(inputs))
    names = names_of(found[0], form)
    form.columns(names, found[0].name)
    return all(is_converted(file, form, names) for file in found)


def _check_rows(table: Sized, path: str) -> None:
    if not len(table):
        raise UsageError("dataset.path", path, "has no rows", "a table", "dataset.path=FILE.csv")


def _is_small(file: DataFile) -> bool:
    from pandas.io.common import infer_compression

    packed = infer_compression(file.name, "infer") is not None
    return file.size() < (_SMALL_PACKED if packed else _SMALL)


def _in_memory(file: DataFile, form: Form, validation_split: float, split_seed: int) -> Splits:
    """Read one table as pandas does."""
    import pandas as pd
    from pandas.io.common import get_handle

    from dtrain.data.formats.csv_convert import unreadable, unsound

    path, separator = file.name, form.separator
    try:
        with get_handle(file.local(), "rb", compression="infer", is_text=False) as opened:
            lines = io.BufferedReader(Lines(opened.handle))
            engine: Literal["c", "python"] = "c" if len(separator) == 1 else "python"
            # ORDER: of whole columns: in chunks a label "07" is 7 until the first word is met.
            whole: dict[str, Any] = {"low_memory": False} if engine == "c" else {}
            whole |= {"header": None} if form.header is False else {}
            table = pd.read_csv(lines, sep=separator, engine=engine, **whole)
    except Exception as error:  # of pandas, and of each of its unpackers another
        raise unreadable(path, error) from None
    _check_rows(table, path)
    table.columns = pd.Index([str(name) for name in table.columns])
    chosen = form.columns(list(table.columns), path)
    label, names = chosen.target, list(chosen.inputs)
    table = table[names + ([] if label is None else [label])]
    sound = (table.dtypes.map(lambda kind: kind.kind in "iufb") & table.notna().all()).to_numpy()
    bad = chosen.without([*itertools.compress(table.columns, ~sound)])
    for name in itertools.compress(table.columns, ~sound):
        column = table[name]
        empty = column.isna().to_numpy()
        words = pd.to_numeric(column, errors="coerce").isna().to_numpy() & ~empty
        if empty.any():
            raise unsound(path, name, int(np.argmax(empty)) + form.first, None, form, bad)
        if name != label and words.any():
            row = int(np.argmax(words))
            raise unsound(path, name, row + form.first, str(column.iloc[row]), form, bad)
    x = table[names].to_numpy(dtype=np.float32)
    y: np.ndarray | None = None
    classes: list[str] | None = None
    if label is not None:
        y = table[label].to_numpy()
        if table[label].dtype.kind not in "iufb":
            words, y = np.unique(y.astype(str), return_inverse=True)
            classes = words.tolist()
        y = as_targets(y, "dataset.label", label)
    made = split(x, y, Holdout(validation_split, split_seed), class_names=classes)
    return dataclasses.replace(made, columns=dataclasses.asdict(chosen))
