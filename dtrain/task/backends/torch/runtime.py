"""The process of a task, as PyTorch has it (:class:`dtrain.task.backends.runtime.Runtime`)."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import keras
import numpy as np
import torch
from torch.utils import checkpoint

from dtrain.data import nest
from dtrain.errors import DtrainError
from dtrain.files.fields import Json
from dtrain.task.aliases import Batch, Foreign, Function, Nest, Tensor, Variable
from dtrain.task.backends.runtime import NotFinite
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.torch import plain
from dtrain.task.backends.torch.arrays import computed, put
from dtrain.task.backends.torch.draws import hashed
from dtrain.task.backends.torch.hardware import configure, overlooked
from dtrain.task.backends.torch.keras_internals import Watching, change, gradient_lines
from dtrain.task.backends.torch.plain import buffers
from dtrain.task.backends.torch.replica import exchange
from dtrain.task.backends.tracing import now, tracing
from dtrain.task.data.batch_reader import as_arrays as readable
from dtrain.task.data.batch_reader import read_at_once as read
from dtrain.task.data.inputs import Augment, HostPipeline, Inputs, not_augmented
from dtrain.task.data.reading import ArraySpec
from dtrain.task.keras_internals import contexts
from dtrain.task.keras_internals import without_tensorflow as alone
from dtrain.task.model import calls, optimizers
from dtrain.task.process import own_code

__all__ = [
    "alone", "buffers", "computed", "configure", "exchange", "overlooked", "read", "readable",
]  # fmt: skip
PLAIN = plain
ERRORS: tuple[type[Exception], ...] = (RuntimeError,)
TENSORS: tuple[type, ...] = (torch.Tensor,)
VARIABLES: tuple[type, ...] = (keras.Variable,)
GENERATORS: tuple[type, ...] = ()
#: Of an axis whose length differs by batch, where a function is only tried.
_LENGTH = 8
#: Words of the two integers of a seed.
_WORDS = 2**31


def on_cpu() -> AbstractContextManager[object]:
    """Compute what is called inside on the CPU."""
    return keras.device("cpu")


def variable(value: Tensor, dtype: str) -> Variable:
    """Return what a variable of Keras' holds: a tensor."""
    return keras.ops.convert_to_tensor(value, dtype)


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """Return what a variable holds, on the host."""
    return np.array(keras.ops.convert_to_numpy(variable.value))


def trace(function: Function, *specs: Nest) -> None:
    """Call ``function`` with zeros of what :func:`dtrain.task.data.reading.specs` returns."""

    def zeros(spec: ArraySpec) -> np.ndarray:
        shape = [_LENGTH if size is None else size for size in spec.shape]
        return np.zeros(shape, spec.dtype)

    with torch.no_grad():
        function(*(put(nest.mapped(zeros, spec)) for spec in specs))


def attempt(model: keras.Model, function: Callable[..., None], *examples: Nest) -> None:
    """Call a function at once."""
    with torch.no_grad():
        function(*put(examples))


def outputs(model: keras.Model, x: Nest) -> Nest:
    """Return what a model makes of a batch, at once."""
    if isinstance(model, PLAIN.PlainModel) and isinstance(x, dict):
        model.check_inputs(x)
    with torch.no_grad():
        return model(put(x), training=False)


def batches(inputs: Inputs) -> Iterator[Batch]:
    """Yield the batches of a training on one replica."""
    for [batch] in HostPipeline(inputs):
        yield batch


def uniform(seed: Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return numbers from 0 to 1 that are a function of a seed."""
    generator = torch.Generator().manual_seed(hashed(*_words(seed)))
    return torch.rand(tuple(shape), generator=generator)


def fold_in(seed: Tensor, number: int) -> torch.Tensor:
    """Return another seed, for each number one."""
    words = _words(seed)
    return torch.tensor([hashed(*words, number, each) for each in range(len(words))])


def _words(seed: Tensor) -> list[int]:
    return [int(word) for word in seed]


def augmented(augment: Augment, x: Nest, keys: np.ndarray) -> Nest:
    """Return inputs, arrays ``[b, ...]``, each changed by its key, int32 ``[b, 2]``.

    Raises:
        UsageError: it fails, or an example has another structure or shape afterwards.
    """
    rows = []
    with on_cpu(), torch.no_grad():
        for at, key in enumerate(keys):
            one = nest.mapped(lambda leaf, at=at: torch.from_numpy(np.array(leaf[at])), computed(x))
            try:
                changed = augment(one, seed=torch.from_numpy(key.copy()))
            except Exception as error:  # whatever a layer, or a function of the user's, raises
                if isinstance(error, DtrainError):
                    raise
                reason = " ".join([type(error).__name__, *str(error).splitlines()[:1]])[:300]
                place = own_code.place(error)
                raise not_augmented(f"fails on PyTorch ({reason}) {place}".rstrip(),
                                    "operations of keras.ops or torch") from error  # fmt: skip
            if [np.shape(leaf) for leaf in nest.leaves(one)] != [
                np.shape(leaf) for leaf in nest.leaves(changed)
            ]:
                accepted = "examples of the shape that they had"
                raise not_augmented("changes the shape of an example", accepted)
            rows.append(changed)
    return nest.mapped(lambda *leaves: torch.stack(leaves).numpy(), *rows)


_profiles: list[Foreign] = []


def start_trace(folder: str) -> None:
    """Begin a profile for TensorBoard."""
    profile = torch.profiler.profile(
        on_trace_ready=torch.profiler.tensorboard_trace_handler(folder)
    )
    profile.__enter__()
    _profiles.append(profile)


def stop_trace() -> None:
    """End it, and write it."""
    _profiles.pop().__exit__(None, None, None)


def arithmetic() -> Json:
    """Return what the last bits of a number depend on, on a CPU."""
    return {"backend": "torch", "intra_op_threads": torch.get_num_threads()}


def building() -> AbstractContextManager[None]:
    """Change nothing: the user's function builds as it does by itself."""
    return contextlib.nullcontext()


def first_not_finite(model: keras.Model, batch: Nest) -> NotFinite | None:
    """Run the step of a model on one device; autograd's anomaly mode has the lines of gradients."""
    looking, data, findings = calls.Finite(), put(batch), list[NotFinite]()

    def look(operation: str, outputs: Nest) -> None:
        if "empty" in operation:  # memory that is not written yet
            return
        for tensor in keras.tree.flatten(outputs):
            is_float = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            if is_float and not bool(torch.isfinite(tensor).all()):
                lines = gradient_lines()
                frames = [(f.filename, f.lineno or 0) for f in traceback.extract_stack()]
                line = own_code.line(frames if lines is None else lines)
                findings.append(NotFinite(operation, looking.layer, lines is not None, line))
                raise FloatingPointError(operation)

    names = {id(module): name for name, module in plain.unwrapped(model).named_modules()}

    def entered(module: torch.nn.Module, args: Nest) -> None:
        looking.entered(names.get(id(module), ""), module, args, {})

    def left(module: torch.nn.Module, args: Nest, outputs: Nest) -> None:
        looking.left("", module, outputs)

    model.train()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.nn.modules.module.register_module_forward_pre_hook(entered).remove)
        stack.callback(torch.nn.modules.module.register_module_forward_hook(left).remove)
        stack.enter_context(contextlib.suppress(FloatingPointError))
        stack.enter_context(stack.enter_context(calls.watched(looking))())
        stack.enter_context(optimizers.caught(model))
        stack.enter_context(tracing(rows=len(keras.tree.flatten(data)[0]), results=[]))
        stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
        stack.enter_context(Watching(look))
        model.train_step(unwrapped(data))
    return next(iter(findings), None)


def computed_twice(layer: keras.Layer) -> Function:
    """Return a layer's call, which is computed a second time for its gradients.

    PyTorch draws the same again; the second time begins with what the layer had kept before the
    first (seeds, statistics), and leaves behind what the first left.

    Raises:
        TrainingError: this version of Keras passes layers training and precision in another way.
    """
    contexts.check()
    call = layer.call

    @functools.wraps(call)
    def twice(*args: Nest, **kwargs: object) -> Nest:
        passed, traced = contexts.current(), now()
        # Values as they are kept, not as they are read.
        with contexts.replaced({contexts.PRECISION: None}):
            state = [variable.value for variable in layer.non_trainable_variables]
        before = [value.detach().clone() for value in state]
        computed = False

        def compute(*arguments: Nest) -> Nest:
            nonlocal computed
            if not computed:
                computed = True
                return call(*arguments, **kwargs)
            after = [value.detach().clone() for value in state]
            change("copy_", state, before)
            try:
                # Perhaps in another thread, as of a GPU.
                again = tracing(step=traced.step, rows=traced.rows, inside=True)
                losses = keras.StatelessScope(collect_losses=True)
                with contexts.replaced(passed), again, losses:
                    return call(*arguments, **kwargs)
            finally:
                change("copy_", state, after)

        return checkpoint.checkpoint(compute, *args, use_reentrant=False)

    return twice
