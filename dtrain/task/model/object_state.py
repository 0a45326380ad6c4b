"""What plain objects hold, as JSON and arrays, and no pickle.

Kept is what ``copy.deepcopy`` would copy: arrays, tensors, variables and what has a ``state_dict``
by their numbers, any other object by what ``__reduce_ex__`` says of it. It is put back in place
where its like is there; else it is made, of a class that is allowed here or is beside that of its
owner. Functions and classes, and what is saved with the model, stay as they are.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np

from dtrain import secrets
from dtrain.errors import CheckpointError
from dtrain.files.fields import Json, JsonValue
from dtrain.task import keras_internals
from dtrain.task.aliases import Options, Variable
from dtrain.task.backends.runtime import runtime

#: Types of values that JSON has as they are.
PLAIN = (bool, int, float, str, type(None))
#: By which methods objects of libraries give their state, and take it.
_METHODS = {"state_dict": "load_state_dict", "get_state": "set_state"}
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, np.ufunc)
#: What a checkpoint may call: it makes values and does nothing else.
_MAKERS = re.compile(
    r"builtins:(list|dict|set|frozenset|int|float|str|complex|range|slice)|itertools:count"
    r"|collections:(deque|defaultdict|OrderedDict|Counter)|datetime:\w+|random:Random"
)
#: Packages whose other objects are not looked into.
_LIBRARIES = {*sys.stdlib_module_names, "keras", "tensorflow", "torch", "jax", "jaxlib", "numpy",
              "pandas"}  # fmt: skip
#: What an attribute holds: whatever the user's code or a library has put there.
Attribute: TypeAlias = Any
_AS_IT_IS: JsonValue = {"as": "it is"}
_ABSENT: Attribute = object()


class Owner(NamedTuple):
    """An object whose attributes are state.

    Attributes:
        object: which.
        values: what it holds now, by name.
        assign: sets one.
    """

    object: Attribute
    values: Options
    assign: Callable[[str, Attribute], None]


def owner(value: Any, without: Collection[str] = ()) -> Owner:
    """Return an object with its attributes, without some and those that are named like a secret."""
    values = {n: v for n, v in vars(value).items() if not (n in without or secrets.named(n))}
    return Owner(value, values, lambda name, new: vars(value).update({name: new}))


def is_state(kind: type, name: str, value: Attribute, current: Attribute = None) -> bool:
    """Say whether an attribute is state of an object, and no configuration and no method."""
    ours = inspect.getattr_static(kind, name, None)
    if name.startswith("__") or secrets.named(name) or callable(ours) or hasattr(ours, "__set__"):
        return False
    if not (isinstance(value, str) or isinstance(current, str)):
        return True
    of_keras = keras_internals.is_of_keras(kind)
    return not of_keras and name.lstrip("_") not in inspect.signature(kind).parameters


class Kept:
    """The attributes of some objects that change while they are used.

    Args:
        place: begins the names of the arrays that hold them.
        owners: returns the objects, by names that are the same in every process.
        shared: returns what is saved with the model, by identity.

    Attributes:
        lost: what changes, or may, and cannot be kept.
    """

    def __init__(
        self, place: str, owners: Callable[[], Mapping[str, Owner]],
        shared: Callable[[], Mapping[int, Attribute]],
    ):  # fmt: skip
        self._place, self._owners, self._shared = place, owners, shared
        self._before: dict[str, tuple[str, int]] = {}  # digests, and how much cannot be kept
        self.lost: set[str] = set()

    def begin(self) -> None:
        """Take note of what the objects hold as they were made: it need not be kept."""
        for path, packer, node in self._packed():
            self._before[path] = packer.digest(node), len(packer.lost)
            if any(map(inspect.isgenerator, packer.lost)):  # made anew, it begins anew
                self.lost.add(path.partition(" ")[2])

    def _packed(self) -> Iterator[tuple[str, _Packer, Json]]:
        owners = self._owners()
        # With the objects: another would have the identity of one that is gone.
        shared = {id(each.object): each.object for each in owners.values()}
        shared |= self._shared() if owners else {}
        for place, each in owners.items():
            for name, value in each.values.items():
                packer = _Packer(shared, type(each.object).__module__)
                node = packer.pack(value)
                if keras_internals.is_of_keras(type(each.object)):
                    packer.lost.clear()  # it is known what they make anew
                yield f"{place} {type(each.object).__qualname__}.{name}", packer, node

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what has changed."""
        arrays: dict[str, np.ndarray] = {}
        tree: Json = {}
        for path, packer, node in self._packed():
            before, made_anew = self._before.get(path, ("", 0))
            if before != packer.digest(node) and (packer.lost or node != _AS_IT_IS):
                tree[path] = node
                for i, array in enumerate(packer.arrays):
                    arrays[f"{self._place}/{path}/{i}"] = array.copy()  # training continues
                self.lost |= {path.partition(" ")[2]} if len(packer.lost) > made_anew else set()
        if tree:
            arrays[self._place] = np.frombuffer(json.dumps(tree).encode(), np.uint8)
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> set[str]:
        """Set the attributes to those of :meth:`arrays`, which may come from elsewhere.

        What the configuration says, such as a path to write to, is not replaced, nor a method.

        Returns:
            The names of objects that lack what they had then and what could not be kept.

        Raises:
            CheckpointError: they are something else.
        """
        lacking = set()
        try:
            tree = json.loads(arrays[self._place].tobytes()) if self._place in arrays else {}
            for place, each in self._owners().items():
                kind = type(each.object)
                head = f"{place} {kind.__qualname__}."
                for path in (path for path in tree if path.startswith(head)):
                    own = _Unpacker(f"{self._place}/{path}", arrays, kind.__module__)
                    if not own.assign(each, path.removeprefix(head), tree[path]):
                        lacking.add(place)
        except Exception as error:  # whatever an object says to a state that is not its own
            raise CheckpointError(f"{self._place} is damaged: {error}") from error
        return lacking


def _variables(value: Attribute) -> list[Variable] | None:
    """Return the variables of what is, or has, variables of Keras' or the framework's."""
    if isinstance(value, (*runtime().VARIABLES, keras.Variable)):
        return [value]
    if isinstance(value, keras.random.SeedGenerator):
        return [value.state]
    of_keras = keras.Layer | keras.Metric | keras.optimizers.Optimizer
    return list(value.variables) if isinstance(value, of_keras) else None


class _Packer:
    def __init__(self, shared: Collection[int], home: str):
        self.arrays: list[np.ndarray] = []
        self.lost: list[object] = []
        self._shared, self._home = shared, home
        # By identities, with the objects: another would have the identity of one that is gone.
        self._nodes: dict[int, tuple[object, Json, int]] = {}

    def digest(self, node: JsonValue) -> str:
        digest = hashlib.sha256(json.dumps([node, len(self.lost)]).encode())
        for array in self.arrays:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def pack(self, value: Attribute) -> JsonValue:
        if type(value) in PLAIN:
            return value
        variables = _variables(value) or [value]  # of a layer's seed, which the model has
        is_optimizer = isinstance(value, keras.optimizers.Optimizer) and id(value) in self._shared
        is_saved = is_optimizer or all(id(each) in self._shared for each in variables)
        if isinstance(value, _CODE) or is_saved:
            is_maker = isinstance(value, type) and _MAKERS.fullmatch(_name(value))
            return {"as": "class", "of": _name(value)} if is_maker else _AS_IT_IS
        if id(value) in self._nodes:  # each is looked into once, however many have it
            _, first, number = self._nodes[id(value)]
            return {"as": "same", "of": first.setdefault("id", number)}
        node: Json = {}
        self._nodes[id(value)] = value, node, len(self._nodes)
        try:
            node["as"], node["of"] = self._content(value)
        except Exception:  # whatever an object of the user's says
            self.lost.append(value)
            return _AS_IT_IS
        return node

    def _array(self, value: Attribute) -> int:
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
            raise TypeError(type(value))  # it has a mask, or is a file
        array = np.asarray(keras.ops.convert_to_numpy(value))
        no_number = array.dtype.kind in "cmMOSU" or array.dtype.name.startswith("void")
        if no_number or array.dtype.itemsize > 8:
            raise TypeError(array.dtype)
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _content(self, value: Attribute) -> tuple[str, JsonValue]:
        if (variables := _variables(value)) is not None:
            return "variables", [self._array(each) for each in variables]
        if isinstance(value, runtime().TENSORS):
            is_on_cpu = str(getattr(value, "device", "")) == "cpu"
            dtype = keras.backend.standardize_dtype(value.dtype)
            return "tensor", [self._array(value), dtype, is_on_cpu]
        if isinstance(value, np.ndarray | np.generic):
            return "array" if isinstance(value, np.ndarray) else "scalar", self._array(value)
        if isinstance(value, bytes):
            return "bytes", self._array(np.frombuffer(value, np.uint8))
        if isinstance(value, np.random.Generator):
            return "generator", self.pack(value.bit_generator.state)
        for get, put in _METHODS.items():
            if hasattr(value, get) and hasattr(value, put):
                return get, self.pack(getattr(value, get)())
        if type(value) is tuple:
            return "tuple", [self.pack(each) for each in value]
        if keras_internals.is_of_keras(type(value)):  # a list, dictionary or set of a layer
            value = next(kind for kind in (list, dict, set) if isinstance(value, kind))(value)
        reduced: Attribute = value.__reduce_ex__(4)
        function, args, state, items, pairs = (*reduced, None, None, None)[:5]
        is_new = function.__name__ == "__newobj__"  # of copyreg
        maker = _name(args[0] if is_new else function)
        if not _MAKERS.fullmatch(maker) and re.split(r"[.:]", maker)[0] in _LIBRARIES:
            raise TypeError(maker)
        is_beside = maker.startswith(f"{self._home}:") and (is_new or isinstance(value, enum.Enum))
        args = [self.pack(each) for each in args[is_new:]]
        if _AS_IT_IS in args or not (is_beside or _MAKERS.fullmatch(maker)):
            self.lost.append(value)  # it is put back where its like is, and not made
        plain = isinstance(state, dict) and not hasattr(value, "__setstate__")
        state = {k: v for k, v in state.items() if not secrets.named(k)} if plain else state
        return "made", [
            [maker, is_new, args],
            [plain, self.pack(state)],
            None if items is None else [self.pack(each) for each in items],
            None if pairs is None else [[self.pack(k), self.pack(v)] for k, v in pairs],
        ]


def _name(value: Attribute) -> str:
    return f"{value.__module__}:{value.__qualname__}"


class _Unpacker:
    def __init__(self, place: str, arrays: Mapping[str, np.ndarray], home: str):
        self._array = lambda index: arrays[f"{place}/{index}"].copy()
        self._home = home
        self._same: dict[int, Attribute] = {}

    def assign(self, each: Owner, name: str, node: JsonValue) -> bool:
        """Set an attribute; say whether there is something to set it to."""
        current = each.values.get(name, _ABSENT)
        value = self.unpack(node, current)
        if value is not _ABSENT and is_state(type(each.object), name, value, current):
            each.assign(name, value)
        return value is not _ABSENT

    def unpack(self, node: JsonValue, current: Attribute = _ABSENT) -> Attribute:
        if not isinstance(node, dict) or node == _AS_IT_IS:
            return current if node == _AS_IT_IS else node
        if node["as"] == "same":
            return self._same.get(node["of"], current)
        if node["as"] == "made":
            return self._made(node["of"], current, node.get("id"))
        value = self._unpacked(node["as"], node["of"], current)
        if "id" in node and value is not _ABSENT:
            self._same[node["id"]] = value
        return value

    def _unpacked(self, kind: str, content: JsonValue, current: Attribute) -> Attribute:
        if kind == "class":
            return self._maker(content)
        if kind in ("array", "scalar", "bytes"):
            array = self._array(content)
            return array.tobytes() if kind == "bytes" else array if kind == "array" else array[()]
        if kind == "tensor":
            return self._tensor(content, current)
        if kind == "tuple":
            return tuple(self._rows(content, current))
        if kind == "generator":
            state = self.unpack(content)
            if current is _ABSENT:
                of_bits = getattr(np.random, state["bit_generator"])
                if not issubclass(of_bits, np.random.BitGenerator):
                    raise TypeError(of_bits)
                current = np.random.Generator(of_bits())
            current.bit_generator.state = state
        elif current is not _ABSENT and kind == "variables":
            for variable, index in zip(_variables(current) or (), content, strict=True):
                variable.assign(self._array(index))
        elif current is not _ABSENT:
            getattr(current, _METHODS[kind])(self.unpack(content))
        return current

    def _tensor(self, content: JsonValue, current: Attribute) -> Attribute:
        index, dtype, is_on_cpu = content
        with runtime().on_cpu() if is_on_cpu else contextlib.nullcontext():
            new = keras.ops.convert_to_tensor(self._array(index), dtype)
        if hasattr(current, "copy_") and current.shape == new.shape and current.dtype == new.dtype:
            current.detach().copy_(new)  # others may hold it
            return current
        return new

    def _rows(self, rows: list[int], current: Attribute) -> list[Attribute]:
        olds = [*(current if isinstance(current, list | tuple) else ()), *[_ABSENT] * len(rows)]
        new = [self.unpack(row, old) for row, old in zip(rows, olds, strict=False)]
        return [None if value is _ABSENT else value for value in new]

    def _maker(self, name: str) -> Attribute:
        """Return what a checkpoint may call; None of all else."""
        module, _, path = name.partition(":")
        value: Attribute = sys.modules.get(module)
        for part in path.split("."):
            value = getattr(value, part, None)
        ours = module == self._home and isinstance(value, type) and _name(value) == name
        return value if ours or _MAKERS.fullmatch(name) else None

    def _made(self, content: JsonValue, current: Attribute, number: int | None) -> Attribute:
        (name, is_new, args), state, items, pairs = content
        is_like = name in map(_name, type(current).__mro__)
        changes = (state[1], items, pairs) != (None, None, None) or (is_new and not args)
        if not (is_like and changes):
            maker = type(current) if name == _name(type(current)) else self._maker(name)
            is_enum = isinstance(maker, enum.EnumType)  # of which it is one that is there
            if maker is None or not (is_new or is_enum or _MAKERS.fullmatch(name)):
                return current
            args = [self.unpack(each) for each in args]
            if any(each is _ABSENT for each in args):
                return current
            current = maker.__new__(maker, *args) if is_new else maker(*args)
        if number is not None:
            self._same[number] = current  # what it has may have it
        if state[0]:
            for key, value in self.unpack(state[1], dict(vars(current))).items():
                if is_state(type(current), key, value, vars(current).get(key)):
                    object.__setattr__(current, key, value)
        elif state[1] is not None:
            current.__setstate__(self.unpack(state[1]))
        if items is not None:
            new = self._rows(items, current)
            current.clear()
            current.extend(new)
        if pairs is not None:
            keys = [self.unpack(key) for key, _ in pairs]
            olds = [current.get(key, _ABSENT) for key in keys]
            new = [self.unpack(row[1], old) for row, old in zip(pairs, olds, strict=True)]
            current.clear()
            for key, value in zip(keys, new, strict=True):
                if value is not _ABSENT:
                    current[key] = value
        return current
