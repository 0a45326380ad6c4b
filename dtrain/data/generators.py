"""The random generators of the process, kept apart: a read draws by its own key, a step by its own.

Those of NumPy, Python and PyTorch belong to the process, and threads read beside the steps. So each
draw is noticed before it happens: the generators then hold what the thread that draws has, seeded
by the key of its read, and what the others have is put aside. A read that draws nothing costs
nothing. What PyTorch draws in a step is not noticed: a read that draws by PyTorch waits for it.
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
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
#: What a library's generator is, or holds.
State = Any
#: Held while something is drawn by NumPy or Python.
_lock = threading.RLock()
#: Held while a read draws by PyTorch, which waits for the steps.
_turn = threading.Condition()
_steps = 0
#: The seed of the experiment, for draws outside of a batch.
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
        self.states: tuple[State, State] | None = None  # of NumPy's and Python's, while put aside
        self.of_torch: State = None
        self.of_keras: State = None

    @property
    def began(self) -> bool:
        """Whether anything was drawn, after a read."""
        return self is _owner or self.states is not None or self.of_torch is not None


#: Of all threads that do not read.
_outside = Draws(())
#: Whose states the generators of NumPy and Python hold.
_owner = _outside


def exchange_keras(generator: State) -> State:
    """Set what Keras draws by in this thread, and return what it was; there is no Keras yet."""
    return generator


def reading_key() -> Key | None:
    """Return the key that this thread reads by."""
    draws = getattr(_current, "draws", None)
    return None if draws is None else draws.key


def _forked() -> None:
    """Let a process that was forked wait for none of the threads that it does not have."""
    global _lock, _turn, _steps
    _lock, _turn = threading.RLock(), threading.Condition()
    _steps = getattr(_current, "steps", 0)


os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def stepping() -> Iterator[None]:
    """Let no read draw by PyTorch beside the step inside."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(steps: int) -> None:
    global _steps
    with _turn:
        _steps += steps
        _current.steps = getattr(_current, "steps", 0) + steps
        _turn.notify_all()


@contextlib.contextmanager
def reading(draws: Draws) -> Iterator[None]:
    """Let this thread draw inside as ``draws`` says, and as before afterwards."""
    watch()
    before = getattr(_current, "draws", None)
    _current.draws = draws
    of_keras = exchange_keras(draws.of_keras)
    try:
        with _watching_torch():
            yield
    finally:
        draws.of_keras = exchange_keras(of_keras)
        _current.draws = before  # whoever draws next sets the generators


def _switch() -> None:
    """Make the generators of NumPy and Python those of this thread; :data:`_lock` is held."""
    global _owner
    draws: Draws = getattr(_current, "draws", None) or _outside
    if draws is not _owner:
        # ORDER: to look at the generators comes here again.
        before, _owner = _owner, draws
        before.states = random.getstate(), np.random.get_state()
        if draws.states is None:
            _seed(draws.key)
        else:
            random.setstate(draws.states[0])
            np.random.set_state(draws.states[1])


def _by_torch(function: Callable[..., T], *args: object, **options: object) -> T:
    """Call what draws by PyTorch's generator, which is this thread's meanwhile, if it reads."""
    draws = getattr(_current, "draws", None)
    if draws is None:
        return function(*args, **options)
    generator = sys.modules["torch"].default_generator
    with _turn:
        _turn.wait_for(lambda: _steps == getattr(_current, "steps", 0))
        outside = generator.get_state()
        if draws.of_torch is None:
            generator.manual_seed(_hashed(draws.key))
        else:
            generator.set_state(draws.of_torch)
        _current.draws = None  # ORDER: a read inside of a read notices each draw twice
        try:
            return function(*args, **options)
        finally:
            _current.draws = draws
            draws.of_torch = generator.get_state()
            generator.set_state(outside)


def _seed(key: Key) -> None:
    np.random.seed(_words(key))
    random.seed(repr(key))


def seed_own(source: object) -> None:
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


#: By the identity of a source, of which a weak reference is kept where it has any.
_own: dict[int, tuple[object, list[State]]] = {}
#: Objects of a source that are looked through, at most; and of one list, which may be of examples.
_MOST, _OF_LIST = 2**14, 1024
#: What holds no generator.
_PLAIN = types.ModuleType | type | str | bytes | int | float | np.ndarray | None


def own_of(source: object) -> list[State]:
    """Return the generators that a source holds: in what it is made of, and in its module."""
    number = id(source)
    if number in _own:
        return _own[number][1]
    torch, keras = (sys.modules.get(name) for name in ("torch", "keras"))
    of_keras = getattr(getattr(keras, "random", None), "SeedGenerator", None)
    named = (random.Random, getattr(torch, "Generator", None), of_keras)
    kinds = (np.random.Generator, np.random.RandomState, *filter(None, named))
    shared = [getattr(draw, "__self__", None) for draw in (np.random.rand, random.random)]
    visited = {*map(id, shared), id(getattr(torch, "default_generator", None))}
    values, own = [source], []
    for value in itertools.islice(values, _MOST):  # it grows
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, kinds):
            own.append(value)
        else:
            parts = itertools.islice(_parts(value, kinds), _OF_LIST)
            values += [part for part in parts if not isinstance(part, _PLAIN)]
    try:
        kept: object = weakref.ref(source, lambda _: _own.pop(number, None))
    except TypeError:
        kept = source
    _own[number] = kept, own
    return own


def _parts(value: object, kinds: tuple[type, ...]) -> Iterable[object]:
    """Return what an object is made of; none of the user's code runs."""
    if isinstance(value, dict | list | tuple):
        return value.values() if isinstance(value, dict) else value
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    parts, scopes = [], [vars(type(value)), vars(sys.modules.get(type(value).__module__, types))]
    if isinstance(value, types.FunctionType):
        scopes.append(value.__globals__)
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                parts.append(cell.cell_contents)
    with contextlib.suppress(AttributeError):
        parts.append(object.__getattribute__(value, "__dict__"))
    return [*parts, *(each for of in scopes for each in [*of.values()] if isinstance(each, kinds))]


def _words(key: Key) -> list[int]:
    return [word for each in key for word in (each % 2**32, each // 2**32 % 2**32)]


def _hashed(key: Key) -> int:
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest())


class _Lock:
    """Of NumPy's generator, which takes it before each draw."""

    def __enter__(self) -> None:
        _lock.acquire()  # again, as NumPy: it seeds inside
        _switch()

    def __exit__(self, *_: object) -> None:
        _lock.release()


_STATE: Any = np.random.MT19937.state


class MT19937(np.random.MT19937):
    """NumPy's generator; its states are compared by this name."""

    # NumPy's types name its own lock, which any context manager may replace.
    lock = _Lock()  # type: ignore[assignment]

    @property
    def state(self) -> State:
        """What it holds."""
        with self.lock:
            return _STATE.__get__(self)

    @state.setter
    def state(self, value: State) -> None:
        with self.lock:
            _STATE.__set__(self, value)

    def _legacy_seeding(self, seed: Any) -> None:
        with self.lock:
            super()._legacy_seeding(seed)


def _noticed(original: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(original)
    def draw(*args: object, **options: object) -> T:
        with MT19937.lock:
            return original(*args, **options)

    return draw


class Python(random.Random):
    """Python's generator."""


for _name in ("random", "getrandbits", "gauss", "seed", "getstate", "setstate"):
    setattr(Python, _name, _noticed(getattr(random.Random, _name)))


@functools.cache
def watch() -> None:
    """Notice draws of this process from here on; before the user's code imports what draws."""
    state = np.random.get_state()
    # NumPy's types lack the function, and Python's that a method knows its object.
    np.random.set_bit_generator(MT19937())  # type: ignore[attr-defined]
    np.random.set_state(state)
    for name in ("seed", "get_state", "set_state"):  # of more than NumPy's lock is for
        setattr(np.random, name, _noticed(getattr(np.random, name)))
    generator: Any = random.random.__self__  # type: ignore[attr-defined]
    generator.__class__ = Python
    for name, value in list(vars(random).items()):
        if getattr(value, "__self__", None) is generator:
            setattr(random, name, getattr(generator, name))


def _watching_torch() -> contextlib.AbstractContextManager[object]:
    torch = sys.modules.get("torch")
    if not hasattr(torch, "overrides"):  # it is not imported, or only now
        return contextlib.nullcontext()
    return _mode_of(torch)()


@functools.cache
def _mode_of(torch: Any) -> type:
    """Return a context in which this thread notices draws of PyTorch's."""

    @functools.cache
    def draws(function: Callable[..., object]) -> bool:
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
            self, function: Callable[..., T], types: object, args: tuple[object, ...] = (),
            kwargs: dict[str, object] | None = None,
        ) -> T:  # fmt: skip
            call = functools.partial(_by_torch, function) if draws(function) else function
            return call(*args, **(kwargs or {}))

    class Generator:
        """That of ``torch.manual_seed``, ``torch.get_rng_state`` and the like."""

        def __getattr__(self, name: str) -> object:
            value = getattr(torch.default_generator, name)
            return functools.partial(_by_torch, value) if callable(value) else value

    torch.random.default_generator = Generator()
    return Noticing
