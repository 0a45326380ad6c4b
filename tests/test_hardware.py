from __future__ import annotations

from typing import Any

import pytest

from tests.configs import section


def configured(
    devices: int,
    kind: str = "cpu",
    threads: int | None = None,
    deterministic: bool = False,
    **changed: Any,
) -> list[str]:
    from dtrain.run.cluster import Cluster, Task
    from dtrain.task.backends.tensorflow import hardware

    task = Task("chief", 0, devices, threads=threads)
    cluster = Cluster((task,), kind, devices, {})
    return hardware.configure(section("hardware", **changed), cluster, task, deterministic)


@pytest.mark.task
def test_logical_cpus_threads_and_policy() -> None:
    import keras
    import tensorflow as tf

    names = configured(3, threads=2, inter_op_threads=1, precision="mixed_bfloat16")
    assert names == ["CPU:0", "CPU:1", "CPU:2"]
    assert len(tf.config.list_logical_devices("CPU")) == 3
    for name in names:
        with tf.device(name):
            assert tf.constant(1.0).device.endswith(name)
    assert tf.config.threading.get_intra_op_parallelism_threads() == 2
    assert tf.config.threading.get_inter_op_parallelism_threads() == 1
    assert keras.layers.Dense(1).compute_dtype == "bfloat16"
    assert tf.config.get_visible_devices("GPU") == []


@pytest.mark.task
def test_threads_are_left_to_tensorflow() -> None:
    import keras
    import tensorflow as tf

    before = tf.config.threading.get_intra_op_parallelism_threads()
    assert configured(1) == ["CPU:0"]
    assert tf.config.threading.get_intra_op_parallelism_threads() == before
    assert keras.layers.Dense(1).compute_dtype == "float32"


@pytest.mark.task
def test_too_few_gpus_are_refused() -> None:
    from dtrain.errors import UsageError

    with pytest.raises(UsageError, match=r"sees 0 GPUs.*hardware=cpu") as caught:
        configured(2, "gpu")
    assert caught.value.key == "hardware.devices"


@pytest.mark.task
def test_gpus_that_the_plan_overlooked() -> None:
    from unittest import mock

    import tensorflow as tf

    from dtrain.run.cluster import Cluster, Task
    from dtrain.task.backends.tensorflow import hardware

    def said(kind: str, planned: str) -> str | None:
        cluster = Cluster((Task("chief", 0, 1),), planned, 1, {})
        return hardware.overlooked(section("hardware", kind=kind), cluster)

    assert said("auto", "cpu") is None, "there are none"
    with mock.patch.object(tf.config, "list_physical_devices", lambda kind: [kind, kind]):
        assert said("auto", "cpu") == (
            "TensorFlow sees 2 GPUs that hardware=auto did not find: this run computes on the CPU"
        )
        assert said("cpu", "cpu") is None and said("auto", "gpu") is None


@pytest.mark.task
@pytest.mark.parametrize(
    ("kind", "devices", "names"), [("gpu", 0, ["CPU:0"]), ("tpu", 2, ["TPU:0", "TPU:1"])]
)
def test_no_gpu_is_needed_or_looked_for(kind: str, devices: int, names: list[str]) -> None:
    """By a task that computes nothing, and beside a TPU, whose cores are named."""
    import tensorflow as tf

    assert configured(devices, kind) == names
    assert tf.config.get_visible_devices("GPU") == []


@pytest.mark.task
@pytest.mark.parametrize("deterministic", [False, True])
def test_deterministic_operations(deterministic: bool) -> None:
    import tensorflow as tf
    from tensorflow.python.framework.config import is_op_determinism_enabled

    assert configured(2, deterministic=deterministic) == ["CPU:0", "CPU:1"]
    assert is_op_determinism_enabled() == deterministic
    # Without a seed TensorFlow would refuse to draw anything.
    assert tf.random.normal([3]).shape == (3,)


@pytest.mark.task
def test_sums_keep_their_order() -> None:
    from tests.test_keras_internals import SUMS, additions

    assert additions(SUMS["of a function"]) == {"AddN"}, "as it is without dtrain"
    configured(1)
    assert additions(SUMS["of a function"]) == {"AddV2"}
