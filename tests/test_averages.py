"""Tasks that train by themselves between two averages (``strategy.sync_every``), as plain Keras."""

from __future__ import annotations

from typing import Any

from dtrain.run.cluster import Task
from tests.test_strategies import together

TASKS = [Task("chief", 0, 1), Task("worker", 0, 1)]
EVERY = 4
#: Steps of calls that follow each other: each ends with an average.
CALLS = (8, 4, 2)


def normalized(input_shape: Any, classes: int) -> Any:
    """Return a model with statistics of its own, and a weight that no seed decides."""
    import os

    import keras

    drawn = keras.initializers.GlorotUniform(seed=os.getpid())
    return keras.Sequential([
        keras.Input(input_shape),
        keras.layers.Dense(5, activation="tanh"),
        keras.layers.BatchNormalization(momentum=0.8),
        keras.layers.Dense(classes, activation="softmax", kernel_initializer=drawn),
    ])  # fmt: skip


def _averaged(values: list[Any]) -> Any:
    import numpy as np

    return np.mean(values, axis=0) if values[0].dtype.kind == "f" else values[0]


def local_sgd(model: Any, splits: Any) -> tuple[list[Any], float]:
    """Train copies of a model on the two halves of each batch, by Keras alone.

    Returns:
        What the variables of model and optimizer are at the end, and the loss on the validation.
    """
    import keras
    import numpy as np

    from tests.test_steps import BATCH, in_order

    copies = []
    for _ in TASKS:
        copy = keras.models.clone_model(model)
        copy.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
        copy.set_weights(model.get_weights())
        copy.optimizer.build(copy.trainable_variables)
        copies.append(copy)
    x, y = in_order(splits.train, sum(CALLS))
    step, half = 0, BATCH // 2
    for steps in CALLS:
        for place in range(1, steps + 1):
            for task, copy in enumerate(copies):
                rows = slice(step * BATCH + task * half, step * BATCH + (task + 1) * half)
                copy.train_on_batch(x[rows], y[rows])
            step += 1
            if place % EVERY == 0 or place == steps:
                both = [[*copy.variables, *copy.optimizer.variables] for copy in copies]
                for pair in zip(*both, strict=True):
                    mean = _averaged([np.asarray(each) for each in pair])
                    for each in pair:
                        each.assign(mean)
    x, y = splits.validation[np.arange(len(splits.validation))]
    evaluated = copies[0].evaluate(np.asarray(x), np.asarray(y), verbose=0, return_dict=True)
    found = [*copies[0].variables, *copies[0].optimizer.variables]
    return [np.asarray(each) for each in found], evaluated["loss"]


def _trains(cluster: Any, task: Any, devices: list[str]) -> Any:
    import numpy as np

    from dtrain.task.strategies import MultiWorker
    from tests.test_steps import BATCH, prepare, settings

    strategy = MultiWorker(devices, cluster, task, "ring", sync_every=EVERY)
    config = settings(model={"_target_": "tests.test_averages.normalized"})
    model, _, steps, splits = prepare("", 0, config, strategy=strategy)
    expected, loss = local_sgd(model, splits)
    for count in CALLS:
        sums = steps.train(count)
        assert sums.examples == count * BATCH
    strategy.check_copies(model)
    found = [np.asarray(each) for each in [*model.variables, *model.optimizer.variables]]
    batches, rest = divmod(len(splits.validation), steps.evaluation_examples)
    evaluated = steps.results(steps.evaluate(batches, rest))["loss"]
    names = [each.path for each in [*model.variables, *model.optimizer.variables]]
    return names, expected, found, loss, evaluated, collectives(steps)


def collectives(steps: Any) -> list[tuple[str, str]]:
    """Return where in the graph of a call tasks meet: in a branch, in each step, or once a call."""
    from tests.test_collectives import traced

    graph = traced(steps._train).graph.as_graph_def()
    parts = {f.signature.name: f.node_def for f in graph.library.function}
    found = []
    for name, nodes in {**parts, "": graph.node}.items():
        place = "due" if "cond_true" in name else "step" if "while_body" in name else "call"
        found += [(place, n.op) for n in nodes if n.op.startswith("Collective")]
    return sorted(found)


def test_tasks_train_by_themselves_and_are_averaged() -> None:
    import numpy as np

    both = together(_trains, TASKS, 2)
    for names, expected, found, loss, evaluated, meetings in both:
        assert any("moving_variance" in name for name in names)
        for name, wanted, value in zip(names, expected, found, strict=True):
            np.testing.assert_allclose(value, wanted, 1e-5, 1e-6, err_msg=name)
        np.testing.assert_allclose(evaluated, loss, 1e-5)
        assert meetings == [("call", "CollectiveReduceV2"), ("due", "CollectiveReduceV2")]
    for one, other in zip(both[0][2], both[1][2], strict=True):
        assert one.tobytes() == other.tobytes(), "the tasks have one model after each call"


def gathers(y: Any, p: Any) -> Any:
    """A loss across the examples of the global batch."""
    from keras import ops

    from dtrain import replicas

    return ops.mean(ops.square(p - ops.mean(replicas.gather(p), axis=0)), axis=1)


def divides(y: Any, p: Any) -> Any:
    """A loss divided by all examples of the global batch, as a loop of tf.distribute has it."""
    from keras import ops

    from tests.test_steps import BATCH

    return ops.sum(ops.square(p - ops.one_hot(y, p.shape[-1]))) / BATCH


def adding(input_shape: Any, classes: int) -> Any:
    """Return a model with a layer that keeps a sum over all replicas."""
    import keras
    import tensorflow as tf

    class Sum(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.total = self.add_weight(shape=(shape[-1],), trainable=False)

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                context = tf.distribute.get_replica_context()
                self.total.assign(context.all_reduce("SUM", tf.reduce_sum(x, axis=0)))
            return x

    return keras.Sequential([
        keras.Input(input_shape), Sum(), keras.layers.Dense(classes, activation="softmax"),
    ])  # fmt: skip


def synchronized(input_shape: Any, classes: int) -> Any:
    """Return a model that normalises by the global batch."""
    import keras

    return keras.Sequential([
        keras.Input(input_shape),
        keras.layers.BatchNormalization(synchronized=True, name="norm"),
        keras.layers.Dense(classes, activation="softmax"),
    ])  # fmt: skip


def _refusals(cluster: Any, task: Any, devices: list[str]) -> Any:
    from dtrain.errors import UsageError
    from dtrain.task.backends.tensorflow.rehearsal import across
    from dtrain.task.strategies import MultiWorker
    from tests.test_steps import BATCH, prepare, settings

    strategy = MultiWorker(devices, cluster, task, "ring", sync_every=EVERY)
    found = []
    for changed in (
        {"model": {"_target_": "tests.test_averages.synchronized"}},
        {"trainer": {"loss": {"_target_": "tests.test_averages.gathers"}, "metrics": []}},
        {"model": {"_target_": "tests.zoo.weighted_mean.model"}},
        {"model": {"_target_": "tests.test_averages.adding"}},
    ):
        try:
            *_, steps, _ = prepare("", 0, settings(**changed), strategy=strategy)
            steps.train(1)
            found.append("")
        except UsageError as error:
            found.append(str(error))
    parts = {"trainer": {"loss": {"_target_": "tests.test_averages.divides"}, "metrics": []}}
    model, _, _, splits = prepare("", 0, settings(**parts), strategy=strategy)
    return [*found, across.notice(model, strategy, splits.train, BATCH, 0)]


def test_what_needs_all_tasks_in_a_step_is_refused() -> None:
    for normalises, across, weighs, adds, divided in together(_refusals, TASKS, 2):
        for text in (across, weighs):
            assert text.startswith("strategy.sync_every=4: ")
        for text in (normalises, across, weighs):
            assert text.endswith("; type: strategy.sync_every=1")
        assert "the model's loss is divided by a number of all examples" in weighs
        assert "adds up over the replicas itself (all_reduce)" in adds
        assert adds.endswith("; type: strategy.sync_every=1")
        assert "it is divided by all examples" in divided
        assert "trainer.gradient_reduction=sum and strategy.sync_every=1" in divided
        assert "BatchNormalization norm is synchronized=True" in normalises
        assert "the model calls dtrain.replicas.gather" in across
