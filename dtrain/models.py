"""Models that dtrain ships. Each function returns an uncompiled Keras model.

``input_shape``, ``classes``, ``outputs`` and ``encoding`` are filled in from the dataset where the
configuration leaves them out: the first two are names of ``keras.applications``. Outputs are
probabilities, or the numbers of a regression, kept in float32 under mixed precision (TensorFlow's
guide to it).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import keras
import numpy as np
from keras import layers

from dtrain.data.dates import CYCLES
from dtrain.data.encoding import Encoding
from dtrain.data.fit_encoding import MANY
from dtrain.errors import refuse
from dtrain.host import usage

#: Bytes of memory that training takes for each weight: itself, its gradient, two slots of Adam.
_BYTES = 16


def mlp(
    input_shape: Sequence[int],
    classes: int | None = None,
    units: Sequence[int] = (128, 64),
    dropout: float = 0.0,
    l2: float = 0.0,
    outputs: int | None = None,
    encoding: Encoding | None = None,
) -> keras.Model:
    """Fully connected network.

    Args:
        input_shape: of one example, any rank; flattened.
        classes: number of classes; None: it predicts numbers.
        units: width of each hidden layer.
        dropout: rate after each hidden layer.
        l2: weight of the L2 regularizer on every kernel.
        outputs: numbers that it predicts where there are no classes.
        encoding: of the table that its inputs are the matrix of (:func:`encoded`).

    Returns:
        A model from ``[b, *input_shape]`` to probabilities ``[b, classes]``, or ``[b, outputs]``.
    """
    return _layered("mlp", input_shape, classes, units, dropout, l2, outputs, encoding, wide=False)


def wide_deep(
    input_shape: Sequence[int],
    classes: int | None = None,
    units: Sequence[int] = (128, 64),
    dropout: float = 0.0,
    l2: float = 0.0,
    outputs: int | None = None,
    encoding: Encoding | None = None,
) -> keras.Model:
    """Linear model and fully connected network, added up (Cheng et al. 2016, arXiv 1606.07792).

    The weights of the output start from zero: training begins as that of a linear model, and what
    the examples say nothing of, such as a column that is constant, has no part in a prediction.

    Args:
        input_shape: of one example, any rank; flattened.
        classes: number of classes; None: it predicts numbers.
        units: width of each hidden layer.
        dropout: rate after each hidden layer.
        l2: weight of the L2 regularizer on every kernel.
        outputs: numbers that it predicts where there are no classes.
        encoding: of the table that its inputs are the matrix of (:func:`encoded`).

    Returns:
        A model from ``[b, *input_shape]`` to probabilities ``[b, classes]``, or ``[b, outputs]``.
    """
    return _layered(
        "wide_deep", input_shape, classes, units, dropout, l2, outputs, encoding, wide=True
    )


def _layered(
    name: str, input_shape: Sequence[int], classes: int | None, units: Sequence[int],
    dropout: float, l2: float, outputs: int | None, encoding: Encoding | None, *, wide: bool,
) -> keras.Model:  # fmt: skip
    """Return hidden layers and an output; of a ``wide`` model the inputs reach the output, too."""
    width = _outputs(classes, outputs)
    _check_fits(_dense(math.prod(input_shape), *units, width), "model.units", units)
    regularizer = keras.regularizers.L2(l2) if l2 else None
    inputs = keras.Input(tuple(input_shape))
    first = layers.Flatten()(inputs) if encoding is None else encoded(inputs, encoding)
    x = first
    for hidden in units:
        x = layers.Dense(hidden, activation="relu", kernel_regularizer=regularizer)(x)
        if dropout:
            x = layers.Dropout(dropout)(x)
    start = "glorot_uniform"
    if wide:
        x, start = layers.Concatenate()([first, x]), "zeros"
    output = _head(x, classes, outputs, regularizer, encoding, start)
    return keras.Model(inputs, output, name=name)


def encoded(inputs: keras.KerasTensor, encoding: Encoding) -> keras.KerasTensor:
    """Return what a network learns from of the matrix of a table: its first layers.

    Numbers are normalised by the mean and variance of the training; an empty one is 0, beside an
    indicator. Dates have the time of the year and of the week, too. Few categories are one-hot,
    many are embedded. All is made of Keras' own layers and operations.

    Args:
        inputs: float32 ``[b, width]``, as ``encoding`` has made it.
        encoding: of the table.
    """
    parts = []
    numbers = encoding.of("number", "boolean", "date")
    if count := len(numbers):
        raw = inputs[:, :count]
        # In two steps: of a large mean and a small variance one would leave only rounding errors.
        x = layers.Rescaling(1.0, [-feature.mean for feature in numbers], dtype="float32")(raw)
        scales = [1 / math.sqrt(feature.variance or 1.0) for feature in numbers]
        x = layers.Rescaling(scales, dtype="float32")(x)
        parts.append(keras.ops.nan_to_num(x, nan=0.0))
        for at, feature in enumerate(numbers):
            days = inputs[:, at : at + 1]
            if feature.kind == "date":
                angles = [
                    days * (2 * math.pi / cycle) + feature.offset % cycle * (2 * math.pi / cycle)
                    if feature.offset else days * (2 * math.pi / cycle) for cycle in CYCLES
                ]  # fmt: skip
                waves = [wave(angle) for angle in angles for wave in (keras.ops.sin, keras.ops.cos)]
                parts += [keras.ops.nan_to_num(wave, nan=0.0) for wave in waves]
            if feature.missing:
                parts.append(keras.ops.cast(keras.ops.isnan(days), "float32"))
    at = count + sum(feature.width for feature in encoding.of("text"))
    if at > count:
        parts.append(inputs[:, count:at])
    for feature in encoding.of("category"):
        index, values = keras.ops.cast(inputs[:, at], "int32"), len(feature.values)
        at += 1
        if values < MANY:
            each = keras.ops.one_hot(index, values + 1)
            # Without empty cells nothing is learned of what is unknown.
            parts.append(each if feature.missing else each[:, 1:])
        else:
            width = min(50, round(1.6 * values**0.56))
            parts.append(layers.Embedding(values + 1, width)(index))
    return parts[0] if len(parts) == 1 else layers.Concatenate()(parts)


def with_columns(model: keras.Model, encoding: Encoding) -> keras.Model:
    """Return a model whose inputs are the columns of a table by name, in front of a trained one.

    Numbers, booleans (0 and 1) and dates (days since 1970-01-01) are float32 ``[b, 1]``, of which
    an empty one is NaN, and float64 where they are large and differ little; categories and texts
    are strings ``[b, 1]``.

    Args:
        model: trained on the matrix of ``encoding``.
        encoding: of the training.
    """
    inputs, parts = {}, []
    for feature in encoding.features:
        name = re.sub(r"\W", "_", feature.name)
        dtype = "float64" if feature.offset else "float32"
        x = keras.Input((1,), name=name, dtype="string" if feature.is_text else dtype)
        inputs[feature.name] = x
        rest = feature.offset
        while rest:  # Keras keeps a number of a layer in float32
            part = float(np.float32(rest))
            x, rest = layers.Rescaling(1.0, -part, dtype="float64")(x), rest - part
        x = keras.ops.cast(x, "float32") if feature.offset else x
        if feature.kind == "category":
            lookup = layers.StringLookup(vocabulary=list(feature.values), num_oov_indices=1)
            x = keras.ops.cast(lookup(x), "float32")
        elif feature.kind == "text":
            words = layers.TextVectorization(
                vocabulary=list(feature.values), output_mode="multi_hot"
            )
            known = keras.ops.reshape(words(x), (-1, feature.width + 1))  # as it is, not as it says
            x = keras.ops.cast(known[:, 1:], "float32")  # the first is of unknown words
        parts.append(x)
    matrix = layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    return keras.Model(inputs, model(matrix), name=f"{model.name}_with_columns")


def cnn(
    input_shape: Sequence[int],
    classes: int | None = None,
    filters: Sequence[int] = (32, 64),
    units: int = 64,
    dropout: float = 0.25,
    l2: float = 0.0,
    outputs: int | None = None,
) -> keras.Model:
    """Small convolutional network: 3x3 convolutions with 2x2 pooling, then one hidden layer.

    Args:
        input_shape: ``[height, width]`` or ``[height, width, channels]``.
        classes: number of classes; None: it predicts numbers.
        filters: channels of each convolution.
        units: width of the hidden layer.
        dropout: rate before the output.
        l2: weight of the L2 regularizer on every kernel.
        outputs: numbers that it predicts where there are no classes.

    Returns:
        A model from ``[b, *input_shape]`` to probabilities ``[b, classes]``, or ``[b, outputs]``.
    """
    height, width, depth = _sizes(input_shape)
    kernels = sum(9 * a * b for a, b in itertools.pairwise([depth, *filters]))
    flat = (height >> len(filters)) * (width >> len(filters)) * [depth, *filters][-1]
    last = _outputs(classes, outputs)
    _check_fits(kernels + _dense(flat, units, last), "model.filters", [*filters, units])
    regularizer = keras.regularizers.L2(l2) if l2 else None
    inputs, x = _image(input_shape)
    for channels in filters:
        x = layers.Conv2D(
            channels, 3, padding="same", activation="relu", kernel_regularizer=regularizer
        )(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dense(units, activation="relu", kernel_regularizer=regularizer)(x)
    if dropout:
        x = layers.Dropout(dropout)(x)
    return keras.Model(inputs, _head(x, classes, outputs, regularizer), name="cnn")


def resnet(
    input_shape: Sequence[int],
    classes: int | None = None,
    filters: Sequence[int] = (16, 32, 64),
    blocks: int = 1,
    outputs: int | None = None,
) -> keras.Model:
    """Residual network for small images (He et al. 2015, arXiv 1512.03385, section 4.2).

    Batch normalisation is synchronised over the replicas: its statistics are those of the global
    batch, so the numbers do not depend on how many replicas share it.

    Args:
        input_shape: ``[height, width]`` or ``[height, width, channels]``.
        classes: number of classes; None: it predicts numbers.
        filters: channels of each stage; every stage after the first halves the resolution.
        blocks: residual blocks a stage.
        outputs: numbers that it predicts where there are no classes.

    Returns:
        A model from ``[b, *input_shape]`` to probabilities ``[b, classes]``, or ``[b, outputs]``.
    """
    _check_fits(sum(18 * blocks * each**2 for each in filters), "model.filters", filters)
    inputs, x = _image(input_shape)
    x = _conv_norm(x, filters[0], 1)
    x = layers.ReLU()(x)
    for stage, channels in enumerate(filters):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            shortcut = x
            if stride != 1 or x.shape[-1] != channels:
                shortcut = _conv_norm(x, channels, stride, size=1)
            x = layers.ReLU()(_conv_norm(x, channels, stride))
            x = layers.ReLU()(layers.Add()([_conv_norm(x, channels, 1), shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, _head(x, classes, outputs, None), name="resnet")


def transformer(
    input_shape: Sequence[int],
    classes: int | None = None,
    width: int = 64,
    blocks: int = 2,
    heads: int = 4,
    dropout: float = 0.0,
) -> keras.Model:
    """Small decoder that predicts the next token (Radford et al. 2019, "GPT-2"): causal attention.

    Normalisation stands before each part of a block, and the output shares the embedding's weights.

    Args:
        input_shape: ``[length]``, of whole numbers below ``classes``.
        classes: size of the vocabulary.
        width: of what stands for a token; a multiple of ``heads``.
        blocks: attention and feed-forward, so many times.
        heads: of each attention.
        dropout: rate after each part of a block, and of attention's weights.

    Returns:
        A model from ``[b, length]`` to probabilities ``[b, length, classes]``.
    """
    if classes is None:
        refuse("model", "predicts tokens, and the targets of the dataset are none", "a transformer",
               accepted="whole numbers below the size of the vocabulary",
               typed="model=mlp")  # fmt: skip
    if len(input_shape) != 1:
        refuse("model", f"cannot read examples of shape {list(input_shape)}", "a transformer",
               accepted="[length], of tokens", typed="model=mlp")  # fmt: skip
    weights = 12 * blocks * width**2 + (classes + input_shape[0]) * width
    _check_fits(weights, "model.width", width)
    tokens = keras.Input(tuple(input_shape), dtype="int32")
    embedding = TiedEmbedding(classes, width, name="embedding")
    x = embedding(tokens)
    start = keras.initializers.RandomNormal(stddev=0.02)
    for i in range(blocks):
        y = layers.LayerNormalization(name=f"attention_norm_{i}")(x)
        attention = layers.MultiHeadAttention(
            heads, width // heads, dropout=dropout, kernel_initializer=start, name=f"attention_{i}"
        )
        y = attention(y, y, use_causal_mask=True)
        x = layers.Add()([x, layers.Dropout(dropout)(y) if dropout else y])
        y = layers.LayerNormalization(name=f"feed_norm_{i}")(x)
        y = layers.Dense(4 * width, "gelu", kernel_initializer=start, name=f"up_{i}")(y)
        y = layers.Dense(width, kernel_initializer=start, name=f"down_{i}")(y)
        x = layers.Add()([x, layers.Dropout(dropout)(y) if dropout else y])
    x = layers.LayerNormalization(name="norm")(x)
    x = layers.Softmax(dtype="float32")(embedding(x, reverse=True))
    return keras.Model(tokens, x, name="transformer")


@keras.saving.register_keras_serializable("dtrain")
class TiedEmbedding(layers.Layer):
    """Embeds tokens and their positions, and turns vectors back into a score for each token.

    Args:
        vocabulary: how many tokens there are.
        width: of the vectors.
        **kwargs: as of ``keras.layers.Layer``.
    """

    def __init__(self, vocabulary: int, width: int, **kwargs: object):
        super().__init__(**kwargs)
        self.vocabulary, self.width = vocabulary, width

    def build(self, input_shape: Sequence[int]) -> None:
        """Create the weights, for sequences of the length of ``input_shape``."""
        start = keras.initializers.RandomNormal(stddev=0.02)
        shape = (self.vocabulary, self.width)
        self.tokens = self.add_weight(name="tokens", shape=shape, initializer=start)
        shape = (input_shape[1], self.width)
        self.positions = self.add_weight(name="positions", shape=shape, initializer=start)

    def call(self, x: keras.KerasTensor, reverse: bool = False) -> keras.KerasTensor:
        """Map ``[b, length]`` to ``[b, length, width]``, or vectors to ``[..., vocabulary]``."""
        if reverse:
            return keras.ops.matmul(x, keras.ops.transpose(self.tokens))
        return keras.ops.take(self.tokens, x, axis=0) + self.positions

    def get_config(self) -> dict[str, object]:
        """Return what :meth:`__init__` takes."""
        return {**super().get_config(), "vocabulary": self.vocabulary, "width": self.width}


def _dense(*widths: int) -> int:
    """Return how many weights the kernels between layers of these widths have."""
    return sum(a * b for a, b in itertools.pairwise(widths))


def _check_fits(weights: int, key: str, value: object) -> None:
    """Refuse a model that the memory cannot hold: its making would end the process, or others."""
    free, needed = usage.available(), weights * _BYTES
    if free is not None and needed > free:
        refuse(key, f"{weights:,} weights take {usage.text(needed)} of memory to train, and "
               f"{usage.text(free)} are free", value, accepted="a smaller model",
               hint=f"{key}=...")  # fmt: skip


def _sizes(input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return height, width and channels."""
    if len(input_shape) not in (2, 3):
        refuse("model", f"cannot read examples of shape {input_shape}", "a convolutional model",
               accepted="[height, width] or [height, width, channels]",
               hint="model=mlp, or model=transformer for text")  # fmt: skip
    height, width, channels = [*input_shape, 1][:3]
    return height, width, channels


def _image(input_shape: Sequence[int]) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    _sizes(input_shape)
    inputs = keras.Input(tuple(input_shape))
    x = layers.Reshape((*input_shape, 1))(inputs) if len(input_shape) == 2 else inputs
    return inputs, x


def _conv_norm(
    x: keras.KerasTensor, channels: int, stride: int, size: int = 3
) -> keras.KerasTensor:
    x = layers.Conv2D(channels, size, stride, padding="same", use_bias=False)(x)
    # Momentum 0.9: with 0.99 the moving statistics of a short run are still those of its start.
    # Those of JAX are of the global batch anyway, and Keras has no such argument there.
    synchronized = keras.backend.backend() == "tensorflow"
    return layers.BatchNormalization(momentum=0.9, synchronized=synchronized)(x)


def _outputs(classes: int | None, outputs: int | None) -> int:
    """Return how many outputs a model has.

    Raises:
        UsageError: the targets are neither classes nor one row of numbers.
    """
    if (made := classes or outputs) is None:
        refuse("model.classes", "the targets of the dataset are no classes that can be counted, "
               "and no row of numbers to predict", None, accepted="the number of classes, or a "
               "model of your own", hint="model.classes=N, or dataset.task=regression")  # fmt: skip
    return made


def _head(
    x: keras.KerasTensor, classes: int | None, outputs: int | None,
    regularizer: keras.regularizers.Regularizer | None, encoding: Encoding | None = None,
    start: str = "glorot_uniform",
) -> keras.KerasTensor:  # fmt: skip
    """Return probabilities of classes or labels, or numbers, in the unit of the targets.

    ``start`` is the initializer of the kernel.
    """
    target = None if encoding is None else encoding.target
    activation = None if classes is None else "softmax"
    if classes is None and target is not None and target.kind == "labels":
        activation = "sigmoid"
    x = layers.Dense(
        _outputs(classes, outputs), activation=activation, dtype="float32",
        kernel_regularizer=regularizer, kernel_initializer=start,
    )(x)  # fmt: skip
    if activation is None and target is not None and len(target.mean) == x.shape[-1]:
        return layers.Rescaling(list(target.deviation), list(target.mean), dtype="float32")(x)
    return x
