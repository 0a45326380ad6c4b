"""The Open Inference Protocol V2 as JSON, and MLflow's ``/invocations``: requests and answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from dtrain.serving.signature import DATATYPES, Signature, model_inputs, plain

_EMPTY = 1 << 16  # lengths of a tensor without values, at most: each of them would be a list


class Tensor(BaseModel):
    """An input of a V2 request."""

    name: str
    datatype: str
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(max_length=32)]
    data: list[Any]


class Output(BaseModel):
    """An output that a V2 request asks for."""

    name: str


class InferRequest(BaseModel):
    """A request of the Open Inference Protocol V2."""

    id: str | None = None
    inputs: list[Tensor]
    outputs: list[Output] = []

    def columns(self, signature: Signature) -> dict[str, Any]:
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

    def answer(
        self, outputs: Mapping[str, np.ndarray], labels: np.ndarray | None
    ) -> dict[str, Any]:
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
    data: list[list[Any]]


class Invocation(BaseModel):
    """A request of MLflow's ``/invocations``: one of the four."""

    dataframe_split: Split | None = None
    dataframe_records: list[dict[str, Any]] | None = None
    instances: list[Any] | None = None
    inputs: dict[str, Any] | list[Any] | None = None

    def columns(self, signature: Signature) -> dict[str, Any]:
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
        rows: list[Any] = self.dataframe_records or self.instances or self.inputs or []
        if rows and isinstance(rows[0], dict) and rows[0].keys() != {"b64"}:
            names = list(rows[0])
            for at, row in enumerate(rows):
                if not isinstance(row, dict) or row.keys() != rows[0].keys():
                    raise HTTPException(400, f"row {at} has other columns than the first")
            return {name: [row[name] for row in rows] for name in names}
        if len(signature.inputs) > 1:
            return model_inputs({}, signature)  # says which names are missing
        return {signature.inputs[0].name: rows}

    def answer(
        self, outputs: Mapping[str, np.ndarray], labels: np.ndarray | None
    ) -> dict[str, Any]:
        """Return the answer: the only output, or an object of all by name."""
        values = {name: plain(value) for name, value in outputs.items()}
        answer = {"predictions": values if len(values) > 1 else next(iter(values.values()))}
        return answer if labels is None else {**answer, "labels": plain(labels)}
