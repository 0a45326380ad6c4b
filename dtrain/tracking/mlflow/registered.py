"""Models of MLflow's registry, as they are served: which version an alias names, and its files."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

from dtrain.errors import DtrainError, UsageError
from dtrain.run.exports import FORMATS
from dtrain.tracking.delivery import reason
from dtrain.tracking.mlflow.store import import_mlflow

SCHEME = "models:/"
_FORM = re.compile(r"models:/(?:(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[0-9]+))|"
                   r"(?P<id>m-[^/@]+))")  # fmt: skip
_SAVED = FORMATS["savedmodel"].files[-1]


class Registered:
    """What ``models:/NAME@ALIAS``, ``models:/NAME/VERSION`` or ``models:/m-ID`` names.

    Args:
        text: as it was typed.
        address: of the store; None for that of ``MLFLOW_TRACKING_URI``, or ``outputs/mlflow.db``.

    Raises:
        UsageError: it is none of these, or the store is not known.
    """

    def __init__(self, text: str, address: str | None):
        match = _FORM.fullmatch(text)
        if match is None:
            raise UsageError(
                "MODEL", text, "is no model of a registry",
                "models:/NAME@ALIAS, models:/NAME/VERSION or models:/m-ID",
                "python -m dtrain serve models:/NAME@champion",
            )  # fmt: skip
        self._text = text
        self.name: str | None = match["name"]
        self.alias: str | None = match["alias"]
        self._version: str | None = match["version"]
        self._address = address or os.environ.get("MLFLOW_TRACKING_URI") or _embedded(text)
        self._client: Any = None

    def version(self) -> str:
        """Return the number of the version that is meant now; of a model without one its id.

        Raises:
            DtrainError: the store does not answer, or has no such model.
        """
        if self.alias is None:
            return self._version or self._text.removeprefix(SCHEME)
        try:
            found = self._connected().get_model_version_by_alias(self.name, self.alias)
        except Exception as error:  # whatever a server, a driver or a proxy may raise
            raise DtrainError(f"{self._text}: {reason(error)}") from None
        return str(found.version)

    def _connected(self) -> Any:
        if self._client is None:
            tracking = import_mlflow().tracking
            self._client = tracking.MlflowClient(self._address, self._address)
        return self._client

    def _location(self, version: str) -> str:
        """Return where the files of a version are; MLflow itself looks in its default store."""
        client, found = self._connected(), version
        if self.name is not None:
            found = client.get_model_version_download_uri(self.name, version)
        if (match := _FORM.fullmatch(found)) is not None and match["id"]:
            found = match["id"]
        if found.startswith("m-"):
            found = client.get_logged_model(found).artifact_location
        return str(found)

    def download(self, version: str, folder: Path) -> Path:
        """Fetch a version, and return the folder of its SavedModel.

        Args:
            version: of :meth:`version`.
            folder: that it goes to.

        Raises:
            DtrainError: it cannot be had, or has no SavedModel.
        """
        uri = self._text if self.alias is None else f"{SCHEME}{self.name}/{version}"
        os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
        import_mlflow()
        artifacts = importlib.import_module("mlflow.artifacts")
        try:
            artifacts.download_artifacts(
                artifact_uri=self._location(version), dst_path=str(folder),
                tracking_uri=self._address,
            )  # fmt: skip
        except Exception as error:
            raise DtrainError(f"{uri}: {reason(error)}") from None
        # ORDER: that of the model itself, before one that is deeper inside of something else.
        found = sorted(folder.rglob(_SAVED), key=lambda path: (len(path.parts), path))
        if not found:
            raise DtrainError(f"{uri} has no SavedModel: tracking.model=best logs one")
        return found[0].parent


def _embedded(text: str) -> str:
    store = Path("outputs", "mlflow.db").absolute()
    if not store.is_file():
        raise UsageError(
            "tracking.uri", "", f"{store} is not there, so that the store of {text} is not known",
            "the address of a tracking store", "tracking.uri=sqlite:////PATH/OF/mlflow.db",
        )  # fmt: skip
    return f"sqlite:///{store}"
