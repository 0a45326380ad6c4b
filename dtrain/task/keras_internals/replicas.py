"""Replicas of one graph, on one device: a strategy whose replicas are traced in threads.

TensorFlow's own strategies want a device, or a host, for each replica.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class _Extended(tf.distribute.StrategyExtended):
    def __init__(self, strategy: tf.distribute.Strategy, replicas: int):
        super().__init__(strategy)
        self._replicas = replicas

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return ("CPU:0",) * self._replicas

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._replicas

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group


class _Strategy(tf.distribute.Strategy):
    def __init__(self, replicas: int):
        super().__init__(_Extended(self, replicas))


class _Replica(tf.distribute.ReplicaContext):
    """A replica that reduces and gathers with the others of ``threads``."""

    def __init__(self, strategy: tf.distribute.Strategy, replica: int, threads: _Threads):
        super().__init__(strategy, replica)
        self._number, self._threads = replica, threads
        self._exchanges = 0

    def merge_call(self, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse: only what is reduced or gathered is known to be exchanged."""
        raise NotImplementedError("merge_call, of replicas on one device")

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """See ``tf.distribute.ReplicaContext``."""
        if isinstance(reduce_op, str):
            reduce_op = tf.distribute.ReduceOp(reduce_op.upper())
        mean = reduce_op is tf.distribute.ReduceOp.MEAN

        def reduced(*values: Any) -> tf.Tensor:
            total = tf.add_n(list(map(tf.convert_to_tensor, values)))
            return total / tf.cast(len(values), total.dtype) if mean else total

        return tf.nest.map_structure(reduced, *self._of_all(value))

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """See ``tf.distribute.ReplicaContext``."""
        self._threads.gathered = True
        return tf.nest.map_structure(lambda *v: tf.concat(v, axis), *self._of_all(value))

    def _of_all(self, value: Any) -> list[Any]:
        self._exchanges += 1
        return self._threads.exchanged(self._exchanges, self._number, value)


class _Threads:
    """One runs at a time; where a replica needs the values of all, it waits for the others."""

    def __init__(self, replicas: int):
        self.replicas = replicas
        self.turn = threading.Condition()
        self.ended = self.gathered = False
        self._values: dict[int, dict[int, Any]] = {}

    def exchanged(self, number: int, replica: int, value: Any) -> list[Any]:
        """Return the values of all replicas, of the exchange ``number`` of each."""
        values = self._values.setdefault(number, {})
        values[replica] = value
        self.turn.notify_all()
        self.turn.wait_for(lambda: self.ended or len(values) == self.replicas)
        if len(values) < self.replicas:
            raise NotImplementedError("a replica exchanges values more often than another")
        return [values[each] for each in range(self.replicas)]


def side_by_side(
    replicas: int, function: Callable[[int], Any], reported: int
) -> tuple[list[Any], bool]:
    """Call ``function`` in each replica, with its number, in the graph that is built here.

    Args:
        replicas: how many there are.
        function: traced once for each.
        reported: how many TensorFlow says that there are: of workers that compute alone it says 1.

    Returns:
        What each returned, and whether they gathered something.

    Raises:
        Exception: what the first that failed has raised.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    graph.switch_to_thread_local()
    strategy, threads = _Strategy(reported), _Threads(replicas)
    returned: list[Any] = [None] * replicas
    errors: list[BaseException] = []

    def run(replica: int) -> None:
        with threads.turn:
            try:
                with graph.as_default(), tf.device("CPU:0"), _Replica(strategy, replica, threads):
                    returned[replica] = function(replica)
            except BaseException as error:
                errors.append(error)
            finally:
                threads.ended = True
                threads.turn.notify_all()

    workers = [threading.Thread(target=run, args=(each,), daemon=True) for each in range(replicas)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return returned, threads.gathered
