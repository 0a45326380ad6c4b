"""Batches that a training loop reads itself: to the bits of the iterator's, and which they are."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.test_steps import prepare, settings

OPTIMIZER = {"_target_": "keras.optimizers.SGD", "learning_rate": 0.1}
#: How many steps each call has: 50 examples are six batches of 8 and a rest.
CALLS = (1, 9, 5)


def trained(in_loop: bool, start: int = 0, **changed: Any) -> tuple[list[bytes], bool]:
    """Return what is left of some calls, and whether the loop has read its batches itself."""
    import keras

    from dtrain.task import strategies
    from dtrain.task.backends.tensorflow.input_pipeline import InLoop

    keras.utils.set_random_seed(0)
    strategy = strategies.OneDevice(["CPU:0"])
    strategy.abilities = dataclasses.replace(strategy.abilities, reads_in_loop=in_loop)
    config = settings(optimizer=OPTIMIZER, **changed)
    model, _, steps, _ = prepare("OneDevice", 1, config, start, strategy=strategy)
    sums = [steps.train(count) for count in CALLS]
    found = [state.tobytes() for each in sums for state in each.states]
    found += [weight.tobytes() for weight in model.get_weights()]
    return found, isinstance(steps._reads, InLoop)


@pytest.mark.task
def test_the_bits_are_the_iterators() -> None:
    ours, inside = trained(True, start=5)
    assert (ours, False) == trained(False, start=5)
    assert inside


@pytest.mark.task
def test_what_the_loop_does_not_read_itself() -> None:
    from dtrain.data.mixture import Mixture
    from dtrain.data.sources import Arrays, Windows
    from dtrain.task.backends.tensorflow.input_pipeline import in_loop
    from dtrain.task.data.inputs import Inputs

    class Own(Arrays):
        """Does what it likes in take."""

    arrays = Arrays(np.zeros([20, 2], np.float32), np.zeros(20, np.int64))
    inputs = Inputs(arrays, None, 4, 0)
    windows = Windows(np.arange(50), 4, 4)
    assert in_loop(inputs) and in_loop(dataclasses.replace(inputs, train=windows))
    others: list[dict[str, Any]] = [
        {"train": Own(arrays.x, arrays.y)},
        {"augment": lambda x, seed: x},
        {"train": Mixture([arrays, arrays], [1, 1]), "order": object()},
    ]
    for other in others:
        assert in_loop(dataclasses.replace(inputs, **other)) is None


@pytest.mark.task
def test_a_step_of_few_bytes_is_not_asked_how_long_it_waits() -> None:
    from dtrain.data.sources import Arrays
    from dtrain.task.backends.tensorflow.input_pipeline import QUICK, InLoop
    from dtrain.task.data.inputs import Inputs

    for columns, quick in ((QUICK // 16 - 2, True), (QUICK // 16, False)):
        arrays = Arrays(np.zeros([8, columns], np.float32), np.zeros(8, np.int64))
        assert InLoop(Inputs(arrays, None, 4, 0)).quick is quick
    texts = Arrays(np.array(["a", "b"] * 4), np.zeros(8, np.int64))
    assert not InLoop(Inputs(texts, None, 4, 0)).quick


@pytest.mark.task
@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_quick_batch_has_no_timestamps(monkeypatch, limit) -> None:
    from dtrain.task.backends.tensorflow import input_pipeline

    monkeypatch.setattr(input_pipeline, "QUICK", limit)
    steps = prepare("OneDevice", 1)[2]
    traced = steps._train.get_concrete_function().graph.as_graph_def()
    kinds = [node.op for function in traced.library.function for node in function.node_def]
    assert kinds.count("Timestamp") == (0 if limit else 2)
    steps.train(3)
    assert set(steps.waiting.pop()) == {"input"}
