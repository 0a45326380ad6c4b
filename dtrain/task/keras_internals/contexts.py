"""What Keras keeps for all of a process: what layers are passed beside their arguments, and names.

A layer whose inside is computed a second time must be passed the same again (``hardware.remat``).
"""

from __future__ import annotations

import collections
import contextlib
import copy
from collections.abc import Iterator

import keras

from dtrain.task.aliases import Foreign, Options, Tensor
from dtrain.task.keras_internals.model import module, unknown

MODULE = "keras.src.backend.common.global_state"
#: The precision alone: ``None`` reads values as they are kept.
PRECISION = "autocast_scope"
#: Where Keras has modules that it imports when it needs them.
MODULES = "keras.src.utils.module_utils"
NAMES = ("current_call_ctx", PRECISION)
#: How often each name was given in this process: the second ``dense`` is ``dense_1``.
COUNTS = "object_name_uids"
SEEDS = "global_seed_generator"


def check() -> None:
    """Refuse a version of Keras that passes it in another way.

    Raises:
        TrainingError: saying so.
    """
    passed: list[Options] = []

    class Probe(keras.layers.Layer):
        def call(self, x: Tensor) -> Tensor:
            passed.extend(_state().get_global_attribute(name) for name in NAMES)
            return x

    state = _state()
    if all(hasattr(state, f"{verb}_global_attribute") for verb in ("get", "set")):
        Probe(dtype="mixed_bfloat16")(keras.ops.zeros([1]))
    if not passed or not all(passed):
        raise unknown("passes training and precision to layers", "leave hardware.remat empty")


def current() -> Options:
    """Return a copy of what a layer that is called now is passed."""
    return {name: copy.copy(_state().get_global_attribute(name)) for name in NAMES}


@contextlib.contextmanager
def replaced(values: Options) -> Iterator[None]:
    """Pass layers that are called inside these values."""
    state = _state()
    before = {name: state.get_global_attribute(name) for name in values}
    try:
        for name, value in values.items():
            state.set_global_attribute(name, value)
        yield
    finally:
        for name, value in before.items():
            state.set_global_attribute(name, value)


def exchange_seed_generator(generator: Foreign) -> Foreign:
    """Set what is drawn by in this thread without a seed, None: a new one; return what it was."""
    before = _state().get_global_attribute(SEEDS)
    _state().set_global_attribute(SEEDS, generator)
    return before


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Give layers that are made inside the names that they get in a process of their own."""
    with replaced({COUNTS: collections.defaultdict(int)}):
        yield


@contextlib.contextmanager
def without_tensorflow() -> Iterator[None]:
    """Let Keras do what it is asked inside for its own backend alone.

    It imports TensorFlow on any backend where that is installed, to seed it, say: seconds, and the
    memory. A version of Keras that looks for it in another way imports it.
    """
    lazy: Foreign = getattr(module(MODULES), "tensorflow", None)
    if not hasattr(lazy, "_available"):
        yield
        return
    before, lazy._available = lazy._available, False
    try:
        yield
    finally:
        lazy._available = before


def _state() -> Foreign:
    return module(MODULE)
