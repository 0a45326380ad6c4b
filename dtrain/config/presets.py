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
class Mlp:
    _target_: str = target("dtrain.models.mlp")
    input_shape: list[int] | None = formed(None, SHAPE)
    classes: int | None = within(None, 1, WIDE)
    units: list[int] = formed([], widths(0, WIDE, "[128,64]"))
    dropout: float = within(0.0, 0, 1, below=True)
    l2: float = within(0.0, 0, LARGE)


@dataclasses.dataclass
class Cnn:
    _target_: str = target("dtrain.models.cnn")
    input_shape: list[int] | None = formed(None, SHAPE)
    classes: int | None = within(None, 1, WIDE)
    filters: list[int] = formed([], widths(0, WIDE, "[32,64]"))
    units: int = within(64, 1, WIDE)
    dropout: float = within(0.25, 0, 1, below=True)
    l2: float = within(0.0, 0, LARGE)


@dataclasses.dataclass
class Resnet:
    _target_: str = target("dtrain.models.resnet")
    input_shape: list[int] | None = formed(None, SHAPE)
    classes: int | None = within(None, 1, WIDE)
    filters: list[int] = formed([], widths(1, WIDE, "[16,32,64]"))
    blocks: int = within(1, 1, 1000)


@dataclasses.dataclass
class Transformer:
    _target_: str = target("dtrain.models.transformer")
    input_shape: list[int] | None = formed(None, SHAPE)
    classes: int | None = within(None, 1, WIDE)
    width: int = within(64, 1, WIDE)
    blocks: int = within(2, 1, 1000)
    heads: int = within(4, 1, WIDE)
    dropout: float = within(0.0, 0, 1, below=True)


@dataclasses.dataclass
class Dataset:
    """Keys of every shipped dataset beside those of its function."""

    augment: Any = formed(None, NODE)


@dataclasses.dataclass
class Digits(Dataset):
    _target_: str = target("dtrain.datasets.digits")
    validation_split: float = within(0.2, 0, 1, below=True)
    split_seed: int = within(0, 0, SEED)


@dataclasses.dataclass
class Synthetic(Dataset):
    _target_: str = target("dtrain.datasets.synthetic")
    examples: int = within(10_000, 1, MANY)
    validation_examples: int = within(1_000, 0, MANY)
    shape: list[int] | None = formed(None, SHAPE)
    classes: int = within(10, 1, WIDE)
    noise: float = within(1.0, 0, LARGE)
    data_seed: int = within(0, 0, SEED)


@dataclasses.dataclass
class Npz(Dataset):
    _target_: str = target("dtrain.datasets.npz")
    path: str = formed(MISSING, PATH)
    x: str = formed("x", text())
    y: str = formed("y", text())
    x_validation: str | None = formed(None, text())
    y_validation: str | None = formed(None, text())
    scale: float = within(1.0, -LARGE, LARGE)
    validation_split: float = within(0.2, 0, 1, below=True)
    split_seed: int = within(0, 0, SEED)


@dataclasses.dataclass
class Csv(Dataset):
    _target_: str = target("dtrain.datasets.csv")
    path: str = formed(MISSING, PATH)
    label: str | None = formed(None, text())
    separator: str = formed(",", SEPARATOR)
    validation_split: float = within(0.2, 0, 1, below=True)
    split_seed: int = within(0, 0, SEED)


@dataclasses.dataclass
class ImageFolder(Dataset):
    _target_: str = target("dtrain.datasets.image_folder")
    path: str = formed(MISSING, PATH)
    size: list[int] | None = formed(None, IMAGE_SIZE)
    channels: int = within(3, 1, 3)
    validation_split: float = within(0.2, 0, 1, below=True)
    split_seed: int = within(0, 0, SEED)


@dataclasses.dataclass
class Text(Dataset):
    _target_: str = target("dtrain.datasets.text")
    path: str | None = formed(None, PATH)
    tokens: str = formed("bytes", TOKENS)
    length: int = within(64, 1, MANY)
    stride: int | None = within(None, 1, MANY)
    validation_split: float = within(0.1, 0, 1, below=True)


@dataclasses.dataclass
class Optimizer:
    """What every Keras optimizer takes (``keras.optimizers.Optimizer``), and the schedule."""

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
    _target_: str = target("keras.optimizers.Adam")
    beta_1: float = within(0.9, 0, 1, below=True)
    beta_2: float = within(0.999, 0, 1, below=True)
    epsilon: float = within(1e-7, 0, 1, above=True)
    amsgrad: bool = False


@dataclasses.dataclass
class AdamW(Adam):
    _target_: str = target("keras.optimizers.AdamW")
    weight_decay: float | None = within(0.004, 0, 1e6)


@dataclasses.dataclass
class Sgd(Optimizer):
    _target_: str = target("keras.optimizers.SGD")
    learning_rate: float = within(0.01, 0, 1e6, above=True)
    momentum: float = within(0.0, 0, 1)
    nesterov: bool = False


@dataclasses.dataclass
class Cosine:
    _target_: str = target("dtrain.schedules.cosine")
    alpha: float = within(0.0, 0, 1)


@dataclasses.dataclass
class Warmup:
    _target_: str = target("dtrain.schedules.warmup")
    warmup_epochs: float = within(1.0, 0, MANY)
    alpha: float = within(1.0, 0, 1)
