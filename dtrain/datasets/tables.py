"""Tables: columns of rows in files, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from dtrain.data.encoding import Encoding
from dtrain.data.files import files
from dtrain.data.holdout import Holdout, HoldoutKeys, each_of
from dtrain.data.options import OnError
from dtrain.data.sources import Splits
from dtrain.data.tabular import dataset
from dtrain.data.tabular.table import Names

Paths = str | Sequence[str]


def table(
    path: Paths,
    target: Names = None,
    inputs: Names = None,
    weight: Names = None,
    validation: Paths | None = None,
    format: str | None = None,
    separator: str | None = None,
    header: bool | None = None,
    columns: Mapping[str, str] | None = None,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
    on_error: OnError = OnError.fail,
    encoding: Encoding | None = None,
    **holdout: Unpack[HoldoutKeys],
) -> Splits:
    """Columns of Parquet, Arrow, CSV and JSON lines.

    Columns of numbers, booleans, dates, categories and texts become one matrix, whose encoding is
    fitted on the training examples; ``inputs={NAME: COLUMN}`` and ``inputs=COLUMN`` stay as they
    are in the file.

    Args:
        path: a file, a pattern, a list of them, or a folder.
        target: a column, a list of columns of numbers, or columns by the names of outputs; None:
            none, and of text files whose inputs are not named the last column.
        inputs: a list of columns, one column, or columns by name; None: all but the target.
        weight: column of the weights of the examples.
        validation: files to evaluate on; None: a part of the rows is split off.
        format: parquet, arrow, csv or json; None: by the file's first bytes and its name.
        separator: between the columns of text; None: it is found out.
        header: whether the first line names the columns; None: it is found out.
        columns: kinds by name: number, boolean, date, category, text, or skip.
        classes: number of classes; None: those of the target's column, which is read for it.
        images: columns of encoded images, by name: height, width and channels of each.
        on_error: whether rows without a target are refused, or left out.
        encoding: of a training, by which the columns are read; None: it is fitted.
        **holdout: how a part is held out (:class:`dtrain.data.holdout.Holdout`).
    """
    from dtrain.data.tabular import reader

    declared = dict(columns or {})
    types = reader.types_of(declared, encoding)
    reading = reader.Reading(format, separator, header, types)
    whole, others = each_of(
        lambda paths: reader.ArrowTable(reader.files_of(paths, format), reading), path, validation
    )
    return dataset.of_tables(
        whole, others, path, inputs, target, weight, validation, Holdout(**holdout), classes,
        images, declared, on_error, encoding,
    )  # fmt: skip


def is_counted(node: Mapping[str, Any]) -> bool:
    """Return whether the rows of a table can be counted without converting a file.

    Args:
        node: arguments of :func:`table`.

    Raises:
        UsageError: there is no such file.
    """
    from dtrain.data.tabular import reader

    format, separator, header = (node.get(key) for key in ("format", "separator", "header"))
    types = reader.types_of(node.get("columns") or {}, None)
    reading = reader.Reading(format, separator, header, types)
    paths = node["path"], node.get("validation")
    parts = each_of(lambda path: reader.files_of(path, format), *paths)
    return all(reader.is_quick(file, reading) for part in parts for file in part or ())


def huggingface(
    path: str | None,
    target: Names,
    inputs: Names = None,
    weight: Names = None,
    name: str | None = None,
    train: str = "train",
    validation: str | None = None,
    columns: Mapping[str, str] | None = None,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
    on_error: OnError = OnError.fail,
    encoding: Encoding | None = None,
    **holdout: Unpack[HoldoutKeys],
) -> Splits:
    """Columns of a dataset of Hugging Face's: a folder of ``save_to_disk``, or a name of the Hub.

    Args:
        path: the folder of a ``Dataset`` or a ``DatasetDict``.
        name: of a dataset that the package's cache has, ``NAME`` or ``NAME/CONFIGURATION``; nothing
            is downloaded.
        train: name of the split to train on; a ``Dataset`` is that split.
        validation: name of the split to evaluate on; None: a part of the rows is split off.
        target, inputs, weight, columns, on_error, encoding, **holdout: as of :func:`table`. Images
            are bytes.
        classes: number of classes; None: those of a ``ClassLabel``, else those of the target's
            column, which is read for it.
        images: columns of images, by name: height, width and channels of each.
    """
    from dtrain.data.tabular import hub

    parts = hub.opened(path, name, train, validation)
    if classes is None and isinstance(target, str):
        names = getattr(parts[0].features.get(target), "names", None)
        classes = None if names is None else len(names)
    tables = [hub.HubTable(part) for part in parts]
    return dataset.of_tables(
        tables[0], tables[1] if validation is not None else None, path or name, inputs, target,
        weight, validation, Holdout(**holdout), classes,
        images, dict(columns or {}), on_error, encoding,
    )  # fmt: skip


def webdataset(
    path: Paths,
    target: Names,
    inputs: Names = None,
    weight: Names = None,
    validation: Paths | None = None,
    columns: Mapping[str, str] | None = None,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
    on_error: OnError = OnError.fail,
    encoding: Encoding | None = None,
    **holdout: Unpack[HoldoutKeys],
) -> Splits:
    """Examples of tar files, in any order: members of one name up to its first dot are an example.

    Its columns are their extensions: ``cls`` is a whole number, ``txt`` a text, ``json`` several:
    ``json.KEY``; images and all others are bytes. The package ``datasets`` copies them once.

    Args:
        path: a file, a pattern, or a list of them.
        target, inputs, weight, validation, columns, classes, images, on_error, encoding,
            **holdout: as of :func:`table`.
    """
    from dtrain.data.tabular import hub

    whole, held = each_of(lambda paths: hub.tar_table(files(paths)), path, validation)
    return dataset.of_tables(
        whole, held, path, inputs, target, weight, validation, Holdout(**holdout),
        classes, images, dict(columns or {}), on_error, encoding,
    )  # fmt: skip
