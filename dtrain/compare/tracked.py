"""Runs as MLflow has them, for those whose folders are elsewhere."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtrain import schemas, secrets
from dtrain.compare.runs import Run, last, public, tell
from dtrain.controller.tracking import import_mlflow, reason
from dtrain.errors import DtrainError, UsageError

_ID = re.compile(r"[0-9a-f]{32}")


def is_id(word: str) -> bool:
    """Return whether ``word`` may be the id of a run in MLflow."""
    return _ID.fullmatch(word) is not None and not Path(word).exists()


def embedded(output_dir: Path) -> str:
    """Return the address of the embedded store in ``output_dir``."""
    return f"sqlite:///{output_dir.absolute()}/mlflow.db"


def of_ids(ids: Sequence[str], uri: str) -> list[Run]:
    """Read runs from a tracking store.

    Args:
        ids: of runs; that of a sweep's parent stands for its children.
        uri: of the store.

    Raises:
        UsageError: there is no such store, or no such run in it.
        DtrainError: the store does not answer.
    """
    path = uri.removeprefix("sqlite:///")
    if path != uri and not Path(path).is_file():  # MLflow would make it
        raise UsageError(
            "--uri", uri, "is not there", "the store that holds the runs",
            "--uri sqlite:////PATH/OF/outputs/mlflow.db, or --uri http://HOST:PORT",
        )  # fmt: skip
    mlflow = import_mlflow()
    try:
        client = mlflow.tracking.MlflowClient(uri)
    except Exception as error:  # whatever a driver raises, of a file that is no database
        raise DtrainError(f"{secrets.mask(uri)} cannot be used: {reason(error)}") from None
    found: dict[str, Any] = {}
    for each in ids:
        try:
            run = client.get_run(each)
            for member in _children(client, run) or [run]:
                found[member.info.run_id] = member
        except mlflow.exceptions.MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                raise UsageError(
                    "RUN_ID", each, f"is not in {secrets.mask(uri)}", "the id of a run there",
                    "--uri STORE with the store that it is in",
                ) from None  # fmt: skip
            why = reason(error)
            raise DtrainError(f"{secrets.mask(uri)} does not answer: {why}") from None
    names = [str(run.info.run_name) for run in found.values()]
    of_one = (
        len({run.data.tags.get("mlflow.parentRunId", each) for each, run in found.items()}) == 1
    )
    return [
        _read(client, run, name if names.count(name) == 1 else f"{name} {each[:8]}", of_one)
        for (each, run), name in zip(found.items(), names, strict=True)
    ]


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
    # What tells a job from the others of its sweep is there twice, so that it is listed first.
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
    else:  # it goes on, or its artifacts are out of reach: what is left is less
        run.metrics = last(run.curves)
        run.objective = run.metrics.get(parameters.get("objective", ""))
        run.seconds = (info.end_time - info.start_time) / 1000 if info.end_time else None
    return run


def _result(client: Any, run_id: str) -> dict[str, Any] | None:
    """Return the contents of the artifact ``result.json``; None where it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = client.download_artifacts(run_id, "result.json", folder)
            found: Any = schemas.read(Path(path), schemas.Result)
        except Exception:  # whatever a store, a server or a proxy may raise
            return None
    return found
