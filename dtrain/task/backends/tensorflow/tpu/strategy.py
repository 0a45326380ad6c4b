"""Data parallel on the cores of a TPU. Written by TensorFlow's guide; has not yet run on one."""

from __future__ import annotations

import contextlib
import socket
import textwrap
from collections.abc import Iterator

import keras
import tensorflow as tf

from dtrain.errors import UsageError
from dtrain.task.backends.base import Abilities
from dtrain.task.backends.tensorflow.base import Strategy
from dtrain.task.backends.tensorflow.tpu.static import StaticSteps
from dtrain.task.data.inputs import Inputs

#: Seconds for each answer from the network while the TPU is looked for.
ANSWER_SECONDS = 10.0


class TPU(Strategy):
    """``tf.distribute.TPUStrategy`` (TensorFlow's guide "Use TPUs").

    Args:
        devices: names of the cores; one replica on each.
        tpu: ``local`` for a TPU of this machine, its name in the cloud, ``grpc://HOST:PORT``, or
            None for what the environment names (``TPU_NAME``), as ``TPUClusterResolver`` takes it.
        zone: of a TPU in the cloud; None to ask the cloud's metadata server.
        project: likewise.

    Raises:
        UsageError: there is no such TPU, or it has another number of cores.
    """

    abilities = Abilities(retraces=False)

    def __init__(self, devices: list[str], tpu: str | None, zone: str | None, project: str | None):
        try:
            with _answering():
                resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu, zone, project)
                _reach(resolver.cluster_spec())
            # ORDER: as in the guide. The cores are known, and can have variables, after this.
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except (ValueError, RuntimeError, OSError, ImportError, tf.errors.OpError) as error:
            words = f"{type(error).__name__}: {error}".split("\n")[0].rstrip(":")
            reason = textwrap.shorten(words, 120, placeholder="...")
            raise UsageError(
                "strategy.tpu", tpu or "null", f"TensorFlow finds no such TPU ({reason})",
                "local, with a TPU and TensorFlow for it (tensorflow-tpu), a name, or grpc://HOST:PORT",
                "strategy=mirrored",
            ) from None  # fmt: skip
        cores = len(tf.config.list_logical_devices("TPU"))
        if cores != len(devices):
            raise UsageError(
                "hardware.devices", len(devices), f"this TPU has {cores} cores", f"{cores}",
                f"hardware.devices={cores}",
            )  # fmt: skip
        super().__init__(tf.distribute.TPUStrategy(resolver))

    def steps(self, model: keras.Model, inputs: Inputs, jit_compile: bool) -> StaticSteps:
        """Return what trains and evaluates; a TPU runs nothing that XLA has not compiled."""
        return StaticSteps(model, self, inputs)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Wait for no server longer than some seconds: TensorFlow's client would for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(ANSWER_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _reach(spec: tf.train.ClusterSpec) -> None:
    """Raise OSError where a worker of the TPU does not answer; ``local`` has none."""
    for addresses in spec.as_dict().values():
        for address in addresses:
            host, port = address.rsplit(":", 1)
            try:
                socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
            except OSError as error:
                raise OSError(f"{address}: {error.strerror or error}") from None
