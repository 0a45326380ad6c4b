"""Columns of Arrow's as columns of a table: which types can be examples."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from dtrain.data.table import Column, described

#: Index columns, which pandas writes beside those of the table.
_INDEX = re.compile(r"__index_level_\d+__")
_TENSOR = "arrow.fixed_shape_tensor"
_OBJECT = np.dtype(object)


@dataclasses.dataclass(frozen=True)
class Form:
    """How a column of Arrow's is read.

    Attributes:
        column: what it has in a row.
        path: its name, and those of the fields of structures that it is in.
    """

    column: Column
    path: tuple[str, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether each row has as many bytes, one after the other."""
        return self.column.is_number and not self.column.is_ragged

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row of fixed size; of an item of a row whose length differs."""
        return tuple(size for size in self.column.shape if size is not None)


#: Columns of a file that can be read, and why others cannot, as of :func:`forms`.
Forms = tuple[dict[str, Form], dict[str, str]]


def forms(schema: pa.Schema, file: str) -> Forms:
    """Return the columns of a file that can be read, by name, and why the others cannot.

    A field of a structure is a column of its own, such as ``image.bytes``.

    Args:
        schema: of the file.
        file: its name, for messages.
    """
    usable: dict[str, Form] = {}
    refused: dict[str, str] = {}
    for name, path, kind in _flat(schema):
        column = column_of(kind)
        if name in usable or name in refused:
            usable.pop(name, None)
            refused[name] = f"{file} has two columns of that name"
        elif column is None:
            refused[name] = f"{file} has {_name(kind)} in it, which cannot be an example"
        else:
            usable[name] = Form(column, path)
    return usable, refused


def agreed(files: Sequence[str], each: Sequence[Forms]) -> Forms:
    """Return the columns that several files have alike: those of the first one, in its order."""
    usable, refused = dict(each[0][0]), dict(each[0][1])
    for file, (theirs, wrong) in zip(files[1:], each[1:], strict=True):
        for name, form in list(usable.items()):
            if theirs.get(name) == form:
                continue
            del usable[name]
            if name in wrong:
                refused[name] = wrong[name]
            elif name not in theirs:
                refused[name] = f"{file} has no such column, which {files[0]} has"
            else:
                other, own = described(theirs[name].column), described(form.column)
                refused[name] = f"{file} has {other} in it, and {files[0]} has {own}"
    return usable, refused


def _flat(
    fields: Iterable[pa.Field], before: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], pa.DataType]]:
    for field in fields:
        path = (*before, field.name)
        if pa.types.is_struct(field.type):
            yield from _flat((field.type.field(i) for i in range(field.type.num_fields)), path)
        elif not _INDEX.fullmatch(field.name):
            yield ".".join(path), path, field.type


def column_of(kind: pa.DataType) -> Column | None:
    """Return what values of a type are; None where they cannot be examples."""
    types = pa.types
    if types.is_dictionary(kind):
        return column_of(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name != _TENSOR or list(kind.permutation or ()) != sorted(
            kind.permutation or ()
        ):
            return None
        inner = column_of(kind.value_type)
        return inner and dataclasses.replace(inner, shape=tuple(kind.shape))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return Column(_OBJECT, kind="text")
    if (
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    ):  # fmt: skip
        return Column(_OBJECT, kind="bytes")
    if types.is_date(kind) or types.is_timestamp(kind):
        return Column(np.dtype("M8[us]"), kind="date")
    if types.is_decimal(kind) or types.is_time(kind) or types.is_duration(kind):
        return Column(np.dtype(np.float64))
    if types.is_null(kind):  # every cell is empty
        return Column(np.dtype(np.float32))
    if types.is_boolean(kind):
        return Column(np.dtype(bool), kind="boolean")
    if types.is_integer(kind) or types.is_floating(kind):
        return Column(np.dtype(kind.to_pandas_dtype()))
    fixed = types.is_fixed_size_list(kind)
    if fixed or is_list(kind):
        inner = column_of(kind.value_type)
        if inner is None or not inner.is_number or inner.is_ragged:
            return None
        shape = (kind.list_size if fixed else None, *inner.shape)
        return dataclasses.replace(inner, shape=shape)
    return None


def is_list(kind: pa.DataType) -> bool:
    """Say whether a type is that of lists of different lengths."""
    types = pa.types
    return (
        types.is_list(kind) or types.is_large_list(kind)
        or types.is_list_view(kind) or types.is_large_list_view(kind)
    )  # fmt: skip


def _name(kind: pa.DataType) -> str:
    if isinstance(kind, pa.BaseExtensionType):
        return f"the extension type {kind.extension_name}"
    return str(kind) if len(str(kind)) <= 80 else f"{str(kind)[:77]}..."
