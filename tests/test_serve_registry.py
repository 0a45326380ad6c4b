"""Models of MLflow's registry are served, and an alias is followed when it moves."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.controller.served import OfRegistry, own_folder
from dtrain.errors import DtrainError, UsageError
from dtrain.tracking.mlflow.registered import Registered
from dtrain.tracking.mlflow.store import import_mlflow
from tests import serving_models, warm
from tests.serving_models import served
from tests.test_serve import until


@pytest.fixture
def client(store: Path, tmp_path: Path) -> Any:
    """A registry with two versions of a model, one of another, and an alias."""
    warm.call(serving_models.make, 1, {"folder": tmp_path})
    found = import_mlflow().tracking.MlflowClient(f"sqlite:///{store}")
    for name in ("digits", "empty"):
        found.create_registered_model(name)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing/MLmodel").write_text("flavors: {}\n")
    for name, source in (("digits", "fixed"), ("digits", "fixed"), ("empty", "nothing")):
        found.create_model_version(name, (tmp_path / source).as_uri())
    found.set_registered_model_alias("digits", "champion", "1")
    return found


def test_an_alias_is_followed(client: Any, tmp_path: Path) -> None:
    model = Registered("models:/digits@champion", None)
    with own_folder() as own:
        source = OfRegistry(model, own)
        source.seconds = 0.05
        with served(Path(), source=source, name="digits") as asked:
            x = np.arange(6.0).reshape(2, 3)

            def predict() -> str:
                status, answer, headers = asked("/invocations", {"inputs": x.tolist()})
                assert (status, answer) == (200, {"predictions": x.sum(axis=1).tolist()})
                return str(headers["x-model-version"])

            assert predict() == "1"
            client.set_registered_model_alias("digits", "champion", "2")
            until(lambda: predict() == "2")
            assert "version 2 serves now; version 1 is kept for a rollback" in asked.notices
            client.delete_registered_model_alias("digits", "champion")
            until(lambda: any("nothing newer can be seen" in text for text in asked.notices))
            assert predict() == "2"
            shutil.rmtree(tmp_path / "fixed")  # it is downloaded
            assert len(list(own.iterdir())) == 2
    assert not own.exists()


def test_other_names_of_a_model(client: Any, tmp_path: Path, monkeypatch: Any) -> None:
    store = f"sqlite:///{tmp_path}/outputs/mlflow.db"
    found = Registered("models:/digits/2", store)
    assert found.version() == "2"
    assert (found.download("2", tmp_path / "there") / "saved_model.pb").is_file()
    with pytest.raises(DtrainError, match="models:/empty/1 has no SavedModel"):
        Registered("models:/empty/1", store).download("1", tmp_path / "empty")
    for text in ("models:/digits@none", "models:/other@champion"):
        with pytest.raises(DtrainError, match=text):
            Registered(text, store).version()
    with pytest.raises(DtrainError, match="models:/digits/9"):
        Registered("models:/digits/9", store).download("9", tmp_path / "nine")
    began = time.monotonic()
    with pytest.raises(DtrainError, match="models:/digits@a: "):
        Registered("models:/digits@a", "http://127.0.0.1:9").version()
    assert time.monotonic() - began < 30
    monkeypatch.chdir("/")
    with pytest.raises(UsageError, match=r"tracking\.uri=: /outputs/mlflow\.db is not there"):
        Registered("models:/digits@champion", None)
