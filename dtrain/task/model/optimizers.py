"""All optimizers of a model: that of ``compile``, and those that a class of the user's own adds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from dtrain.errors import UsageError
from dtrain.task.backends.step_logs import has_own, unwrapped

if TYPE_CHECKING:
    from dtrain.task.backends.base import Backend


def named(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """Return the optimizers of a model, each once, by paths that are the same in every process.

    ``optimizer`` is that of ``compile``. Any other has the path of attributes, indices and keys
    that lead to it: ``d_optimizer``, ``optimizers/0``, ``generator/optimizer``. Of those only the
    ones that have been built have a state.
    """
    found: dict[str, keras.optimizers.Optimizer] = {}
    if model.optimizer is not None:
        found["optimizer"] = model.optimizer
    known = {id(optimizer) for optimizer in found.values()}
    for path, optimizer in _walk(model, "", set()):
        if id(optimizer) not in known:
            known.add(id(optimizer))
            found[path] = optimizer
    return found


def held(optimizer: keras.optimizers.Optimizer) -> dict[str, keras.optimizers.Optimizer]:
    """Return the optimizers inside of one, by paths as of :func:`named`.

    A loss scale optimizer has one; one of a user's own may have several.
    """
    found: dict[int, tuple[str, keras.optimizers.Optimizer]] = {}
    # TensorFlow's own lists of what an object has come last, as of `_walk`.
    for name, value in sorted(vars(optimizer).items(), key=lambda i: (i[0][0] == "_", i[0])):
        for path, inner in _walk(value, name, set()):
            found.setdefault(id(inner), (path, inner))
    return dict(found.values())


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, keras.optimizers.Optimizer):
        yield path, value
        return
    if isinstance(value, keras.Layer):
        # Keras' own lists of layers come last: a layer has the name of its attribute where it can.
        items: Any = sorted(vars(value).items(), key=lambda item: (item[0][0] == "_", item[0]))
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return
    if id(value) not in seen:
        seen.add(id(value))
        for name, item in items:
            yield from _walk(item, f"{path}/{name}" if path else str(name), seen)


def build(model: keras.Model, strategy: Backend, example: tuple[Any, ...]) -> None:
    """Make the slots of all optimizers, and prepare them all for the strategy's replicas.

    Which variables an optimizer other than that of ``compile`` updates is known only to the
    model's ``train_step``. It is traced once for that, and nothing of it is run: made by the first
    step, the slots would be too late for a checkpoint, and replicas may make no variables.

    Args:
        model: built and compiled.
        strategy: it runs on; inside its :meth:`~Strategy.optimizer_scope`.
        example: one, as the input gives it.

    Raises:
        UsageError: the strategy is not for several optimizers.
    """
    everything = named(model)
    main = everything.pop("optimizer", None)
    if main is not None:
        main.build(model.trainable_variables)
    if everything and has_own(model, "train_step"):
        for optimizer, variables in _applied(model, strategy, example):
            if not optimizer.built:
                optimizer.build(variables)
    others = {path: optimizer for path, optimizer in everything.items() if optimizer.built}
    if others and not strategy.abilities.several_optimizers:
        raise UsageError(
            "strategy", type(strategy).__name__,
            f"the model has more than one optimizer ({', '.join(others)}), and only that of "
            "compile would be right on it",
            "default, one_device, mirrored, central_storage or multiworker", "strategy=mirrored",
        )  # fmt: skip
    for optimizer in (main, *others.values()):
        if optimizer is not None:
            strategy.prepare(optimizer)


def _applied(
    model: keras.Model, strategy: Backend, example: tuple[Any, ...]
) -> list[tuple[keras.optimizers.Optimizer, list[keras.Variable]]]:
    """Return the optimizers that ``train_step`` applies, each with the variables that it gets."""
    with caught(model) as applied:
        step = tf.function(lambda data: strategy.run(model.train_step, data), autograph=False)
        data = unwrapped(tuple(tf.convert_to_tensor(part) for part in example))
        step.get_concrete_function(data)
    return [(optimizer, list(variables.values())) for optimizer, variables in applied if variables]


@contextlib.contextmanager
def caught(
    model: keras.Model, note: Callable[[list[Any], list[keras.Variable]], None] | None = None
) -> Iterator[list[tuple[keras.optimizers.Optimizer, dict[int, keras.Variable]]]]:
    """Let no optimizer of a model apply anything.

    Args:
        model: with its optimizers.
        note: called with gradients and variables in the place of each update.

    Yields:
        Each with the variables, by their ids, that it was given to update.
    """
    applied: list[Any] = [(optimizer, {}) for optimizer in named(model).values()]

    def catch(optimizer: keras.optimizers.Optimizer, updated: dict[int, keras.Variable]) -> Any:
        def apply(grads: Any, trainable_variables: Any = None, **_: Any) -> Any:
            variables = trainable_variables or model.trainable_variables
            updated.update({id(variable): variable for variable in variables})
            if note is not None:
                note(list(grads), list(variables))
            return optimizer.iterations

        return apply

    before = [vars(optimizer).get("apply") for optimizer, _ in applied]
    for optimizer, updated in applied:
        optimizer.apply = catch(optimizer, updated)
    try:
        yield applied
    finally:
        for (optimizer, _), apply in zip(applied, before, strict=True):
            del optimizer.apply
            if apply is not None:  # a patch of this instance
                optimizer.apply = apply
