"""Columns of Arrow's as columns of a table: which types can be examples, and their values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from dtrain.data.tables import Column

#: Index columns, which pandas writes beside those of the table.
_INDEX = re.compile(r"__index_level_\d+__")
_TENSOR = "arrow.fixed_shape_tensor"


@dataclasses.dataclass(frozen=True)
class Form:
    """How a column of Arrow's is read.

    Attributes:
        column: what it has in a row.
        kind: of its values.
        path: its name, and those of the fields of structures that it is in.
    """

    column: Column
    kind: Literal["number", "text", "bytes"]
    path: tuple[str, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether it holds as many numbers in each row."""
        return self.kind == "number" and not self.column.is_ragged

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row of fixed size; of an item of a row whose length differs."""
        return tuple(size for size in self.column.shape if size is not None)


#: Columns of a file that can be read, and why others cannot, as of :func:`forms`.
Found = tuple[dict[str, Form], dict[str, str]]


def forms(schema: pa.Schema, file: str) -> Found:
    """Return the columns of a file that can be read, by name, and why the others cannot.

    A field of a structure is a column of its own, such as ``image.bytes``.

    Args:
        schema: of the file.
        file: its name, for messages.
    """
    found: dict[str, Form] = {}
    refused: dict[str, str] = {}
    for name, path, kind in _flat(schema):
        form = form_of(kind)
        if name in found or name in refused:
            found.pop(name, None)
            refused[name] = f"{file} has two columns of that name"
        elif form is None:
            refused[name] = f"{file} has {_name(kind)} in it, which cannot be an example"
        else:
            found[name] = dataclasses.replace(form, path=path)
    return found, refused


def agreed(files: Sequence[str], each: Sequence[Found]) -> Found:
    """Return the columns that several files have alike: those of the first one, in its order.

    Args:
        files: their names.
        each: of each, what :func:`forms` returned.
    """
    first, *others = zip(files, each, strict=True)
    found, refused = dict(first[1][0]), dict(first[1][1])
    for file, (theirs, wrong) in others:
        for name, form in list(found.items()):
            if theirs.get(name) != form:
                del found[name]
                refused[name] = _different(name, file, theirs, wrong, first[0], form)
    return found, refused


def _different(
    name: str,
    file: str,
    theirs: Mapping[str, Form],
    wrong: Mapping[str, str],
    first: str,
    ours: Form,
) -> str:
    """Say how a column of a file is not that of the first file."""
    if name in wrong:
        return wrong[name]
    if name not in theirs:
        return f"{file} has no such column, which {first} has"
    return f"{file} has {described(theirs[name])} in it, and {first} has {described(ours)}"


def _flat(
    fields: Iterable[pa.Field], before: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], pa.DataType]]:
    for field in fields:
        path = (*before, field.name)
        if pa.types.is_struct(field.type):
            yield from _flat((field.type.field(i) for i in range(field.type.num_fields)), path)
        elif not _INDEX.fullmatch(field.name):
            yield ".".join(path), path, field.type


def form_of(kind: pa.DataType) -> Form | None:
    """Return how values of a type are read; None where they cannot be examples."""
    types = pa.types
    if types.is_dictionary(kind):
        return form_of(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name != _TENSOR:
            return None
        order = list(kind.permutation or ())
        inner = form_of(kind.value_type) if order == sorted(order) else None
        shape = tuple(kind.shape)
        return inner and dataclasses.replace(inner, column=Column(inner.column.dtype, shape))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return Form(Column(np.dtype(object)), "text")
    if (
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    ):  # fmt: skip
        return Form(Column(np.dtype(object)), "bytes")
    if types.is_decimal(kind):
        return Form(Column(np.dtype(np.float64)), "number")
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return Form(Column(np.dtype(kind.to_pandas_dtype())), "number")
    fixed = types.is_fixed_size_list(kind)
    if fixed or is_list(kind):
        inner = form_of(kind.value_type)
        if inner is None or not inner.is_fixed:
            return None
        shape = (kind.list_size if fixed else None, *inner.column.shape)
        return Form(Column(inner.column.dtype, shape), "number")
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


def described(form: Form) -> str:
    """Return what a column holds, in words."""
    kind = str(form.column.dtype) if form.kind == "number" else form.kind
    shape = ", ".join("?" if size is None else str(size) for size in form.column.shape)
    return f"{kind} [{shape}]" if shape else kind
