"""What stands in the files of a run and of a sweep, checked as they are read.

Each file is a ``TypedDict``; what it does not name may stand there as well, of a later version.
"""

import functools
import math
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from dtrain import files
from dtrain.errors import DamagedFile

#: The largest number of anything that is counted.
LARGEST = 2**53
_YEAR_9999 = 253402300799
_HEXADECIMAL = re.compile(r"[0-9a-f]{32}")
_ROLE = re.compile(r"[a-z]{1,32}")

T = TypeVar("T")


def _between(low: float, high: float) -> Callable[[Any], str | None]:
    return lambda value: None if low <= value <= high else f"is not from {low:g} to {high:g}"


def _like(pattern: re.Pattern[str], what: str) -> Callable[[Any], str | None]:
    return lambda value: None if pattern.fullmatch(value) else f"is not {what}"


Count = Annotated[int, _between(0, LARGEST)]
#: A number that may be NaN or infinite.
Number = float
Seconds = Annotated[float, _between(0, _YEAR_9999)]
Name = Annotated[str, files.component]
Identifier = Annotated[str, _like(_HEXADECIMAL, "32 hexadecimal digits")]


class Result(TypedDict):
    """``result.json``."""

    status: Literal["FINISHED", "FAILED", "KILLED"]
    exit_code: NotRequired[Count]
    error: NotRequired[str | None]
    objective: NotRequired[Number | None]
    metrics: NotRequired[dict[str, Number | None]]
    step: NotRequired[Count]
    examples_per_second: NotRequired[Number | None]
    replicas: NotRequired[Count | None]
    restarts: NotRequired[Count]
    pruned: NotRequired[bool]
    started: NotRequired[Seconds]
    seconds: NotRequired[Seconds | None]


class Progress(TypedDict, total=False):
    """``progress.json``."""

    time: Seconds
    step: Count
    total_steps: Count
    epoch: Count
    epochs: Count
    loss: Number | None
    examples_per_second: Number | None
    metrics: dict[str, Number | None]


class Tracking(TypedDict):
    """``tracking.json``: of a run or a sweep, where it is in MLflow."""

    uri: str
    experiment_id: str
    token: Identifier
    run_id: NotRequired[Identifier]
    shipped: NotRequired[str]


class JobOf(TypedDict):
    """``sweep`` of ``command.json``: which job of its sweep a run is."""

    number: Count
    differs: dict[str, str]


class Command(TypedDict):
    """``command.json``."""

    overrides: list[str]
    config_dir: NotRequired[str | None]
    sweep: NotRequired[JobOf | None]


class Replicas(TypedDict, total=False):
    """``cluster.json``, as far as a comparison reads it."""

    replicas: Count | None


class Task(TypedDict):
    """One of ``tasks`` in ``cluster.json``."""

    role: Annotated[str, _like(_ROLE, "a role")]
    index: Count
    devices: Count
    serves: NotRequired[bool]
    replaceable: NotRequired[bool]
    threads: NotRequired[Count | None]
    cores: NotRequired[list[Count]]
    address: NotRequired[str | None]


class Cluster(TypedDict):
    """``cluster.json``."""

    tasks: Annotated[list[Task], lambda tasks: None if tasks else "is empty"]
    device_kind: Literal["cpu", "gpu", "tpu"]
    replicas: Count
    environment: dict[str, str]


class Job(TypedDict):
    """One of ``jobs`` in ``sweep.json``."""

    number: Count
    folder: Name
    status: str
    differs: dict[str, str]
    overrides: NotRequired[list[str]]
    hash: NotRequired[str | None]
    objective: NotRequired[Number | None]
    seconds: NotRequired[Seconds | None]
    exit_code: NotRequired[Count | None]
    error: NotRequired[str | None]
    log: NotRequired[str | None]
    pruned: NotRequired[bool]


class Sweep(TypedDict):
    """``sweep.json``."""

    name: str
    status: str
    jobs: list[Job]
    command: NotRequired[Command]
    started: NotRequired[Seconds]
    ended: NotRequired[Seconds | None]
    objective: NotRequired[str | None]
    objective_mode: NotRequired[Literal["max", "min"]]
    baseline: NotRequired[str | None]
    best: NotRequired[Count | None]


class _Tracked(TypedDict):
    uri: NotRequired[str | None]
    experiment: str


class _Named(TypedDict):
    name: str


class Config(TypedDict):
    """``config.yaml``, as far as it is read to record a run."""

    name: str
    output_dir: str
    tracking: _Tracked
    strategy: _Named
    fork: NotRequired[str | None]


class _Sums(TypedDict):
    returned: dict[str, Number]
    examples: Count


class Meta(TypedDict, total=False):
    """``meta`` of a checkpoint: what was saved beside the arrays."""

    config: dict[str, str]
    versions: dict[str, str | None]
    interval: _Sums
    interval_seconds: Seconds
    epoch: _Sums
    examples: Count
    steps: dict[str, Any]
    callbacks: list[Any]
    logs: dict[str, Number]
    objective: Number | None


class _File(TypedDict):
    bytes: Count
    sha256: str


class Manifest(TypedDict):
    """``manifest.json`` of a checkpoint."""

    step: Count
    files: dict[str, _File]
    dtypes: dict[str, str]
    digest: NotRequired[str]
    meta: Meta


def read(path: Path, kind: type[T]) -> T | None:
    """Return the contents of a JSON file; None where there is no file.

    Args:
        path: of the file.
        kind: one of the classes of this module.

    Raises:
        DamagedFile: it cannot be used; the field is named.
        OSError: it cannot be read.
    """
    value = files.read_json(path)
    return None if value is None else check(value, kind, path)


def check(value: Any, kind: type[T], path: object, field: str = "") -> T:
    """Return ``value``, of the file ``path``, if it is of a ``kind``.

    Args:
        value: of a JSON or YAML file.
        kind: one of the classes of this module.
        path: of the file, for the message.
        field: where in it ``value`` stands.

    Raises:
        DamagedFile: it is none; the field is named.
    """
    _check(value, kind, path, field)
    return cast(T, value)


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _check(value: Any, kind: Any, path: object, field: str) -> None:
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if origin is NotRequired:
        _check(value, inside[0], path, field)
    elif origin is Annotated:
        _check(value, inside[0], path, field)
        for test in kind.__metadata__:
            if (problem := test(value)) is not None:
                raise DamagedFile(path, f"{_shown(value)} {problem}", field)
    elif origin in (Union, types.UnionType):  # with None: nothing else is used here
        if value is not None:
            _check(value, *(each for each in inside if each is not types.NoneType), path, field)
    elif origin is Literal:
        if value not in inside or not isinstance(value, str):
            raise DamagedFile(path, f"{_shown(value)} is none of {', '.join(inside)}", field)
    elif origin is list:
        _is(value, list, "a list", path, field)
        for index, item in enumerate(value):
            _check(item, inside[0], path, f"{field}[{index}]")
    elif origin is dict:
        _is(value, dict, "a mapping", path, field)
        for name, item in value.items():
            _is(name, str, "text", path, field)
            _check(item, inside[1], path, _below(field, name))
    elif is_typeddict(kind):
        _is(value, dict, "a mapping", path, field)
        lacking = sorted(kind.__required_keys__ - value.keys())
        if lacking:
            raise DamagedFile(path, "is not there", _below(field, lacking[0]))
        for name, each in _fields(kind).items():
            if name in value:
                _check(value[name], each, path, _below(field, name))
    else:
        _scalar(value, kind, path, field)


def _scalar(value: Any, kind: Any, path: object, field: str) -> None:
    if kind in (int, float):
        _is(value, int if kind is int else int | float, "a number", path, field)
        if isinstance(value, bool):
            raise DamagedFile(path, f"{_shown(value)} is not a number", field)
        if isinstance(value, int) and abs(value) > LARGEST:
            raise DamagedFile(path, "is too large", field)
    else:
        _is(value, kind, {str: "text", bool: "true or false"}[kind], path, field)


def _is(value: Any, kind: Any, what: str, path: object, field: str) -> None:
    if not isinstance(value, kind):
        raise DamagedFile(path, f"{_shown(value)} is not {what}", field)


def _below(field: str, name: str) -> str:
    return f"{field}.{name[:80]}" if field else name[:80]


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number"
    return text if len(text) <= 60 else f"{text[:59]}…"
