"""Keras callbacks, driven from dtrain's loop, with their state in the checkpoints."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dtrain import secrets, targets
from dtrain.errors import CheckpointError, UsageError

_BATCH_HOOKS = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_batch_begin",
    "on_batch_end",
)


#: Where callbacks of Keras' write, below the run folder: nothing of the run's own lies there.
FOLDER = "callbacks"


def made(nodes: Sequence[Any], folder: Path) -> list[keras.callbacks.Callback]:
    """Make the callbacks of ``trainer.callbacks``.

    Args:
        nodes: each with ``_target_``.
        folder: of the run. Callbacks of Keras' that write do so below it, unless trusted.

    Raises:
        UsageError: one cannot be made.
    """
    callbacks = []
    for index, node in enumerate(nodes):
        node, key = dict(targets.plain(node)), f"trainer.callbacks[{index}]"
        place = targets.written(str(node.get("_target_")))
        if place is not None and not targets.is_trusted(node["_target_"]):
            name, default = place
            path = folder / FOLDER / str(node.get(name, default))
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.resolve() != folder.resolve() / path.relative_to(folder):
                raise UsageError(
                    f"{key}.{name}", node.get(name), "a link leads out of the run folder",
                    "a folder without links", f"{name}=another.keras",
                )  # fmt: skip
            node[name] = str(path)
        callbacks.append(targets.instantiate(node, key))
    return callbacks


class Callbacks:
    """The callbacks of ``trainer.callbacks``.

    State: a callback with ``get_state()`` (returns a JSON value) and ``set_state(value)`` says
    itself what a resumed run needs. Of any other, the public attributes that are numbers, strings,
    booleans or None are kept, unless named like a secret, and weights held as a list of arrays
    (``best_weights``). Texts of a callback of Keras, and those that its constructor takes, are its
    configuration: a checkpoint does not change them.

    Args:
        callbacks: the instances.
        model: what they act on.
        epochs: of the run, for ``params``.
        steps_per_epoch: likewise.
    """

    def __init__(
        self,
        callbacks: list[keras.callbacks.Callback],
        model: keras.Model,
        epochs: int,
        steps_per_epoch: int,
    ):
        self._callbacks = callbacks
        guard = [_Unchanged(callbacks)] if callbacks else []
        self.hooks = keras.callbacks.CallbackList(
            [*guard, *callbacks, *guard],
            model=model,
            epochs=epochs,
            steps=steps_per_epoch,
            verbose=0,
        )

    @property
    def every_batch(self) -> bool:
        """Whether one of them wants to be called for each batch, which costs a call a step."""
        return any(_wants_batches(callback) for callback in self._callbacks)

    def state(self) -> tuple[dict[str, np.ndarray], list[Any]]:
        """Return the arrays and the JSON values of all of them."""
        arrays: dict[str, np.ndarray] = {}
        values: list[Any] = []
        for index, callback in enumerate(self._callbacks):
            if hasattr(callback, "get_state"):
                values.append(callback.get_state())
                continue
            values.append({
                name: value.item() if isinstance(value, np.generic) else value
                for name, value in vars(callback).items()
                if isinstance(value, (bool, int, float, str, np.generic, type(None)))
                and not name.startswith("_")
                and not secrets.named(name)
            })  # fmt: skip
            best = getattr(callback, "best_weights", None) or []
            arrays.update({f"callbacks/{index}/{i}": np.array(a) for i, a in enumerate(best)})
        return arrays, values

    def restore(self, arrays: Mapping[str, np.ndarray], values: list[Any]) -> None:
        """Put back what :meth:`state` returned. Call after ``on_train_begin``, which resets it.

        Raises:
            CheckpointError: ``values`` are something else.
        """
        for index, (callback, value) in enumerate(zip(self._callbacks, values, strict=False)):
            if hasattr(callback, "set_state"):
                callback.set_state(value)
                continue
            if not isinstance(value, dict):
                raise CheckpointError(f"meta.callbacks[{index}] is not a mapping")
            if "monitor_op" not in value and hasattr(callback, "_set_monitor_op"):
                # Keras chooses the comparison at the first epoch's end, and then flips min_delta:
                # it has to have done so before the flipped value is put back.
                callback._set_monitor_op()
            vars(callback).update(_state(callback, value))
            best: list[np.ndarray] = []
            while f"callbacks/{index}/{len(best)}" in arrays:
                best.append(arrays[f"callbacks/{index}/{len(best)}"])
            if best:
                callback.best_weights = best


class _Unchanged(keras.callbacks.Callback):
    """Stands before and behind the others: what is trained is not theirs to change.

    The step is traced once. With another optimizer, or other weights that are trainable, it would
    go on as before and say nothing, as under Keras' fit, and checkpoints would have what is not
    trained by.

    Raises:
        UsageError: a callback has changed it.
    """

    def __init__(self, callbacks: list[keras.callbacks.Callback]):
        super().__init__()
        self._names = [type(callback).__name__ for callback in callbacks]
        self._before: list[int] | None = None
        for hook in (*_BATCH_HOOKS[:2], "on_epoch_begin", "on_epoch_end", "on_test_end"):
            setattr(self, hook, lambda *_, **__: self._look())

    def _look(self) -> None:
        now = [id(self.model.optimizer), *(id(v) for v in self.model.trainable_variables)]
        before, self._before = self._before, now if self._before is None else None
        if before is not None and before != now:
            does = "compiles the model anew" if before[0] != now[0] else "changes what is trainable"
            raise UsageError(
                "trainer.callbacks", ", ".join(self._names),
                f"one of them {does} in the middle of a training, whose step is traced already",
                "a run for each phase, the second with the weights of the first",
                "fork=RUN_DIR with a model whose layers are trainable",
            )  # fmt: skip


def _state(callback: keras.callbacks.Callback, values: dict[str, Any]) -> dict[str, Any]:
    """Return those of ``values`` that are state.

    A checkpoint may come from elsewhere: what the configuration says, such as a path to write to,
    it does not replace, nor a method.
    """
    kind = type(callback)
    given = set(inspect.signature(kind).parameters)
    configured = kind.__module__.partition(".")[0] == "keras"  # all texts of Keras' own
    return {
        name: value
        for name, value in values.items()
        if not (name.startswith("_") or hasattr(kind, name) or secrets.named(name))
        and isinstance(value, (bool, int, float, str, type(None)))
        and not (
            (configured or name in given)
            and (isinstance(value, str) or isinstance(vars(callback).get(name), str))
        )
    }


def _wants_batches(callback: keras.callbacks.Callback) -> bool:
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return callback.save_freq != "epoch"
    base = keras.callbacks.Callback
    # A LambdaCallback has its hooks on the instance, as plain functions.
    return any(
        getattr(getattr(callback, hook), "__func__", None) is not getattr(base, hook)
        for hook in _BATCH_HOOKS
    )
