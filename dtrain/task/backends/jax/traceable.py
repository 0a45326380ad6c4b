"""What a model does that cannot be compiled for JAX, said before training."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator

import jax
import keras

from dtrain.errors import UsageError, refuse
from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Function, Nest
from dtrain.task.backends.step_logs import has_own
from dtrain.task.process import own_code

#: The steps of a class that Keras has, with what each takes on JAX.
STEPS = {"train_step": "state, data", "test_step": "state, data", "predict_step": "state, data"}
#: Raised where a traced value is used as one that is known.
NOT_TRACEABLE = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)


def check_steps(model: keras.Model) -> None:
    """Refuse steps of a class's own that are written for another backend of Keras.

    Raises:
        UsageError: naming the method and what it takes on JAX.
    """
    for name, arguments in STEPS.items():
        if not has_own(model, name):
            continue
        parameters = inspect.signature(getattr(model, name)).parameters.values()
        positional = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if any(p.kind is p.VAR_POSITIONAL for p in parameters) or len(positional) >= 2:
            continue
        refuse("model", f"takes ({', '.join(p.name for p in positional)}), as on another backend "
               "of Keras", f"{type(model).__name__}.{name}", accepted=f"{name}(self, {arguments}), "
               "which returns (logs, state)", typed="backend=tensorflow")  # fmt: skip


def compiled(model: keras.Model, step: Function, **options: object) -> Foreign:
    """Compile a step by ``jax.jit``; what cannot be traced is named where it is.

    Args:
        model: of the step.
        step: a pure function.
        **options: of ``jax.jit``.
    """

    @functools.wraps(step)
    def traced(*args: Nest) -> Nest:
        with _translated(model):
            return step(*args)

    return jax.jit(traced, **options)


@contextlib.contextmanager
def translated(name: str) -> Iterator[None]:
    """Name what cannot be traced, in place of JAX' own page of text.

    Args:
        name: of the model.

    Raises:
        UsageError: a tensor is used as a number of Python's or NumPy's, or by another framework;
            or the loss is no scalar.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, TypeError) and "scalar-output" in str(error):
            raise UsageError("trainer.loss",
                             "has a value for each example, and JAX differentiates one number",
                             name, accepted="a loss with reduction='sum_over_batch_size' or 'sum'",
                             typed="backend=tensorflow") from None  # fmt: skip
        # Keras makes an error anew to add what the layer was given, and fails with those of JAX.
        behind: BaseException | None = error
        while behind is not None and not isinstance(behind, NOT_TRACEABLE):
            behind = behind.__context__
        if behind is None:
            raise
        reason = str(behind).strip().split("\n")[0].rstrip(".")
        raise UsageError(
            "model",
            f"has code that cannot be compiled for JAX: {reason} {own_code.place(behind)}".rstrip(),
            name, accepted="operations of keras.ops or jax.numpy on tensors",
            typed="backend=tensorflow",
        ) from None  # fmt: skip


@contextlib.contextmanager
def _translated(model: keras.Model) -> Iterator[None]:
    """Name what cannot be traced, and what the step sets that is no variable.

    Raises:
        UsageError: as of :func:`translated`; or a value of the step is used by a later step.
    """
    before = _attributes(model)
    with translated(type(model).__name__):
        yield
    for name, value in _attributes(model).items():
        if isinstance(value, jax.core.Tracer) or value != before.get(name, value):
            refuse("model", "is set by the step: such code runs once, while the step is traced",
                   name, accepted="a variable, and its assign", hint="self.add_weight(shape=(), "
                   "initializer='zeros', trainable=False)")  # fmt: skip


def _attributes(model: keras.Model) -> dict[str, object]:
    """Return numbers and traced values in attributes of layers of the user's, by ``layer.name``."""
    return {
        f"{layer.name}.{name}": value
        for layer in keras_internals.layers(model)
        if not keras_internals.is_of_keras(layer)
        for name, value in vars(layer).items()
        if name[0] != "_" and isinstance(value, int | float | jax.core.Tracer)
    }
