"""TensorFlow Serving's protocol, by rows and by columns, and MLflow's ``/invocations``."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from dtrain.serving import arrays
from dtrain.serving.problems import wrong
from dtrain.serving.signature import DT, Signature, Spec

_FORMS = ("instances", "inputs", "dataframe_split", "dataframe_records")


def predict(body: Any, signature: Signature) -> tuple[dict[str, np.ndarray], bool]:
    """Return the inputs of a request of TensorFlow Serving's, and whether it is by rows.

    Raises:
        Refused: it is none, or has other inputs than the model.
    """
    name = _object(body).get("signature_name", "serving_default")
    if name not in ("serving_default", "serve", ""):
        raise wrong(f"signature_name: {str(name)[:60]!r} is not served: serving_default is")
    form = _form(body, _FORMS[:2])
    if form == "instances":
        return _instances(body[form], signature), True
    return _columns(body[form], signature), False


def invocations(body: Any, signature: Signature) -> dict[str, np.ndarray]:
    """Return the inputs of a request of MLflow's.

    Raises:
        Refused: it is none, or has other inputs than the model.
    """
    form = _form(_object(body), _FORMS)
    value = body[form]
    if form == "instances":
        return _instances(value, signature)
    if form == "inputs":
        return _columns(value, signature)
    if form == "dataframe_split":
        return _frame(*_split(value), signature)
    return _frame(*_records(value), signature)


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise wrong(f"the body is to be a JSON object with one of {', '.join(_FORMS)}")
    return body


def _form(body: dict[str, Any], forms: tuple[str, ...]) -> str:
    there = [form for form in forms if form in body]
    if len(there) != 1:
        has = " and ".join(there) or "none of them"
        raise wrong(f"the body is to have one of {', '.join(forms)}: it has {has}")
    return there[0]


def _instances(value: Any, signature: Signature) -> dict[str, np.ndarray]:
    """Return inputs from a list of rows: each an object, or the value of the only input."""
    if not isinstance(value, list):
        raise wrong("instances: a list is taken, of a row each")
    names = [spec.name for spec in signature.inputs]
    if not any(_is_row(row, names) for row in value):
        if len(names) > 1:
            raise wrong(f"instances: each is to be an object with the inputs {_these(names)}")
        return {names[0]: _given(value, signature.inputs[0])}
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for at, row in enumerate(value):
        if not _is_row(row, names) or row.keys() != columns.keys():
            keys = _these(row) if isinstance(row, dict) else "no object"
            raise wrong(f"instances[{at}] is to have the inputs {_these(names)}: it has {keys}")
        for name in names:
            columns[name].append(row[name])
    return _named(columns, signature)


def _is_row(row: Any, names: list[str]) -> bool:
    return isinstance(row, dict) and (row.keys() != {"b64"} or "b64" in names)


def _columns(value: Any, signature: Signature) -> dict[str, np.ndarray]:
    """Return inputs from an object of tensors, or from the tensor of the only input."""
    names = [spec.name for spec in signature.inputs]
    if isinstance(value, dict) and (value.keys() != {"b64"} or "b64" in names):
        return _named(value, signature)
    if len(names) > 1:
        raise wrong(f"inputs: an object is taken, with {_these(names)}")
    return {names[0]: _given(value, signature.inputs[0])}


def _named(columns: Mapping[str, Any], signature: Signature) -> dict[str, np.ndarray]:
    for name in columns:
        signature.input(name)
    return {
        spec.name: _given(columns[spec.name], spec)
        for spec in signature.inputs
        if spec.name in columns
    }


def _given(value: Any, spec: Spec) -> np.ndarray:
    return arrays.shaped(arrays.array(value, spec), spec)


def _these(names: Any) -> str:
    shown = [repr(str(name)[:60]) for name in list(names)[:20]]
    return ", ".join(shown) or "nothing"


def _split(value: Any) -> tuple[list[str], list[list[Any]]]:
    if not isinstance(value, dict) or not isinstance(value.get("data"), list):
        raise wrong("dataframe_split: an object is taken, with columns and data")
    columns, data = value.get("columns"), value["data"]
    if not isinstance(columns, list) or len(set(map(str, columns))) < len(columns):
        raise wrong("dataframe_split: columns is to be a list of names, each once")
    for at, row in enumerate(data):
        if not isinstance(row, list) or len(row) != len(columns):
            raise wrong(f"dataframe_split: data[{at}] is to have {len(columns)} values")
    return list(map(str, columns)), data


def _records(value: Any) -> tuple[list[str], list[list[Any]]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise wrong("dataframe_records: a list of objects is taken")
    columns = list(value[0]) if value else []
    for at, row in enumerate(value):
        if row.keys() != set(columns):
            raise wrong(f"dataframe_records[{at}] has other columns than the first: {_these(row)}")
    return columns, [[row[name] for name in columns] for row in value]


def _frame(
    columns: list[str], data: list[list[Any]], signature: Signature
) -> dict[str, np.ndarray]:
    """Return inputs from a table: of a column each, or all columns as rows of the only input."""
    names = {spec.name for spec in signature.inputs}
    if set(columns) == names:
        by_name = {name: [row[at] for row in data] for at, name in enumerate(columns)}
        return {spec.name: _cells(by_name[spec.name], spec) for spec in signature.inputs}
    [spec, *others] = signature.inputs
    if others or spec.row_size() not in (len(columns), None):
        raise wrong(f"the table has the columns {_these(columns)}; taken: {signature.listed()}")
    return {spec.name: _cells(data, spec)}


def _cells(value: Any, spec: Spec) -> np.ndarray:
    """Return rows with the shape of an input: ``[n, 64]`` and ``[n]`` stand for ``[n, 8, 8]``."""
    found = arrays.array(value, spec)
    if not spec.fits(found.shape) and spec.shape is not None and found.ndim:
        size = int(np.prod(found.shape[1:], dtype=np.int64))
        if size == spec.row_size():
            return found.reshape(found.shape[0], *(n or 0 for n in spec.shape[1:]))
    return arrays.shaped(found, spec)


def by_rows(found: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the answer by rows: a value each, or an object of the outputs by name.

    Raises:
        Refused: the outputs have no rows.
    """
    if len({value.shape[:1] for value in found.values()} | {()}) > 2 or not all(
        value.ndim for value in found.values()
    ):
        raise wrong("the outputs of the model have no rows: ask by columns, with inputs")
    values = arrays.outputs(found, _text)
    if len(values) == 1:
        [only] = values.values()
        return {"predictions": only}
    rows = zip(*values.values(), strict=True)
    return {"predictions": [dict(zip(values, row, strict=True)) for row in rows]}


def by_columns(found: Mapping[str, np.ndarray], key: str) -> dict[str, Any]:
    """Return the answer by columns: a value, or an object of the outputs by name."""
    values = arrays.outputs(found, _text)
    if len(values) == 1:
        [only] = values.values()
        return {key: only}
    return {key: values}


def _text(name: str) -> Any:
    def take(value: bytes) -> Any:
        if not name.endswith("_bytes"):
            try:
                return value.decode()
            except UnicodeDecodeError:
                pass  # base64, as of an output that says that it is bytes
        return {"b64": base64.b64encode(value).decode()}

    return take


def metadata(name: str, version: str, signature: Signature) -> dict[str, Any]:
    """Return the answer to ``/metadata``: the signature, as TensorFlow Serving writes it."""
    signatures = {
        "serving_default": {
            "inputs": {spec.name: _tensor(spec) for spec in signature.inputs},
            "outputs": {spec.name: _tensor(spec) for spec in signature.outputs},
            "method_name": "tensorflow/serving/predict",
        }
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": version},
        "metadata": {"signature_def": {"signature_def": signatures}},
    }


def _tensor(spec: Spec) -> dict[str, Any]:
    sizes = [{"size": str(size), "name": ""} for size in spec.sizes]
    shape = {"dim": sizes, "unknown_rank": spec.shape is None}
    return {"dtype": DT[spec.dtype], "tensor_shape": shape, "name": spec.name}
