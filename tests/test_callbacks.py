from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest


def tiny() -> Any:
    import keras

    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def wrap(callback: Any, model: Any) -> Any:
    from dtrain.task.train.callbacks import Callbacks

    made = Callbacks([callback], model, epochs=20, steps_per_epoch=5)
    made.begin()
    return made


def epochs(callbacks: Any, model: Any, losses: list[float], first: int) -> list[float]:
    """Report ``losses`` epoch by epoch until one stops; return the learning rates after each."""
    import numpy as np

    rates: list[float] = []
    model.stop_training = False
    for epoch, loss in enumerate(losses[first:], first):
        model.set_weights([np.full_like(w, epoch) for w in model.get_weights()])
        callbacks.hooks.on_epoch_begin(epoch)
        callbacks.hooks.on_epoch_end(epoch, {"val_loss": loss})
        rates.append(float(model.optimizer.learning_rate.numpy()))
        if model.stop_training:
            break
    return rates


def handed_over(old: Any, new: Any) -> None:
    """Bring the state from ``old`` to ``new``, through JSON as a checkpoint does."""
    arrays, values = old.state()
    new.restore({**arrays, "model/dense/kernel": None}, json.loads(json.dumps(values)))


@pytest.mark.task
def test_who_wants_every_batch() -> None:
    import keras

    class Own(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...

    class Old(keras.callbacks.Callback):
        def on_batch_begin(self, batch: int, logs: Any = None) -> None: ...

    class Inherits(Own):
        pass

    class Epochs(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None: ...

    kinds = keras.callbacks
    for callback in (Own(), Old(), Inherits(), kinds.ModelCheckpoint("a.keras", save_freq=3)):
        assert wrap(callback, tiny()).every_batch, callback
    for callback in (
        Epochs(), kinds.EarlyStopping(), kinds.ReduceLROnPlateau(), kinds.CSVLogger("log.csv"),
        kinds.ModelCheckpoint("a.keras"), kinds.LearningRateScheduler(lambda epoch: 0.1),
    ):  # fmt: skip
        assert not wrap(callback, tiny()).every_batch, callback


@pytest.mark.task
def test_callbacks_know_the_model_and_the_run() -> None:
    import keras

    from dtrain.task.train.callbacks import Callbacks

    seen: list[Any] = []

    class Curious(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            seen.append((self.model, self.params["epochs"], self.params["steps"]))

    model = tiny()
    callbacks = Callbacks([Curious(), Curious()], model, epochs=7, steps_per_epoch=5)
    callbacks.begin()
    assert seen == [(model, 7, 5)] * 2
    none = Callbacks([], model, 1, 1)
    assert not none.every_batch
    assert none.state() == ({}, [])


@pytest.mark.task
def test_early_stopping_goes_on() -> None:
    import keras
    import numpy as np

    losses = [5.0, 4.0, 3.0, 3.5, 3.6, 3.7, 3.8]
    for interrupted in (1, 3, 5):  # while it gets better; while it waits
        model = tiny()

        def stopping() -> Any:
            return keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)

        first = wrap(stopping(), model)
        epochs(first, model, losses[:interrupted], 0)
        other = tiny()
        second = wrap(stopping(), other)
        handed_over(first, second)
        assert len(epochs(second, other, losses, interrupted)) == 6 - interrupted
        assert other.stop_training
        second.hooks.on_train_end()
        for weight in other.get_weights():
            np.testing.assert_array_equal(weight, 2.0)


@pytest.mark.task
def test_reduce_on_plateau_goes_on() -> None:
    import keras

    losses = [3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]

    def reducing() -> Any:
        return keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=2, cooldown=2)

    model = tiny()
    expected = epochs(wrap(reducing(), model), model, losses, 0)
    assert len(set(expected)) == 4
    for interrupted in range(1, len(losses)):
        model = tiny()
        first = wrap(reducing(), model)
        rates = epochs(first, model, losses[:interrupted], 0)
        second = wrap(reducing(), model)
        handed_over(first, second)
        assert rates + epochs(second, model, losses, interrupted) == expected, interrupted


@pytest.mark.task
def test_min_delta_keeps_its_sign() -> None:
    # Keras flips it, for metrics that fall, when it sees the first of them.
    import keras

    losses = [3.0, 2.9, 2.8, 2.7, 2.6]

    def stopping() -> Any:
        return keras.callbacks.EarlyStopping(patience=3, min_delta=0.5)

    for interrupted in (0, 2):
        model = tiny()
        first = wrap(stopping(), model)
        epochs(first, model, losses[:interrupted], 0)
        second = wrap(stopping(), model)
        handed_over(first, second)
        assert len(epochs(second, model, losses, interrupted)) == 4 - interrupted
        assert model.stop_training


@pytest.mark.task
def test_attributes_are_kept_and_own_state_goes_first() -> None:
    import keras
    import numpy as np

    class Counting(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.count, self.best, self.name, self.on, self.nothing = 0, np.float32(0), "", False, 1
            self.table = {"not": "kept"}
            self._private = 0

    class Own(Counting):
        def get_state(self) -> Any:
            return {"table": self.table}

        def set_state(self, value: Any) -> None:
            self.table = value["table"]

    def changed(callback: Any) -> Any:
        callback.count, callback.best, callback.name = 3, np.float32(0.5), "x"
        callback.on, callback.nothing, callback._private = True, None, 3
        callback.table = {"a": [1, 2]}
        return wrap(callback, tiny())

    plain, own = Counting(), Own()
    handed_over(changed(Counting()), wrap(plain, tiny()))
    handed_over(changed(Own()), wrap(own, tiny()))
    assert (plain.count, plain.best, plain.name, plain.on, plain.nothing) == (
        3,
        0.5,
        "x",
        True,
        None,
    )
    assert (plain._private, plain.table) == (0, {"not": "kept"})
    assert (own.count, own.table) == (0, {"a": [1, 2]})


@pytest.mark.task
def test_a_checkpoint_from_elsewhere_changes_no_path_and_no_method(tmp_path: Path) -> None:
    import keras

    from dtrain.errors import CheckpointError

    class Writes(keras.callbacks.Callback):
        def __init__(self, path: str) -> None:
            super().__init__()
            self.path, self.phase = path, "first"

    plain, logger = Writes("a"), keras.callbacks.CSVLogger(f"{tmp_path}/log.csv")
    for callback in (plain, logger):
        made = wrap(callback, tiny())
        evil = {"path": "/b", "filename": "/b", "_private": "/b", "on_epoch_end": 5, "new": [1]}
        made.restore({}, [{**evil, "phase": "second", "count": 3, "append": True}])
        assert callable(callback.on_epoch_end) and callback.count == 3
        assert not hasattr(callback, "_private") and not hasattr(callback, "new")
        with pytest.raises(CheckpointError, match=r"meta.callbacks\[0\] is not a mapping"):
            made.restore({}, [["filename"]])
        made.hooks.on_train_end()
    assert (plain.path, plain.phase) == ("a", "second")
    assert (logger.filename, logger.append) == (f"{tmp_path}/log.csv", True)


@pytest.mark.task
def test_what_a_start_sets_anew(tmp_path: Path) -> None:
    """A clock, and what depends on files that are there, are of this start; counters go on."""
    import itertools

    import keras

    from dtrain.task.train.callbacks import Callbacks

    clock = itertools.count(100)

    class Watching(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.started = next(clock)
            self.waited, self.best = 0, float("inf")
            self.base = float(self.model.optimizer.learning_rate.numpy())
            self.model.optimizer.learning_rate = 7 * self.base

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.waited, self.best = self.waited + 1, logs["val_loss"]

    before, rates = None, [0.01, 0.07]
    for start in range(3):
        model, watching = tiny(), Watching()
        table = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=True)
        made = Callbacks([watching, table], model, 20, 5)
        model.optimizer.learning_rate = rates[min(start, 1)]  # restored, or as it began
        made.begin(before and json.loads(json.dumps(before.began)))
        assert float(model.optimizer.learning_rate.numpy()) == pytest.approx(rates[1])
        if before is not None:
            handed_over(before, made)
        assert watching.started == 100 + start
        assert watching.base == pytest.approx(0.01)
        assert (watching.waited, watching.best) == (start, 3.0 if start else float("inf"))
        epochs(made, model, [3.0], 0)
        made.hooks.on_train_end()
        before = made
    assert (tmp_path / "log.csv").read_text().splitlines() == ["epoch,val_loss", *["0,3.0"] * 3]


@pytest.mark.task
def test_states_stay_with_their_callbacks() -> None:
    import keras

    from dtrain.task.train.callbacks import Callbacks

    def pair(model: Any) -> Any:
        stopping = keras.callbacks.EarlyStopping
        callbacks = [
            stopping(patience=1, restore_best_weights=True),
            stopping(patience=9, restore_best_weights=True),
        ]
        made = Callbacks(callbacks, model, 20, 5)
        made.begin()
        return callbacks, made

    model = tiny()
    _, old = pair(model)
    epochs(old, model, [1.0, 2.0], 0)
    (one, other), new = pair(tiny())
    handed_over(old, new)
    assert (one.patience, other.patience) == (1, 9)
    assert one.best_weights[0][0, 0] == other.best_weights[0][0, 0] == 0.0
    # A run may be resumed with fewer callbacks, or more.
    arrays, values = old.state()
    fewer = Callbacks([keras.callbacks.EarlyStopping()], model, 20, 5)
    fewer.restore(arrays, values)


@pytest.mark.task
def test_callbacks_that_write_keep_to_the_run_folder(tmp_path: Path) -> None:
    from dtrain.errors import UsageError
    from dtrain.task.train.callbacks import made

    def of(name: str, **arguments: Any) -> Any:
        [callback] = made([{"_target_": f"keras.callbacks.{name}", **arguments}], run)
        return callback

    run = tmp_path / "run"
    run.mkdir()
    assert of("ModelCheckpoint", filepath="best.keras").filepath == str(
        run / "callbacks" / "best.keras"
    )
    assert of("CSVLogger", filename="a/b.csv").filename == str(run / "callbacks" / "a" / "b.csv")
    assert (run / "callbacks" / "a").is_dir()
    assert of("TensorBoard").log_dir == str(run / "callbacks" / "logs")
    # A run folder from elsewhere may hold links.
    (tmp_path / "mine").mkdir()
    (run / "callbacks" / "out").symlink_to(tmp_path / "mine")
    with pytest.raises(UsageError, match="a link leads out of the run folder"):
        of("CSVLogger", filename="out/b.csv")
    (run / "callbacks" / "b.csv").symlink_to(tmp_path / "mine" / "b.csv")
    with pytest.raises(UsageError, match="a link leads out of the run folder"):
        of("CSVLogger", filename="b.csv")
    os.environ["DTRAIN_TRUST"] = "keras.callbacks.CSVLogger"
    assert of("CSVLogger", filename="x.csv").filename == "x.csv"


@pytest.mark.task
def test_a_callback_may_not_change_what_is_trained() -> None:
    import keras

    from dtrain.errors import UsageError

    class Unfreezing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                self.model.layers[0].trainable = True

    class Compiling(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.compile("adam", "mse")

    class ThereAndBack(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.trainable = False
            self.model.trainable = True

    model = tiny()
    model.layers[0].trainable = False
    callbacks = wrap(Unfreezing(), model)
    callbacks.hooks.on_epoch_begin(0)
    callbacks.hooks.on_epoch_end(0)
    with pytest.raises(UsageError, match="Unfreezing: one of them changes what is trainable"):
        callbacks.hooks.on_epoch_end(1)
    with pytest.raises(UsageError, match="Compiling: one of them compiles the model anew"):
        wrap(Compiling(), tiny()).hooks.on_train_batch_end(0)
    callbacks = wrap(ThereAndBack(), model)
    callbacks.hooks.on_epoch_begin(0)

    # What a step does while it is traced, between two hooks, is no callback's doing.
    model.layers[0].trainable = False
    callbacks.hooks.on_epoch_end(0)
