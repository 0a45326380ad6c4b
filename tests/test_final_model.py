"""The model that a run leaves: whole or not there, whatever happens while it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.test_callbacks import tiny
from tests.test_recorder import made


@pytest.mark.task
def test_what_is_saved_is_the_model(tmp_path: Path) -> None:

    import keras
    import numpy as np

    from dtrain.run.folder import RunDir
    from dtrain.task.train import snapshots

    records, rundir = made(tmp_path / "run"), RunDir(tmp_path / "run")
    (rundir.path / snapshots.SAVING).mkdir()  # a killed task has left it
    (rundir.path / snapshots.SAVING / "model.keras").write_bytes(b"half of")
    model = tiny()
    model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
    before = [variable._value for metric in model.metrics for variable in metric.variables]
    assert any(np.any(value.numpy()) for value in before), "they have counted"
    snapshots.save_model(model, rundir, records)
    loaded = keras.models.load_model(rundir.model)
    for ours, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for metric in loaded.metrics:
        assert not any(np.any(variable.numpy()) for variable in metric.variables)
    after = [variable._value for metric in model.metrics for variable in metric.variables]
    assert all(a is b for a, b in zip(before, after, strict=True)), "the model has its own again"
    assert {path.name for path in rundir.path.iterdir()} == {"journal.jsonl", "model.keras"}


@pytest.mark.task
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_model_that_is_half_written_has_no_name(tmp_path: Path, error: BaseException) -> None:
    from dtrain.run.folder import RunDir
    from dtrain.task.train import snapshots

    records, rundir = made(tmp_path / "run"), RunDir(tmp_path / "run")
    rundir.model.write_bytes(b"of an earlier start")
    model = tiny()

    def torn(path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise error

    model.save = torn
    with pytest.raises(type(error)):
        snapshots.save_model(model, rundir, records)
    assert rundir.model.read_bytes() == b"of an earlier start"


@pytest.mark.task
def test_a_model_that_keras_cannot_describe_leaves_its_weights(tmp_path: Path) -> None:

    import keras
    import numpy as np

    from dtrain.run import journal
    from dtrain.run.folder import RunDir
    from dtrain.task.train import snapshots

    class Own(keras.Model):
        def __init__(self, width: Any):
            super().__init__()
            self.layer = keras.layers.Dense(width)

        def call(self, x: Any) -> Any:
            return self.layer(x)

        def get_config(self) -> Any:
            raise NotImplementedError("no configuration")

    records, rundir = made(tmp_path / "run"), RunDir(tmp_path / "run")
    model = Own(2)
    model(np.ones((1, 3)))
    snapshots.save_model(model, rundir, records)
    names = {path.name for path in rundir.path.iterdir()}
    assert names == {"journal.jsonl", "model.weights.h5"}
    [notice] = journal.read(rundir.journal)
    assert "saved model.weights.h5, not model.keras: no configuration" in notice["message"]
    again = Own(2)
    again(np.ones((1, 3)))
    again.load_weights(rundir.weights)


@pytest.mark.task
def test_the_weights_of_a_model_that_is_never_called(tmp_path: Path) -> None:

    import numpy as np

    from dtrain.run.folder import RunDir
    from dtrain.task.train import snapshots
    from tests.test_steps import prepare
    from tests.test_zoo import configured
    from tests.zoo import gan

    model, _, steps, _ = prepare("OneDevice", 1, configured("gan"))
    assert model.count_params() == sum(np.size(weight) for weight in model.get_weights()) > 0
    steps.train(2)
    records, rundir = made(tmp_path / "run"), RunDir(tmp_path / "run")
    snapshots.save_model(model, rundir, records)
    other = gan.model(input_shape=(8,))
    other.built = True
    other.optimizer.build(other.trainable_variables)
    other.d_optimizer.build(other.discriminator.trainable_variables)
    other.g_optimizer.build(other.generator.trainable_variables)
    other.load_weights(rundir.weights)
    for ours, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
