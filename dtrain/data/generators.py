"""The random generators of the process, kept apart: a read draws by its own key, a step by its own.

Those of NumPy, Python and PyTorch belong to the process, and threads read beside the steps. So each
draw of a thread that reads is noticed before it happens. From the first one to the end of the read
these generators are the read's, seeded by its key, and then what they were before. Such a read and
a step (:func:`stepping`) wait for each other. A read that draws nothing waits for none.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import random
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

#: Told of whoever takes the generators or returns them.
_turn = threading.Condition()
#: How many steps have them together: replicas, which take turns; and how many reads, nested ones.
_held = {"step": 0, "read": 0}
#: Of the experiment, for what is drawn where none is told.
run_seed = 0
#: By which something is drawn.
Key = tuple[int, ...]
#: What sets generators, with what they held.
States = list[tuple[Callable[[Any], Any], Any]]
_current = threading.local()


class Draws:
    """What is drawn by a key: in one read, or in those of a stream, one after the other.

    Args:
        key: whole numbers.
    """

    def __init__(self, key: Key):
        self.key = key
        self.states: States = []  # of the generators, after a read
        self.of_keras: Any = None


def exchange_keras(generator: Any) -> Any:
    """Set what Keras draws by in this thread, and return what it was; there is no Keras yet."""
    return generator


def reading_key() -> Key | None:
    """Return the key that this thread reads by."""
    draws = getattr(_current, "draws", None)
    return None if draws is None else draws.key


def _take(kind: str, other: str) -> None:
    own: dict[str, int] = vars(_current).setdefault("held", {"step": 0, "read": 0})
    with _turn:
        _turn.wait_for(
            lambda: _held[other] == own[other] and (kind == "step" or _held[kind] == own[kind])
        )
        _held[kind] += 1
        own[kind] += 1


def _return(kind: str) -> None:
    with _turn:
        _held[kind] -= 1
        _current.held[kind] -= 1
        _turn.notify_all()


def _forked() -> None:
    """Let a process that was forked wait for none of the threads that it does not have."""
    global _turn
    _turn = threading.Condition()
    _held.update(vars(_current).get("held", {"step": 0, "read": 0}))


os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def stepping() -> Iterator[None]:
    """Let a step have the generators inside, beside other steps and while no read draws."""
    _take("step", "read")
    try:
        yield
    finally:
        _return("step")


@contextlib.contextmanager
def reading(draws: Draws) -> Iterator[None]:
    """Let this thread draw inside as ``draws`` says, and leave the generators as they were."""
    watch()
    before = getattr(_current, "draws", None), getattr(_current, "outside", None)
    _current.draws, _current.outside = draws, None
    of_keras = exchange_keras(draws.of_keras)
    try:
        with _watching_torch():
            yield
    finally:
        draws.of_keras = exchange_keras(of_keras)
        if (outside := _current.outside) is not None:
            draws.states = _states()
            _put(outside)
            _return("read")
        _current.draws, _current.outside = before


def _begin() -> None:
    """Make the generators those of the read of this thread, if it reads; before each draw."""
    draws: Draws | None = getattr(_current, "draws", None)
    if draws is None or _current.outside is not None:
        return
    _take("read", "step")
    _current.outside = []  # ORDER: to look at the generators is no draw
    _current.outside = _states()
    if draws.states:
        _put(draws.states)
    else:
        seed(draws.key)


def seed(key: Key) -> None:
    """Seed the generators of the process; where nobody else draws."""
    np.random.seed(_words(key))
    random.seed(repr(key))
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(_hashed(key))


def seed_own(source: Any) -> None:
    """Seed the generators that a source holds by the key that this thread reads by."""
    for number, generator in enumerate(own_of(source)):
        key = (*(reading_key() or ()), number)
        if isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            bits.state = type(bits)(_words(key)).state
        elif isinstance(generator, np.random.RandomState):
            generator.seed(_words(key))
        elif isinstance(generator, random.Random):
            generator.seed(repr(key))
        elif hasattr(generator, "manual_seed"):
            generator.manual_seed(_hashed(key))
        else:  # Keras' SeedGenerator
            generator.state.assign([_hashed(key) >> 33, 0])


#: By the identity of a source, which is kept.
_own: dict[int, tuple[Any, list[Any]]] = {}
#: Objects of a source that are looked through, at most.
_MOST = 4096


def own_of(source: Any) -> list[Any]:
    """Return the generators that a source holds: in what it is made of, and in its module."""
    if id(source) in _own:
        return _own[id(source)][1]
    torch, keras = (sys.modules.get(name) for name in ("torch", "keras"))
    of_keras = getattr(getattr(keras, "random", None), "SeedGenerator", None)
    named = (random.Random, getattr(torch, "Generator", None), of_keras)
    kinds = (np.random.Generator, np.random.RandomState, *filter(None, named))
    shared = [getattr(draw, "__self__", None) for draw in (np.random.rand, random.random)]
    visited = {*map(id, shared), id(getattr(torch, "default_generator", None))}
    values, own = [source], []
    for value in values:  # it grows
        if id(value) in visited or isinstance(value, types.ModuleType | type):
            continue
        visited.add(id(value))
        parts: Iterable[Any] = ()
        if isinstance(value, kinds):
            own.append(value)
        elif isinstance(value, dict | list | tuple):
            parts = value.values() if isinstance(value, dict) else value
        else:
            scopes = (type(value), sys.modules.get(type(value).__module__))
            parts = [
                getattr(value, "__dict__", None),
                *(getattr(value, name, None) for name in ("__self__", "func", "args")),
                *(cell.cell_contents for cell in getattr(value, "__closure__", None) or ()),
                *(each for of in scopes if of for each in [*vars(of).values()]
                  if isinstance(each, kinds)),
            ]  # fmt: skip
        values += itertools.islice(parts, max(0, _MOST - len(values)))
    _own[id(source)] = source, own
    return own


def _words(key: Key) -> list[int]:
    return [word for each in key for word in (each % 2**32, each // 2**32 % 2**32)]


def _hashed(key: Key) -> int:
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest())


def _states() -> States:
    states: States = [
        (np.random.set_state, np.random.get_state()),
        (random.setstate, random.getstate()),
    ]
    if (torch := sys.modules.get("torch")) is not None:
        states.append((torch.default_generator.set_state, torch.default_generator.get_state()))
    return states


def _put(states: States) -> None:
    for put, state in states:
        put(state)


class _Lock:
    """Of NumPy's generator, which takes it before each draw."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # as NumPy: it seeds inside

    def __enter__(self) -> None:
        _begin()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_STATE: Any = np.random.MT19937.state


class MT19937(np.random.MT19937):
    """NumPy's generator; its states are compared by this name."""

    lock = _Lock()  # type: ignore[assignment]

    @property
    def state(self) -> Any:
        """What it holds."""
        _begin()
        return _STATE.__get__(self)

    @state.setter
    def state(self, value: Any) -> None:
        _begin()
        _STATE.__set__(self, value)

    def _legacy_seeding(self, seed: Any) -> None:
        _begin()
        super()._legacy_seeding(seed)


def _noticed(name: str) -> Callable[..., Any]:
    original = getattr(random.Random, name)

    @functools.wraps(original)
    def draw(self: Any, *args: Any, **options: Any) -> Any:
        _begin()
        return original(self, *args, **options)

    return draw


_DRAWING = ("random", "getrandbits", "gauss", "seed", "getstate", "setstate")
_Python = type("Random", (random.Random,), {name: _noticed(name) for name in _DRAWING})


@functools.cache
def watch() -> None:
    """Notice draws of this process from here on; before the user's code imports what draws."""
    state = np.random.get_state()
    np.random.set_bit_generator(MT19937())  # type: ignore[attr-defined]
    np.random.set_state(state)
    generator: Any = random.random.__self__  # type: ignore[attr-defined]
    generator.__class__ = _Python
    for name, value in list(vars(random).items()):
        if getattr(value, "__self__", None) is generator:
            setattr(random, name, getattr(generator, name))


def _watching_torch() -> contextlib.AbstractContextManager[Any]:
    torch = sys.modules.get("torch")
    if not hasattr(torch, "overrides"):  # it is not imported, or only now
        return contextlib.nullcontext()
    mode: contextlib.AbstractContextManager[Any] = _mode_of(torch)()
    return mode


@functools.cache
def _mode_of(torch: Any) -> type:
    """Return a context in which this thread notices draws of PyTorch's."""

    @functools.cache
    def draws(function: Any) -> bool:
        code = getattr(function, "__code__", None)  # of what PyTorch has in Python
        names = {function.__name__, *(() if code is None else code.co_names)}
        packets: list[Any] = [getattr(torch.ops.aten, name, None) for name in names]
        return any(
            torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags
            for packet in packets
            if hasattr(packet, "overloads")
            for overload in packet.overloads()
        )

    class Noticing(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if draws(function):
                _begin()
            return function(*args, **(kwargs or {}))

    class Generator:
        """That of ``torch.manual_seed``, ``torch.get_rng_state`` and the like."""

        def __getattr__(self, name: str) -> Any:
            _begin()
            return getattr(torch.default_generator, name)

    torch.random.default_generator = Generator()
    return Noticing
