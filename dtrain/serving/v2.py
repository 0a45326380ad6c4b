"""KServe's protocol V2 over REST, with its extension for binary tensors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dtrain.host import frames
from dtrain.serving import arrays
from dtrain.serving.problems import wrong
from dtrain.serving.signature import V2, Signature, Spec

#: Header with the length of the JSON that stands before binary tensors.
HEADER = "inference-header-content-length"
_LENGTH = 4  # bytes of the length that stands before each text


@dataclasses.dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        id: the client's own; None where it gave none.
        inputs: arrays by name.
        outputs: names of those that are wanted, with whether they are to be binary; None for all.
        binary: whether an output of which nothing is said is to be binary.
    """

    id: str | None
    inputs: dict[str, np.ndarray]
    outputs: dict[str, bool] | None
    binary: bool


def parsed(body: bytes, length: str | None, signature: Signature) -> Request:
    """Return the request that a body is.

    Args:
        body: JSON, with binary tensors behind it.
        length: of the JSON, as :data:`HEADER` has it; None: it is all.
        signature: of the model.

    Raises:
        Refused: it is none, or has other inputs than the model.
    """
    end = len(body)
    if length is not None:
        if not length.isascii() or not length.isdecimal() or int(length) > len(body):
            raise wrong(f"{HEADER}: {length[:60]!r} is no length of a part of the body")
        end = int(length)
    head, data = load(body[:end]), memoryview(body)[end:]
    if not isinstance(head, dict):
        raise wrong("the body is to be a JSON object with inputs")
    ident, parameters = head.get("id"), head.get("parameters", {})
    if not isinstance(ident, str | None):
        raise wrong("id: a text is taken")
    if not isinstance(parameters, dict):
        raise wrong("parameters: an object is taken")
    inputs: dict[str, np.ndarray] = {}
    for each in _objects(head.get("inputs"), "inputs"):
        spec = signature.input(each["name"])
        if spec.name in inputs:
            raise wrong(f"input {spec.name!r} is there twice")
        size = _binary_size(each, spec)
        if size is None:
            inputs[spec.name] = _of_json(each, spec)
        else:
            if size > len(data):
                raise wrong(f"input {spec.name!r} has {size} bytes: {len(data)} are left of it")
            inputs[spec.name] = _of_bytes(bytes(data[:size]), _shape(each, spec), spec)
            data = data[size:]
    if len(data):
        raise wrong(f"{len(data)} bytes of the body belong to no input")
    binary = parameters.get("binary_data_output") is True
    return Request(ident, inputs, _wanted(head, signature, binary), binary)


def load(body: bytes) -> Any:
    """Return what JSON says.

    Raises:
        Refused: it is none, or nested too deep.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        raise wrong(f"the body is no JSON: {'nested too deep' if deep else error}") from None


def _objects(value: Any, key: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise wrong(f"{key}: a list is taken, of an object each with its name")
    for at, each in enumerate(value):
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise wrong(f"{key}[{at}]: an object with a name is taken")
        if not isinstance(each.get("parameters", {}), dict):
            raise wrong(f"{key}[{at}]: parameters: an object is taken")
    return value


def _wanted(head: dict[str, Any], signature: Signature, binary: bool) -> dict[str, bool] | None:
    if not head.get("outputs"):
        return None
    names = [spec.name for spec in signature.outputs]
    found: dict[str, bool] = {}
    for each in _objects(head["outputs"], "outputs"):
        if each["name"] not in names:
            there = ", ".join(map(repr, names))
            raise wrong(f"the model has no output {each['name'][:60]!r}: it gives {there}")
        parameters = each.get("parameters", {})
        if "classification" in parameters:
            raise wrong(f"output {each['name']!r}: classification is not served: raw outputs are")
        found[each["name"]] = parameters.get("binary_data", binary) is True
    return found


def _binary_size(each: dict[str, Any], spec: Spec) -> int | None:
    size = each.get("parameters", {}).get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise wrong(f"input {spec.name!r}: binary_data_size is to be a number of bytes")
    return size


def _shape(each: dict[str, Any], spec: Spec) -> tuple[int, ...]:
    """Return the shape of an input, whose type is the model's.

    Raises:
        Refused: it is none, or the model takes another.
    """
    shape, kind = each.get("shape"), V2[spec.dtype]
    if each.get("datatype") != kind:
        given = str(each.get("datatype"))[:60]
        raise wrong(f"input {spec.name!r} takes {kind} of shape {spec.sizes}: this is {given}")
    if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
        raise wrong(f"input {spec.name!r}: shape is to be a list of lengths")
    if not spec.fits(tuple(shape)):
        raise wrong(f"input {spec.name!r} takes {kind} of shape {spec.sizes}: this is {shape}")
    return tuple(shape)


def _of_json(each: dict[str, Any], spec: Spec) -> np.ndarray:
    shape = _shape(each, spec)
    if "data" not in each:
        raise wrong(f"input {spec.name!r} has no data")
    found = arrays.array(each["data"], spec)
    if found.size != _count(shape):
        raise wrong(
            f"input {spec.name!r}: {list(shape)} are {_count(shape)} values: data has {found.size}"
        )
    return found.reshape(shape)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length  # Python's own: a product of the client's lengths may be of any size
    return count


def _of_bytes(data: bytes, shape: tuple[int, ...], spec: Spec) -> np.ndarray:
    if spec.dtype == frames.TEXT:
        texts = _texts(data, spec)
        if len(texts) != _count(shape):
            raise wrong(f"input {spec.name!r}: {list(shape)} are not {len(texts)} texts")
        found = np.empty(len(texts), object)
        found[:] = texts
        return found.reshape(shape)
    if len(data) != _count(shape) * spec.kind.itemsize:
        raise wrong(f"input {spec.name!r}: {list(shape)} of {V2[spec.dtype]} are not {len(data)} "
                    "bytes")  # fmt: skip
    if spec.dtype == "bool":
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    return np.frombuffer(data, spec.kind).reshape(shape)


def _texts(data: bytes, spec: Spec) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + _LENGTH], "little")
        at += _LENGTH
        if at + length > len(data):
            raise wrong(f"input {spec.name!r}: a text ends behind the end of its bytes")
        found.append(data[at : at + length])
        at += length
    return found


def answer(
    asked: Request, found: Mapping[str, np.ndarray], name: str, version: str
) -> tuple[bytes, int | None]:
    """Return the body of the answer, and the length of its JSON where binary tensors follow.

    Raises:
        Refused: an output has bytes that JSON cannot have.
    """
    listed, parts = [], []
    wanted = dict.fromkeys(found, asked.binary) if asked.outputs is None else asked.outputs
    for output, binary in wanted.items():
        value = found[output]
        kind = frames.TEXT if value.dtype.kind == "O" else value.dtype.name
        each: dict[str, Any] = {"name": output, "datatype": V2[kind], "shape": list(value.shape)}
        if binary:
            parts.append(_to_bytes(value))
            each["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            each["data"] = arrays.decoded(arrays.plain(value.reshape(-1)), _decoder(output))
        listed.append(each)
    head: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": listed}
    if asked.id is not None:
        head["id"] = asked.id
    text = json.dumps(head).encode()
    return b"".join([text, *parts]), len(text) if parts else None


def _to_bytes(value: np.ndarray) -> bytes:
    if value.dtype.kind != "O":
        return np.ascontiguousarray(value).tobytes()
    texts = value.reshape(-1).tolist()
    return b"".join(len(text).to_bytes(_LENGTH, "little") + text for text in texts)


def _decoder(output: str) -> Any:
    def take(value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            problem = f"output {output!r} has bytes that are no text: ask for binary_data"
            raise wrong(problem) from None

    return take


def metadata(name: str, versions: list[str], signature: Signature) -> dict[str, Any]:
    """Return the answer to a question about a model."""
    return {
        "name": name,
        "versions": versions,
        "platform": "tensorflow_savedmodel",
        "inputs": [_tensor(spec) for spec in signature.inputs],
        "outputs": [_tensor(spec) for spec in signature.outputs],
    }


def _tensor(spec: Spec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": V2[spec.dtype], "shape": spec.sizes}
