"""Searches with TensorFlow and MLflow, from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtrain import errors
from dtrain.run.folder import read_json
from tests.conftest import QUICK
from tests.integration.test_records import runs

#: A good job is content after three epochs; a bad one would continue for long.
USER = """
import keras


class Enough(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 3 and float(self.model.optimizer.learning_rate) > 1e-3:
            self.model.stop_training = True
"""


def told() -> dict[str, Any]:
    [found] = Path().glob("outputs/multirun/*/*/sweep.json")
    return read_json(found) or {}


@pytest.mark.faults
@pytest.mark.usefixtures("store")
def test_tpe_prunes_what_is_worse(dtrain, user_code, tmp_path: Path) -> None:
    """A bad job would continue for 2,000 epochs, and is given up early."""
    user_code(USER)
    words = [word for word in QUICK if not word.startswith(("tracking", "trainer.epochs"))]
    run = dtrain(
        "-m", "hydra/sweeper=optuna", "hydra.sweeper.trials=4", "hydra.sweeper.startup=1",
        "optimizer.learning_rate=0.03,1e-9", "sweep.parallel=1", "hydra.sweeper.seed=4", *words,
        "trainer.epochs=2000", "trainer.callbacks=[{_target_:mine.Enough}]",
    )  # fmt: skip
    assert run.code == errors.OK, run.output
    jobs = told()["jobs"]
    rates = [float(job["differs"]["optimizer.learning_rate"]) for job in jobs]
    assert {0.03, 1e-9} == set(rates) and rates[0] == 0.03, "as this seed draws them"
    pruned = [job for job in jobs if job.get("pruned")]
    assert pruned and all(rates[job["number"]] == 1e-9 for job in pruned)
    assert {job["status"] for job in jobs if job not in pruned} == {"FINISHED"}
    assert f"job {pruned[0]['number']} (optimizer.learning_rate=1e-09): pruned" in run.output
    recorded = {r.data.tags["job"]: r for _, r in runs(tmp_path) if "job" in r.data.tags}
    for job in jobs:
        found = recorded[str(job["number"])]
        assert found.info.status == job["status"]
        assert found.data.tags.get("pruned") == ("true" if job in pruned else None)


def test_a_random_search_is_known_ahead(dtrain, tmp_path: Path) -> None:
    word = "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))"
    run = dtrain(
        "-m", "hydra/sweeper=random", "hydra.sweeper.trials=3", word, *QUICK, "dry_run=true"
    )
    assert run.code == errors.OK, run.output
    rates = [float(line.split()[1]) for line in run.output.splitlines()[2:5]]
    assert len(set(rates)) == 3 and all(1e-4 <= rate < 1e-1 for rate in rates)
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hydra/sweeper=random", "trainer.epochs=3"], "there is nothing to choose"),
        (["hydra/sweeper=random", "seed=1,2", "hydra.sweeper.trials=0"], "must be at least 1"),
        (["hydra/sweeper=random", "seed=1,2", "hydra/launcher=basic"], "type: hydra/launcher=dtra"),
        (["hydra/sweeper=random", "trainer.batch_size=-1,-2"], "must be at least 1"),
    ],
)
def test_what_is_wrong_with_a_search(words: list[str], sentence: str, dtrain) -> None:
    run = dtrain("-m", *QUICK, *words)
    assert run.code == errors.USAGE
    assert sentence in run.output
    assert not Path("outputs").exists()
