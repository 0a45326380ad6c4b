"""The first operation of a training step whose result is not finite: the step, interpreted."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend import core

from dtrain.task.backends.jax.arrays import narrowed
from dtrain.task.backends.jax.state import State
from dtrain.task.backends.runtime import NotFinite
from dtrain.task.backends.tracing import tracing
from dtrain.task.model import calls
from dtrain.task.process import own_code

#: Operations that only call others, which are interpreted in their place.
_CALLS = {
    "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint",
    "remat2",
}  # fmt: skip
#: Of the name scope of a layer's call.
_LAYER = "layer%"


class _Scopes:
    """Opens a name scope in the call of each layer. A watcher."""

    def __init__(self) -> None:
        self.layers: list[str] = []
        self._open: list[Any] = []

    def entered(self, path: str, layer: keras.Operation, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Open one, whose name is the layer's number."""
        self._open.append(jax.named_scope(f"{_LAYER}{len(self.layers)}%"))
        self.layers.append(f"{path} ({type(layer).__name__})")
        self._open[-1].__enter__()
        return args, kwargs

    def left(self, path: str, layer: keras.Operation, outputs: Any) -> Any:
        """Close it."""
        self._open.pop().__exit__(None, None, None)
        return outputs

    def layer_of(self, scopes: str) -> str:
        """Return the innermost layer."""
        numbers = re.findall(f"{_LAYER}(\\d+)%", scopes)
        return self.layers[int(numbers[-1])] if numbers else ""


class Checked:
    """A training step on one device, an operation after the other; it updates nothing.

    Args:
        model: compiled and built.
    """

    def __init__(self, model: keras.Model):
        self._state, self._scopes = State(model), _Scopes()
        self._programs: dict[str, Any] = {}

    def first(self, batch: Any) -> NotFinite | None:
        """Run it; return the operation that fails, None where all are finite."""
        data = narrowed(batch)
        values = jax.tree.map(np.asarray, jax.device_get(self._state.read()))
        shapes = str(jax.tree.map(np.shape, data))
        if shapes not in self._programs:
            rows = len(jax.tree.leaves(data)[0])
            with calls.watched(self._scopes) as watched, watched(), tracing(rows=rows, results=[]):
                self._programs[shapes] = jax.make_jaxpr(self._state.trained)(values, data)
        program = self._programs[shapes]
        with keras.device("cpu:0"):
            arguments = map(jnp.asarray, jax.tree.leaves((values, data)))
            for equation, scopes, frames, outputs in _steps(
                program.jaxpr, program.consts, list(arguments), "", []
            ):
                if text := _not_finite(outputs):
                    name = equation.primitive.name
                    layer, backward = self._scopes.layer_of(scopes), "transpose(" in scopes
                    return NotFinite(name, text, layer, backward, own_code.line(frames))
        return None


def _steps(
    program: Any, consts: Sequence[Any], arguments: Sequence[Any], above: str, frames: list[Any]
) -> Generator[tuple[Any, str, list[Any], list[Any]], None, list[Any]]:
    """Interpret a program.

    Args:
        program: a jaxpr.
        consts, arguments: of it.
        above: the name scopes that it is called in.
        frames: of the user's code that calls it; empty for its own.

    Yields:
        Each operation, its name scopes, its frames and what it returns. The generator returns what
        the program does.
    """
    values = dict(zip(program.constvars, consts, strict=True))
    values |= dict(zip(program.invars, arguments, strict=True))

    def read(variables: Any) -> list[Any]:
        return [v.val if isinstance(v, core.Literal) else values[v] for v in variables]

    for equation in program.eqns:
        source, operands = equation.source_info, read(equation.invars)
        scopes = f"{above}/{source.name_stack}"
        lines = frames or _frames(source.traceback)
        params = equation.params
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if equation.primitive.name in _CALLS and inner is not None:
            closed = isinstance(inner, core.ClosedJaxpr)
            program_, constants = (inner.jaxpr, inner.consts) if closed else (inner, ())
            outputs = yield from _steps(program_, constants, operands, scopes, lines)
        else:
            outputs = equation.primitive.bind(*operands, **params)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
            yield equation, scopes, lines, outputs
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return read(program.outvars)


def _frames(traceback: Any) -> list[tuple[str, int]]:
    """Return file and line of the frames of the user's code, the outermost first."""
    frames = [(frame.file_name, frame.line_num) for frame in traceback.frames] if traceback else []
    return [each for each in reversed(frames) if own_code.is_users(each[0])]


def _not_finite(outputs: Sequence[Any]) -> str:
    """Return what of NaN and infinities is in arrays; nothing where they are finite."""
    floats = [x for x in outputs if jax.dtypes.issubdtype(x.dtype, jnp.floating)]
    tests = {"NaN": jnp.isnan, "-Inf": jnp.isneginf, "+Inf": jnp.isposinf}
    if all(bool(jnp.isfinite(x).all()) for x in floats):
        return ""
    names = [name for name, test in tests.items() if any(bool(test(x).any()) for x in floats)]
    return " and ".join(names)
