"""From ``tracking._target_`` to a tracker."""

from __future__ import annotations

import dataclasses

from dtrain.config import schema, targets
from dtrain.config.schema import Config
from dtrain.errors import UsageError
from dtrain.tracking.base import Tracker


def tracker(config: Config) -> Tracker:
    """Make the tracker of a run.

    Args:
        config: of the run, with references in the place of secrets.

    Raises:
        UsageError: it cannot be made, or is none.
    """
    written = config.tracking.written()
    # Also of a class of the user's whose preset is made of that of MLflow.
    node, general = config.tracking, {field.name for field in dataclasses.fields(schema.MLflow)}
    found = targets.instantiate(
        # ORDER: what is not its own is not resolved: an address may refer to a password.
        {key: node[key] for key in node if key not in general - {"_target_"}},
        "tracking",
        config=config,
        uri=written.get("uri"),
        experiment=written.get("experiment"),
    )
    if not isinstance(found, Tracker):
        raise UsageError(
            "tracking._target_", node._target_, "makes no tracker",
            "a subclass of dtrain.tracking.base.Tracker", "tracking=mlflow",
        )  # fmt: skip
    return found
