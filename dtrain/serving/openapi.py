"""The description of what a server answers to, for the model that it serves: OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

import numpy as np

from dtrain.host import frames
from dtrain.host.versions import version as version_of
from dtrain.serving import arrays
from dtrain.serving.model import Model
from dtrain.serving.signature import V2, Signature, Spec

#: Numbers of an example that is shown, at most.
_NUMBERS = 2000
_JSON = "application/json"
_ERROR = {"$ref": "#/components/schemas/Error"}


def of(name: str, model: Model, max_body: int, token: bool) -> dict[str, Any]:
    """Return the description.

    Args:
        name: of the model.
        model: that serves.
        max_body: bytes of a body, at most.
        token: whether a token is asked for.
    """
    signature, example = model.signature, _example(model)
    rows = _either(signature, example)
    frame = _frame(signature, example)
    paths = {
        f"/v2/models/{name}/infer": {
            "post": _post(
                "Predict (KServe V2; also with binary tensors)", "v2", _v2(signature),
                None if example is None else _v2_example(signature, example),
            )
        },
        f"/v1/models/{name}:predict": {
            "post": _post("Predict (TensorFlow Serving)", "tensorflow", *rows)
        },
        "/invocations": {"post": _post("Predict (MLflow)", "mlflow", *frame)},
        f"/v2/models/{name}": {"get": _get("Inputs and outputs of the model", "v2")},
        f"/v2/models/{name}/ready": {"get": _get("Whether the model answers", "v2")},
        f"/v1/models/{name}": {"get": _get("Versions of the model", "tensorflow")},
        f"/v1/models/{name}/metadata": {"get": _get("The signature", "tensorflow")},
        "/v2": {"get": _get("About the server", "v2")},
        "/v2/health/live": {"get": _get("Whether the server is there", "health")},
        "/v2/health/ready": {"get": _get("Whether the model answers", "health")},
        "/ping": {"get": _get("Whether the model answers", "health", "text/plain")},
        "/version": {"get": _get("Version of the server", "mlflow", "text/plain")},
        "/metrics": {"get": _get("Counts and times, for Prometheus", "server", "text/plain")},
        "/rollback": {
            "post": _post("Let the version before serve again", "server", {"type": "object"}, {})
        },
    }  # fmt: skip
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": name,
            "version": model.version,
            "description": f"A body has at most {max_body:,} bytes. Each prediction has the header "
            "x-model-version. /v2/models/NAME and /v1/models/NAME take /versions/VERSION as well.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "properties": {"error": {"type": "string"}},
                    "required": ["error"],
                }
            }
        },
        "x-server": f"dtrain {version_of('dtrain') or '?'}",
    }
    if token:
        scheme = {"type": "http", "scheme": "bearer"}
        described["components"]["securitySchemes"] = {"token": scheme}
        described["security"] = [{"token": []}]
    return described


def _get(summary: str, tag: str, kind: str = _JSON) -> dict[str, Any]:
    return {"summary": summary, "tags": [tag], "responses": _responses(kind)}


def _post(summary: str, tag: str, schema: dict[str, Any], example: Any) -> dict[str, Any]:
    content = {"schema": schema} if example is None else {"schema": schema, "example": example}
    body = {"required": True, "content": {_JSON: content}}
    return {"summary": summary, "tags": [tag], "requestBody": body, "responses": _responses(_JSON)}


def _responses(kind: str) -> dict[str, Any]:
    wrong = {"description": "What is wrong, in a sentence", "content": {_JSON: {"schema": _ERROR}}}
    return {"200": {"description": "Done", "content": {kind: {}}}, "4XX": wrong, "503": wrong}


def _scalar(spec: Spec) -> dict[str, Any]:
    if spec.dtype == frames.TEXT:
        b64 = {"type": "object", "properties": {"b64": {"type": "string"}}, "required": ["b64"]}
        return {"anyOf": [{"type": "string"}, b64]}
    if spec.dtype == "bool":
        return {"type": "boolean"}
    if spec.dtype == "bfloat16" or spec.kind.kind == "f":
        return {"type": "number"}
    limits = np.iinfo(spec.kind)
    return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}


def _nested(spec: Spec, skip: int) -> dict[str, Any]:
    """Return the schema of the values of an input, without its first ``skip`` lengths."""
    found = _scalar(spec)
    for length in reversed(() if spec.shape is None else spec.shape[skip:]):
        found = {"type": "array", "items": found}
        if length is not None:
            found |= {"minItems": length, "maxItems": length}
    return found


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _v2(signature: Signature) -> dict[str, Any]:
    tensors = [
        _object({
            "name": {"const": spec.name},
            "datatype": {"const": V2[spec.dtype]},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "data": {"type": "array"},
        })
        for spec in signature.inputs
    ]  # fmt: skip
    inputs = {"type": "array", "prefixItems": tensors, "minItems": len(tensors)}
    return _object({"inputs": inputs}) | {"additionalProperties": True}


def _either(signature: Signature, example: dict[str, np.ndarray] | None) -> tuple[Any, Any]:
    columns = _object({spec.name: _nested(spec, 0) for spec in signature.inputs})
    row: dict[str, Any] = _object({spec.name: _nested(spec, 1) for spec in signature.inputs})
    if len(signature.inputs) == 1:
        [spec] = signature.inputs
        row, columns = _nested(spec, 1), {"anyOf": [_nested(spec, 0), columns]}
    schema = {"anyOf": [
        _object({"instances": {"type": "array", "items": row}}), _object({"inputs": columns}),
    ]}  # fmt: skip
    if example is None:
        return schema, None
    values = _values(example)
    if len(values) == 1:
        [only] = values.values()
        return schema, {"instances": only}
    rows = zip(*values.values(), strict=True)
    return schema, {"instances": [dict(zip(values, row, strict=True)) for row in rows]}


def _frame(signature: Signature, example: dict[str, np.ndarray] | None) -> tuple[Any, Any]:
    schema, _ = _either(signature, None)
    split = _object({"columns": {"type": "array"}, "data": {"type": "array"}})
    schema["anyOf"] += [
        _object({"dataframe_split": split}), _object({"dataframe_records": {"type": "array"}}),
    ]  # fmt: skip
    return schema, None if example is None else {"inputs": _values(example)}


def _v2_example(signature: Signature, example: dict[str, np.ndarray]) -> dict[str, Any]:
    inputs = [
        {"name": spec.name, "datatype": V2[spec.dtype], "shape": list(example[spec.name].shape),
         "data": _values({"": example[spec.name].reshape(-1)})[""]}
        for spec in signature.inputs
    ]  # fmt: skip
    return {"id": "1", "inputs": inputs}


def _values(example: dict[str, np.ndarray]) -> dict[str, Any]:
    return arrays.outputs(example, lambda _: lambda value: value.decode(errors="replace"))


def _example(model: Model) -> dict[str, np.ndarray] | None:
    """Return the inputs of an example of the model's own; None where there is none to show."""
    found = model.example
    if not found or sum(value.size for value in found.values()) > _NUMBERS:
        return None
    finite = all(np.isfinite(value).all() for value in found.values() if value.dtype.kind == "f")
    return found if finite else None
