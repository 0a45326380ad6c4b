"""From ``tracking._target_`` to a tracker."""

from __future__ import annotations

import dataclasses
import os

from dtrain.config import schema, targets
from dtrain.config.schema import Config
from dtrain.errors import UsageError
from dtrain.tracking.base import Tracker


def overlooked(config: Config) -> str | None:
    """Return a sentence on variables of MLflow's in the environment that name another place.

    A run is recorded where its configuration says, which a resume and other commands read.
    """
    tracking = config.tracking
    if not tracking._target_.endswith(".MLflow"):
        return None
    keys = {"MLFLOW_TRACKING_URI": "tracking.uri", "MLFLOW_EXPERIMENT_NAME": "tracking.experiment"}
    default = {"tracking.uri": None, "tracking.experiment": schema.MLflow().experiment}
    typed = [
        f"'{key}=${{oc.env:{name}}}'"
        for name, key in keys.items()
        if os.environ.get(name) and tracking.written().get(key.partition(".")[2]) == default[key]
    ]
    if not typed:
        return None
    return (
        f"MLflow's variables in the environment are not used for this run; type: {' '.join(typed)}"
    )


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
