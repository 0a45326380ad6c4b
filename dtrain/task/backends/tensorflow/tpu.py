"""Training on TPUs. Not yet run on hardware.

Steps that are compiled whole for the device: shapes that are known, and no float64 on it.

Data parallel on the cores of a TPU. Written by TensorFlow's guide; has not yet run on one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import textwrap
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import UsageError, refuse
from dtrain.task.aliases import Batch, Foreign, Function, Nest, Tensors
from dtrain.task.backends.base import Abilities
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.tensorflow import input_pipeline
from dtrain.task.backends.tensorflow.base import Strategy
from dtrain.task.backends.tensorflow.reading import take
from dtrain.task.backends.tensorflow.replicas import Replicas
from dtrain.task.backends.tensorflow.steps import Steps, Waiting
from dtrain.task.backends.tensorflow.tensors import flat
from dtrain.task.data.inputs import Inputs


class StaticSteps(Steps):
    """Training and evaluation where XLA compiles what a replica does, as it does for TPUs.

    XLA must know every shape, so the last examples of an evaluation, which fill no batch, are not
    cut out of one: as many as go evenly into the replicas are a smaller step of their own, and of
    the others each goes to a replica, alone. (Padding of weight zero would be counted, see
    ``Steps._part``.) A replica reads and resets its metrics itself; they are added up on the host,
    as float64, which TPUs do not have.

    Args:
        model: compiled and built in the strategy's scope.
        strategy: runs the steps.
        inputs: what to read.
    """

    def __init__(self, model: keras.Model, strategy: Replicas, inputs: Inputs):
        held, replicas = inputs.validation, strategy.replicas
        training = None
        if inputs.train is not None:
            training = strategy.distribute(input_pipeline.training, inputs)
        super().__init__(model, strategy, inputs, training, None)
        self.waiting = Waiting(ordered=False)
        self._ends: list[tuple[Foreign, int]] = []  # (iterator, examples) of the steps of the rest
        if held is None:
            return
        if isinstance(held, Stream):
            refuse("strategy", "the validation is a stream, of whose last batch a part goes to "
                   "each core", "tpu", accepted="a validation with random access, or none",
                   typed="strategy=mirrored")  # fmt: skip
        if inputs.stretches is not None:
            refuse("by", "slices are evaluated in batches of many sizes, and XLA must "
                   "know every size", "strategy=tpu", accepted="another strategy",
                   typed="strategy=one_device")  # fmt: skip

        def stretch(first: int, examples: int, batch: int) -> Foreign:
            part = Stretch(held, first, examples)
            given = dataclasses.replace(
                inputs, validation=part, global_batch=batch, validation_batch=None,
                validation_steps=None,
            )  # fmt: skip
            return strategy.distribute(input_pipeline.evaluation_in_parts, given)

        examples, batch = inputs.evaluation_examples, inputs.evaluation_batch
        batch = self.evaluation_batch = max(replicas, batch - batch % replicas)
        whole = examples // batch * batch
        even = (examples - whole) // replicas * replicas
        odd = examples - whole - even
        if whole:
            self._evaluation_iterator = stretch(0, whole, batch)
        if even:
            self._ends.append((stretch(whole, even, even), even))
        if odd:
            self._ends.append((stretch(whole + even, odd, replicas), odd))

    @property
    def evaluation_examples(self) -> int:
        """How many examples one evaluation step takes: a batch, of which each replica has a part.

        TPUs have their memory for parts, as in training.
        """
        return self.evaluation_batch

    def evaluate(self, steps: int, rest: int) -> Sums:
        """Run ``steps`` full evaluation steps, and the smaller ones of the rest if any."""
        sums = Sums()
        if steps:
            sums.append(super().evaluate(steps, 0))
        if rest:
            for end, (_, examples) in enumerate(self._ends):
                rows = self._evaluate_end(end).numpy()
                sums.append(self._rows.sums(rows, examples, training=False))
        return sums

    @tf.function(autograph=False)
    def _evaluate_end(self, end: int) -> tf.Tensor:
        iterator, examples = self._ends[end]
        part = super()._part if examples % self._strategy.replicas else self._part
        row = self._one(lambda data: (part(data), ()), next(iterator), 1, training=False)
        return self._strategy.all_reduce(row[None])

    def _part(self, data: Nest) -> Nest:
        return self._counted(*data)  # all rows are real

    def _real(self, batch: Nest, count: tf.Tensor) -> Nest:
        return batch  # one row

    def _one(self, step: Function, data: Nest, rows: float, training: bool) -> tf.Tensor:
        def replica(part: Nest) -> Tensors:
            logs, states = step(part)
            return self._rows.vectors(logs, rows, training, tf.convert_to_tensor, states)

        vectors = self._strategy.run(replica, data)
        with tf.device("CPU:0"):
            return flat([self._strategy.reduce_local(vector) for vector in vectors])


class Stretch(Source):
    """Some neighbouring examples of a source.

    Args:
        source: which has them.
        first: index of the first.
        examples: how many.
    """

    #: Whatever the source is: it is read, and finished, as it is where it is whole.
    in_graph = True

    def __init__(self, source: Source, first: int, examples: int):
        self._source, self._first, self._examples = source, first, examples

    def __len__(self) -> int:
        return self._examples

    def __getitem__(self, indices: tf.Tensor) -> Batch:
        """Return as :meth:`gather`, at once."""
        return nest.mapped(np.asarray, self.gather(indices))

    def gather(self, indices: tf.Tensor) -> Batch:
        """Return the examples at ``indices``, counted from the first."""
        return take(self._source, indices + self._first)


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
            raise UsageError("strategy.tpu", f"TensorFlow finds no such TPU ({reason})",
                             tpu or "null", accepted="local, with tensorflow-tpu, a name, or "
                             "grpc://HOST:PORT", typed="strategy=mirrored") from None  # fmt: skip
        cores = len(tf.config.list_logical_devices("TPU"))
        if cores != len(devices):
            refuse("hardware.devices", f"this TPU has {cores} cores", len(devices),
                   accepted=f"{cores}", typed=f"hardware.devices={cores}")  # fmt: skip
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
