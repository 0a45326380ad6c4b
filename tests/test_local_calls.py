"""What a callback may do with the model, whatever it trains on."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.run.cluster import Cluster, Task
from tests.test_parameter_server import servers, strategy_of
from tests.test_steps import prepare, settings
from tests.test_strategies import HOSTS, together


def counted() -> Any:
    """A metric of the user's own, whose state stays in variables."""
    import keras

    class Count(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="count")
            self.count = self.add_weight(initializer="zeros", name="count")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.count.assign(self.count + keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

        def result(self) -> Any:
            return self.count * 1.0

    return Count()


def use(strategy: Any, kind: str = "Default") -> None:
    """Train, use the model in between, and evaluate."""
    import numpy as np

    from dtrain import models
    from dtrain.task.backends.tensorflow.forward import LocalCalls

    metrics = ["accuracy", {"_target_": "tests.test_local_calls.counted"}]
    config = settings(trainer={"loss": "sparse_categorical_crossentropy", "metrics": metrics})
    model, strategy, steps, _ = prepare(kind, 2, config, strategy=strategy)
    LocalCalls(model, strategy)
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((11, 4)).astype("float32"), np.arange(11) % 3
    alone = models.mlp((4,), 3, [5])
    alone.compile("sgd", config.trainer.loss, metrics=["accuracy"])
    for rate, done in ((0.01, 3), (0.5, 6)):
        steps.train(2)
        alone.set_weights(model.get_weights())
        wanted = alone.predict(x, verbose=0)
        for found in (model.predict(x, batch_size=4, verbose=0), model(x)):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
        wanted = alone.evaluate(x, y, verbose=0, return_dict=True)
        assert model.evaluate(x, y, 4, verbose=0)[0] == pytest.approx(wanted["loss"], rel=1e-5)
        now = model.evaluate(x, y, verbose=0, return_dict=True)
        assert now == pytest.approx({**wanted, "count": 11}, rel=1e-5)
        # What was evaluated there is in no number of the training.
        full, rest = divmod(21, steps.evaluation_examples)
        held = steps.results(steps.evaluate(full, rest), training=False)
        assert held["count"] == 21
        assert steps.results(steps.train(1))["count"] == 8
        assert float(model.optimizer.learning_rate) == pytest.approx(rate)
        assert int(model.optimizer.iterations) == done
        model.optimizer.learning_rate = 0.5


@pytest.mark.task(devices=4)
def test_on_one_machine() -> None:
    use(None, "OneDevice")


def _on_hosts(cluster: Cluster, task: Task, devices: list[str]) -> None:
    from dtrain.task.strategies import MultiWorker

    use(MultiWorker(devices, cluster, task, "auto"))


def _on_servers(cluster: Cluster, task: Task, devices: list[str]) -> None:
    use(strategy_of(cluster, task, "sync"))


def test_in_each_task_of_a_cluster() -> None:
    together(_on_hosts, HOSTS, 4)


def test_with_the_weights_on_servers() -> None:
    together(_on_servers, servers(2, 1), 2)
