"""Numbers become tensors, step after step, and nothing of them stays in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: Of each of so many calls something would stay, of each number 0.7 kB.
CALLS = 800


def grown(call: Callable[[int], Any]) -> float:
    """Return by how many bytes a call makes the process larger, after the first ones."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for i in range(200):
        call(i)
    before = resident()
    for i in range(200, 200 + CALLS):
        call(i)
    return (resident() - before) / CALLS


@pytest.mark.task
def test_of_numbers_nothing_is_kept() -> None:
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.tensors import fresh

    assert fresh(np.int64(3)).dtype == tf.int64
    assert fresh(0.5, tf.float32).dtype == tf.float32 and fresh(0.5) == 0.5
    assert grown(lambda i: [fresh(10**6 + 10 * i + j, tf.int64) for j in range(10)]) < 1000
    # What would be kept otherwise; where it is not any more, fresh() has become of no use.
    assert grown(lambda i: [tf.constant(10**7 + 10 * i + j, tf.int64) for j in range(10)]) > 3000


@pytest.mark.task
def test_of_points_nothing_is_kept(tmp_path: Path) -> None:
    from dtrain.task.train.tensorboard import Summaries

    summaries = Summaries(tmp_path / "tensorboard", tmp_path / "journal.jsonl", False, None)

    def write(i: int) -> None:
        summaries.scalars(10**6 + i, {f"metric_{j}": i + j / 10 for j in range(10)})
        if i % 100 == 0:
            summaries.flush()

    assert grown(write) < 2500
    summaries.close()


@pytest.mark.task
def test_a_total_is_the_sum_in_order() -> None:
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.tensors import total

    parts = [tf.constant([0.1, 1e8]), tf.constant([0.2, 1.0]), tf.constant([0.3, -1e8])]
    wanted = np.float32([0.1, 1e8]) + np.float32([0.2, 1.0]) + np.float32([0.3, -1e8])
    assert total(parts).numpy().tolist() == wanted.tolist() == [np.float32(0.6), 0.0]
    assert total([tf.constant(2), tf.Variable(3)]).numpy() == 5
    assert total([tf.Variable(3)]).numpy() == 3
