"""The keys of models: the parameters of the function that each option names."""

from typing import Annotated

from dtrain.config.fields import (
    Amount,
    Fraction,
    Group,
    Shape,
    Target,
    Width,
    items,
    target,
    within,
)


class Model(Group, scope="numbers"):
    """Keys of every shipped model beside those of its function."""

    target_: Target = target()
    """Function that builds the model."""
    input_shape: Shape | None = None
    """Shape of one example; null: the dataset's."""
    classes: Width | None = None
    """Outputs of the last layer; null: the dataset's classes."""


class Predictor(Model):
    """A model of classes or of numbers."""

    outputs: Width | None = None
    """Outputs of a regression; null: as many as the dataset has targets."""


class Mlp(Predictor):
    """A multilayer perceptron."""

    target_: Target = target("dtrain.models.mlp")
    units: Annotated[list[Width], items(0, 1000)] = [128, 64]
    """Width of each hidden layer."""
    dropout: Fraction = 0.0
    """Share of activations that is dropped after each hidden layer."""
    l2: Amount = 0.0
    """Strength of the L2 penalty on kernels."""


class WideDeep(Mlp):
    """A linear model and a multilayer perceptron, added up."""

    target_: Target = target("dtrain.models.wide_deep")


class Cnn(Predictor):
    """A convolutional network for small images."""

    target_: Target = target("dtrain.models.cnn")
    filters: Annotated[list[Width], items(0, 1000)] = [32, 64]
    """Filters of each convolution."""
    units: Width = 64
    """Width of the dense layer."""
    dropout: Fraction = 0.25
    """Share of activations that is dropped before the last layer."""
    l2: Amount = 0.0
    """Strength of the L2 penalty on kernels."""


class Resnet(Predictor):
    """A residual network for small images."""

    target_: Target = target("dtrain.models.resnet")
    filters: Annotated[list[Width], items(1, 1000)] = [16, 32, 64]
    """Filters of each stage."""
    blocks: Annotated[int, within(1, 1000)] = 1
    """Residual blocks of each stage."""


class Transformer(Model):
    """A decoder that predicts the next token."""

    target_: Target = target("dtrain.models.transformer")
    classes: Width | None = None
    """Size of the vocabulary; null: the dataset's."""
    width: Width = 64
    """Width of the embedding."""
    blocks: Annotated[int, within(1, 1000)] = 2
    """Number of blocks."""
    heads: Width = 4
    """Attention heads of each block."""
    dropout: Fraction = 0.0
    """Share of activations that is dropped."""
