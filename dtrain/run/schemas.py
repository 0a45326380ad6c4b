"""What stands in the files of a run and of a sweep, checked as they are read.

Each file is a ``TypedDict``; what it does not name may stand there as well, of a later version.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NotRequired, TypedDict, TypeVar, cast

from dtrain.errors import DamagedFile
from dtrain.files import fields, reading
from dtrain.files.fields import Json, JsonValue
from dtrain.run.failure import KINDS

LARGEST = fields.LARGEST
#: The latest time that can be shown: the end of the year 9999.
LATEST = 253402300799
_HEXADECIMAL = re.compile(r"[0-9a-f]{32}")
_WORKER, _DIGITS = re.compile(r"worker-[0-9]{1,9}"), re.compile(r"[0-9]{1,9}")
_PREFIX = re.compile(r"\w[\w.-]{0,99}")
_ROLE = re.compile(r"[a-z]{1,32}")

_BYTES = 8 << 20  # of the longest file; a job of a sweep takes some 500

T = TypeVar("T")

Count = Annotated[int, fields.between(0, LARGEST)]
#: A number that may be NaN or infinite.
Number = float
Seconds = Annotated[float, fields.between(0, LATEST)]
Name = Annotated[str, reading.component]
#: Of a sweep, and of a job in it.
Status = Literal["WAITING", "RUNNING", "FINISHED", "FAILED", "KILLED"]
Identifier = Annotated[str, fields.like(_HEXADECIMAL, "32 hexadecimal digits")]


def _outside(log: str) -> str | None:
    parts = PurePosixPath(log).parts
    return "is not below the run" if ".." in parts or "/" in parts[:1] else None


class Failed(TypedDict):
    """``failure`` of ``result.json``: a :class:`dtrain.run.failure.Failure`."""

    kind: Annotated[str, lambda kind: None if kind in KINDS else "is none"]
    task: str | None
    reason: str | None
    place: str | None
    log: Annotated[str, _outside] | None
    silent: list[str]


class BestEpoch(TypedDict):
    """``best_epoch`` of ``result.json``: the one that ended with the best objective."""

    epoch: Count
    epochs: Count
    step: Count
    #: Of the run that a fork forks, as which it shows its own.
    epochs_before: NotRequired[Count]
    objective: Number


class Result(TypedDict):
    """``result.json``."""

    status: Literal["FINISHED", "FAILED", "KILLED"]
    exit_code: NotRequired[Count]
    failure: NotRequired[Failed | None]
    objective: NotRequired[Number | None]
    best_objective: NotRequired[Number | None]
    metrics: NotRequired[dict[str, Number | None]]
    best_epoch: NotRequired[BestEpoch | None]
    ended: NotRequired[str | None]
    step: NotRequired[Count]
    total_steps: NotRequired[Count | None]
    examples_per_second: NotRequired[Number | None]
    replicas: NotRequired[Count | None]
    restarts: NotRequired[Count]
    pruned: NotRequired[bool]
    started: NotRequired[Seconds]
    seconds: NotRequired[Seconds | None]


class Step(TypedDict, total=False):
    """``progress.json``, as far as it says how far the run is."""

    step: Count


class Progress(TypedDict):
    """``progress.json``, all of it, as it is shown."""

    time: Seconds
    step: Count
    total_steps: Count
    epoch: Count
    epochs: Count
    loss: Number | None
    examples_per_second: Number | None
    metrics: dict[str, Number | None]
    #: Examples of a validation that is under way; of a fork, epochs of the run that it forks.
    evaluated: NotRequired[Count]
    epochs_before: NotRequired[Count]
    #: What ``epoch`` and ``step`` count.
    units: NotRequired[
        Annotated[list[str], lambda units: None if len(units) == 2 else "is no pair"]
    ]


class Shipped(TypedDict, total=False):
    """``tracking.json``, as far as it says what was shipped."""

    run_id: str
    shipped: str


class Tracking(TypedDict):
    """``tracking.json``: of a run or a sweep, where it is in MLflow."""

    uri: str
    experiment_id: str
    token: Identifier
    run_id: NotRequired[Identifier]
    shipped: NotRequired[str]


class Recorded(TypedDict):
    """``trackers/NAME.json``: what a tracker has of a run, whose service is not asked for that."""

    place: str
    id: NotRequired[str]
    #: How the run had ended when all of it was there.
    shipped: NotRequired[str]
    #: Of each metric the last step; of what was evaluated later all, which come in any order.
    last: NotRequired[dict[str, Count]]
    late: NotRequired[dict[str, list[Count]]]
    #: Sizes and times of files, by name.
    files: NotRequired[dict[str, str]]
    #: Of the user's tags, their values.
    tags: NotRequired[dict[str, str]]
    #: Parameters of the first start, and those that a later one has changed.
    parameters: NotRequired[dict[str, str]]
    later: NotRequired[dict[str, str]]


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

    role: Annotated[str, fields.like(_ROLE, "a role")]
    index: Count
    devices: Count
    device: NotRequired[Count]
    serves: NotRequired[bool]
    replaceable: NotRequired[bool]
    threads: NotRequired[Count | None]
    cores: NotRequired[list[Count]]
    address: NotRequired[str | None]
    alone: NotRequired[bool]


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
    status: Status
    differs: dict[str, str]
    overrides: NotRequired[list[str]]
    hash: NotRequired[str | None]
    objective: NotRequired[Number | None]
    seconds: NotRequired[Seconds | None]
    exit_code: NotRequired[Count | None]
    failure: NotRequired[Failed | None]
    pruned: NotRequired[bool]


class Sweep(TypedDict):
    """``sweep.json``."""

    name: str
    status: Status
    jobs: list[Job]
    command: NotRequired[Command]
    started: NotRequired[Seconds]
    ended: NotRequired[Seconds | None]
    objective: NotRequired[str | None]
    objective_mode: NotRequired[Literal["max", "min"] | None]
    baseline: NotRequired[str | None]
    best: NotRequired[Count | None]
    course: NotRequired[list[list[JsonValue]]]


class Slice(TypedDict):
    """One of ``slices`` of an evaluation."""

    value: str
    examples: Count
    metrics: dict[str, Number]


class Evaluation(TypedDict):
    """A line of ``evaluations.jsonl``."""

    step: Count
    digest: str
    weights: str
    data: str
    examples: Count
    declared: str
    prefix: Annotated[str, fields.like(_PREFIX, "a word")]
    metrics: dict[str, Number]
    folder: NotRequired[Name]
    by: NotRequired[str]
    slices: NotRequired[list[Slice]]
    confusion: NotRequired[Name]
    #: By name: value, low, high, baseline.
    scores: NotRequired[dict[str, dict[str, Number]]]
    baseline: NotRequired[str]


class _Tracked(TypedDict):
    _target_: str
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


class Origin(TypedDict, total=False):
    """``meta`` of a checkpoint, as far as it says what made it."""

    config: dict[str, str]
    versions: dict[str, str | None]
    evaluated: str


class _Steps(TypedDict, total=False):
    worker_steps: dict[Annotated[str, fields.like(_WORKER, "a worker")], Count]
    staleness: dict[Annotated[str, fields.like(_DIGITS, "a number")], Count]
    dropped_gradients: Count


class Began(TypedDict):
    """What callbacks had set when the run began, and the learning rate then."""

    values: list[Json]
    learning_rate: Number | None


class Position(TypedDict):
    """``meta`` of a checkpoint, as far as training is continued from it."""

    interval: _Sums
    interval_seconds: Seconds
    epoch: _Sums
    examples: Count
    steps: _Steps
    callbacks: list[JsonValue]
    pending_validation: bool
    began: NotRequired[Began]
    logs: dict[str, Number]
    epoch_logs: NotRequired[dict[str, Number]]
    objective_name: NotRequired[str | None]
    objective_mode: NotRequired[Literal["max", "min"] | None]
    #: The best objective of an epoch so far; of a fork, epochs of the run that it forks.
    best: NotRequired[Number | None]
    epochs_before: NotRequired[Count]
    #: That a callback has ended the training, or the sentence that says so.
    stopped: NotRequired[JsonValue]


class _File(TypedDict):
    bytes: Count
    sha256: str


class Manifest(TypedDict):
    """``manifest.json`` of a checkpoint."""

    step: Count
    files: dict[str, _File]
    dtypes: dict[str, str]
    digest: str
    meta: Origin


def read(path: Path, kind: type[T]) -> T | None:
    """Return the contents of a JSON file; None where there is no file.

    Args:
        path: of the file.
        kind: one of the classes of this module.

    Raises:
        DamagedFile: it cannot be used; the field is named.
        OSError: it cannot be read.
    """
    value = reading.read_json(path, _BYTES)
    return None if value is None else check(value, kind, path)


def glance(path: Path, kind: type[T]) -> T | None:
    """Return what :func:`read` returns; None as well of a file that is damaged or cannot be read.

    A run outlives that.
    """
    try:
        return read(path, kind)
    except (DamagedFile, OSError):
        return None


def check(value: object, kind: type[T], path: object, field: str = "") -> T:
    """Return ``value``, of the file ``path``, if it is of a ``kind``.

    Args:
        value: of a JSON or YAML file.
        kind: one of the classes of this module.
        path: of the file, for the message.
        field: where in it ``value`` stands.

    Raises:
        DamagedFile: it is none; the field is named.
    """
    fields.check(value, kind, path, field)
    return cast(T, value)
