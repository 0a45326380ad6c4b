"""Types of the keys of models, datasets, optimizers and schedules: one class for each preset.

The fields are the parameters of the function that the preset names; a test holds the two together.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import MISSING

from dtrain.config.forms import (
    IMAGE_SIZE,
    NODE,
    PATH,
    SEPARATOR,
    SHAPE,
    TOKENS,
    target,
    text,
    widths,
)
from dtrain.config.ranges import MANY, SEED, formed, within

#: Largest width of a layer, and number of classes.
WIDE = 2**24
#: Largest clipping norm, scale and the like: far below where float32 ends.
LARGE = 1e12


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
class Mlp(Model):
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
class Cnn(Model):
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
class Resnet(Model):
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


@dataclasses.dataclass
class Dataset:
    """Keys of every shipped dataset beside those of its function.

    Attributes:
        augment: node that changes training examples, such as {_target_: dtrain.augment.shift_flip}.
    """

    augment: Any = formed(None, NODE)


@dataclasses.dataclass
class Split(Dataset):
    """A dataset of which a part is drawn for validation.

    Attributes:
        validation_split: share of the examples that is split off for validation.
        split_seed: seed of the shuffle before the split.
    """

    validation_split: float = within(0.2, 0, 1, below=True)
    split_seed: int = within(0, 0, SEED)


@dataclasses.dataclass
class Digits(Split):
    """scikit-learn's digits.

    Attributes:
        _target_: function that loads the data.
    """

    _target_: str = target("dtrain.datasets.digits")


@dataclasses.dataclass
class Synthetic(Dataset):
    """Made-up examples: one random pattern a class, plus normal noise.

    Attributes:
        _target_: function that loads the data.
        examples: training examples.
        validation_examples: validation examples.
        shape: shape of one example.
        classes: number of classes.
        noise: standard deviation of the noise; that of the patterns is 1.
        data_seed: seed of the examples.
    """

    _target_: str = target("dtrain.datasets.synthetic")
    examples: int = within(10_000, 1, MANY)
    validation_examples: int = within(1_000, 0, MANY)
    shape: list[int] | None = formed([28, 28, 1], SHAPE)
    classes: int = within(10, 1, WIDE)
    noise: float = within(1.0, 0, LARGE)
    data_seed: int = within(0, 0, SEED)


@dataclasses.dataclass
class Npz(Split):
    """Arrays of a NumPy file.

    Attributes:
        _target_: function that loads the data.
        path: the .npz file.
        x: name of the array of inputs.
        y: name of the array of targets.
        x_validation: name of the array of validation inputs; null: split off from x.
        y_validation: name of the array of validation targets; null: split off from y.
        scale: factor of the inputs; 0.00392156862745098 turns bytes into 0..1.
    """

    _target_: str = target("dtrain.datasets.npz")
    path: str = formed(MISSING, PATH)
    x: str = formed("x", text())
    y: str = formed("y", text())
    x_validation: str | None = formed(None, text())
    y_validation: str | None = formed(None, text())
    scale: float = within(1.0, -LARGE, LARGE)


@dataclasses.dataclass
class Csv(Split):
    """A table of numbers.

    Attributes:
        _target_: function that loads the data.
        path: the CSV file.
        label: column of the target; null: the last one.
        separator: character between two columns.
    """

    _target_: str = target("dtrain.datasets.csv")
    path: str = formed(MISSING, PATH)
    label: str | None = formed(None, text())
    separator: str = formed(",", SEPARATOR)


@dataclasses.dataclass
class ImageFolder(Split):
    """Images in one sub-folder a class.

    Attributes:
        _target_: function that loads the data.
        path: the folder.
        size: height and width that images are resized to.
        channels: 1 for gray, 3 for colors.
    """

    _target_: str = target("dtrain.datasets.image_folder")
    path: str = formed(MISSING, PATH)
    size: list[int] | None = formed([64, 64], IMAGE_SIZE)
    channels: int = within(3, 1, 3)


@dataclasses.dataclass
class Text(Dataset):
    """A text, for models that predict the next token.

    Attributes:
        _target_: function that loads the data.
        path: the text file; null: 200,000 characters of made-up English.
        tokens: what a token is: bytes or characters.
        length: tokens of an example.
        stride: tokens from one example to the next; null: length.
        validation_split: share of the text that is kept for validation, its end.
    """

    _target_: str = target("dtrain.datasets.text")
    path: str | None = formed(None, PATH)
    tokens: str = formed("bytes", TOKENS)
    length: int = within(64, 1, MANY)
    stride: int | None = within(None, 1, MANY)
    validation_split: float = within(0.1, 0, 1, below=True)


@dataclasses.dataclass
class Optimizer:
    """What every Keras optimizer takes (``keras.optimizers.Optimizer``), and the schedule.

    Attributes:
        _target_: class of the optimizer.
        schedule: node of a learning-rate schedule; null: the rate is constant.
        learning_rate: learning rate; with a schedule its highest.
        weight_decay: decoupled weight decay; null: none.
        clipnorm: largest norm of each gradient; null: no limit.
        clipvalue: largest absolute value in a gradient; null: no limit.
        global_clipnorm: largest norm of all gradients together; null: no limit.
        use_ema: keep an exponential moving average of the weights.
        ema_momentum: momentum of that average.
        ema_overwrite_frequency: steps after which it replaces the weights; null: at the end.
        loss_scale_factor: factor of the loss while gradients are computed; null: none.
        gradient_accumulation_steps: steps whose gradients make one update; null: one.
    """

    _target_: str = target()
    schedule: Any = formed(None, NODE)
    learning_rate: float = within(0.001, 0, 1e6, above=True)
    weight_decay: float | None = within(None, 0, 1e6)
    clipnorm: float | None = within(None, 0, LARGE, above=True)
    clipvalue: float | None = within(None, 0, LARGE, above=True)
    global_clipnorm: float | None = within(None, 0, LARGE, above=True)
    use_ema: bool = False
    ema_momentum: float = within(0.99, 0, 1)
    ema_overwrite_frequency: int | None = within(None, 1, MANY)
    loss_scale_factor: float | None = within(None, 0, LARGE, above=True)
    gradient_accumulation_steps: int | None = within(None, 2, MANY)


@dataclasses.dataclass
class Adam(Optimizer):
    """Adam (Kingma and Ba 2014).

    Attributes:
        beta_1: decay of the mean of gradients.
        beta_2: decay of the mean of their squares.
        epsilon: added to the denominator.
        amsgrad: use the AMSGrad variant.
    """

    _target_: str = target("keras.optimizers.Adam")
    beta_1: float = within(0.9, 0, 1, below=True)
    beta_2: float = within(0.999, 0, 1, below=True)
    epsilon: float = within(1e-7, 0, 1, above=True)
    amsgrad: bool = False


@dataclasses.dataclass
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017).

    Attributes:
        weight_decay: decoupled weight decay; null: none.
    """

    _target_: str = target("keras.optimizers.AdamW")
    weight_decay: float | None = within(0.004, 0, 1e6)


@dataclasses.dataclass
class Sgd(Optimizer):
    """Stochastic gradient descent, with momentum.

    Attributes:
        learning_rate: learning rate; with a schedule its highest.
        momentum: share of the last update that is added to the next.
        nesterov: use Nesterov's momentum.
    """

    _target_: str = target("keras.optimizers.SGD")
    learning_rate: float = within(0.01, 0, 1e6, above=True)
    momentum: float = within(0.9, 0, 1)
    nesterov: bool = False


@dataclasses.dataclass
class Cosine:
    """From learning_rate down along a cosine, over the whole run.

    Attributes:
        _target_: function that makes the schedule.
        alpha: last rate, as a share of learning_rate.
    """

    _target_: str = target("dtrain.schedules.cosine")
    alpha: float = within(0.0, 0, 1)


@dataclasses.dataclass
class Warmup:
    """A linear rise, then constant or a cosine.

    Attributes:
        _target_: function that makes the schedule.
        warmup_epochs: epochs of the rise.
        alpha: last rate, as a share of learning_rate; 1: constant after the rise.
    """

    _target_: str = target("dtrain.schedules.warmup")
    warmup_epochs: float = within(1.0, 0, MANY)
    alpha: float = within(1.0, 0, 1)
