"""Types of the keys of datasets."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import MISSING

from dtrain.config.forms import (
    COLUMNS,
    IMAGE_SIZE,
    IMAGES,
    NODE,
    PATH,
    PATHS,
    SEPARATOR,
    SHAPE,
    TOKENS,
    target,
    text,
)
from dtrain.config.ranges import LARGE, MANY, SEED, WIDE, formed, within


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
class Columns(Split):
    """Columns of rows.

    Attributes:
        inputs: column, list of columns of numbers, or columns by name; null: all but the target.
        target: column, list of columns of numbers, or columns by the names of outputs.
        weight: column of the weights of the examples; null: all weigh 1.
        classes: number of classes; null: those of the target's column, which is read for it.
        images: columns of encoded images, each with height, width and channels.
    """

    inputs: Any | None = formed(None, COLUMNS)
    target: Any = formed(MISSING, COLUMNS)
    weight: Any | None = formed(None, COLUMNS)
    classes: int | None = within(None, 1, WIDE)
    images: Any | None = formed(None, IMAGES)


@dataclasses.dataclass
class Table(Columns):
    """Columns of rows in files.

    Attributes:
        path: a file, a pattern such as shards/*.parquet, or a list of them; ordered by name.
        validation_path: files to evaluate on; null: a part of the rows is split off.
    """

    path: Any = formed(MISSING, PATHS)
    validation_path: Any | None = formed(None, PATHS)


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
        path: a CSV file, a pattern such as part-*.csv, or a list of them, with the same header.
        label: column of the target; null: the last one.
        separator: character between two columns.
    """

    _target_: str = target("dtrain.datasets.csv")
    path: Any = formed(MISSING, PATHS)
    label: str | None = formed(None, text())
    separator: str = formed(",", SEPARATOR)


@dataclasses.dataclass
class Parquet(Table):
    """Columns of Parquet files.

    Attributes:
        _target_: function that loads the data.
    """

    _target_: str = target("dtrain.datasets.parquet")


@dataclasses.dataclass
class Arrow(Table):
    """Columns of Arrow files or streams.

    Attributes:
        _target_: function that loads the data.
    """

    _target_: str = target("dtrain.datasets.arrow")


@dataclasses.dataclass
class HuggingFace(Columns):
    """A folder that save_to_disk of Hugging Face's datasets has written.

    Attributes:
        _target_: function that loads the data.
        path: the folder of a Dataset or a DatasetDict.
        split: split to train on.
        validation: split to evaluate on; null: a part of the rows is split off.
    """

    _target_: str = target("dtrain.datasets.huggingface")
    path: str = formed(MISSING, PATH)
    split: str = formed("train", text())
    validation: str | None = formed(None, text())


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
