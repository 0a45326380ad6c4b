"""Types of every configuration key. ``conf/`` gives the values; a key that is not here is refused.

The fields of a model, dataset, schedule... are the parameters of the function that it names; a
test holds the two together.
"""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

import dtrain
from dtrain.errors import UsageError, nearest


class Precision(enum.Enum):
    """Numeric policies of Keras."""

    float32 = 1
    mixed_bfloat16 = 2
    mixed_float16 = 3


class Kind(enum.Enum):
    """Kinds of device; ``auto`` is the machine's GPUs, else its CPU."""

    auto = 1
    cpu = 2
    gpu = 3


class Mode(enum.Enum):
    """Which objective is better."""

    max = 1
    min = 2


class Replicas(enum.Enum):
    """How many replicas a strategy makes: one, or one on each device."""

    one = 1
    per_device = 2


@dataclasses.dataclass
class Hardware:
    kind: Kind = Kind.auto
    devices: int | None = None
    hosts: int = 1
    intra_op_threads: int | None = None
    inter_op_threads: int | None = None
    onednn: bool = True
    memory_growth: bool = True
    precision: Precision = Precision.float32
    jit_compile: bool = False


@dataclasses.dataclass
class Strategy:
    _target_: str = MISSING
    name: str = MISSING
    replicas: Replicas = Replicas.one
    compilable: bool = False


@dataclasses.dataclass
class Trainer:
    batch_size: int = 64
    epochs: int = 1
    steps_per_epoch: int | None = None
    validation_freq: int = 1
    loss: Any = "sparse_categorical_crossentropy"
    metrics: list[Any] = dataclasses.field(default_factory=list)
    callbacks: list[Any] = dataclasses.field(default_factory=list)
    terminate_on_nan: bool = True
    log_every_steps: int | None = None


@dataclasses.dataclass
class Tracking:
    mlflow: bool = True
    uri: str | None = None
    experiment: str = "dtrain"
    histograms: bool = False
    profile_steps: list[int] | None = None


@dataclasses.dataclass
class Checkpointing:
    every_epochs: int | None = 1
    every_steps: int | None = None
    every_seconds: float | None = None
    keep: int = 3
    best: bool = True


@dataclasses.dataclass
class Launcher:
    _target_: str = MISSING
    grace_seconds: float = 30.0


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


@dataclasses.dataclass
class Config:
    """The whole of it. Groups that a person may bring a YAML file of their own for are open."""

    model: Any = MISSING
    dataset: Any = MISSING
    strategy: Any = MISSING
    optimizer: Any = MISSING
    launcher: Any = MISSING
    hardware: Hardware = dataclasses.field(default_factory=Hardware)
    trainer: Trainer = dataclasses.field(default_factory=Trainer)
    tracking: Tracking = dataclasses.field(default_factory=Tracking)
    checkpoint: Checkpointing = dataclasses.field(default_factory=Checkpointing)
    name: str = MISSING
    seed: int = 0
    output_dir: str = "outputs"
    objective: str = MISSING
    objective_mode: Mode = Mode.max
    resume: str | None = None
    dry_run: bool = False


#: Schema of each option, by the group and name that ``conf/`` refers to it with.
SCHEMAS: dict[str, dict[str, type]] = {
    "model": {"mlp": Mlp, "cnn": Cnn, "resnet": Resnet},
    "dataset": {
        "digits": Digits,
        "synthetic": Synthetic,
        "npz": Npz,
        "csv": Csv,
        "image_folder": ImageFolder,
    },
    "optimizer": {"adam": Adam, "adamw": AdamW, "sgd": Sgd},
    "optimizer/schedule": {"cosine": Cosine, "warmup": Warmup},
    "strategy": {"strategy": Strategy},
    "launcher": {"launcher": Launcher},
}


def folder(name: str) -> Path:
    """Return ``conf`` or ``experiments``: inside an installed package, else in the checkout."""
    package = Path(dtrain.__file__).parent
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def refuse_unknown(config: DictConfig) -> None:
    """Refuse keys that ``+key=value`` has put beside those that code reads.

    Raises:
        UsageError: for the first one found. Keys of models, datasets... are checked where the
            function is called that takes them.
    """
    typed = {"": Config, "hardware": Hardware, "trainer": Trainer, "tracking": Tracking}
    for prefix, kind in {**typed, "checkpoint": Checkpointing}.items():
        known = [field.name for field in dataclasses.fields(kind)]
        for name in map(str, OmegaConf.select(config, prefix) if prefix else config):
            if name not in known:
                key = f"{prefix}.{name}" if prefix else name
                near = nearest(name, known) or known[0]
                raise UsageError(
                    key, OmegaConf.select(config, key), "nothing reads this key",
                    ", ".join(sorted(known)), f"{prefix}.{near}=..." if prefix else f"{near}=...",
                )  # fmt: skip


def register() -> None:
    """Put the schemas and the experiments into Hydra's store."""
    store = ConfigStore.instance()
    store.store(name="config_schema", node=Config)
    for group, options in SCHEMAS.items():
        for name, schema in options.items():
            store.store(group=f"schema/{group}", name=name, node=schema)
    for path in sorted(folder("experiments").glob("*.yaml")):
        # `experiment=NAME` reads experiments/NAME.yaml, whose keys stand at the top.
        node: Any = OmegaConf.load(path)
        store.store(group="experiment", name=path.stem, node=node, package="_global_")
