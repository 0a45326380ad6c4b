"""Types of the keys of models, datasets, optimizers and schedules: one class for each preset.

The fields are the parameters of the function that the preset names; a test holds the two together.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import MISSING


@dataclasses.dataclass
class Mlp:
    _target_: str = "dtrain.models.mlp"
    input_shape: list[int] | None = None
    classes: int | None = None
    units: list[int] = dataclasses.field(default_factory=list)
    dropout: float = 0.0
    l2: float = 0.0


@dataclasses.dataclass
class Cnn:
    _target_: str = "dtrain.models.cnn"
    input_shape: list[int] | None = None
    classes: int | None = None
    filters: list[int] = dataclasses.field(default_factory=list)
    units: int = 64
    dropout: float = 0.25
    l2: float = 0.0


@dataclasses.dataclass
class Resnet:
    _target_: str = "dtrain.models.resnet"
    input_shape: list[int] | None = None
    classes: int | None = None
    filters: list[int] = dataclasses.field(default_factory=list)
    blocks: int = 1


@dataclasses.dataclass
class Transformer:
    _target_: str = "dtrain.models.transformer"
    input_shape: list[int] | None = None
    classes: int | None = None
    width: int = 64
    blocks: int = 2
    heads: int = 4
    dropout: float = 0.0


@dataclasses.dataclass
class Dataset:
    """Keys of every shipped dataset beside those of its function."""

    augment: Any = None


@dataclasses.dataclass
class Digits(Dataset):
    _target_: str = "dtrain.datasets.digits"
    validation_split: float = 0.2
    split_seed: int = 0


@dataclasses.dataclass
class Synthetic(Dataset):
    _target_: str = "dtrain.datasets.synthetic"
    examples: int = 10_000
    validation_examples: int = 1_000
    shape: list[int] | None = None
    classes: int = 10
    noise: float = 1.0
    data_seed: int = 0


@dataclasses.dataclass
class Npz(Dataset):
    _target_: str = "dtrain.datasets.npz"
    path: str = MISSING
    x: str = "x"
    y: str = "y"
    x_validation: str | None = None
    y_validation: str | None = None
    scale: float = 1.0
    validation_split: float = 0.2
    split_seed: int = 0


@dataclasses.dataclass
class Csv(Dataset):
    _target_: str = "dtrain.datasets.csv"
    path: str = MISSING
    label: str | None = None
    separator: str = ","
    validation_split: float = 0.2
    split_seed: int = 0


@dataclasses.dataclass
class ImageFolder(Dataset):
    _target_: str = "dtrain.datasets.image_folder"
    path: str = MISSING
    size: list[int] | None = None
    channels: int = 3
    validation_split: float = 0.2
    split_seed: int = 0


@dataclasses.dataclass
class Text(Dataset):
    _target_: str = "dtrain.datasets.text"
    path: str | None = None
    tokens: str = "bytes"
    length: int = 64
    stride: int | None = None
    validation_split: float = 0.1


@dataclasses.dataclass
class Optimizer:
    """What every Keras optimizer takes (``keras.optimizers.Optimizer``), and the schedule."""

    _target_: str = MISSING
    schedule: Any = None
    learning_rate: float = 0.001
    weight_decay: float | None = None
    clipnorm: float | None = None
    clipvalue: float | None = None
    global_clipnorm: float | None = None
    use_ema: bool = False
    ema_momentum: float = 0.99
    ema_overwrite_frequency: int | None = None
    loss_scale_factor: float | None = None
    gradient_accumulation_steps: int | None = None


@dataclasses.dataclass
class Adam(Optimizer):
    _target_: str = "keras.optimizers.Adam"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False


@dataclasses.dataclass
class AdamW(Adam):
    _target_: str = "keras.optimizers.AdamW"
    weight_decay: float | None = 0.004


@dataclasses.dataclass
class Sgd(Optimizer):
    _target_: str = "keras.optimizers.SGD"
    learning_rate: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False


@dataclasses.dataclass
class Cosine:
    _target_: str = "dtrain.schedules.cosine"
    alpha: float = 0.0


@dataclasses.dataclass
class Warmup:
    _target_: str = "dtrain.schedules.warmup"
    warmup_epochs: float = 1.0
    alpha: float = 1.0
