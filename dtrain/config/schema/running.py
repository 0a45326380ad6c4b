"""The keys of what is recorded, of sweeps, of actions and of checks (``debug``)."""

import re
from importlib.metadata import entry_points
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from dtrain.config import fields as f

_REGISTERED = 200  # of the name of a registered model, and of an alias
_STORES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks", "uc")
#: What an ordinary run does.
TRAIN = "dtrain.task.train.train.Train"
NAN, OVERFIT = "dtrain.debug.Nan", "dtrain.debug.Overfit"
ONE_BATCH = "dtrain.debug.OneBatch"


def _store(value: f.Plain) -> str | None:
    """Say why MLflow would not take ``value`` as the address of a tracking store."""
    problem = f.line_problem(value, f.CHARACTERS)
    if problem is not None:
        return problem
    scheme, colon, rest = value.partition(":")
    scheme = scheme.partition("+")[0]
    if not colon and value not in ("databricks", "uc"):
        return "has no scheme: MLflow keeps no runs in plain files any more"
    if scheme == "file":
        return "MLflow keeps no runs in plain files any more"
    if scheme not in _STORES and scheme not in entry_points(group="mlflow.tracking_store").names:
        return f"MLflow has no store of the scheme {scheme!r}"
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is no address ({error})"
    if scheme in ("postgresql", "mysql", "mssql"):
        return _driver(value)
    if scheme in ("http", "https") and not host:
        return "names no host"
    if scheme == "sqlite" and not re.match(r"///[^?]*[^/?]", rest):
        return "names no file"
    return None


def _driver(address: str) -> str | None:
    """Say why SQLAlchemy, with which MLflow reads databases, cannot read this one."""
    from sqlalchemy.engine import make_url

    try:
        make_url(address).get_dialect().import_dbapi()
    except ImportError as error:
        return f"the driver of this database is not installed ({error})"
    except Exception as error:  # of its own, for each way to be no address
        return f"is no address of a database ({' '.join(str(error).split())})"
    return None


def _alias(value: f.Plain) -> str | None:
    problem = f.line_problem(value, _REGISTERED)
    if problem is None and not re.fullmatch(r"[A-Za-z0-9_-]+", value):
        return "has characters other than letters, digits, _ and -"
    if problem is None and re.fullmatch(r"[vV]?\d+|latest", value, re.I):
        return "stands for a version"
    return problem


def _checkpoint(value: f.Plain) -> str | None:
    return None if re.fullmatch(r"best|latest|all|[0-9]{1,18}", str(value)) else "is none"


def _prefix(value: f.Plain) -> str | None:
    if not re.fullmatch(r"\w[\w.-]{0,99}", str(value)):
        return "is not a word of letters, digits, _, - and ."
    if value in ("train", "validation", "val"):
        return "is the name of what training itself records"
    return None


def _predicted(value: f.Plain) -> str | None:
    return None if value in ("argmax", "top_k") else f.node_problem(value)


def _shard(value: f.Plain) -> str | None:
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", str(value), re.ASCII)
    return None if match and int(match[1]) < int(match[2]) else "is no number below another"


def _steps(steps: list[int]) -> list[int]:
    if steps[0] >= steps[1]:
        raise ValueError("is not a first and a later last step")
    return steps


STORE = f.Form(f"an address of {', '.join(_STORES)}", _store, "http://localhost:5000")
ALIAS = f.Form("letters, digits, _ and -, not like v3 or latest", _alias, "champion")
REGISTERED = f.matching(
    "a name of letters, digits, _, -, . and spaces", r"\w[\w. -]*",
    "has characters other than letters, digits, _, -, . and spaces", _REGISTERED, "digits",
)  # fmt: skip
Store = Annotated[str, STORE]
Registered = Annotated[str, REGISTERED]
Alias = Annotated[str, ALIAS]
Trace = Annotated[list[Annotated[int, f.within(0, f.MANY)]], f.items(2, 2), AfterValidator(_steps)]
Checkpoint = Annotated[f.Plain, f.Form("best, latest, all, or a step", _checkpoint, "latest")]
Prefix = Annotated[str, f.Form("a word that names the points", _prefix, "test")]
Shard = Annotated[str, f.Form("K/N, with K from 0 to N-1", _shard, "0/2")]
Function = Annotated[
    f.Plain, f.Form("argmax, top_k, or a node with _target_", _predicted, "argmax")
]


class Tracking(f.Group, scope="record"):
    """Where a run is recorded besides its folder."""

    target_: f.Target
    """Class of the tracker."""
    uri: Annotated[str, f.line(4096)] | None = None
    """Address of the place where the tracker records runs."""
    experiment: Annotated[str, f.line(250)] = "dtrain"
    """Experiment that the run belongs to."""
    tags: Annotated[dict[f.Line, str | int | float | bool], f.items(1, 100)] | None = None
    """Tags of the run, such as {team: vision}; null: none of your own."""
    note: Annotated[str, f.line(5000)] | None = None
    """What is to be known of the run: its description."""
    histograms: bool = False
    """TensorBoard: the distribution of every weight, each epoch."""
    profile_steps: Trace | None = None
    """TensorBoard: [first, last] step of a profiler trace."""


class MLflow(Tracking, target="dtrain.tracking.mlflow.tracker.MLflow"):
    """A store of MLflow's."""

    uri: Store | None = None
    """Address of the tracking store; null: SQLite under output_dir."""
    model: Literal["none", "best", "final"] = "none"
    """Which checkpoint of a finished run is exported and logged as a model."""
    register_: Registered | None = Field(None, alias="register")
    """Registered model that gets the logged model as a version; null: none."""


class NoTracker(MLflow, target="dtrain.tracking.none.NoTracker"):
    """No store but the run folder, which `sync` can bring to one later."""


class Sink(f.Group, scope="record"):
    """A tracker beside another one, in a node of its own: ``tracking.NAME``."""

    target_: f.Target
    """Class of the tracker."""


class CSV(Sink, target="dtrain.tracking.sinks.csv.CSV"):
    """Files that a spreadsheet opens."""

    folder: f.Path | None = None
    """Folder of the files of all runs, each in one of its own; null: the run folder."""


class WandB(Sink, target="dtrain.tracking.sinks.wandb.WandB"):
    """Weights & Biases."""

    project: Annotated[str, f.line(128)] | None = None
    """Project that the run belongs to; null: tracking.experiment."""
    entity: Annotated[str, f.line(128)] | None = None
    """Team or user that the project belongs to; null: your default one."""
    mode: Literal["online", "offline"] = "online"
    """offline: files in the run folder, which `wandb sync` uploads."""


class Trackio(Sink, target="dtrain.tracking.sinks.trackio.Trackio"):
    """Trackio, in files of this machine."""

    project: Annotated[str, f.line(128)] | None = None
    """Project that the run belongs to; null: tracking.experiment."""


class Sweep(f.Group, scope="command"):
    """Many jobs by one command (-m)."""

    parallel: f.Number | None = None
    """How many jobs run at once; null: as many as cores and GPUs allow."""
    fail_fast: bool = False
    """The first job that fails stops the others."""
    resume: Annotated[f.Path | None, f.scope("command", "once", "call")] = None
    """Folder of a sweep to resume; latest: the newest."""
    baseline: f.Line | None = None
    """Job that the others are compared with, such as strategy=one_device."""


class Action(f.Group, scope="length"):
    """What a run does."""

    target_: f.Target
    """Class of the action."""


class Evaluate(Action, target="dtrain.after.evaluate.Evaluate"):
    """Evaluates checkpoints of a run."""

    run: Annotated[f.Path | None, f.scope("command")] = None
    """The run folder; the command sets it."""
    checkpoint: Checkpoint | None = None
    """Best, latest, all or a step; null: the best, or the latest if none is known."""
    weights: Literal["raw", "ema"] = "raw"
    """raw: the trained weights; ema: the optimizer's moving averages."""
    prefix: Prefix | None = None
    """Prefix of the metrics; null: test, for averages test_ema."""
    by: f.Line | None = None
    """Label, a column of the data or an input: metrics of each of its values."""
    follow: bool = False
    """Each checkpoint as it is saved, until the run ends."""


class Report(Action, target="dtrain.after.report.Report"):
    """Writes the report of a run anew."""

    run: Annotated[f.Path | None, f.scope("command")] = None
    """The run folder; the command sets it."""
    checkpoint: Annotated[Checkpoint | None, f.scope("command")] = None
    """Best, latest or a step; null: the best, or the latest if none is known."""


class Predict(Action, scope="numbers", target="dtrain.after.predict.Predict"):
    """Predicts rows with a checkpoint of a run."""

    run: Annotated[f.Path | None, f.scope("command")] = None
    """The run folder; the command sets it."""
    checkpoint: Annotated[Checkpoint | None, f.scope("command")] = None
    """Best, latest or a step; null: the best, or the latest if none is known."""
    weights: Literal["raw", "ema"] = "raw"
    """raw: the trained weights; ema: the optimizer's moving averages."""
    to: Annotated[f.Path | None, f.scope("command")] = None
    """Folder of the predictions; null: one inside the run folder."""
    workers: Annotated[f.Number, f.scope("command")] = 1
    """Processes of this command, each with a strategy of its own."""
    shard: Annotated[Shard | None, f.scope("command")] = None
    """K/N: which of N commands that share the folder this is; null: the only one."""
    split: Literal["train", "validation"] | None = None
    """Train or validation; null: the validation if there is one."""
    function: Function | None = None
    """Of the outputs: argmax, top_k, or a node with _target_; null: as they are."""
    include: list[f.Line] = []
    """What of the data becomes columns: inputs, labels, or columns of a table."""
    format: Literal["parquet", "npy", "jsonl", "csv"] = "parquet"
    """Of the files."""
    piece_rows: f.Count | None = None
    """Rows of a file; null: one file of a small result, else by how many there are."""
    batch: f.Count | None = None
    """Rows of a batch; null: that of the validation."""


class Debug(f.Group, scope="length", target=TRAIN):
    """What is done in the place of a training."""


class Nan(Debug, target=NAN):
    """Trains, and names the first value that is not finite."""

    steps: f.Count | None = None
    """Steps after which debug=nan ends if all is finite; null: those of the training."""


class Overfit(Debug, target=OVERFIT):
    """Trains on the same few examples in each step."""

    examples: f.Count = 8
    """Examples of debug=overfit, all of them in each step."""
    steps: f.Count = 300
    """Steps in which the loss must come near 0."""
    loss: f.Positive = 0.05
    """Largest loss that is near 0."""


class OneBatch(Debug, target=ONE_BATCH):
    """Goes once through all that a run does, by a step each."""
