"""Several inputs, outputs and weights, and inputs of text: the training of Keras' own fit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from dtrain.data import nest
from dtrain.data.sources import Arrays, Source, Splits
from tests.sampled import sampled
from tests.test_steps import BATCH, prepare, settings

N, HELD, STEPS = 50, 21, 12
WORDS = ["red", "green", "blue", "a dark sky", "grün"]


class InPython(Source):
    """The same examples, read by NumPy."""

    def __init__(self, *parts: Any):
        self.parts = parts

    def __len__(self) -> int:
        return len(nest.leaves(self.parts[0])[0])

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
        return tuple(
            part if part is None else nest.mapped(lambda leaf: leaf[indices], part)
            for part in self.parts
        )


def examples(kind: str) -> tuple[Any, ...]:
    generator = np.random.Generator(np.random.Philox(5))
    n = N + HELD
    numbers = generator.standard_normal((n, 4)).astype(np.float32)
    tokens = generator.integers(0, 7, (n, 3))
    words = np.array([WORDS[i] for i in generator.integers(0, 5, n)], object)
    binary = (numbers.sum(1) > 0).astype(np.float32)[:, None]
    several = (tokens.sum(1) % 3).astype(np.int64)
    one, other = generator.uniform(0.1, 3.0, (2, n)).astype(np.float32)
    if kind == "text":
        return words, several
    if kind == "text and numbers":
        return {"words": words, "numbers": numbers}, several, one
    if kind == "tuples":
        return (numbers, tokens), (binary, several), (one, other)
    targets = {"a": binary, "b": several}
    if kind == "plain":
        return {"numbers": numbers, "tokens": tokens}, targets
    return {"numbers": numbers, "tokens": tokens}, targets, {"a": one, "b": other}


def data(kind: str, in_python: bool = False) -> Splits:
    make: Any = InPython if in_python else Arrays
    parts = examples(kind)
    return Splits(
        make(*(nest.mapped(lambda leaf: leaf[:N], part) for part in parts)),
        make(*(nest.mapped(lambda leaf: leaf[N:], part) for part in parts)),
        3,
    )


def two_by_two(input_shape: Any, classes: int) -> Any:
    """Two inputs, two outputs; by name, or in the order that they are given in."""
    import keras
    from keras import layers

    named = isinstance(input_shape, dict)
    shapes = list(input_shape.values()) if named else list(input_shape)
    assert shapes == [(4,), (3,)]
    numbers = keras.Input((4,), name="numbers")
    tokens = keras.Input((3,), name="tokens", dtype="int64")
    embedded = layers.Flatten()(layers.Embedding(7, 2)(tokens))
    joined = layers.Concatenate()([layers.Dense(5, "relu")(numbers), embedded])
    a = layers.Dense(1, "sigmoid", name="a")(joined)
    b = layers.Dense(classes, "softmax", name="b")(joined)
    if named:
        return keras.Model({"numbers": numbers, "tokens": tokens}, {"a": a, "b": b})
    return keras.Model([numbers, tokens], [a, b])


def of_text(input_shape: Any, classes: int) -> Any:
    """Text, by a vocabulary that is there before training."""
    import keras
    from keras import layers

    assert input_shape == ()
    text = keras.Input((), dtype="string")
    vocabulary = ["red", "green", "blue", "a", "dark", "sky", "grün"]
    tokens = layers.TextVectorization(vocabulary=vocabulary, output_sequence_length=3)(text)
    embedded = layers.GlobalAveragePooling1D()(layers.Embedding(9, 4)(tokens))
    return keras.Model(text, layers.Dense(classes, "softmax")(embedded))


def of_words(input_shape: Any, classes: int) -> Any:
    import keras
    from keras import layers

    assert input_shape == {"words": (), "numbers": (4,)}
    words = keras.Input((), dtype="string", name="words")
    numbers = keras.Input((4,), name="numbers")
    found = layers.StringLookup(vocabulary=WORDS, output_mode="one_hot")(words)
    joined = layers.Concatenate()([found, numbers])
    return keras.Model(
        {"words": words, "numbers": numbers}, layers.Dense(classes, "softmax")(joined)
    )


BY_NAME = {
    "loss": {"a": "binary_crossentropy", "b": "sparse_categorical_crossentropy"},
    "loss_weights": {"a": 1.0, "b": 0.25},
    "metrics": {"a": ["binary_accuracy"], "b": "accuracy"},
}
TRAINERS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("two_by_two", BY_NAME),
    "weighted": ("two_by_two", BY_NAME),
    "python": ("two_by_two", BY_NAME),
    "tuples": ("two_by_two", {
        "loss": ["binary_crossentropy", "sparse_categorical_crossentropy"],
        "loss_weights": [1.0, 0.25], "metrics": [["binary_accuracy"], ["accuracy"]],
    }),
    "one loss": ("two_by_two", {
        "loss": {"a": None, "b": "sparse_categorical_crossentropy"}, "metrics": {"b": "accuracy"},
    }),
    "text": ("of_text", {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}),
    "text and numbers": (
        "of_words", {"loss": "sparse_categorical_crossentropy", "metrics": "accuracy"}
    ),
}  # fmt: skip


def config(kind: str) -> Any:
    model, trainer = TRAINERS[kind]
    keys: dict[str, Any] = {"kind": {"python": "weighted", "one loss": "plain"}.get(kind, kind)}
    if kind == "python":
        keys["in_python"] = True
    return settings(
        model={"_target_": f"tests.test_nested_steps.{model}"},
        dataset={"_target_": "tests.test_nested_steps.data", **keys},
        optimizer={"_target_": "keras.optimizers.SGD", "learning_rate": 0.1, "momentum": 0.9},
        trainer=trainer,
    )


def whole(leaf: Any) -> Any:
    """Return an array as fit takes it: of text as a tensor."""
    import tensorflow as tf

    return tf.constant(leaf) if leaf.dtype == object else leaf


def parts(kind: str, rows: Any) -> list[Any]:
    of = {"python": "weighted", "one loss": "plain"}.get(kind, kind)
    return [nest.mapped(lambda leaf: whole(leaf[rows]), part) for part in examples(of)]


def differing(kind: str, strategy: str, devices: int) -> Any:
    """Return the first step, or the validation, that differs from fit's; None where none does."""
    import keras
    import numpy as np

    from dtrain.data.order import Shuffled

    # Of the output that has no loss.
    warnings.filterwarnings("ignore", "Gradients do not exist for variables")
    model, _, steps, _ = prepare(strategy, devices, config(kind))
    found = [steps.results(steps.train(1)) for _ in range(STEPS)]
    held = steps.results(steps.evaluate(*divmod(HELD, steps.evaluation_examples)))
    left = model.get_weights()
    keras.utils.clear_session()
    reference = prepare("Default", 1, config(kind))[0]
    order = Shuffled(N, 0)(np.arange(STEPS * BATCH))
    seen: list[dict[str, Any]] = []

    class Each(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.reset_metrics()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(dict(logs or {}))

    x, y, *weight = parts(kind, order)
    given = {"sample_weight": weight[0]} if weight else {}
    reference.fit(x, y, BATCH, shuffle=False, verbose=0, callbacks=[Each()], **given)
    x, y, *weight = parts(kind, slice(N, None))
    given = {"sample_weight": weight[0]} if weight else {}
    # In one batch: of several the losses of Keras' outputs are means over batches.
    expected = reference.evaluate(x, y, HELD, verbose=0, return_dict=True, **given)
    for number, (ours, theirs) in enumerate(zip([*found, held], [*seen, expected], strict=True)):
        if ours != pytest.approx(theirs, rel=1e-5, abs=1e-6):
            return kind, number, ours, theirs
    for ours, theirs in zip(left, reference.get_weights(), strict=True):
        if ours.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    return None


@pytest.mark.task(devices=2)
@pytest.mark.parametrize(
    ("strategy", "devices"), sampled([("OneDevice", 1), ("Mirrored", 2)], ("Mirrored", 2))
)
@pytest.mark.parametrize("kind", sampled(TRAINERS, "text and numbers", "weighted"))
def test_training_is_that_of_fit(kind: str, strategy: str, devices: int) -> None:
    found = differing(kind, strategy, devices)
    assert found is None, found
