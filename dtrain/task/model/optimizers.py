"""All optimizers of a model: that of ``compile``, and those that a class of the user's own adds."""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np

from dtrain.config.tree import Config
from dtrain.errors import refuse
from dtrain.task.aliases import Batch, Function, Nest, Tensors, Variable
from dtrain.task.backends.step_logs import has_own
from dtrain.task.backends.tracing import now
from dtrain.task.keras_internals import attributes

if TYPE_CHECKING:
    from dtrain.task.backends.base import Backend


def named(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """Return the optimizers of a model, each once, by paths that are the same in every process.

    ``optimizer`` is that of ``compile``. Any other has the path of attributes, indices and keys
    that lead to it: ``d_optimizer``, ``optimizers/0``, ``generator/optimizer``. Of those only the
    ones that have been built have a state.
    """
    optimizers: dict[str, keras.optimizers.Optimizer] = {}
    if model.optimizer is not None:
        optimizers["optimizer"] = model.optimizer
    ids = {id(optimizer) for optimizer in optimizers.values()}
    for path, optimizer in _walk(model, "", set()):
        if id(optimizer) not in ids:
            ids.add(id(optimizer))
            optimizers[path] = optimizer
    return optimizers


def held(optimizer: keras.optimizers.Optimizer) -> dict[str, keras.optimizers.Optimizer]:
    """Return the optimizers inside of one, by paths as of :func:`named`.

    A loss scale optimizer has one; one of a user's own may have several.
    """
    by_id: dict[int, tuple[str, keras.optimizers.Optimizer]] = {}
    # TensorFlow's own lists of what an object has come last, as of `_walk`.
    for name, value in sorted(vars(optimizer).items(), key=lambda i: (i[0][0] == "_", i[0])):
        for path, inner in _walk(value, name, set()):
            by_id.setdefault(id(inner), (path, inner))
    return dict(by_id.values())


def variables(model: keras.Model) -> list[tuple[str, list[keras.Variable]]]:
    """Return the path and the variables of each optimizer of a model, and of those inside of it.

    An optimizer has its own, without those inside of it; those that are not built have none, except
    that of ``compile``.
    """
    groups: list[tuple[str, list[keras.Variable]]] = []
    for path, optimizer in named(model).items():
        prefix = path if path == "optimizer" else f"optimizer/{path}"
        if path == "optimizer" or optimizer.built:
            groups.append((prefix, list(optimizer.variables)))
        owned = {id(variable) for variable in optimizer.variables}
        for place, inner in held(optimizer).items():
            # Of a loss scale optimizer they are its own as well.
            rest = [variable for variable in inner.variables if id(variable) not in owned]
            owned |= {id(variable) for variable in rest}
            groups.append((f"{prefix}/{place}", rest if inner.built else []))
    return groups


def _walk(value: object, path: str, visited: set[int]) -> Iterator[tuple[str, object]]:
    if isinstance(value, keras.optimizers.Optimizer):
        yield path, value
        return
    if isinstance(value, keras.Layer):
        # Keras' own lists of layers come last: a layer has the name of its attribute where it can.
        items: Iterable[tuple[object, object]] = attributes(value)
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return
    if id(value) not in visited:
        visited.add(id(value))
        for name, item in items:
            yield from _walk(item, f"{path}/{name}" if path else str(name), visited)


def build(model: keras.Model, strategy: Backend, example: Batch, config: Config) -> None:
    """Make the slots of all optimizers, and prepare them all for the strategy's replicas.

    Which variables an optimizer other than that of ``compile`` updates is known only to the
    model's ``train_step``. It is traced once for that, and nothing of it is run: made by the first
    step, the slots would be too late for a checkpoint, and replicas may make no variables.

    Args:
        model: built and compiled.
        strategy: it runs on; inside its :meth:`~Strategy.optimizer_scope`.
        example: one, as the input gives it.
        config: of the run.

    Raises:
        UsageError: the strategy is not for several optimizers.
    """
    everything = named(model)
    main = everything.pop("optimizer", None)
    if main is not None:
        main.build(model.trainable_variables)
    if everything and has_own(model, "train_step"):
        updates = strategy.trace_step(model, example)
        for optimizer in everything.values():
            updated = [v for each in updates if each.optimizer is optimizer for v in each.variables]
            if updated and not optimizer.built:
                optimizer.build(list({id(v): v for v in updated}.values()))
    others = {path: optimizer for path, optimizer in everything.items() if optimizer.built}
    if others and not strategy.abilities.several_optimizers:
        refuse("strategy", f"the model has more than one optimizer ({', '.join(others)})",
               config.strategy.name, accepted="a model with that of compile alone, or a strategy "
               "for several", typed="strategy=mirrored")  # fmt: skip
    for optimizer in (main, *others.values()):
        if optimizer is not None:
            strategy.prepare(optimizer)


class LateSlots(ABC):
    """An optimizer that makes its slots in its first update, and not when it is built."""

    @abstractmethod
    def expect(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Make the slots that a checkpoint has.

        Args:
            arrays: by the paths of variables.
        """


def expect(model: keras.Model, arrays: Mapping[str, np.ndarray]) -> None:
    """Let optimizers make the slots that a checkpoint has, where they have made none yet."""
    optimizer, prefix = model.optimizer, "optimizer/"
    if isinstance(optimizer, LateSlots):
        own = {name: array for name, array in arrays.items() if name.startswith(prefix)}
        optimizer.expect({name.removeprefix(prefix): array for name, array in own.items()})


@dataclasses.dataclass(frozen=True)
class Update:
    """A call of ``optimizer.apply``."""

    optimizer: keras.optimizers.Optimizer
    gradients: Tensors
    variables: list[keras.Variable]


@contextlib.contextmanager
def caught(model: keras.Model) -> Iterator[list[Update]]:
    """Monkey-patch ``apply`` of all optimizers of a model: they update nothing.

    Yields:
        What they were to update, in the order of the calls.
    """
    updates: list[Update] = []

    def catching(optimizer: keras.optimizers.Optimizer) -> Function:
        def apply(grads: Nest, trainable_variables: Nest = None, **_: object) -> Variable:
            variables = list(trainable_variables or model.trainable_variables)
            updates.append(Update(optimizer, grads := list(grads), variables))
            if (applied := now().applied) is not None:
                applied.extend(each for each in grads if each is not None)
            return optimizer.iterations

        return apply

    with contextlib.ExitStack() as patches:
        for optimizer in named(model).values():
            patches.enter_context(_patched(optimizer, catching(optimizer)))
        yield updates


@contextlib.contextmanager
def _patched(optimizer: keras.optimizers.Optimizer, apply: Function) -> Iterator[None]:
    before = vars(optimizer).get("apply")  # a patch of this instance
    optimizer.apply = apply
    try:
        yield
    finally:
        del optimizer.apply
        if before is not None:
            optimizer.apply = before
