"""JSON values as arrays of a signature, and arrays as JSON values."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dtrain.host import frames
from dtrain.serving.problems import Refused, wrong
from dtrain.serving.signature import Spec

#: Kinds of arrays that JSON numbers become, by the kind of those that they are for.
_TAKEN = {"b": "b", "i": "iu", "u": "iu", "f": "fiu", "V": "fiu"}
_SHOWN = 60  # characters of a value in a message


def array(value: Any, spec: Spec) -> np.ndarray:
    """Return nested lists as an array of an input.

    Args:
        value: as JSON has it; texts may be ``{"b64": ...}``.
        spec: of the input.

    Raises:
        Refused: they are of another type, or have not all the same lengths.
    """
    if spec.dtype == frames.TEXT:
        return _texts(value, spec)
    try:
        found = np.asarray(value)
    except OverflowError:  # an integer that no array of numbers holds
        raise _bad(spec, "it has a number that is too large") from None
    except (ValueError, TypeError):
        raise _bad(spec, "its lists have not all the same length") from None
    if found.size == 0:
        return found.astype(spec.kind)
    if found.dtype.kind not in _TAKEN[_kind(spec)]:
        found = _whole(found, value, spec)
    return _cast(found, spec)


def _kind(spec: Spec) -> str:
    return "f" if spec.dtype == "bfloat16" else spec.kind.kind


def _whole(found: np.ndarray, value: Any, spec: Spec) -> np.ndarray:
    """Return integers of which some were written as 3.0, each exactly as it was written.

    Raises:
        Refused: they are anything else.
    """
    if found.dtype.kind == "f" and _kind(spec) in "iu":
        exact = np.asarray(value, object)
        for each in exact.reshape(-1).tolist():
            if type(each) not in (int, float) or each != each or each % 1:
                raise _bad(spec, f"it has {_shown(each)}")
        return exact
    kinds = {"b": "truth values", "U": "text", "i": "integers", "u": "integers", "f": "numbers"}
    raise _bad(spec, f"it has {kinds.get(found.dtype.kind) or _odd(found)}")


def _odd(found: np.ndarray) -> str:
    """Return the first value that is no number."""
    for value in found.reshape(-1).tolist():
        if value is None:
            return "null"
        if not isinstance(value, bool | int | float):
            return _shown(value)
    return "a number that is too large"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _cast(found: np.ndarray, spec: Spec) -> np.ndarray:
    if _kind(spec) in "iu":
        limits = np.iinfo(spec.kind)
        low, high = found.min(), found.max()
        if low < limits.min or high > limits.max:
            raise _bad(spec, f"it has {low if low < limits.min else high}")
    with np.errstate(over="ignore"):
        cast = found.astype(spec.kind)
    if _kind(spec) == "f" and not np.isfinite(cast).all():
        off = found[np.isfinite(found) & ~np.isfinite(cast)]
        if off.size:
            raise _bad(spec, f"it has {off.reshape(-1)[0]:g}, which is too large")
    return cast


def _texts(value: Any, spec: Spec) -> np.ndarray:
    try:
        found = np.asarray(value, object)
    except ValueError:
        raise _bad(spec, "its lists have not all the same length") from None
    texts = np.empty(found.size, object)
    for place, each in enumerate(found.reshape(-1).tolist()):
        texts[place] = _text(each, spec)
    return texts.reshape(found.shape)


def _text(value: Any, spec: Spec) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise _bad(spec, "it has half of a surrogate pair") from None
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError):
            raise _bad(spec, "it has b64 that is no base64") from None
    if isinstance(value, list):
        raise _bad(spec, "its lists have not all the same length")
    raise _bad(spec, f"it has {_shown(value)}")


def shaped(found: np.ndarray, spec: Spec) -> np.ndarray:
    """Return ``found`` if its shape is that of the input.

    Raises:
        Refused: it is not.
    """
    if not spec.fits(found.shape):
        raise _bad(spec, f"this is of shape {list(found.shape)}")
    return found


def _bad(spec: Spec, problem: str) -> Refused:
    return wrong(f"input {spec.name!r} takes {spec.text}: {problem}")


def plain(value: np.ndarray) -> Any:
    """Return an output as JSON has it; texts are left as ``bytes``."""
    if value.dtype.name == "bfloat16":
        value = value.astype(np.float32)
    return value.tolist()


def decoded(value: Any, take: Callable[[bytes], Any]) -> Any:
    """Return nested lists with each of their ``bytes`` replaced."""
    if isinstance(value, list):
        return [decoded(each, take) for each in value]
    return take(value) if isinstance(value, bytes) else value


def outputs(
    found: Mapping[str, np.ndarray], take: Callable[[str], Callable[[bytes], Any]]
) -> dict[str, Any]:
    """Return outputs as JSON has them.

    Args:
        found: by name.
        take: returns, of the name of an output, what its texts become.
    """
    return {
        name: decoded(plain(value), take(name)) if value.dtype.kind == "O" else plain(value)
        for name, value in found.items()
    }
