"""Inputs and outputs of a model; a request's named columns as inputs, and outputs as JSON values.

A request names what it gives, in every protocol: whole inputs, or the columns that an input is made
of. :func:`model_inputs` is the one place where names become the model's inputs.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import ml_dtypes  # noqa: F401  # with it NumPy has bfloat16
import numpy as np
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from dtrain.data.encoding import Encoding
from dtrain.errors import DtrainError, UsageError
from dtrain.files.fields import Json, JsonValue, Values

#: The protocol's names of types, by TensorFlow's.
DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16",
    "float32": "FP32", "float64": "FP64", "bfloat16": "BF16", "string": "BYTES",
}  # fmt: skip
_SHOWN = 60  # characters of a value in a message
#: Values of an input in a request: lists in lists, or an array.
Cells = Any


@dataclasses.dataclass(frozen=True)
class Spec:
    """One input or output.

    Attributes:
        name: of it.
        dtype: TensorFlow's name of its type, a key of :data:`DATATYPES`.
        shape: with None for open lengths; None where the rank is open.
        columns: of an input, names of the columns that are put side by side.
    """

    name: str
    dtype: str
    shape: list[int | None] | None
    columns: Sequence[str] = ()

    @property
    def text(self) -> str:
        """What is shown: ``float32 [?, 8]``."""
        shown = "..." if self.shape is None else ", ".join(str(n or "?") for n in self.shape)
        return f"{self.dtype} [{shown}]"

    @property
    def metadata(self) -> Json:
        """The description in the protocol, with -1 for open lengths."""
        shape = [-1 if n is None else n for n in self.shape or ()]
        return {"name": self.name, "datatype": DATATYPES[self.dtype], "shape": shape}

    def refusal(self, problem: str) -> HTTPException:
        """Return the refusal of a value of this input."""
        return HTTPException(400, f"input {self.name!r} takes {self.text}: {problem}")


@dataclasses.dataclass(frozen=True)
class Signature:
    """What goes in and what comes out.

    Attributes:
        inputs, outputs: in order.
        platform: that runs the model, as the Open Inference Protocol names it.
        batched: whether the first length is that of a batch, which requests may share.
        classes: names of the classes that an output has a number for each of.
        encoding: of the table whose columns are the inputs; None of what is no table.
    """

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    platform: str
    batched: bool
    classes: tuple[str, ...] = ()
    encoding: Encoding | None = None

    @property
    def others(self) -> set[str]:
        """Columns of the training's table that are no inputs: a request may have them."""
        if self.encoding is None:
            return set()
        target = self.encoding.target
        others = {*self.encoding.left_out, *(target.columns if target else ())}
        return others - {feature.name for feature in self.encoding.features}

    @classmethod
    def of(cls, about: Values) -> Signature:
        """Return that of :attr:`dtrain.export.sample.Served.about`.

        Raises:
            DtrainError: a tensor of it has no type in the protocol.
        """
        for each in (*about["inputs"], *about["outputs"]):
            if each["dtype"] not in DATATYPES:
                raise DtrainError(
                    f"{each['name']!r} is of a type that is not served: {each['dtype']}"
                )
        inputs, outputs = (tuple(Spec(**e) for e in about[role]) for role in ("inputs", "outputs"))
        encoding = Encoding.from_json(about["encoding"]) if about.get("encoding") else None
        batched, classes = about["batched"], tuple(about["classes"])
        return cls(inputs, outputs, about["platform"], batched, classes, encoding)

    def __str__(self) -> str:
        return " -> ".join(
            ", ".join(f"{spec.name} {spec.text}" for spec in specs)
            for specs in (self.inputs, self.outputs)
        )

    def count(self, inputs: Mapping[str, np.ndarray]) -> int:
        """Return how many rows the inputs of a request have.

        Raises:
            HTTPException: not all have the same number, or none has any.
        """
        rows = {name: len(value) if self.batched else 1 for name, value in inputs.items()}
        if len(set(rows.values())) > 1 or 0 in rows.values():
            shown = ", ".join(f"{name!r} has {count}" for name, count in rows.items())
            raise HTTPException(400, f"the inputs have not one number of rows, from 1 on: {shown}")
        return max(rows.values())

    def unknown(self, columns: Mapping[str, Cells]) -> dict[str, int]:
        """Count the cells of a request that are no categories of the training, by the column."""
        counts = {
            each.name: each.unknown(_flat(columns[each.name])).total()
            for each in (self.encoding.of("category") if self.encoding else ())
        }
        return {name: count for name, count in counts.items() if count}


def _flat(cells: Cells) -> np.ndarray:
    return np.asarray(cells, object).reshape(-1)


def model_inputs(columns: Mapping[str, Cells], signature: Signature) -> dict[str, np.ndarray]:
    """Return the inputs of the model from the named columns of a request.

    Args:
        columns: JSON values by name, each a list of rows: of a whole input, or of one of the
            columns that an input is made of.
        signature: of the model.

    Raises:
        HTTPException: a column is unknown, missing, or not what the input takes.
    """
    columns = {name: cells for name, cells in columns.items() if name not in signature.others}
    names = {name for spec in signature.inputs for name in (spec.name, *spec.columns)}
    if unknown := [name for name in columns if name not in names]:
        raise HTTPException(400, f"unknown column {unknown[0][:_SHOWN]!r}: {_takes(signature)}")
    if signature.encoding is not None:
        columns = _cells(columns, signature.encoding)
    found = {}
    for spec in signature.inputs:
        if spec.name in columns:
            found[spec.name] = array(columns[spec.name], spec)
        elif missing := [name for name in spec.columns or [spec.name] if name not in columns]:
            raise HTTPException(400, f"column {missing[0]!r} is missing: {_takes(signature)}")
        else:
            cells = [array(columns[name], dataclasses.replace(spec, name=name, shape=[None]))
                     for name in spec.columns]  # fmt: skip
            if len({each.shape for each in cells}) > 1:
                raise spec.refusal("its columns differ in length")
            found[spec.name] = np.stack(cells, axis=1)
    return found


def _cells(columns: Mapping[str, Cells], encoding: Encoding) -> dict[str, Cells]:
    """Return cells as the model's inputs have them: empty ones, dates and booleans as numbers."""
    cells = {name: _flat(value) for name, value in columns.items()}
    try:
        found = encoding.plain(cells)
    except UsageError as error:
        raise HTTPException(400, str(error).partition("; ")[0]) from None
    return {name: value.tolist() for name, value in found.items()}


def _takes(signature: Signature) -> str:
    """Return the inputs, with the columns that they are made of, as a clause."""
    columns = [", ".join(map(repr, spec.columns)) for spec in signature.inputs]
    found = [f"{spec.name!r} ({spec.text})" + f" or {names}" * bool(names)
             for spec, names in zip(signature.inputs, columns, strict=True)]  # fmt: skip
    return f"the model takes {', '.join(found)}"


def array(value: Cells, spec: Spec) -> np.ndarray:
    """Return nested lists as an array of an input's type and shape.

    Raises:
        HTTPException: they are of another type or shape.
    """
    text = spec.dtype == "string"
    dtype = np.dtype(object if text else spec.dtype)
    try:
        found = np.asarray(value, object if text else None)
    except (ValueError, OverflowError):
        raise spec.refusal("its lists differ in length") from None
    if text:
        found = np.vectorize(lambda each: _bytes(each, spec), otypes=[object])(found)
    elif found.size and found.dtype.kind not in ("b" if dtype.kind == "b" else "iuf"):
        values = np.asarray(value, object).reshape(-1).tolist()
        odd = [each for each in values if type(each) not in (int, float)] or values
        raise spec.refusal(f"it has {json.dumps(odd[0])[:_SHOWN]}")
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            cast = found.astype(dtype)
            wrong = cast != found if dtype.kind in "iu" else np.isfinite(found) & ~np.isfinite(cast)
        if np.any(wrong):
            raise spec.refusal(f"it has {found[wrong].reshape(-1)[0]}")
        found = cast
    if spec.shape and spec.shape[-1] == 1 and found.ndim == len(spec.shape) - 1:
        found = found[..., np.newaxis]  # a column of a table: [n] for [n, 1]
    if spec.shape is not None and (
        len(spec.shape) != found.ndim
        or any(n not in (None, m) for n, m in zip(spec.shape, found.shape, strict=True))
    ):
        raise spec.refusal(f"this has the shape {list(found.shape)}")
    return found


def _bytes(value: object, spec: Spec) -> bytes:
    try:
        if isinstance(value, dict) and value.keys() == {"b64"}:
            return base64.b64decode(value["b64"], validate=True)
        if isinstance(value, str):
            return value.encode()
    except (ValueError, TypeError):  # no base64, or half of a surrogate pair
        pass
    raise spec.refusal(f"it has {json.dumps(value)[:_SHOWN]}")


def plain(value: np.ndarray) -> JsonValue:
    """Return an output as nested lists; bytes that are not UTF-8 are ``{"b64": ...}``."""
    if value.dtype.kind != "O":
        return (value.astype(np.float32) if value.dtype.name == "bfloat16" else value).tolist()
    return np.vectorize(_text, otypes=[object])(value).tolist()


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def labels(outputs: Mapping[str, np.ndarray], classes: Sequence[str]) -> np.ndarray | None:
    """Return the name of each row's class: of the largest number, or of a probability from 0.5 on.

    None where there are no names, or no output has a number for each.
    """
    names = np.array([each.encode() for each in classes], object)
    for value in outputs.values():
        if len(names) < 2 or value.ndim != 2 or value.dtype.kind not in "fV":
            continue
        if value.shape[1] == len(names):
            return np.asarray(names[value.argmax(axis=1)])
        if (value.shape[1], len(names)) == (1, 2) and ((value >= 0) & (value <= 1)).all():
            return np.asarray(names[(value[:, 0] >= 0.5).astype(int)])
    return None


_EMPTY = 1 << 16  # lengths of a tensor without values, at most: each of them would be a list


class Tensor(BaseModel):
    """An input of a V2 request."""

    name: str
    datatype: str
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(max_length=32)]
    data: list[JsonValue]


class Output(BaseModel):
    """An output that a V2 request asks for."""

    name: str


class InferRequest(BaseModel):
    """A request of the Open Inference Protocol V2."""

    id: str | None = None
    inputs: list[Tensor]
    outputs: list[Output] = []

    def columns(self, signature: Signature) -> dict[str, Cells]:
        """Return its inputs by name.

        Raises:
            HTTPException: one has another type than the model's, or other data than its shape says,
                or is there twice.
        """
        (self.id or "").encode()  # ValueError: half of a surrogate pair, which no answer can have
        columns = {}
        specs = {spec.name: spec for spec in signature.inputs}
        for each in self.inputs:
            spec, size = specs.get(each.name), math.prod(each.shape)
            if each.name in columns:
                raise HTTPException(400, f"input {each.name[:60]!r} is there twice")
            if spec is not None and each.datatype != DATATYPES[spec.dtype]:
                raise spec.refusal(f"its datatype is {DATATYPES[spec.dtype]}, not {each.datatype}")
            data = np.asarray(each.data, object)
            if data.size != size or (size == 0 and sum(each.shape) > _EMPTY):
                raise HTTPException(
                    400, f"input {each.name[:60]!r}: {size} values by its shape {each.shape}, and "
                    f"{data.size} in data",
                )  # fmt: skip
            columns[each.name] = data.reshape(each.shape).tolist()
        return columns

    def answer(self, outputs: Mapping[str, np.ndarray], labels: np.ndarray | None) -> Json:
        """Return the answer.

        Args:
            outputs: of the model.
            labels: names of the rows' classes; None where they have none.

        Raises:
            HTTPException: there is no output that is asked for.
        """
        arrays = {**outputs, **({} if labels is None else {"labels": labels})}
        tensors = {
            name: {"name": name, "shape": list(value.shape), "data": plain(value.reshape(-1)),
                   "datatype": DATATYPES["string" if value.dtype == object else value.dtype.name]}
            for name, value in arrays.items()
        }  # fmt: skip
        names = [each.name for each in self.outputs] or list(tensors)
        if unknown := [each for each in names if each not in tensors]:
            raise HTTPException(400, f"unknown output {unknown[0][:60]!r}: {', '.join(tensors)}")
        answer = {"outputs": [tensors[each] for each in names]}
        return answer if self.id is None else {**answer, "id": self.id}


class Split(BaseModel):
    """A table of ``/invocations``, as ``DataFrame.to_dict(orient="split")`` writes it."""

    columns: list[str | int]
    data: list[list[JsonValue]]


class Invocation(BaseModel):
    """A request of MLflow's ``/invocations``: one of the four."""

    dataframe_split: Split | None = None
    dataframe_records: list[Json] | None = None
    instances: list[JsonValue] | None = None
    inputs: Json | list[JsonValue] | None = None

    def columns(self, signature: Signature) -> dict[str, Cells]:
        """Return its columns by name.

        Raises:
            HTTPException: it has not exactly one of the four, or rows of several kinds.
        """
        if len(self.model_fields_set) != 1:
            kinds = ", ".join(type(self).model_fields)
            raise HTTPException(400, f"one of {kinds} is expected: it has "
                                    f"{', '.join(self.model_fields_set) or 'none'}")  # fmt: skip
        if self.dataframe_split is not None:
            names, data = list(map(str, self.dataframe_split.columns)), self.dataframe_split.data
            if len({*names}) < len(names) or any(len(row) != len(names) for row in data):
                raise HTTPException(400, "dataframe_split: each row has a value for each column, "
                                        "and each column another name")  # fmt: skip
            return {name: [row[at] for row in data] for at, name in enumerate(names)}
        if isinstance(self.inputs, dict):
            return self.inputs
        rows: list[JsonValue] = self.dataframe_records or self.instances or self.inputs or []
        if rows and isinstance(rows[0], dict) and rows[0].keys() != {"b64"}:
            names = list(rows[0])
            for at, row in enumerate(rows):
                if not isinstance(row, dict) or row.keys() != rows[0].keys():
                    raise HTTPException(400, f"row {at} has other columns than the first")
            return {name: [row[name] for row in rows] for name in names}
        if len(signature.inputs) > 1:
            return model_inputs({}, signature)  # says which names are missing
        return {signature.inputs[0].name: rows}

    def answer(self, outputs: Mapping[str, np.ndarray], labels: np.ndarray | None) -> Json:
        """Return the answer: the only output, or an object of all by name."""
        values = {name: plain(value) for name, value in outputs.items()}
        answer = {"predictions": values if len(values) > 1 else next(iter(values.values()))}
        return answer if labels is None else {**answer, "labels": plain(labels)}
