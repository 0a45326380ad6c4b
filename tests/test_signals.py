from __future__ import annotations

import os
import signal
from typing import Any

import pytest


@pytest.mark.task
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_is_told_once(number: signal.Signals) -> None:
    from dtrain.task.process.signals import Stop

    told: list[Any] = []
    stop = Stop(tell=lambda: told.append(number))
    stop.install()
    stop.install()  # as after a strategy that puts in handlers of its own
    assert not stop()
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
    assert stop()
    assert told == [number]


@pytest.mark.task
def test_a_signal_is_told_while_tensorflow_waits() -> None:
    """No handler in Python can run: the main thread is in a call that does not end."""
    import threading

    import tensorflow as tf

    from dtrain.task.process.signals import Stop

    queue = tf.queue.FIFOQueue(1, [tf.int32])
    told = threading.Event()

    def tell() -> None:
        told.set()
        queue.enqueue(7)  # the call ends only because the signal was told

    stop = Stop(tell)
    stop.install()
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert int(queue.dequeue()) == 7
    assert told.is_set() and stop()


@pytest.mark.task
def test_other_signals_are_none_to_stop() -> None:
    from dtrain.task.process.signals import Stop

    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    stop = Stop(tell=lambda: seen.append(2))
    stop.install()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert (seen, stop()) == ([1], False)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop()
