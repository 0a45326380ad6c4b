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
import os
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
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
_current = threading.local()


class Draws:
    """What is drawn by a key: in one read, or in those of a stream, one after the other.

    Args:
        key: whole numbers.
    """

    def __init__(self, key: Key):
        self.key = key
        self.states: list[tuple[Callable[[Any], Any], Any]] = []  # of the generators, after a read
        self.of_keras: Any = None


def exchange_keras(generator: Any) -> Any:
    """Set what Keras draws by in this thread, and return what it was; there is no Keras yet."""
    return generator


def reading_key() -> Key | None:
    """Return the key that this thread reads by."""
    draws = getattr(_current, "draws", None)
    return None if draws is None else draws.key


def _take(kind: str, other: str) -> None:
    own: dict[str, int] = vars(_current).setdefault("held", dict.fromkeys(_held, 0))
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
    key = reading_key() or ()
    for number, generator in enumerate(own_of(source)):
        words = [*_words(key), number]
        if isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            bits.state = type(bits)(words).state
        elif isinstance(generator, np.random.RandomState):
            generator.seed(words)
        elif isinstance(generator, random.Random):
            generator.seed(repr((key, number)))
        elif hasattr(generator, "manual_seed"):
            generator.manual_seed(_hashed((*key, number)))
        else:  # Keras' SeedGenerator
            generator.state.assign([_hashed((*key, number)) >> 33, 0])


#: By the identity of a source, which is kept.
_own: dict[int, tuple[Any, list[Any]]] = {}


def own_of(source: Any) -> list[Any]:
    """Return the generators that a source holds: in what it is made of, and in its modules."""
    if id(source) in _own:
        return _own[id(source)][1]
    torch, keras = (sys.modules.get(name) for name in ("torch", "keras"))
    kinds: list[Any] = [np.random.Generator, np.random.RandomState, random.Random]
    kinds += [torch.Generator] if hasattr(torch, "Generator") else []
    kinds += [keras.random.SeedGenerator] if hasattr(keras, "random") else []
    shared = [getattr(each, "__self__", None) for each in (np.random.rand, random.random)]
    visited = {id(each): each for each in (*shared, getattr(torch, "default_generator", None))}
    own: list[Any] = []

    def walk(value: Any, depth: int) -> None:
        if id(value) in visited or not depth or len(visited) > _MOST:
            return
        visited[id(value)] = value
        if isinstance(value, tuple(kinds)):
            own.append(value)
            return
        if isinstance(value, types.ModuleType | type):
            return
        items: list[Any] = []
        if isinstance(value, dict | list | tuple | set):
            items += value.values() if isinstance(value, dict) else value
        else:
            items += getattr(value, "__dict__", {}).values()
            items += [getattr(value, name, None) for name in ("__self__", "func", "args")]
            items += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
            scopes = (*type(value).__mro__, sys.modules.get(getattr(value, "__module__", "")))
            items += [
                each for scope in scopes if scope is not None
                for each in list(vars(scope).values()) if isinstance(each, tuple(kinds))
            ]  # fmt: skip
        for item in items[:_MOST]:
            walk(item, depth - 1)

    walk(source, 12)
    _own[id(source)] = source, own
    return own


#: Objects of a source that are looked through, at most.
_MOST = 4096


def _words(key: Key) -> list[int]:
    return [word for each in key for word in (each % 2**32, each // 2**32 % 2**32)]


def _hashed(key: Key) -> int:
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest())


def _states() -> list[tuple[Callable[[Any], Any], Any]]:
    states = [(np.random.set_state, np.random.get_state()), (random.setstate, random.getstate())]
    if (torch := sys.modules.get("torch")) is not None:
        states.append((torch.default_generator.set_state, torch.default_generator.get_state()))
    return states


def _put(states: list[tuple[Callable[[Any], Any], Any]]) -> None:
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


class MT19937(np.random.MT19937):
    """NumPy's generator; its states are compared by this name."""

    lock = _Lock()

    @property
    def state(self) -> Any:
        """What it holds."""
        _begin()
        return np.random.MT19937.state.__get__(self)

    @state.setter
    def state(self, value: Any) -> None:
        _begin()
        np.random.MT19937.state.__set__(self, value)

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
    np.random.set_bit_generator(MT19937())
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
        packets = [getattr(torch.ops.aten, name, None) for name in names]
        return any(
            torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags
            for packet in packets
            if hasattr(packet, "overloads")
            for overload in packet.overloads()
        )

    class Noticing(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
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
