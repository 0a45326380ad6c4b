"""The data of a run as MLflow's dataset inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dtrain import secrets
from dtrain.tracking.mlflow.store import import_mlflow

#: Characters of a name, a digest, and what describes a dataset, that MLflow takes.
_NAME, _DIGEST, _TEXT = 500, 36, 60_000
#: What MLflow shows each split as.
_CONTEXT = {"train": "training", "validation": "validation"}


def inputs(event: dict[str, Any], dataset: Mapping[str, Any]) -> list[Any]:
    """Return MLflow's inputs of a ``data`` event.

    Args:
        event: of the journal, which may be anybody's: what is of no use in it is left out.
        dataset: the ``dataset`` group, with references in the place of secrets.
    """
    entities = import_mlflow().entities
    target = str(dataset.get("_target_", "dataset"))
    path = secrets.hide(dataset.get("path"))
    found = []
    for split, context in _CONTEXT.items():
        record = event.get(split)
        if not isinstance(record, dict) or not isinstance(record.get("digest"), str):
            continue
        source = {"target": target, **({} if path is None else {"path": path})}
        files = record.get("files")
        if isinstance(files, list):
            source["files"] = [str(file.get("name")) for file in files if isinstance(file, dict)]
        shown = {
            "name": target.rpartition(".")[2][:_NAME] or "dataset",
            "digest": record["digest"][:_DIGEST],
            "source_type": "dtrain",
            "source": json.dumps(source, default=str)[:_TEXT],
            "schema": json.dumps({"structure": str(record.get("structure"))})[:_TEXT],
            "profile": json.dumps({"num_rows": record.get("examples")})[:_TEXT],
        }
        tag = entities.InputTag("mlflow.data.context", context)
        found.append(entities.DatasetInput(entities.Dataset(**shown), [tag]))
    return found
