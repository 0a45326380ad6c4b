"""Keras callbacks, driven from dtrain's loop, with their state in the checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dtrain import secrets
from dtrain.config import targets, trust
from dtrain.errors import CheckpointError, refuse
from dtrain.files.fields import Json
from dtrain.task import keras_internals
from dtrain.task.aliases import Logs, Options, Tensor
from dtrain.task.model import object_state, train_state
from dtrain.task.model.object_state import PLAIN, Kept, Owner, is_state

_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_TEST_BATCH_HOOKS = ("on_test_batch_begin", "on_test_batch_end")

#: Where callbacks of Keras' write, below the run folder: nothing of the run's own lies there.
FOLDER = "callbacks"


def made(nodes: Sequence[Options], folder: Path) -> list[keras.callbacks.Callback]:
    """Make the callbacks of ``trainer.callbacks``.

    Args:
        nodes: each with ``_target_``.
        folder: of the run. Callbacks of Keras' that write do so below it, unless trusted.

    Raises:
        UsageError: one cannot be made.
    """
    callbacks = []
    for index, node in enumerate(nodes):
        node, key = dict(node), f"trainer.callbacks[{index}]"
        place = trust.written(str(node.get("_target_")))
        if place is not None and not trust.is_trusted(node["_target_"]):
            name, default = place
            path = folder / FOLDER / str(node.get(name, default))
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.resolve() != folder.resolve() / path.relative_to(folder):
                refuse(f"{key}.{name}", "a link leads out of the run folder", node.get(name),
                       accepted="a folder without links",
                       hint=f"{name}: another.keras")  # fmt: skip
            node[name] = str(path)
        callbacks.append(targets.instantiate(node, key))
    return callbacks


class Callbacks:
    """The callbacks of ``trainer.callbacks``.

    State: a callback with ``get_state()`` (returns a JSON value) and ``set_state(value)`` says
    itself what a resumed run needs. Of any other its attributes are kept (:class:`.Kept`), unless
    named like a secret. Texts of a callback of Keras, and those that its constructor takes, are
    its configuration: a checkpoint does not change them. Nor does it change numbers, texts and
    booleans that ``on_train_begin`` sets to something else than when the run began: a clock, or
    that a file is there by now. What it sets to the same (a counter, the best so far) is the
    checkpoint's.

    Args:
        callbacks: the instances.
        model: what they act on.
        epochs: of the run, for ``params``.
        steps_per_epoch: of the run, for ``params``.
        share: returns the chief's numbers by name, given those of this task; each task calls it at
            the same points.
        logged: returns numbers that callbacks have given to a logger since it was called last.
    """

    def __init__(
        self, callbacks: list[keras.callbacks.Callback], model: keras.Model, epochs: int,
        steps_per_epoch: int, share: Callable[[dict[str, float]], dict[str, float]] = dict,
        logged: Callable[[], Json] = dict,
    ):  # fmt: skip
        self._callbacks, self._model = callbacks, model
        #: What a later start compares with: values and the learning rate when the run began.
        self.began: Options = {}
        self._kept = Kept(
            "callbacks/objects", self._owners, lambda: train_state.saved(model) | {id(model): model}
        )
        self._behind = [_Behind(share, logged) for _ in callbacks]
        guard = [_Unchanged(callbacks)] if callbacks else []
        pairs = [each for pair in zip(callbacks, self._behind, strict=True) for each in pair]
        self.hooks = keras.callbacks.CallbackList(
            [*guard, *pairs, *guard], model=model, epochs=epochs, steps=steps_per_epoch, verbose=0
        )
        for each in callbacks:
            if isinstance(each, keras.callbacks.SwapEMAWeights):
                # After the last epoch nothing would be left of what is trained: `leave_swapped`.
                each.set_params({**each.params, "epochs": 0})

    def begin(self, before: Mapping[str, object] | None = None) -> None:
        """Call ``on_train_begin``.

        Args:
            before: :attr:`began` of the run that is resumed. The learning rate is for the moment
                what it was then: what a callback derives from it is to be the same.
        """
        optimizer, began = self._model.optimizer, dict(before or {})
        rate = None
        if optimizer is not None and isinstance(optimizer.learning_rate, keras.Variable):
            rate = float(np.asarray(optimizer.learning_rate))
        then = began.get("learning_rate")
        if rate is None or then is None:
            self.hooks.on_train_begin()
        else:
            optimizer.learning_rate = then
            try:
                self.hooks.on_train_begin()
            finally:
                optimizer.learning_rate = rate
        now = {"learning_rate": rate, "values": [_values(each, True) for each in self._callbacks]}
        self.began = now | began
        self._kept.begin()

    def _owners(self) -> dict[str, Owner]:
        """Return those that do not say themselves what their state is."""
        without = {*vars(keras.callbacks.Callback()), "best_weights"}
        return {
            str(index): object_state.owner(each, {*without, *_values(each)})
            for index, each in enumerate(self._callbacks)
            if not hasattr(each, "get_state")
        }

    @property
    def lost(self) -> set[str]:
        """Names of what changes, or may, and cannot be kept."""
        return self._kept.lost

    @property
    def have_swapped(self) -> bool:
        """Whether one has put the averages of the weights in the place of what is trained."""
        return any(map(keras_internals.has_swapped, self._callbacks))

    def leave_swapped(self) -> None:
        """Let weights that are averages stay so, at the end of the training."""
        for each in self._callbacks:
            keras_internals.end_with_averages(each)

    @property
    def every_batch(self) -> bool:
        """Whether one of them wants to be called for each batch, which costs a call a step."""
        return any(_wants_batches(callback) for callback in self._callbacks)

    @property
    def every_test_batch(self) -> bool:
        """Whether one of them wants to be called for each batch of a validation."""
        return any(_has_own(callback, _TEST_BATCH_HOOKS) for callback in self._callbacks)

    def added(self, logs: dict[str, float]) -> tuple[dict[str, float], list[str]]:
        """Return what the callbacks made of ``logs`` in the last ``on_epoch_end``.

        Args:
            logs: that they were given.

        Returns:
            The finite numbers that they added or changed, by name, and the names of other values
            that they added. Of one that has raised, and those behind it, there is nothing.
        """
        values = [each.seen for each in self._behind if each.seen is not None]
        last = values[-1] if values else {}
        for each in self._behind:
            each.seen = None
        changed = {k: v for k, v in last.items() if k not in logs or _differ(v, logs[k])}
        finite = {k: n for k, n in numbers(changed).items() if math.isfinite(n)}
        return finite, sorted(str(name) for name in changed.keys() - finite.keys())

    def why_stopped(self) -> str:
        """Return why the training ends, of which the last ``on_epoch_end`` has decided."""
        pairs = zip(self._callbacks, self._behind, strict=True)
        stopper = next((each for each, behind in pairs if behind.stopped), None)
        if not isinstance(stopper, keras.callbacks.EarlyStopping):
            return "a callback has ended it" if stopper is None else f"by {type(stopper).__name__}"
        epochs = "1 epoch" if stopper.wait == 1 else f"{stopper.wait} epochs"
        by = f" by {abs(stopper.min_delta):g}" if stopper.min_delta else ""
        return f"{stopper.monitor} has not improved{by} for {epochs}"

    def state(self) -> tuple[dict[str, np.ndarray], list[Json]]:
        """Return the arrays and the JSON values of all of them."""
        arrays: dict[str, np.ndarray] = {}
        values: list[Json] = []
        for index, callback in enumerate(self._callbacks):
            if hasattr(callback, "get_state"):
                values.append(callback.get_state())
                continue
            values.append(_values(callback))
            best = getattr(callback, "best_weights", None) or []
            arrays.update({f"callbacks/{index}/{i}": np.array(a) for i, a in enumerate(best)})
        return arrays | self._kept.arrays(), values

    def restore(
        self, arrays: Mapping[str, np.ndarray], values: list[Json], epoch: int | None = None
    ) -> None:
        """Put back what :meth:`state` returned. Call after :meth:`begin`, which resets it.

        Args:
            arrays, values: of :meth:`state`.
            epoch: that has begun: what its beginning has made and cannot be kept, it makes again;
                None between two.

        Raises:
            CheckpointError: ``values`` are something else.
        """
        began = [*self.began.get("values", []), *({} for _ in self._callbacks)]
        anew = [
            {n: v for n, v in _values(callback, True).items() if repr(v) != repr(before.get(n, v))}
            for callback, before in zip(self._callbacks, began, strict=False)
        ]  # by repr: NaN is NaN
        for index, (callback, value) in enumerate(zip(self._callbacks, values, strict=False)):
            if hasattr(callback, "set_state"):
                callback.set_state(value)
                continue
            if not isinstance(value, dict):
                raise CheckpointError(f"meta.callbacks[{index}] is not a mapping")
            if "monitor_op" not in value:
                keras_internals.choose_comparison(callback)
            for name, each in value.items():
                state = is_state(type(callback), name, each, vars(callback).get(name))
                if state and isinstance(each, PLAIN) and not name.startswith("_"):
                    vars(callback)[name] = each
            best: list[np.ndarray] = []
            while f"callbacks/{index}/{len(best)}" in arrays:
                best.append(arrays[f"callbacks/{index}/{len(best)}"])
            if best:
                callback.best_weights = best
        if (lacking := self._kept.restore(arrays)) and epoch is not None:
            for index in sorted(map(int, lacking)):
                self._callbacks[index].on_epoch_begin(epoch)
            self._kept.restore(arrays)
        for callback, each in zip(self._callbacks, anew, strict=True):
            vars(callback).update(each)


class _Unchanged(keras.callbacks.Callback):
    """Stands before and behind the others: what is trained is not theirs to change.

    The step is traced once. With another optimizer, or other weights that are trainable, it would
    continue as before and say nothing, as under Keras' fit, and checkpoints would have what is not
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
            refuse("trainer.callbacks", f"one of them {does} in a training, whose step is traced "
                   "already", ", ".join(self._names), accepted="finetune.unfreeze={EPOCH: "
                   "[REGEX]}, or a run for each phase", hint="fork=RUN_DIR with a model whose "
                   "layers are trainable")  # fmt: skip


def _values(callback: keras.callbacks.Callback, hidden: bool = False) -> Options:
    """Return the attributes that are numbers, strings, booleans or None; also ``hidden`` ones."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in vars(callback).items()
        if isinstance(value, (*PLAIN, np.generic))
        and (hidden or not name.startswith("_"))
        and not secrets.named(name)
    }


def _wants_batches(callback: keras.callbacks.Callback) -> bool:
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return callback.save_freq != "epoch"
    return _has_own(callback, _BATCH_HOOKS)


def _has_own(callback: keras.callbacks.Callback, hooks: Sequence[str]) -> bool:
    base = keras.callbacks.Callback
    # A LambdaCallback has its hooks on the instance, as plain functions.
    return any(
        getattr(getattr(callback, hook), "__func__", None) is not getattr(base, hook)
        for hook in hooks
    )


class _Behind(keras.callbacks.Callback):
    """Stands behind one callback, and sees what it has made of the logs of an epoch.

    As Keras' ``History`` does behind all. The numbers are then those of the chief in all tasks: a
    callback may measure seconds, or run in the chief alone, and a later one change the learning
    rate by what it has found.

    Args:
        share, logged: see :class:`Callbacks`.
    """

    def __init__(
        self, share: Callable[[dict[str, float]], dict[str, float]], logged: Callable[[], Json]
    ):
        super().__init__()
        self._share = share
        self._logged = logged
        self.seen: Logs | None = None
        self.stopped = False  # when the epoch ended

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Keep a copy of ``logs``, with the chief's numbers."""
        assert logs is not None
        logs.update(self._logged())
        own = numbers(logs)
        agreed = self._share(own)
        for name in own.keys() - agreed.keys():
            del logs[name]
        logs.update({k: v for k, v in agreed.items() if k not in own or _differ(v, own[k])})
        self.seen = dict(logs)
        self.stopped = bool(self.model.stop_training)


def numbers(values: Mapping[Any, object]) -> dict[str, float]:
    """Return those of ``values`` that are one number and have a name."""
    return {k: n for k, v in values.items() if (n := _number(k, v)) is not None}


def _number(name: object, value: Tensor) -> float | None:
    """Return one number as a float; None for whatever is none, or has no name."""
    if not isinstance(name, str) or isinstance(value, str | bytes):
        return None
    try:
        return float(value) if np.ndim(value) == 0 else None
    except (TypeError, ValueError, OverflowError):
        return None


def _differ(value: Tensor, other: Tensor) -> bool:
    """Whether two values are not the same; two NaNs are."""
    if value is other:
        return False
    a, b = _number("", value), _number("", other)
    return a is None or b is None or not (a == b or (math.isnan(a) and math.isnan(b)))
