"""Tables: columns of rows in files, whatever their format; and what a run trains on of them."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np
import yaml

from dtrain.data.encoding import KINDS, Encoding, spelling
from dtrain.data.files import DataFile, Paths, files
from dtrain.data.fit_encoding import Numbers
from dtrain.data.holdout import Holdout, HoldoutKeys, divided, each_of, is_empty
from dtrain.data.images import with_images
from dtrain.data.options import OnError
from dtrain.data.sources import Splits
from dtrain.data.streams import known_length
from dtrain.data.tabular.encoded import EncodedSource, Fit, arrays_or_source
from dtrain.data.tabular.source import TableSource, counted
from dtrain.data.tabular.table import Names, Role, Table, described, flat
from dtrain.data.target_kind import FEW
from dtrain.errors import nearest, refuse, typed
from dtrain.files.fields import Values

if TYPE_CHECKING:  # pyarrow is imported where its tables are read
    from dtrain.data.tabular.reader import ArrowTable


#: Names of a column that may number the rows.
_INDEX = re.compile(r"(Unnamed: \d+|rownames|row\.names|row_names|rowname|index|)", re.I)


def table(
    path: Paths,
    target: Names = None,
    inputs: Names = None,
    weight: Names = None,
    validation: Paths | None = None,
    format: str | None = None,
    separator: str | None = None,
    header: bool | None = None,
    encoding: str | None = None,
    skip_rows: int | Sequence[int] | None = None,
    comment: str | None = None,
    quote: str | None = None,
    columns: Mapping[str, str] | None = None,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
    empty: Sequence[object] | None = None,
    on_error: OnError = OnError.fail,
    fitted: Encoding | None = None,
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
        encoding: of text, a name of Python's; None: it is found out.
        skip_rows: how many lines of text to leave out above the names, or the numbers of lines.
        comment: what lines of text begin with that are left out; None: nothing.
        quote: character around cells of text; ``none``: there is none; None: a double quote.
        columns: kinds by name: number, boolean, date, category, text, or skip; or the form of
            dates, as ``strptime`` has it. Or all of that in JSON.
        classes: number of classes; None: those of the target's column, which is read for it.
        images: columns of encoded images, by name: height, width and channels of each.
        empty: cells that mean nothing, such as ``?``.
        on_error: whether rows without a target are refused, or left out.
        fitted: encoding of a training, by which the columns are read; None: it is fitted.
        **holdout: how a part is held out (:class:`dtrain.data.holdout.Holdout`).
    """
    from dtrain.data.tabular import reader

    declared = declared_kinds(columns)
    reading = reader.reading_of(
        declared, fitted, empty, format=format, separator=separator, header=header,
        encoding=encoding, skip_rows=skip_rows, comment=comment, quote=quote,
    )  # fmt: skip
    whole, others = each_of(
        lambda paths: reader.ArrowTable(reader.files_of(paths, format), reading), path, validation
    )
    return _of_tables(
        whole, others, path, inputs, target, weight, validation, Holdout(**holdout), classes,
        images, declared, empty, on_error, fitted,
    )  # fmt: skip


def is_counted(node: Values) -> bool:
    """Return whether the rows of a table can be counted without converting a file.

    Args:
        node: arguments of :func:`table`.

    Raises:
        UsageError: there is no such file.
    """
    from dtrain.data.tabular import dialects, reader

    keys = {key: node.get(key) for key in ("format", *dialects.KEYS)}
    declared = declared_kinds(node.get("columns"))
    reading = reader.reading_of(declared, None, node.get("empty"), **keys)
    paths = node["path"], node.get("validation")
    parts = each_of(lambda path: reader.files_of(path, reading.format), *paths)
    return all(reader.is_quick(file, reading) for part in parts for file in part or ())


def declared_kinds(columns: Mapping[str, str] | str | None) -> dict[str, str]:
    """Return ``dataset.columns``, which is YAML where names have letters that Hydra cannot read."""
    kinds = yaml.safe_load(columns) if isinstance(columns, str) else columns
    return {str(name): kind for name, kind in (kinds or {}).items()}


def huggingface(
    path: Paths | None,
    target: Names,
    inputs: Names = None,
    weight: Names = None,
    name: str | None = None,
    train: str = "train",
    validation: Paths | None = None,
    columns: Mapping[str, str] | None = None,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
    empty: Sequence[object] | None = None,
    on_error: OnError = OnError.fail,
    fitted: Encoding | None = None,
    **holdout: Unpack[HoldoutKeys],
) -> Splits:
    """Columns of a dataset of Hugging Face's: a folder of ``save_to_disk``, or a name of the Hub.

    Or of tar files, of which members of one name up to its first dot are an example. Its columns
    are their extensions: ``cls`` is a whole number, ``txt`` a text, ``json`` several:
    ``json.KEY``; images and all others are bytes. The package copies them once.

    Args:
        path: the folder of a ``Dataset`` or a ``DatasetDict``; or tar files: one, a pattern, or a
            list of them.
        name: of a dataset that the package's cache has, ``NAME`` or ``NAME/CONFIGURATION``; nothing
            is downloaded.
        train: name of the split to train on; a ``Dataset`` is that split.
        validation: name of the split to evaluate on, or tar files of it; None: a part of the rows
            is split off.
        target, inputs, weight, columns, empty, on_error, fitted, **holdout: as of :func:`table`.
            Images are bytes.
        classes: number of classes; None: those of a ``ClassLabel``, else those of the target's
            column, which is read for it.
        images: columns of images, by name: height, width and channels of each.
    """
    from dtrain.data.tabular import hub

    whole, held = hub.opened(path, name, train, validation)
    if classes is None and isinstance(target, str):
        classes = whole.labels.get(target)
    return _of_tables(
        whole, held, path or name, inputs, target, weight, validation, Holdout(**holdout), classes,
        images, declared_kinds(columns), empty, on_error, fitted,
    )  # fmt: skip


# -- from tables to splits


def of_files(
    table: Callable[[list[DataFile]], Table], path: Paths, inputs: Names, target: Names,
    weight: Names = None, validation: Paths | None = None, holdout: Holdout = Holdout(),
    classes: int | None = None, images: Mapping[str, Sequence[int]] | None = None,
) -> Splits:  # fmt: skip
    """Return the examples of the rows of files.

    Args:
        table: makes the table of files; reads headers alone.
        path: a file, a pattern, or a list of them.
        inputs, target, weight: columns (:class:`dtrain.data.tabular.source.TableSource`).
        validation: files to evaluate on; None: a part of the rows is held out.
        holdout: how.
        classes: number of classes; None: those of the target's column, which is read for it.
        images: columns of encoded images, by name: height, width and channels of each.

    Raises:
        UsageError: a file or a column cannot be what it is to be.
    """
    one, other = each_of(lambda paths: table(files(paths)), path, validation)
    whole, held = TableSource(one, inputs, target, weight), None
    if other is not None:
        held = TableSource(other, whole.inputs.names, target, weight, words=whole.words)
        _check_alike(whole, held, validation)
    return of_sources(whole, held, "path", path, holdout, classes, images)


def _check_alike(whole: TableSource, held: TableSource, path: object) -> None:
    """Refuse files to evaluate on whose columns hold something else than those to train on."""
    for role in (whole.inputs, whole.target, whole.weight):
        for name in role.columns() if role is not None else ():
            one, other = whole.table.columns[name], held.table.columns[name]
            if (one.is_number, one.shape) != (other.is_number, other.shape):
                refuse("dataset.validation", f"the column {name} holds {described(other)}, and "
                       f"{described(one)} in what is trained on", path,
                       accepted="files with the same columns")  # fmt: skip


def of_sources(
    whole: TableSource, held: TableSource | None, key: str, value: object, holdout: Holdout,
    classes: int | None, images: Mapping[str, Sequence[int]] | None,
) -> Splits:  # fmt: skip
    """Return the examples of tables.

    Args:
        whole: to train on, and to split a part off where ``held`` is None.
        held: to evaluate on.
        key, value: of the ``dataset`` group, that say what ``whole`` is; for messages.
        holdout, classes, images: as of :func:`of_files`.

    Raises:
        UsageError: there is nothing to train on, or an image cannot be what it is to be.
    """
    if known_length(whole) == 0:
        refuse(f"dataset.{key}", "has no row to train on", value, accepted="a row or more")
    train, held = divided(whole, holdout) if held is None else (whole, held)
    count = counted(train, held) if classes is None else classes
    columns = {"inputs": whole.inputs.names, "target": whole.target and whole.target.names}
    if images:
        train = with_images(train, images)
        held = None if held is None else with_images(held, images)
    return Splits(train, held, count, columns=columns)


def _of_tables(
    whole: ArrowTable, others: ArrowTable | None, path: object, inputs: Names, target: Names,
    weight: Names, validation: object, holdout: Holdout, classes: int | None,
    images: Mapping[str, Sequence[int]] | None, declared: Mapping[str, str],
    empty: Sequence[object] | None, on_error: OnError, fitted: Encoding | None,
) -> Splits:  # fmt: skip
    """Return the examples of the rows of tables: ``whole`` to train on, ``others`` to evaluate on.

    The other arguments are those of :func:`table`.

    Raises:
        UsageError: a column cannot be what it is to be, or there is nothing to train on.
    """
    notices = list(whole.notices)
    for each in filter(None, (whole, others)):
        each.empty = frozenset(spelling(str(cell)) for cell in empty or ())
    for name, kind in declared.items():
        if kind not in KINDS and "%" not in kind:  # typed in Python: no schema has seen it
            kinds = {name: nearest(kind, KINDS) or "text"}
            refuse("dataset.columns", "is no kind of a column", {name: kind},
                   accepted=", ".join(KINDS), typed=typed("dataset.columns", kinds))  # fmt: skip
        if name not in whole.columns and name not in whole.refused:
            near = nearest(name, whole.columns)
            refuse("dataset.columns", f"{whole.files[0].name} has no such column", name,
                   accepted=", ".join(whole.columns),
                   typed=near and typed("dataset.columns", {near: kind}))  # fmt: skip
    if not whole.columns:
        problem = next(iter(whole.refused.values()))
        refuse("dataset.path", problem, path, accepted="files with the same columns")
    forms = {name: kind for name, kind in declared.items() if "%" in kind}
    if fitted is not None and not isinstance(inputs, str | Mapping):
        if inputs is None and target is None:
            target = _own_target(whole, fitted)
        inputs = [feature.name for feature in fitted.features]
        features = [dataclasses.replace(f, format=forms.get(f.name, f.format))
                    for f in fitted.features]  # fmt: skip
        fitted = dataclasses.replace(fitted, features=tuple(features))
    elif target is None and inputs is None and whole.is_text:
        target = list(whole.columns)[-1]
        notices.append(f"dataset.target={target}: the last column, where none is named")
    chosen, left_out = inputs is not None, dict[str, str]()
    if inputs is None:
        inputs, left_out = _inputs(whole, target, weight, declared)
    is_raw = inputs is None or isinstance(inputs, str | Mapping)
    make = TableSource if is_raw else EncodedSource

    def source(
        table: ArrowTable, names: Names, words: Callable[[str], np.ndarray] | None = None
    ) -> TableSource:
        made = make(table, names, target, weight, words, declared)
        made.forms = {name: kind for name, kind in declared.items() if kind == "date"} | forms
        if made.target is not None and (on_error is OnError.skip or whole.is_small):
            made, notice = _with_targets(made, made.target, on_error is OnError.skip)
            notices.extend(notice)
        return made

    train, held = source(whole, inputs), None
    _refuse_dates(train, declared)
    if others is not None:
        names = train.inputs.names
        if is_raw:
            held = source(others, names, train.words)
            _check_alike(train, held, validation)
        else:
            held = source(others, [n for n in names if n in others.columns], train.words)
    notices += _many_classes(train) if whole.is_small else []
    made = of_sources(train, held, "path", path, holdout, classes, images)
    made = dataclasses.replace(made, notices=tuple(notices))
    if images or not isinstance(made.train, EncodedSource):
        return made
    fit = Fit(made.train, declared, chosen, left_out, fitted)
    for part in (made.train, made.validation):
        if part is not None:
            part.fit = fit
    return dataclasses.replace(
        made, train=arrays_or_source(made.train), validation=arrays_or_source(made.validation),
        encoding=lambda: fit.encoding,
    )  # fmt: skip


def _with_targets(source: TableSource, target: Role, skip: bool) -> tuple[TableSource, list[str]]:
    """Look for rows without a target.

    Args:
        source: of all rows.
        target: of it.
        skip: whether such rows are left out.

    Returns:
        The source of the rows that have one, and a notice where that is not all.

    Raises:
        UsageError: there are some, and they are not to be left out.
    """
    empty = np.zeros(len(source), bool)
    for name in target.columns():
        if source.table.columns[name].is_cell:
            for rows, cells in source.parts_of(name, with_empty=True):
                empty[rows] |= is_empty(cells)
    missing = np.flatnonzero(empty)
    if not len(missing):
        return source, []
    key, shown = "dataset.target", ", ".join(target.columns())
    first = source.where(int(missing[0]))
    if len(missing) == len(source):
        refuse(key, "is empty in every row", shown, accepted="a column with values")
    if not skip:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        refuse(key, f"is empty in {first}{more}", shown, accepted="a target in each row",
               typed="dataset.on_error=skip")  # fmt: skip
    return source.of_rows(np.flatnonzero(~empty)), [
        f"dataset.on_error=skip: {len(missing):,} of {len(source):,} rows have no {shown} and are "
        f"left out, the first: {first}"
    ]


def _many_classes(source: TableSource) -> list[str]:
    """Return a sentence on classes: numbers, of one row each, or written in several ways."""
    name = source.target_column
    if name is None or not source.is_worded(name):
        return []
    names, rows = source.words().tolist(), len(source)
    texts = f"the target has {len(names):,} different texts in {rows:,} rows, each of them a class"
    is_doubtful = source.declared.get(name) != "category" and len(names) >= FEW
    if is_doubtful and 2 * len(Numbers.among(names).numbers) > len(names):
        return [f"{texts}; to predict numbers: {typed('dataset.columns', {name: 'number'})}"]
    groups = collections.defaultdict[str, list[str]](list)
    for text in names:
        groups[text.strip().lower()].append(text)
    if alike := [", ".join(map(repr, group)) for group in groups.values() if len(group) > 1]:
        code = f"t[{name!r}] = t[{name!r}].str.strip().str.lower()"
        return [
            f"of the {len(names):,} classes some differ in blanks or capitals alone "
            f"({'; '.join(alike[:3])}); where they are one class, write them alike in the file, as "
            f"pandas does by {code}"
        ]
    if len(names) < FEW or len(names) < rows / 2:
        return []
    return [f"{texts}; for another column: dataset.target=COLUMN"]


def _own_target(whole: ArrowTable, encoding: Encoding) -> Names:
    """Return the target of a training where a table has it; else none, as of data to predict."""
    names = list(encoding.target.columns if encoding.target else ())
    if not names or not set(names) <= set(whole.columns):
        return None
    return names[0] if len(names) == 1 else names


def _inputs(
    whole: ArrowTable, target: Names, weight: Names, declared: Mapping[str, str]
) -> tuple[Names, dict[str, str]]:
    """Return the inputs where none are named, and the columns that are left out, with reasons."""
    roles = {*flat(target), *flat(weight)}
    inputs = [name for name in (*whole.columns, *whole.refused) if name not in roles]
    out = {
        name: "it numbers the rows"
        for name in (inputs if whole.is_text and len(inputs) > 1 else ())
        if name in whole.columns and name not in declared and _is_index(whole, name)
    }
    inputs = [name for name in inputs if name not in out]
    if not inputs:
        return None, {}  # which is refused
    column = whole.columns.get(inputs[0])
    if len(inputs) == 1 and (column is None or not column.is_cell):
        return inputs[0], out
    return inputs, out


def _is_index(table: ArrowTable, name: str) -> bool:
    """Say whether a column of text files numbers the rows, or names each of them."""
    if not _INDEX.fullmatch(name) or not len(table):
        return False
    rows = np.arange(len(table))
    values = table.read(rows, [name], with_empty=True)[name]
    if values.dtype.kind in "iu":
        return np.array_equal(values, rows + values[0])
    return values.dtype == object and len({*values} - {None}) == len(values)


def _refuse_dates(source: TableSource, declared: Mapping[str, str]) -> None:
    """Refuse columns of dates where they would be read as they are."""
    roles = source.target, source.weight, None if source.encodes else source.inputs
    for role in filter(None, roles):
        for name in role.columns():
            if source.table.columns[name].kind == "date" and declared.get(name) != "category":
                as_list = typed("dataset.inputs", [name]) if role.key.endswith("inputs") else None
                refuse(role.key, "holds dates, which are examples only in a list of inputs", name,
                       accepted="columns of numbers, booleans or text", typed=as_list)  # fmt: skip
