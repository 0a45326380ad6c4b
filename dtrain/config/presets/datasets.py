"""Types of the keys of datasets."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import MISSING

from dtrain.config.data_forms import (
    ARRAYS,
    CACHE,
    IMAGE_SIZE,
    MEMBERS,
    PAD,
    PATHS,
    SPLIT_BY,
    TOKENS,
    WEIGHTS,
)
from dtrain.config.forms import AUGMENT, PATH, SHAPE, target
from dtrain.config.ranges import LARGE, MANY, SEED, WIDE, formed, within
from dtrain.data.options import OnError, Shuffle, Task


@dataclasses.dataclass
class Dataset:
    """Keys of every dataset beside those of its function.

    Attributes:
        task: targets are classes (classification) or numbers (regression); auto looks at them.
        augment: nodes that change training examples, in turn: Keras' layers, dtrain.augment.*.
        shuffle: order of a pass: examples, blocks (of what is read at once), none, or auto.
        window: blocks whose examples are mixed with each other, of shuffle=blocks.
        balance: draw each class as often as any other.
        pad: lengths to pad rows of different lengths to, {tokens: {length: 128, value: 0}}.
        workers: reader processes for Python sources; 0: the task itself reads.
        on_error: fail, or skip: leave out unreadable examples; all are read once before.
        accept_changes: resume a run although its data has changed.
        test: files that `evaluate` evaluates on, all of their rows; null: the validation.
    """

    task: Task = Task.auto
    augment: Any = formed(None, AUGMENT)
    shuffle: Shuffle = Shuffle.auto
    window: int = within(8, 1, MANY)
    balance: bool = False
    pad: Any | None = formed(None, PAD)
    workers: int = within(0, 0, 1_000)
    on_error: OnError = OnError.fail
    accept_changes: bool = False
    test: Any | None = formed(None, PATHS)


@dataclasses.dataclass
class Split(Dataset):
    """A dataset of which a part is held out for validation.

    Attributes:
        validation_split: share of the examples that is split off for validation.
        split_seed: seed of the shuffle before the split.
        split: random; classes: the same share of each class in both parts; or {by: COLUMN}.
        folds: parts of a cross validation; null: none.
        fold: the part that is held out, from 0.
    """

    validation_split: float = within(0.2, 0, 1, below=True)
    split_seed: int = within(0, 0, SEED)
    split: Any | None = formed(None, SPLIT_BY)
    folds: int | None = within(None, 2, MANY)
    fold: int = within(0, 0, MANY)


@dataclasses.dataclass
class Digits(Split):
    """Handwritten digits.

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
        inputs: array of inputs, a list of arrays, or arrays by the names of inputs.
        target: array of targets, a list, or arrays by the names of outputs; null: no targets.
        weight: array of the weights of the examples; null: all weigh 1.
        validation: file to evaluate on, which has the same arrays; null: a part is split off.
        validation_inputs: arrays of validation inputs in the same file; null: a part is split off.
        validation_target: arrays of validation targets in the same file.
        validation_weight: array of the weights of the validation examples.
        scale: factor of the inputs; 0.00392156862745098 turns bytes into 0..1.
    """

    _target_: str = target("dtrain.datasets.npz")
    path: str = formed(MISSING, PATH)
    inputs: Any = formed("x", ARRAYS)
    target: Any | None = formed("y", ARRAYS)
    weight: Any | None = formed(None, ARRAYS)
    validation: str | None = formed(None, PATH)
    validation_inputs: Any | None = formed(None, ARRAYS)
    validation_target: Any | None = formed(None, ARRAYS)
    validation_weight: Any | None = formed(None, ARRAYS)
    scale: float = within(1.0, -LARGE, LARGE)


@dataclasses.dataclass
class Npy(Split):
    """Arrays of NumPy files, each with one array.

    Attributes:
        _target_: function that loads the data.
        path: files of the inputs; a file, a pattern, or a list of them, joined by their names.
        target: files of the targets; null: no targets.
        weight: files of the weights of the examples; null: all weigh 1.
        validation: files of inputs to evaluate on; null: a part of the rows is split off.
        validation_target: files of targets to evaluate on.
        validation_weight: files of the weights of the validation examples.
        scale: factor of the inputs; 0.00392156862745098 turns bytes into 0..1.
    """

    _target_: str = target("dtrain.datasets.npy")
    path: Any = formed(MISSING, PATHS)
    target: Any | None = formed(None, PATHS)
    weight: Any | None = formed(None, PATHS)
    validation: Any | None = formed(None, PATHS)
    validation_target: Any | None = formed(None, PATHS)
    validation_weight: Any | None = formed(None, PATHS)
    scale: float = within(1.0, -LARGE, LARGE)


@dataclasses.dataclass
class ImageFolder(Split):
    """Images in one sub-folder a class.

    Attributes:
        _target_: function that loads the data.
        path: the folder, with class folders or with train/ and val/; or a CSV of paths and classes.
        size: height and width that images are resized to.
        channels: 1 for gray, 3 for colors.
        validation: folder or CSV to evaluate on; null: val/ beside train/, or a part is held out.
        cache: where decoded images are cached: none, memory, or disk (dtrain's cache folder).
    """

    _target_: str = target("dtrain.datasets.image_folder")
    path: str = formed(MISSING, PATH)
    size: list[int] | None = formed([64, 64], IMAGE_SIZE)
    channels: int = within(3, 1, 3)
    validation: str | None = formed(None, PATH)
    cache: str = formed("none", CACHE)


@dataclasses.dataclass
class Mixture(Dataset):
    """Several datasets, each drawn as often as its weight says.

    Attributes:
        _target_: function that loads the data.
        members: the datasets by name, each a node with _target_.
        weights: how often each is drawn, by name; null: as often as it has examples.
    """

    _target_: str = target("dtrain.datasets.mixture")
    members: Any = formed(MISSING, MEMBERS)
    weights: Any | None = formed(None, WEIGHTS)


@dataclasses.dataclass
class Text(Dataset):
    """A text, for models that predict the next token.

    Attributes:
        _target_: function that loads the data.
        path: a text file, a pattern, a list, a folder with train/; null: 200,000 made-up letters.
        tokens: what a token is: bytes or characters.
        length: tokens of an example.
        stride: tokens from one example to the next; null: length.
        validation: files to evaluate on; null: the end of the text.
        validation_split: share of the text that is kept for validation, its end.
    """

    _target_: str = target("dtrain.datasets.text")
    path: Any | None = formed(None, PATHS)
    tokens: str = formed("bytes", TOKENS)
    length: int = within(64, 1, MANY)
    stride: int | None = within(None, 1, MANY)
    validation: Any | None = formed(None, PATHS)
    validation_split: float = within(0.1, 0, 1, below=True)
