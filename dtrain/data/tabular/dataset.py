"""From a table to what a run trains and evaluates on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dtrain.data.encoding import KINDS, Encoding
from dtrain.data.files import DataFile, files
from dtrain.data.holdout import Holdout
from dtrain.data.images import with_images
from dtrain.data.options import OnError
from dtrain.data.sources import Splits
from dtrain.data.splits import check_alike, counted
from dtrain.data.tables import Names, TableSource
from dtrain.data.tabular.parts import EXTENSIONS
from dtrain.data.tabular.reader import ArrowTable, index_column
from dtrain.data.tabular.source import EncodedSource, Fit, arrays_or_source, check_targets
from dtrain.errors import UsageError, nearest


def check_kinds(declared: Mapping[str, str]) -> None:
    """Refuse kinds of columns that are none.

    Raises:
        UsageError: naming one.
    """
    for name, kind in declared.items():
        if kind not in KINDS:
            raise UsageError(
                "dataset.columns", f"{{{name}: {kind}}}", "is no kind of a column",
                ", ".join(KINDS), f"'dataset.columns={{{name}: {nearest(kind, KINDS) or 'text'}}}'",
            )  # fmt: skip


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
    is_text = whole.is_text
    if not len(whole):
        raise UsageError(
            "dataset.path", path, "has no row to train on", "data with at least one row",
            "dataset.path=ANOTHER",
        )  # fmt: skip
    for name in declared:
        if name not in whole.columns and name not in whole.refused:
            near = nearest(name, whole.columns) or "COLUMN"
            raise UsageError(
                "dataset.columns", name, f"{whole.files[0].name} has no such column",
                ", ".join(whole.columns), f"'dataset.columns={{{near}: {declared[name]}}}'",
            )  # fmt: skip
    if encoding is not None and not isinstance(inputs, str | Mapping):
        if inputs is None and target is None:
            target = _own_target(whole, encoding)
        inputs = [feature.name for feature in encoding.features]
    elif target is None and inputs is None and is_text:
        target = list(whole.columns)[-1]
        notices.append(f"dataset.target={target}: the last column, where none is named")
    chosen, left_out = inputs is not None, dict[str, str]()
    if inputs is None:
        inputs, left_out = _inputs(whole, target, weight, declared)
    encodes = not isinstance(inputs, str | Mapping) and inputs is not None
    kind = EncodedSource if encodes else TableSource
    categories = [name for name in _flat(target) if declared.get(name) == "category"]
    all_rows = kind(whole, inputs, target, weight, categories=categories)
    _refuse_dates(all_rows, declared)
    held_rows = None
    if others is not None:
        names = [n for n in all_rows.inputs.names if n in others.columns] if encodes else inputs
        held_rows = kind(others, names, target, weight, words=all_rows.words, categories=categories)
        if not encodes:
            check_alike(all_rows, held_rows, validation)
    train, held = all_rows, held_rows
    skip = on_error is OnError.skip
    if skip or whole.is_small:
        rows, notice = check_targets(all_rows, whole, skip)
        if rows is not None:
            train = all_rows = kind(whole, inputs, target, weight, rows, categories=categories)
        other = None
        if held is not None and others is not None:
            rows, other = check_targets(held, others, skip)
            if rows is not None:
                held = kind(
                    others, held.inputs.names, target, weight, rows, all_rows.words, categories
                )
        notices += [each for each in (notice, other) if each is not None]
    if held is None and holdout.holds:
        first, second = holdout.rows(len(all_rows), all_rows.info.labels, all_rows.info.column)
        train, held = all_rows.subset(first), all_rows.subset(second) if len(second) else None
    fit = None
    if isinstance(train, EncodedSource):
        fit = Fit(train, declared, chosen, left_out, encoding)
        train.fit = fit
        if isinstance(held, EncodedSource):
            held.fit = fit
    count: Any = classes
    if classes is None:
        count = counted(train, *([] if held is None else [held]))
    notices += _many_classes(all_rows)
    names_of = None if all_rows.target is None else all_rows.target.names
    made = Splits(
        train, held, count, columns={"inputs": all_rows.inputs.names, "target": names_of},
        encoding=None if fit is None else lambda: fit.encoding, notices=tuple(notices),
    )  # fmt: skip
    if images:
        decoded = None if held is None else with_images(held, images)
        return dataclasses.replace(made, train=with_images(train, images), validation=decoded)
    if not isinstance(train, EncodedSource):
        return made
    evaluated = arrays_or_source(held) if isinstance(held, EncodedSource) else None
    return dataclasses.replace(made, train=arrays_or_source(train), validation=evaluated)


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


def _flat(names: Names) -> list[str]:
    if isinstance(names, Mapping):
        return [each for part in names.values() for each in _flat(part)]
    return [names] if isinstance(names, str) else list(names or ())


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
    roles = {*_flat(target), *_flat(weight)}
    inputs = [name for name in (*whole.columns, *whole.refused) if name not in roles]
    out = {}
    if whole.is_text and len(inputs) > 1:
        for name in inputs:
            if name in whole.columns and declared.get(name) is None and index_column(whole, name):
                out[name] = "it numbers the rows"
    inputs = [name for name in inputs if name not in out]
    if not inputs:
        return None, {}  # which is refused
    column = whole.columns.get(inputs[0])
    if len(inputs) == 1 and (column is None or not column.is_cell):
        return inputs[0], out
    return inputs, out


def _refuse_dates(source: TableSource, declared: Mapping[str, str]) -> None:
    """Refuse columns of dates where they would be read as they are."""
    roles = [source.target, source.weight, *([] if source.encodes else [source.inputs])]
    for role in roles:
        if role is None:
            continue
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
    kinds = {f.name: f.kind for f in encoding.features} if encoding else {}
    every = {**kinds, **declared}
    words = {name: pa.string() for name, kind in every.items() if kind in ("category", "text")}
    numbers = {name: pa.float64() for name, kind in declared.items() if kind == "number"}
    return words | numbers


def files_of(path: str | Sequence[str], key: str, format: str | None) -> list[DataFile]:
    """Return the files of a table; of a folder those whose extensions are a table's."""
    if isinstance(path, str) and Path(path).is_dir():
        kinds_of = [kind for kind in EXTENSIONS if format in (None, kind)]
        extensions = tuple(each for kind in kinds_of for each in EXTENSIONS[kind])
        inside = [str(p) for p in sorted(Path(path).iterdir()) if p.is_file()
                  and any(s in extensions for s in p.suffixes[-2:])]  # fmt: skip
        kinds = {k for p in inside for k, e in EXTENSIONS.items() if Path(p).suffix in e}
        if len(kinds) > 1:
            raise UsageError(
                key, path, f"the folder has files of several formats ({', '.join(sorted(kinds))})",
                "files of one format", f"'{key}={path}/*.{sorted(kinds)[0]}'",
            )  # fmt: skip
        if not inside:
            raise UsageError(
                key, path, "is a folder without a table", ", ".join(extensions), f"{key}=FILE"
            )
        return files(inside, key)
    return files(path, key)
