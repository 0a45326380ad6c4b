"""Models of ``tests/test_torch.py``: steps in Keras' form, and a user's layers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch
from keras import layers, ops


def mlp(inputs: int, outputs: int, activation: Any = None) -> Any:
    return keras.Sequential(
        [keras.Input((inputs,)), layers.Dense(6, "tanh"), layers.Dense(outputs, activation)]
    )


class Adversaries(keras.Model):
    """A GAN: its generator is trained by compile's optimizer, its discriminator by one of its own.

    Args:
        width: of an example.
        penalty: the discriminator is a critic, whose gradients ``torch.autograd.grad`` computes,
            and whose gradient by its inputs is held near 1.
    """

    def __init__(self, width: int, penalty: bool):
        super().__init__()
        self.generator, self.discriminator = mlp(2, width), mlp(width, 1)
        self.d_optimizer = keras.optimizers.SGD(0.05, momentum=0.5)
        self.d_optimizer.build(self.discriminator.trainable_variables)
        self.penalty = penalty

    def call(self, x: Any) -> Any:
        return self.discriminator(x)

    def train_step(self, data: Any) -> Any:
        x = data[0]
        made = self.generator(x[:, :2])
        d = self.discriminator
        if self.penalty:
            between = (0.3 * made.detach() + 0.7 * x).requires_grad_()
            [slope] = torch.autograd.grad(d(between).sum(), [between], create_graph=True)
            penalty = (slope.norm(dim=1) - 1).square().mean()
            d_loss = (d(made.detach()) - d(x)).mean() + penalty
            gradients = torch.autograd.grad(d_loss, [v.value for v in d.trainable_variables])
        else:
            self.zero_grad()
            d_loss = ops.mean(ops.softplus(d(made.detach())) + ops.softplus(-d(x)))
            d_loss.backward()
            gradients = [v.value.grad for v in d.trainable_variables]
        self.d_optimizer.apply(list(gradients), d.trainable_variables)
        self.zero_grad()
        g_loss = ops.mean(ops.softplus(-d(self.generator(x[:, :2]))))
        g_loss.backward()
        weights = self.generator.trainable_variables
        self.optimizer.apply([v.value.grad for v in weights], weights)
        return {"d_loss": d_loss, "g_loss": g_loss}


def adversaries(input_shape: Any, classes: int, penalty: bool = False) -> Any:
    model = Adversaries(input_shape[0], penalty)
    model.compile(keras.optimizers.SGD(0.02))
    return model


class Routed(keras.Model):
    """One branch is used where an example says so, one never; two backward passes; clipping."""

    def __init__(self, classes: int):
        super().__init__()
        self.always, self.now_and_then, self.never = (
            layers.Dense(classes, kernel_initializer=keras.initializers.RandomNormal(seed=seed))
            for seed in (1, 2, 3)
        )

    def build(self, shape: Any) -> None:
        for layer in (self.always, self.now_and_then, self.never):
            layer.build(shape)

    def call(self, x: Any) -> Any:
        outputs = self.always(x)
        rows = x[:, 0] > 0.9
        if bool(rows.any()):
            outputs = outputs + rows[:, None] * ops.tanh(self.now_and_then(x))
        return ops.softmax(outputs)

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.zero_grad()
        total = 0.0
        for half in (slice(0, None, 2), slice(1, None, 2)):  # accumulated
            loss = self.compute_loss(y=y[half], y_pred=self(x[half], training=True)) / 2
            loss.backward()
            total = total + loss.detach()
        pairs = [(v.value.grad, v) for v in self.trainable_variables if v.value.grad is not None]
        torch.nn.utils.clip_grad_norm_([v.value for _, v in pairs], 0.5)
        self.optimizer.apply([g for g, _ in pairs], [v for _, v in pairs])
        return {"loss": total}


def routed(input_shape: Any, classes: int) -> Any:
    return Routed(classes)


class Centred(layers.Layer):
    """Keeps a running mean by hand."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=shape[-1:], trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, 0))
        return x - self.mean


def centred(input_shape: Any, classes: int) -> Any:
    """With all that Keras' layers keep, and a loss and a metric that look across the examples."""
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(8, "tanh", activity_regularizer="l2")(Centred()(inputs))
    hidden = layers.SpectralNormalization(layers.Dense(8))(hidden)
    hidden = layers.BatchNormalization()(layers.UnitNormalization()(hidden))
    hidden = layers.GroupNormalization(2)(hidden)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))


def contrast(y_true: Any, y_pred: Any) -> Any:
    """A loss across the examples of the global batch."""
    from dtrain.replicas import gather, mean

    every = gather(y_pred)
    spread = ops.mean(ops.square(every - ops.mean(every, 0)))
    count = ops.cast(y_true > 0, "float32")
    scores = -ops.log(ops.take_along_axis(y_pred, ops.cast(y_true, "int64")[:, None], 1)[:, 0])
    return ops.sum(scores * count) / ops.maximum(mean(ops.sum(count)), 0.25) - spread


def sequences(input_shape: Any, classes: int) -> Any:
    """A class for each token, of sequences that are padded."""
    inputs = keras.Input(input_shape, dtype="int32")
    hidden = layers.Embedding(11, 6, mask_zero=True)(inputs)
    hidden = layers.BatchNormalization()(layers.LSTM(5, return_sequences=True)(hidden))
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))


def across(y_true: Any, y_pred: Any) -> Any:
    """As :func:`contrast`, of a replica's part alone."""
    return ops.mean(ops.square(y_pred - ops.mean(y_pred, 0)))


class Counting(layers.Layer):
    """Counts the examples."""

    def build(self, shape: Any) -> None:
        self.count = self.add_weight(shape=(), trainable=False, name="count", initializer="zeros")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.count.assign_add(len(x))
        return x


def counting(input_shape: Any, classes: int) -> Any:
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(Counting()(inputs)))


class Mixed(keras.Model):
    """Mixes pairs of examples by NumPy's random numbers."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        share = float(np.random.beta(0.4, 0.4))
        return super().train_step((share * x + (1 - share) * x.flip(0), y))


def mixed(input_shape: Any, classes: int) -> Any:
    """With noise and dropout, seeded and not."""
    inputs = keras.Input(input_shape)
    hidden = layers.Dropout(0.2, seed=5)(layers.GaussianNoise(0.1)(inputs))
    hidden = layers.Dropout(0.2)(layers.BatchNormalization()(layers.Dense(8, "tanh")(hidden)))
    return Mixed(inputs, layers.Dense(classes, "softmax")(hidden))


def augmented(input_shape: Any, classes: int) -> Any:
    """A layer that changes each picture by all those of its batch."""
    inputs = keras.Input(input_shape)
    hidden = layers.Flatten()(layers.RandAugment()(inputs))
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))


class Moving(torch.nn.Module):
    """Keeps a running mean in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x


def wrapped(input_shape: Any, classes: int) -> Any:
    """A module of PyTorch's in a layer of Keras', with what it keeps in buffers."""
    linear = torch.nn.Linear(input_shape[0], 6, bias=False)
    module = torch.nn.Sequential(linear, torch.nn.BatchNorm1d(6), torch.nn.Tanh(), Moving())
    layer = layers.TorchModuleWrapper(module, output_shape=(None, 6))
    return keras.Sequential([keras.Input(input_shape), layer, layers.Dense(classes, "softmax")])


def stream() -> Any:
    """Examples without a number, in the order in which they come."""
    from dtrain.data.foreign import Generated
    from dtrain.data.sources import Splits

    def examples() -> Any:
        rows = np.random.Generator(np.random.Philox(3)).standard_normal((43, 4)).astype(np.float32)
        return ((row, int(row[0] > 0) + int(row[1] > 0)) for row in rows)

    return Splits(Generated(examples, "dataset"), None, classes=3)


class OfExamples(keras.Model):
    """Gradients of single examples, by ``kind`` of how they are taken and what is made of them."""

    kind = ""

    def train_step(self, data: Any) -> Any:
        (x, y), weights = data, [v.value for v in self.trainable_variables]

        def loss(rows: slice) -> Any:
            return self.compute_loss(y=y[rows], y_pred=self(x[rows], training=True))

        def of_weights(values: Any) -> Any:
            kernel, bias = values
            return torch.nn.functional.cross_entropy(x @ kernel + bias, y.long())

        each = [slice(i, i + 1) for i in range(len(x))]
        if self.kind == "few" and len(x) < 5:
            raise ValueError("too few")
        if self.kind == "added":
            self.zero_grad()
            for rows in each:
                (loss(rows) / len(x)).backward()
            total = [weight.grad for weight in weights]
        elif self.kind == "func":
            total = list(torch.func.grad(of_weights)([w.detach() for w in weights]))
        elif self.kind == "batched":
            losses = torch.stack([loss(rows) for rows in each])
            eye = torch.eye(len(x))
            total = [g.mean(0) for g in torch.autograd.grad(
                losses, weights, eye, is_grads_batched=True)]  # fmt: skip
        elif self.kind == "uneven":
            grads = [torch.autograd.grad(loss(rows), weights) for rows in each if x[rows, 0] > 0]
            total = [torch.stack(g).sum(0) for g in zip(*grads, strict=True)]
        else:
            total = [torch.zeros_like(weight) for weight in weights]
            for rows in each:
                grads = torch.autograd.grad(loss(rows), weights)
                norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
                total = [t + g / norm / len(x) for t, g in zip(total, grads, strict=True)]
        with torch.no_grad():
            self.optimizer.apply(total, self.trainable_variables)
        return {"loss": loss(slice(None)).detach()}


def of_examples(input_shape: Any, classes: int, kind: str) -> Any:
    inputs = keras.Input(input_shape)
    model = OfExamples(inputs, layers.Dense(classes, activation="softmax")(inputs))
    model.kind = kind
    return model
