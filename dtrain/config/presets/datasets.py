"""Types of the keys of datasets."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import MISSING

from dtrain.config import data_forms as forms
from dtrain.config.forms import AUGMENT, PATH, SHAPE, target, text
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
    pad: Any | None = formed(None, forms.PAD)
    workers: int = within(0, 0, 1_000)
    on_error: OnError = OnError.fail
    accept_changes: bool = False
    test: Any | None = formed(None, forms.PATHS)


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
    split: Any | None = formed(None, forms.SPLIT_BY)
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
    inputs: Any = formed("x", forms.ARRAYS)
    target: Any | None = formed("y", forms.ARRAYS)
    weight: Any | None = formed(None, forms.ARRAYS)
    validation: str | None = formed(None, PATH)
    validation_inputs: Any | None = formed(None, forms.ARRAYS)
    validation_target: Any | None = formed(None, forms.ARRAYS)
    validation_weight: Any | None = formed(None, forms.ARRAYS)
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
    path: Any = formed(MISSING, forms.PATHS)
    target: Any | None = formed(None, forms.PATHS)
    weight: Any | None = formed(None, forms.PATHS)
    validation: Any | None = formed(None, forms.PATHS)
    validation_target: Any | None = formed(None, forms.PATHS)
    validation_weight: Any | None = formed(None, forms.PATHS)
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
    size: list[int] | None = formed([64, 64], forms.IMAGE_SIZE)
    channels: int = within(3, 1, 3)
    validation: str | None = formed(None, PATH)
    cache: str = formed("none", forms.CACHE)


@dataclasses.dataclass
class Mixture(Dataset):
    """Several datasets, each drawn as often as its weight says.

    Attributes:
        _target_: function that loads the data.
        members: the datasets by name, each a node with _target_.
        weights: how often each is drawn, by name; null: as often as it has examples.
    """

    _target_: str = target("dtrain.datasets.mixture")
    members: Any = formed(MISSING, forms.MEMBERS)
    weights: Any | None = formed(None, forms.WEIGHTS)


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
    path: Any | None = formed(None, forms.PATHS)
    tokens: str = formed("bytes", forms.TOKENS)
    length: int = within(64, 1, MANY)
    stride: int | None = within(None, 1, MANY)
    validation: Any | None = formed(None, forms.PATHS)
    validation_split: float = within(0.1, 0, 1, below=True)


# -- tables: formats with columns ------------------------------------------------------------------


@dataclasses.dataclass
class Columns(Split):
    """Columns of rows.

    Attributes:
        inputs: column, list of columns of numbers, or columns by name; null: all but the target.
        target: column, list of columns of numbers, or columns by the names of outputs; null: none.
        weight: column of the weights of the examples; null: all weigh 1.
        classes: number of classes; null: those of the target's column, which is read for it.
        images: columns of encoded images, each with height, width and channels.
    """

    inputs: Any | None = formed(None, forms.COLUMNS)
    target: Any | None = formed(MISSING, forms.COLUMNS)
    weight: Any | None = formed(None, forms.COLUMNS)
    classes: int | None = within(None, 1, WIDE)
    images: Any | None = formed(None, forms.IMAGES)


@dataclasses.dataclass
class Table(Columns):
    """Columns of rows in files.

    Attributes:
        path: a file, a pattern such as shards/*.parquet, or a list of them; ordered by name.
        validation: files to evaluate on; null: a part of the rows is split off.
    """

    path: Any = formed(MISSING, forms.PATHS)
    validation: Any | None = formed(None, forms.PATHS)


@dataclasses.dataclass
class Encoded(Columns):
    """Columns of rows whose inputs become one matrix of numbers.

    Attributes:
        inputs: list of columns, column, or columns by name; null: all but the target.
        columns: kinds of columns: number, boolean, date, category, text or skip, or the form of
            dates such as "%d/%m/%Y"; null: by values.
        empty: cells that mean nothing, such as ["?", -999]; null: the usual ones among numbers.
    """

    columns: Any | None = formed(None, forms.KINDS)
    empty: Any | None = formed(None, forms.CELLS)


@dataclasses.dataclass
class TableFiles(Encoded):
    """A table in files: Parquet, Arrow, CSV or JSON lines.

    Attributes:
        _target_: function that loads the data.
        path: a file, a pattern such as shards/*.parquet, a list of them, or a folder.
        target: column, list of columns of numbers, or columns by the names of outputs; null: none,
            and of text files whose inputs are not named the last column.
        validation: files to evaluate on; null: a part of the rows is split off.
        format: parquet, arrow, csv or json; null: by the file.
        separator: character between the columns of text; null: it is found out; tab is one, too.
        header: the first line has names; false: they are 0, 1, ...; null: it is found out.
        encoding: of text, such as cp1252 or shift_jis; null: it is found out.
        skip_rows: lines of text to leave out: how many above the names, or a list of their numbers.
        comment: lines of text that begin so are left out; null: none.
        quote: character around cells of text; none: there is none; null: a double quote.
    """

    _target_: str = target("dtrain.datasets.table")
    path: Any = formed(MISSING, forms.PATHS)
    target: Any | None = formed(None, forms.COLUMNS)
    validation: Any | None = formed(None, forms.PATHS)
    format: str | None = formed(None, forms.FORMAT)
    separator: str | None = formed(None, forms.SEPARATOR)
    header: bool | None = None
    encoding: str | None = formed(None, forms.ENCODING)
    skip_rows: Any | None = formed(None, forms.SKIP_ROWS)
    comment: str | None = formed(None, text())
    quote: str | None = formed(None, forms.QUOTE)


@dataclasses.dataclass
class HuggingFace(Encoded):
    """A dataset of Hugging Face's package datasets.

    Attributes:
        _target_: function that loads the data.
        path: the folder of a Dataset or a DatasetDict that save_to_disk has written; or tar files.
        name: of a dataset in the package's cache, NAME or NAME/CONFIGURATION.
        train: split to train on.
        validation: split or tar files to evaluate on; null: a part of the rows is split off.
    """

    _target_: str = target("dtrain.datasets.huggingface")
    path: Any | None = formed(MISSING, forms.PATHS)
    name: str | None = formed(None, text())
    train: str = formed("train", text())
    validation: Any | None = formed(None, forms.PATHS)


@dataclasses.dataclass
class TFRecord(Table):
    """TFRecord files of tf.train.Example.

    Attributes:
        _target_: function that loads the data.
        features: types of features by name, such as {image: {dtype: string}}; with null first in
            its shape one has a length that differs.
    """

    _target_: str = target("dtrain.datasets.tfrecord")
    features: Any = formed(MISSING, forms.FEATURES)


@dataclasses.dataclass
class ArrayRecord(TFRecord):
    """ArrayRecord files of tf.train.Example.

    Attributes:
        _target_: function that loads the data.
    """

    _target_: str = target("dtrain.datasets.array_record")


@dataclasses.dataclass
class Tfds(Columns):
    """What TensorFlow Datasets has prepared on this machine.

    Attributes:
        _target_: function that loads the data.
        builder: name of the dataset, NAME, or NAME/CONFIG:1.0.0 where there are several.
        train: split to train on, or a part of one such as train[:80%].
        validation: split to evaluate on; null: a part of the examples is split off.
        data_dir: folder of datasets; null: $TFDS_DATA_DIR, or ~/tensorflow_datasets.
        target: feature, list of numbers, or features by output; null: the supervised target.
    """

    _target_: str = target("dtrain.datasets.tfds")
    builder: str = formed(MISSING, text())
    train: str = formed("train", text())
    validation: str | None = formed(None, text())
    data_dir: str | None = formed(None, PATH)
    target: Any | None = formed(None, forms.COLUMNS)
