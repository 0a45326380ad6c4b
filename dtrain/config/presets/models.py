"""Types of the keys of models."""

from __future__ import annotations

import dataclasses

from dtrain.config.forms import SHAPE, target, widths
from dtrain.config.ranges import LARGE, WIDE, formed, within


@dataclasses.dataclass
class Model:
    """Keys of every shipped model beside those of its function.

    Attributes:
        _target_: function that builds the model.
        input_shape: shape of one example; null: the dataset's.
        classes: outputs of the last layer; null: the dataset's classes.
    """

    _target_: str = target()
    input_shape: list[int] | None = formed(None, SHAPE)
    classes: int | None = within(None, 1, WIDE)


@dataclasses.dataclass
class Predictor(Model):
    """A model of classes or of numbers.

    Attributes:
        outputs: outputs of a regression; null: as many as the dataset has targets.
    """

    outputs: int | None = within(None, 1, WIDE)


@dataclasses.dataclass
class Mlp(Predictor):
    """A multilayer perceptron.

    Attributes:
        units: width of each hidden layer.
        dropout: share of activations that is dropped after each hidden layer.
        l2: strength of the L2 penalty on kernels.
    """

    _target_: str = target("dtrain.models.mlp")
    units: list[int] = formed([128, 64], widths(0, WIDE, "[128,64]"))
    dropout: float = within(0.0, 0, 1, below=True)
    l2: float = within(0.0, 0, LARGE)


@dataclasses.dataclass
class WideDeep(Mlp):
    """A linear model and a multilayer perceptron, added up.

    Attributes:
        _target_: function that builds the model.
    """

    _target_: str = target("dtrain.models.wide_deep")


@dataclasses.dataclass
class Cnn(Predictor):
    """A convolutional network for small images.

    Attributes:
        filters: filters of each convolution.
        units: width of the dense layer.
        dropout: share of activations that is dropped before the last layer.
        l2: strength of the L2 penalty on kernels.
    """

    _target_: str = target("dtrain.models.cnn")
    filters: list[int] = formed([32, 64], widths(0, WIDE, "[32,64]"))
    units: int = within(64, 1, WIDE)
    dropout: float = within(0.25, 0, 1, below=True)
    l2: float = within(0.0, 0, LARGE)


@dataclasses.dataclass
class Resnet(Predictor):
    """A residual network for small images.

    Attributes:
        filters: filters of each stage.
        blocks: residual blocks of each stage.
    """

    _target_: str = target("dtrain.models.resnet")
    filters: list[int] = formed([16, 32, 64], widths(1, WIDE, "[16,32,64]"))
    blocks: int = within(1, 1, 1000)


@dataclasses.dataclass
class Transformer(Model):
    """A decoder that predicts the next token.

    Attributes:
        classes: size of the vocabulary; null: the dataset's.
        width: width of the embedding.
        blocks: number of blocks.
        heads: attention heads of each block.
        dropout: share of activations that is dropped.
    """

    _target_: str = target("dtrain.models.transformer")
    classes: int | None = within(None, 1, WIDE)
    width: int = within(64, 1, WIDE)
    blocks: int = within(2, 1, 1000)
    heads: int = within(4, 1, WIDE)
    dropout: float = within(0.0, 0, 1, below=True)
