"""What a user's callback logs by MLflow's own functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.task
def test_metrics_are_the_runs_and_the_rest_is_refused(tmp_path: Path) -> None:
    import sys

    import keras

    from dtrain.errors import UsageError
    from dtrain.task.process.own_logs import OwnLogs
    from dtrain.task.process.own_mlflow import OwnMLflow
    from dtrain.task.train.callbacks import Callbacks
    from tests.test_callbacks import tiny

    assert "mlflow" not in sys.modules
    logged = OwnLogs()
    with OwnMLflow(logged).watching():
        import mlflow
        from mlflow import log_metric

        class Logs(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                log_metric("mine", 0.5 + epoch, step=epoch)
                mlflow.log_metrics({"other": 3, "val_loss": 1.0})

        callbacks = Callbacks([Logs()], tiny(), 2, 5, logged=logged.take)
        callbacks.hooks.on_train_begin()
        for epoch in range(2):
            logs = {"val_loss": 1.0}
            callbacks.hooks.on_epoch_end(epoch, dict(logs))
            assert callbacks.added(logs) == ({"mine": 0.5 + epoch, "other": 3.0}, [])
        for begins in (lambda: mlflow.log_param("x", 1), mlflow.start_run):
            with pytest.raises(UsageError, match="mlflow=start_run: would begin another run"):
                begins()
        assert not any(tmp_path.iterdir())
        mlflow.set_tracking_uri("http://127.0.0.1:9")  # all is the user's own from now on
        with pytest.raises(TypeError):
            log_metric()
    assert mlflow.log_metric is not log_metric
    assert not hasattr(mlflow.start_run, "__wrapped__")


def test_variables_that_are_not_read_are_named(dtrain: Any, monkeypatch: Any) -> None:
    words = ("model=mlp", "dataset=synthetic", "dry_run=true")
    note = "note: MLflow's variables in the environment are not used for this run"
    assert note not in dtrain(*words).output
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////other.db")
    assert note not in dtrain(*words, "tracking=none").output
    typed = dtrain(*words).output.partition(f"{note}; type: ")[2].splitlines()[0].strip("'")
    assert typed == "tracking.uri=${oc.env:MLFLOW_TRACKING_URI}"
    assert note not in dtrain(*words, typed).output
    assert dtrain("-m", *words, "seed=1,2").output.count(note) == 1
