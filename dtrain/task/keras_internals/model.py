"""What is inside of models and variables, and how a private name is looked up."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import types
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from dtrain.errors import TrainingError
from dtrain.host.packages import version
from dtrain.task.aliases import Foreign, Function, Tensor, Variable
from dtrain.task.backends.runtime import runtime

#: What to do instead where several replicas need a name.
ONE_REPLICA = "train on one replica (strategy=one_device)"


def unknown(what: str, instead: str = "", package: str = "keras") -> TrainingError:
    """Return the refusal of a version that does ``what`` in another way.

    Args:
        what: such as ``keeps the masks of tensors``.
        instead: what the user may do with this version, if there is anything.
        package: whose version it is.
    """
    name = {"keras": "Keras", "tensorflow": "TensorFlow"}[package]
    known = f"{'or with ' if instead else 'use '}the {name} of constraints.txt"
    hint = f"{instead}, {known}" if instead else known
    return TrainingError(
        f"{name} {version(package)} {what} in a way that dtrain does not know; {hint}"
    )


def module(name: str) -> Foreign:
    """Return a module, None where there is none of this name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def parameters(function: object) -> list[str] | None:
    """Return the names of a function's parameters, None of what is no function."""
    return list(inspect.signature(function).parameters) if callable(function) else None


def function(owner: object, name: str, expected: Sequence[str]) -> Function | None:
    """Return a function of ``owner`` with these parameters, None where it has no such one."""
    attribute: Foreign = getattr(owner, name, None)
    return attribute if parameters(attribute) == list(expected) else None


#: How far inside of the attributes of a layer variables are looked for, and in what not: layers
#: are looked through by themselves, optimizers are saved, metrics begin again.
DEPTH = 4
PASSED_OVER = (
    keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric,
    type, types.FunctionType, types.MethodType, types.ModuleType,
)  # fmt: skip


def is_of_keras(value: object) -> bool:
    """Whether an object, or a class or function, is Keras' own."""
    return str(getattr(value, "__module__", "")).startswith("keras.")


def layers(model: keras.Layer) -> list[keras.Layer]:
    """Return a model and all layers in it; Keras' public list has the outermost alone.

    Raises:
        TrainingError: this version of Keras holds them in another way.
    """
    return _flattened(model)


def inner(layer: keras.Layer) -> list[keras.Layer]:
    """Return the layers that a layer holds itself, without those inside of them.

    Keras' public ``layers`` is of models alone.

    Raises:
        TrainingError: this version of Keras holds them in another way.
    """
    return _flattened(layer, include_self=False, recursive=False)


def _flattened(layer: keras.Layer, **options: bool) -> list[keras.Layer]:
    function = getattr(layer, "_flatten_layers", None)
    if function is None:
        raise unknown("holds the layers inside of a layer")
    return list(function(**options))


def of_own_classes(model: keras.Model) -> list[keras.Variable]:
    """Return the variables of layers and models whose class is not Keras' own, seeds left out.

    What Keras' own layers keep is known; these may keep anything.
    """
    variables: dict[int, keras.Variable] = {}
    for layer in layers(model):
        if is_of_keras(layer):
            continue
        inside = {id(v) for part in _flattened(layer, include_self=False) for v in part.variables}
        for variable in layer.variables:
            if id(variable) not in inside and variable.dtype != "string":
                variables[id(variable)] = variable
    return [v for v in variables.values() if "seed_generator_state" not in v.name]


def plain_variables(model: keras.Model) -> list[tuple[str, Variable]]:
    """Return variables that Keras has in no list, with their names: ``layer name/attribute``.

    The framework's own among the attributes of layers, and any in lists, dictionaries and plain
    objects that layers hold: ``layer name/attribute/attribute``.
    """
    kinds = runtime().VARIABLES
    return [(path, value) for path, value in _held(model) if isinstance(value, kinds)]


def trainable_inside(loss: Foreign) -> list[tuple[str, Variable]]:
    """Return what a loss holds, or a function looks up, that could be trained; with its names."""
    function = getattr(loss, "func", getattr(loss, "function", loss))  # of a partial, and torch's
    roots = {"": function}
    if isinstance(function, types.FunctionType):
        names = inspect.getclosurevars(function)
        roots = {**names.nonlocals, **names.globals, **getattr(loss, "keywords", {})}
    kinds = (keras.Layer, *runtime().VARIABLES, *runtime().TENSORS)
    held: dict[int, tuple[str, Variable]] = {}
    for name, root in roots.items():
        # A module has the modules inside of it in a dictionary.
        for path, value in _inside(name, root, kinds, 2 * DEPTH, set()):
            for each in value.trainable_variables if isinstance(value, keras.Layer) else [value]:
                leaf = getattr(each, "is_leaf", False) and getattr(each, "requires_grad", False)
                if getattr(each, "trainable", leaf):
                    held.setdefault(id(each), (path, each))
    return list(held.values())


def generator_states(model: keras.Model) -> list[tuple[str, Variable]]:
    """Return the states of generators (``tf.random.Generator``), as :func:`plain_variables`."""
    return [
        (f"{path}/state", value.state)
        for path, value in _held(model)
        if isinstance(value, runtime().GENERATORS)
    ]


def _held(model: keras.Model) -> list[tuple[str, Foreign]]:
    """Return what layers of the user's hold: variables that Keras does not know, and generators."""
    of_keras = {id(v) for v in (*model.variables, *states(model))}
    held: dict[int, tuple[str, Foreign]] = {}
    visited: set[int] = set()
    kinds = (*runtime().VARIABLES, *runtime().GENERATORS)
    for layer in layers(model):
        if not is_of_keras(layer):
            for name, attribute in attributes(layer):
                for path, value in _inside(
                    f"{layer.name}/{name}", attribute, kinds, DEPTH, visited
                ):
                    if id(value) not in of_keras:
                        held.setdefault(id(value), (path, value))
    return list(held.values())


def _inside(
    path: str, value: Foreign, kinds: tuple[type, ...], depth: int, visited: set[int]
) -> Iterator[tuple[str, Foreign]]:
    """Yield what an object holds of some kinds, with its names."""
    if isinstance(value, kinds):
        yield path, value
    elif depth and id(value) not in visited:
        visited.add(id(value))
        for name, item in _items(value):
            yield from _inside(f"{path}/{name}".lstrip("/"), item, kinds, depth - 1, visited)


def _items(value: object) -> list[tuple[Any, object]]:
    """Return what is inside of a collection, or of an object of no library of ours."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if isinstance(value, keras.random.SeedGenerator):
        return [("state", value.state)]
    library = type(value).__module__.partition(".")[0] in ("keras", "tensorflow", "numpy")
    if library or isinstance(value, PASSED_OVER) or not hasattr(value, "__dict__"):
        return []
    return attributes(value)


def attributes(value: object) -> list[tuple[str, object]]:
    """Return what an object holds; last what libraries keep there under names of their own."""
    return sorted(vars(value).items(), key=lambda item: (item[0][0] == "_", item[0]))


def states(model: keras.Model) -> list[keras.Variable]:
    """Return what stateful recurrent layers carry on to the next batch, ``[batch, ...]`` each.

    Keras has them among the variables of neither the layer nor the model.
    """
    carried: dict[int, keras.Variable] = {}
    for layer in layers(model):
        if getattr(layer, "stateful", False):
            for state in keras.tree.flatten(getattr(layer, "states", None)):
                if isinstance(state, keras.Variable):
                    carried[id(state)] = state
    listed = {id(variable) for variable in model.variables}
    return [state for key, state in carried.items() if key not in listed]


def loss_trackers(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return the trackers of the losses of each of several outputs, which Keras makes.

    They are among the model's metrics, where nothing tells them from a tracker of the user's.

    Raises:
        TrainingError: this version of Keras holds them in another way.
    """
    compiled = getattr(model, "_compile_loss", model)
    if compiled is None:  # it has no loss
        return []
    metrics = getattr(compiled, "metrics", None)
    if compiled is model or metrics is None:
        raise unknown("makes trackers of losses")
    return [metric for metric in metrics if isinstance(metric, keras.metrics.Mean)]


VARIABLES = "keras.src.backend.common.variables"


def stored(variable: keras.Variable) -> Variable:
    """Return what a variable of Keras' is stored in.

    Raises:
        TrainingError: this version of Keras stores it in another way.
    """
    value = getattr(variable, "_value", None)
    if value is None:
        raise unknown("stores variables")
    return value


def exchange(variable: keras.Variable, other: Variable) -> None:
    """Store a variable of Keras' in another of the framework's.

    Keras cannot be told where that is to be, or of which kind.

    Raises:
        TrainingError: this version of Keras stores it in another way.
    """
    stored(variable)
    variable._value = other


@contextlib.contextmanager
def exchanged(variables: Sequence[keras.Variable], others: Sequence[Variable]) -> Iterator[None]:
    """Store variables of Keras' in others of the framework's inside, wherever these are.

    Raises:
        TrainingError: this version of Keras stores them in another way.
    """
    before = [(stored(variable), getattr(variable, "_layout", None)) for variable in variables]
    try:
        for variable, other in zip(variables, others, strict=True):
            exchange(variable, other)
            variable._layout = None  # on JAX; else what is assigned goes where it was before
        yield
    finally:
        for variable, (value, layout) in zip(variables, before, strict=True):
            exchange(variable, value)
            variable._layout = layout


def initialize() -> None:
    """Give a value to the variables that were made in a ``keras.StatelessScope``.

    Raises:
        TrainingError: this version of Keras does it in another way.
    """
    function = getattr(module(VARIABLES), "initialize_all_variables", None)
    if function is None:
        raise unknown("makes variables in a StatelessScope")
    function()


#: A metric that is updated away from the model needs the mask of its arguments.
MASKING = "keras.src.backend.common.masking"


def mask(tensor: Tensor) -> Tensor:
    """Return the mask that a layer has put on a tensor, None where there is none.

    Raises:
        TrainingError: this version of Keras keeps masks in another way.
    """
    return _masking("get_keras_mask", ["x"])(tensor)


def set_mask(tensor: Tensor, mask: Tensor) -> None:
    """Put a mask on a tensor, as a layer does; losses and metrics look for it there.

    Raises:
        TrainingError: this version of Keras keeps masks in another way.
    """
    _masking("set_keras_mask", ["x", "mask"])(tensor, mask)


def _masking(name: str, expected: list[str]) -> Function:
    getter = function(module(MASKING), name, expected)
    if getter is None:
        raise unknown("keeps the masks of tensors", ONE_REPLICA)
    return getter
