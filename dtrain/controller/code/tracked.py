"""Finds the run folder behind an id of MLflow, or makes one of what MLflow holds of the run."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtrain import secrets
from dtrain.compare import load_tracked
from dtrain.errors import UsageError
from dtrain.run import code, schemas
from dtrain.run.folder import RunDir
from dtrain.tracking.delivery import reason

#: Artifacts that a replay needs.
_NEEDED = ("config.yaml", "command.json", "journal.jsonl", code.FOLDER)


@contextlib.contextmanager
def folder_of(run: str, uri: str | None) -> Iterator[str | Path]:
    """Yield the folder of a run: that which is named, or that of an id in MLflow.

    Where the folder is not on this machine any more, one is made of the artifacts that MLflow
    holds, for as long as it is used.

    Args:
        run: a folder, or an id.
        uri: of the tracking store; None: the embedded one.

    Raises:
        UsageError: there is no such run, or MLflow does not hold its code.
        DtrainError: the store does not answer.
    """
    if not load_tracked.is_id(run):
        yield run
        return
    client, found = load_tracked.find(run, uri or load_tracked.embedded(Path("outputs")))
    place = Path(found.data.tags.get("run_dir", ""))
    shipped = schemas.glance(RunDir(place).tracking, schemas.Shipped)
    if place.is_absolute() and shipped is not None and shipped.get("run_id") == run:
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="dtrain-replay-") as folder:
        _fetch(client, found, Path(folder))
        yield folder


def _fetch(client: Any, found: Any, folder: Path) -> None:
    """Put into a folder what MLflow holds of a run.

    Raises:
        UsageError: it does not hold the code.
    """
    run_id = found.info.run_id
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for name in _NEEDED:
        try:
            client.download_artifacts(run_id, name, str(folder))
        except Exception as error:  # whatever a store, a server or a proxy may raise
            where = found.data.tags.get("run_dir", "")
            raise UsageError(
                "RUN_ID", run_id, f"its folder {where} is not here, and MLflow does not give its "
                f"{name} ({secrets.mask(reason(error))})", "a run that was shipped with its code",
                "python -m dtrain replay FOLDER",
            ) from None  # fmt: skip
    with contextlib.suppress(Exception):  # of a run that is not over there is none
        client.download_artifacts(run_id, "result.json", str(folder))
