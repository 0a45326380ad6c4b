"""Devices, threads and numeric policy of one task process."""

from __future__ import annotations

import multiprocessing

import keras
import tensorflow as tf

from dtrain.config.tree import Hardware
from dtrain.errors import refuse
from dtrain.run.cluster import Cluster, Task
from dtrain.task.backends.tensorflow import keras_internals
from dtrain.task.process import signals
from dtrain.task.process.sockets import give_up_after


def configure(
    hardware: Hardware, cluster: Cluster, task: Task, deterministic: bool = False,
    peer_timeout: float | None = None,
) -> list[str]:  # fmt: skip
    """Set up this process; must run before TensorFlow has touched any device.

    Args:
        hardware: the ``hardware`` group.
        cluster: says which kind of device.
        task: says how many.
        deterministic: only operations that give the same bits each time
            (``tf.config.experimental.enable_op_determinism``).
        peer_timeout: seconds after which another task that does not answer is given up.

    Returns:
        Names of the devices that the task uses, such as ``CPU:0``; whether the cores of a TPU are
        there is found out by the strategy, which has to start it first.

    Raises:
        UsageError: there are fewer GPUs than planned.
    """
    own = multiprocessing.parent_process() is not None
    if peer_timeout is not None and own and len(cluster.tasks) > 1:
        give_up_after(peer_timeout, cluster, task)
    signals.keep_to(task.cores)
    if task.threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(task.threads)
    if hardware.inter_op_threads is not None:
        tf.config.threading.set_inter_op_parallelism_threads(hardware.inter_op_threads)
    if deterministic:
        keras.utils.set_random_seed(0)  # TensorFlow asks for one; the run's own is set later
        tf.config.experimental.enable_op_determinism()
    keras_internals.keep_order()
    keras.config.set_dtype_policy(hardware.precision)
    if cluster.device_kind == "tpu":
        tf.config.set_visible_devices([], "GPU")
        return [f"TPU:{index}" for index in range(task.devices)]
    if cluster.device_kind == "cpu" or task.devices == 0:
        count = max(1, task.devices)
        tf.config.set_visible_devices([], "GPU")
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration() for _ in range(count)],
        )
        return [f"CPU:{index}" for index in range(count)]
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) < task.devices:
        refuse("hardware.devices", f"TensorFlow sees {len(gpus)} GPUs here", task.devices,
               accepted=f"up to {len(gpus)}",
               typed="hardware=cpu" if not gpus else f"hardware.devices={len(gpus)}")  # fmt: skip
    tf.config.set_visible_devices(gpus[: task.devices], "GPU")
    for gpu in gpus[: task.devices]:
        tf.config.experimental.set_memory_growth(gpu, hardware.memory_growth)
    return [f"GPU:{index}" for index in range(task.devices)]


def overlooked(hardware: Hardware, cluster: Cluster) -> str | None:
    """Return a sentence about GPUs that TensorFlow sees and the plan knew nothing of.

    Args:
        hardware: the ``hardware`` group; one that names a kind of device is taken at its word.
        cluster: says what was planned.
    """
    if cluster.device_kind != "cpu" or hardware.kind != "auto":
        return None
    gpus = len(tf.config.list_physical_devices("GPU"))
    if not gpus:
        return None
    return (
        f"TensorFlow sees {gpus} GPU{'s' if gpus > 1 else ''} that hardware=auto did not find: "
        "this run computes on the CPU"
    )
