"""Runs as MLflow has them, for those whose folders are elsewhere."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dtrain import secrets
from dtrain.compare.load_folders import Run, last, public, tell
from dtrain.config.schema.running import STORE
from dtrain.errors import DtrainError, UsageError, refuse
from dtrain.files.fields import Json
from dtrain.run import schemas
from dtrain.tracking.delivery import reason
from dtrain.tracking.mlflow.store import import_mlflow

_ID = re.compile(r"[0-9a-f]{32}")


def is_id(word: str) -> bool:
    """Return whether ``word`` may be the id of a run in MLflow."""
    return _ID.fullmatch(word) is not None and not Path(word).exists()


def of_ids(ids: Sequence[str], uri: str) -> list[Run]:
    """Read runs from a tracking store.

    Args:
        ids: of runs; that of a sweep's parent stands for its children.
        uri: of the store.

    Raises:
        UsageError: there is no such store, or no such run in it.
        DtrainError: the store does not answer.
    """
    _check(uri)
    mlflow = import_mlflow()
    found: Json = {}
    client: Any = None
    for each in ids:
        with _explained(mlflow, uri, each):
            client = client or mlflow.tracking.MlflowClient(uri)
            run = client.get_run(each)
            for member in _children(client, run) or [run]:
                found[member.info.run_id] = member
    names = [str(run.info.run_name) for run in found.values()]
    of_one = (
        len({run.data.tags.get("mlflow.parentRunId", each) for each, run in found.items()}) == 1
    )
    return [
        _read(client, run, name if names.count(name) == 1 else f"{name} {each[:8]}", of_one)
        for (each, run), name in zip(found.items(), names, strict=True)
    ]


def _check(uri: str) -> None:
    path = uri.removeprefix("sqlite:///")
    if path != uri and not Path(path).is_file():  # MLflow would make it
        refuse("tracking.uri", "is not there", uri, accepted=STORE.accepted,
               hint="tracking.uri=sqlite:////PATH/OF/outputs/mlflow.db")  # fmt: skip
    problem = STORE.why_not(uri)
    if problem is not None:
        refuse("tracking.uri", problem, uri, accepted=STORE.accepted,
               typed="tracking.uri=http://HOST:PORT")  # fmt: skip


@contextlib.contextmanager
def _explained(mlflow: Any, uri: str, run_id: str) -> Iterator[None]:
    """Say in a sentence what a store has answered, or that it has not."""
    try:
        yield
    except mlflow.exceptions.MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            raise UsageError("RUN", f"is not in {secrets.mask(uri)}", run_id,
                             hint="tracking.uri=STORE of it") from None  # fmt: skip
        raise DtrainError(f"{secrets.mask(uri)} does not answer: {reason(error)}") from None
    except Exception as error:  # of a driver or a proxy
        raise DtrainError(f"{secrets.mask(uri)} cannot be read: {reason(error)}") from None


def _children(client: Any, parent: Any) -> list[Any]:
    children = client.search_runs(
        [parent.info.experiment_id],
        f"tags.mlflow.parentRunId = '{parent.info.run_id}'",
        order_by=["attributes.start_time"],
    )
    return sorted(children, key=lambda child: _integer(child.data.tags.get("job")) or 0)


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,15}", text) else None


def _read(client: Any, tracked: Any, name: str, of_one_sweep: bool) -> Run:
    info, parameters = tracked.info, tracked.data.params
    run = Run(name, info.run_id, info.status)
    # What distinguishes a job from the others of its sweep is there twice, so that it comes first.
    differs = {key[1:]: text for key, text in parameters.items() if key.startswith("_")}
    run.differs = public(differs) if of_one_sweep else {}
    run.config = public({k: text for k, text in parameters.items() if not k.startswith("_")})
    for metric in tracked.data.metrics:
        history = client.get_metric_history(info.run_id, metric)
        run.curves[metric] = {point.step: point.value for point in history}
    run.replicas = _integer(parameters.get("replicas"))
    result = _result(client, info.run_id)
    if result is not None:
        tell(run, result)
    else:  # it is not over, or its artifacts are out of reach: what is left is less
        run.metrics = last(run.curves)
        run.objective = run.metrics.get(parameters.get("objective", ""))
        run.seconds = (info.end_time - info.start_time) / 1000 if info.end_time else None
    return run


def _result(client: Any, run_id: str) -> Json | None:
    """Return the contents of the artifact ``result.json``; None where it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = client.download_artifacts(run_id, "result.json", folder)
            found: Any = schemas.read(Path(path), schemas.Result)
        except Exception:  # whatever a store, a server or a proxy may raise
            return None
    return found
