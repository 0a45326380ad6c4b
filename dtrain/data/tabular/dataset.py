"""From a table to what a run trains and evaluates on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dtrain.data.encoding import KINDS, Encoding
from dtrain.data.files import DataFile, files
from dtrain.data.holdout import Holdout, is_empty
from dtrain.data.options import OnError
from dtrain.data.sources import Splits
from dtrain.data.tabular.parts import EXTENSIONS
from dtrain.data.tabular.reader import ArrowTable, index_column
from dtrain.data.tabular.source import ROWS, EncodedSource, Fit, TableSource, arrays_or_source
from dtrain.data.tabular.splits import check_alike, of_sources
from dtrain.data.tabular.table import Names, flat
from dtrain.errors import UsageError, nearest


def of_tables(
    whole: ArrowTable,
    others: ArrowTable | None,
    path: object,
    inputs: Names,
    target: Names,
    weight: Names,
    validation: object,
    holdout: Holdout,
    classes: int | None,
    images: Mapping[str, Sequence[int]] | None,
    declared: Mapping[str, str],
    on_error: OnError,
    encoding: Encoding | None,
) -> Splits:
    """Return the examples of the rows of tables: ``whole`` to train on, ``others`` to evaluate on.

    The other arguments are those of :func:`table`.

    Raises:
        UsageError: a column cannot be what it is to be, or there is nothing to train on.
    """
    notices = list(whole.notices)
    for name, kind in declared.items():
        if kind not in KINDS:
            hint = f"'dataset.columns={{{name}: {nearest(kind, KINDS) or 'text'}}}'"
            shown, accepted = f"{{{name}: {kind}}}", ", ".join(KINDS)
            raise UsageError("dataset.columns", shown, "is no kind of a column", accepted, hint)
        if name not in whole.columns and name not in whole.refused:
            hint = f"'dataset.columns={{{nearest(name, whole.columns) or 'COLUMN'}: {kind}}}'"
            problem = f"{whole.files[0].name} has no such column"
            raise UsageError("dataset.columns", name, problem, ", ".join(whole.columns), hint)
    if encoding is not None and not isinstance(inputs, str | Mapping):
        if inputs is None and target is None:
            target = _own_target(whole, encoding)
        inputs = [feature.name for feature in encoding.features]
    elif target is None and inputs is None and whole.is_text:
        target = list(whole.columns)[-1]
        notices.append(f"dataset.target={target}: the last column, where none is named")
    chosen, left_out = inputs is not None, dict[str, str]()
    if inputs is None:
        inputs, left_out = _inputs(whole, target, weight, declared)
    is_raw = inputs is None or isinstance(inputs, str | Mapping)
    make = TableSource if is_raw else EncodedSource
    categories = [name for name in flat(target) if declared.get(name) == "category"]

    def source(table: ArrowTable, names: Names, words: Any = None) -> TableSource:
        rows = None
        if on_error is OnError.skip or whole.is_small:
            rows, notice = _with_targets(table, list(flat(target)), on_error is OnError.skip)
            notices.extend(notice)
        return make(table, names, target, weight, rows, words, categories)

    train, held = source(whole, inputs), None
    _refuse_dates(train, declared)
    if others is not None:
        names = train.inputs.names
        if train.encodes:
            names = [name for name in names if name in others.columns]
        held = source(others, names, train.words)
        if not train.encodes:
            check_alike(train, held, validation)
    notices += _many_classes(train)
    made = of_sources(train, held, "path", path, holdout, classes, images)
    made = dataclasses.replace(made, notices=tuple(notices))
    if images or not isinstance(made.train, EncodedSource):
        return made
    fit = Fit(made.train, declared, chosen, left_out, encoding)
    for part in (made.train, made.validation):
        if part is not None:
            part.fit = fit
    return dataclasses.replace(
        made, train=arrays_or_source(made.train), validation=arrays_or_source(made.validation),
        encoding=lambda: fit.encoding,
    )  # fmt: skip


def _with_targets(
    table: ArrowTable, names: Sequence[str], skip: bool
) -> tuple[np.ndarray | None, list[str]]:
    """Look for rows without a target.

    Args:
        table: has the rows.
        names: of the columns of targets.
        skip: whether such rows are left out.

    Returns:
        The rows that have one, and a notice; None where all have one.

    Raises:
        UsageError: there are some, and they are not to be left out.
    """
    empty = np.zeros(len(table), bool)
    for name in names:
        if name in table.columns and table.columns[name].is_cell:
            for begin in range(0, len(table), ROWS):
                rows = np.arange(begin, min(begin + ROWS, len(table)))
                empty[rows] |= is_empty(table.cells(rows, [name])[name])
    missing = np.flatnonzero(empty)
    if not len(missing):
        return None, []
    key, shown, first = "dataset.target", ", ".join(names), table.where(int(missing[0]))
    if len(missing) == len(table):
        raise UsageError(
            key, shown, "is empty in every row", "a column with values", "dataset.target=COLUMN"
        )
    if not skip:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise UsageError(
            key, shown, f"is empty in {first}{more}",
            "a target in each row; on_error=skip leaves the others out", "dataset.on_error=skip",
        )  # fmt: skip
    return np.flatnonzero(~empty), [
        f"dataset.on_error=skip: {len(missing):,} of {len(table):,} rows have no {shown} and are "
        f"left out, the first: {first}"
    ]


def _many_classes(source: TableSource) -> list[str]:
    """Return a sentence on a target of words of which most occur in one row."""
    if not isinstance(source, EncodedSource) or not source.table.is_small:
        return []
    names, rows = source.words(), len(source)
    if len(names) < 20 or len(names) < rows / 2:
        return []
    return [
        f"the target has {len(names):,} different texts in {rows:,} rows, each of them a class; "
        "for another column: dataset.target=COLUMN"
    ]


def _own_target(whole: ArrowTable, encoding: Encoding) -> Names:
    """Return the target of a training where a table has it; else none, as of data to predict."""
    names = list(encoding.target.columns if encoding.target else ())
    if not names or not set(names) <= set(whole.columns):
        return None
    return names[0] if len(names) == 1 else names


def _inputs(
    whole: ArrowTable,
    target: Names,
    weight: Names,
    declared: Mapping[str, str],
) -> tuple[Names, dict[str, str]]:
    """Return the inputs where none are named, and the columns that are left out, with reasons."""
    roles = {*flat(target), *flat(weight)}
    inputs = [name for name in (*whole.columns, *whole.refused) if name not in roles]
    out = {
        name: "it numbers the rows"
        for name in (inputs if whole.is_text and len(inputs) > 1 else ())
        if name in whole.columns and name not in declared and index_column(whole, name)
    }
    inputs = [name for name in inputs if name not in out]
    if not inputs:
        return None, {}  # which is refused
    column = whole.columns.get(inputs[0])
    if len(inputs) == 1 and (column is None or not column.is_cell):
        return inputs[0], out
    return inputs, out


def _refuse_dates(source: TableSource, declared: Mapping[str, str]) -> None:
    """Refuse columns of dates where they would be read as they are."""
    roles = source.target, source.weight, None if source.encodes else source.inputs
    for role in filter(None, roles):
        for name in role.columns():
            if source.table.columns[name].kind == "date" and declared.get(name) != "category":
                raise UsageError(
                    role.key, name, "holds dates, which are examples only in a list of inputs",
                    "columns of numbers, booleans or text",
                    f"'dataset.inputs=[{name}]'" if role.key.endswith("inputs")
                    else f"{role.key}=COLUMN",
                )  # fmt: skip


def types_of(declared: Mapping[str, str], encoding: Encoding | None) -> dict[str, pa.DataType]:
    """Return the types that columns of text files are read as, where they are known."""
    fitted = {f.name: f.kind for f in encoding.features if f.is_text} if encoding else {}
    types = {"category": pa.string(), "text": pa.string(), "number": pa.float64()}
    return {n: types[kind] for n, kind in {**fitted, **declared}.items() if kind in types}


def files_of(path: str | Sequence[str], format: str | None) -> list[DataFile]:
    """Return the files of a table; of a folder those whose extensions are a table's."""
    if isinstance(path, str) and Path(path).is_dir():
        kinds_of = [kind for kind in EXTENSIONS if format in (None, kind)]
        extensions = [each for kind in kinds_of for each in EXTENSIONS[kind]]
        inside = [str(p) for p in sorted(Path(path).iterdir()) if p.is_file()
                  and any(s in extensions for s in p.suffixes[-2:])]  # fmt: skip
        kinds = {k for p in inside for k, e in EXTENSIONS.items() if Path(p).suffix in e}
        if len(kinds) > 1:
            problem = f"the folder has files of several formats ({', '.join(sorted(kinds))})"
            hint = f"'dataset.path={path}/*.{sorted(kinds)[0]}'"
            raise UsageError("dataset.path", path, problem, "files of one format", hint)
        if not inside:
            raise UsageError(
                "dataset.path", path, "is a folder without a table", ", ".join(extensions),
                "dataset.path=FILE",
            )  # fmt: skip
        return files(inside)
    return files(path)
