"""The keys of datasets: the parameters of the function that an option names, and those of all."""

import contextlib
from typing import Annotated, Literal, Self

import yaml
from annotated_types import MinLen
from pydantic import BeforeValidator, Field, model_validator

from dtrain.config import fields as f

_FILES = 1_000_000  # files or columns that one key may name
_Names = f.Line | Annotated[list[f.Line], f.items(1, _FILES)]
_ByName = Annotated[dict[f.Line, _Names], MinLen(1)]
_Named = _Names | Annotated[dict[f.Line, _Names | _ByName], MinLen(1)]
_Size = Annotated[int, f.within(1, 16_384)]
#: Dates as ``strptime`` reads them.
_DATE = f.matching("a form of dates", r"[^\n%]{0,50}(%[aAbBdfHIjmMpSyYzZ][^\n%]{0,50}){1,20}",
                 "is no kind, and no form of dates", 1000)  # fmt: skip
Kind = Literal["number", "boolean", "date", "category", "text", "skip"]


def _separator(value: f.Plain) -> str | None:
    if value == "tab":
        return None
    if not isinstance(value, str) or len(value) != 1:
        return "is not one character"
    if value in "\n\r\0\"'." or value.isalnum():
        return "cannot stand between columns"
    return None


def _encoding(value: f.Plain) -> str | None:
    try:
        "".encode(value)
    except (LookupError, TypeError, ValueError):
        return "is no encoding of texts that Python knows"
    return None


def _kinds(value: f.Plain) -> f.Plain:
    """Return kinds by column, also of a text of YAML, in which a column may have any name."""
    if isinstance(value, str):
        with contextlib.suppress(yaml.YAMLError):
            return yaml.safe_load(value)
    return value


class Padding(f.Group, scope="data"):
    """Lengths of one input."""

    length: f.Count | None = None
    """The one length of its rows."""
    buckets: Annotated[list[f.Count], f.items(1, 1000)] | None = None
    """Several, of which a batch has the least that is enough."""
    value: Annotated[float, f.within(-f.LARGE, f.LARGE)] | bool | str = 0
    """What stands behind the end of a row."""

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.length is None) == (self.buckets is None):
            raise ValueError("has not one of length and buckets")
        return self


class Feature(f.Group, scope="data"):
    """A feature of ``tf.train.Example``."""

    dtype: Literal["string", "int64", "float32"]
    """Type of its numbers."""
    shape: Annotated[list[f.Count | None], f.items(0, 8)] | None = None
    """Its sizes; null for the first one is a length that differs."""

    @model_validator(mode="after")
    def _has_a_size(self) -> Self:
        if None in (self.shape or [])[1:]:
            raise ValueError("has a shape with null behind its first size")
        return self


class SplitColumn(f.Group, scope="data"):
    """A column whose values stay together."""

    by: f.Line
    """Name of the column."""
    ordered: bool = True
    """Its last values are held out, and not some at random."""


Files = Annotated[
    f.Path | Annotated[list[f.Path], f.items(1, _FILES)],
    f.Form("a path, a pattern such as shards/*.parquet, or a list of them", example="FILE"),
]
ColumnNames = Annotated[
    _Named, f.Form("a column, a list of columns, or columns by name", example="COLUMN")
]
Arrays = Annotated[
    _Named,
    f.Form("the name of an array, a list of such, or names by input or output", example="NAME"),
]
Images = Annotated[
    dict[f.Line, Annotated[list[_Size], f.items(3, 3)]], MinLen(1),
    f.Form("sizes of images by column", example="{image: [64, 64, 3]}"),
]  # fmt: skip
SplitBy = Annotated[
    Literal["random", "classes"] | SplitColumn,
    f.Form("random, classes, or {by: COLUMN}", example="classes"),
]
Encoding = Annotated[str, f.Form("an encoding that Python knows", _encoding, "cp1252")]
SkipRows = Annotated[
    f.Count | Annotated[list[f.Count], f.items(1, 1000)],
    f.Form("a number of lines, or a list of the numbers of lines", example="1"),
]
Separator = Annotated[str, f.Form("one character, or tab", _separator, "';'")]
Members = Annotated[
    dict[f.Line, f.Node], MinLen(1),
    f.Form("nodes with _target_, by name", example="{a: {_target_: dtrain.datasets.digits}}"),
]  # fmt: skip
Weights = Annotated[
    dict[f.Line, f.Positive], MinLen(1), f.Form("numbers above 0, by name", example="{NAME: 1.0}")
]
#: Of several inputs without names the places are numbers.
Pad = Annotated[
    dict[int | f.Line, Padding], MinLen(1),
    f.Form("lengths by input", example="{tokens: {length: 128}}"),
]  # fmt: skip
Features = Annotated[
    dict[f.Line, Feature], MinLen(1),
    f.Form("types of features by name; null in a shape is a length that differs",
         example="{image: {dtype: string}, x: {dtype: float32, shape: [8]}}"),
]  # fmt: skip
Kinds = Annotated[
    dict[int | f.Line, Kind | Annotated[str, _DATE]], MinLen(1), BeforeValidator(_kinds),
    f.Form("kinds or forms by column", example="{COLUMN: category}"),
]  # fmt: skip
Cells = Annotated[
    list[Annotated[str, Field(max_length=1000)] | int | float], f.items(1, 1000),
    f.Form("a list of texts and numbers", example="['?', -999]"),
]  # fmt: skip
ImageSize = Annotated[list[_Size], f.items(2, 2)]
Augment = Annotated[
    f.Node | Annotated[list[f.Node], f.items(1, 1000)],
    f.Form(
        "a node with _target_, or a list of them", example="[{_target_: keras.layers.RandomFlip}]"
    ),
]


class Dataset(f.Group, scope="data"):
    """Keys of every dataset beside those of its function."""

    task: Literal["auto", "classification", "regression"] = "auto"
    """Targets are classes (classification) or numbers (regression); auto looks at them."""
    augment: Augment | None = None
    """Nodes that change training examples, in turn: Keras' layers, dtrain.augment.*."""
    shuffle: Literal["auto", "examples", "blocks", "none"] = "auto"
    """Order of a pass: examples, blocks (of what is read at once), none, or auto."""
    window: f.Count = 8
    """Blocks whose examples are mixed with each other, of shuffle=blocks."""
    balance: bool = False
    """Draw each class as often as any other."""
    pad: Pad | None = None
    """Lengths to pad rows of different lengths to, {tokens: {length: 128, value: 0}}."""
    workers: Annotated[int, f.within(0, 1000), f.scope("host")] = 0
    """Reader processes for Python sources; 0: the task itself reads."""
    on_error: Literal["fail", "skip"] = "fail"
    """Fail, or skip: leave out unreadable examples; all are read once before."""
    accept_changes: Annotated[bool, f.scope("command")] = False
    """Resume a run although its data has changed."""
    test: Annotated[Files | None, f.scope("length")] = None
    """Files that a training evaluates at its end, and `evaluate`, all of their rows."""


class Split(Dataset):
    """A dataset of which a part is held out for validation."""

    validation_split: f.Fraction = 0.2
    """Share of the examples that is split off for validation."""
    split_seed: f.Seed = 0
    """Seed of the shuffle before the split."""
    split: SplitBy | None = None
    """Random; classes: the same share of each class in both parts; or {by: COLUMN}."""
    folds: Annotated[int, f.within(2, f.MANY)] | None = None
    """Parts of a cross validation; null: none."""
    fold: f.Index = 0
    """The part that is held out, from 0."""


class Digits(Split, target="dtrain.datasets.digits"):
    """Handwritten digits."""


class Synthetic(Dataset, target="dtrain.datasets.synthetic"):
    """Made-up examples: one random pattern a class, plus normal noise."""

    examples: f.Count = 10000
    """Training examples."""
    validation_examples: f.Index = 1000
    """Validation examples."""
    shape: f.Shape | None = [28, 28, 1]
    """Shape of one example."""
    classes: f.Width = 10
    """Number of classes."""
    noise: f.Amount = 1.0
    """Standard deviation of the noise; that of the patterns is 1."""
    data_seed: f.Seed = 0
    """Seed of the examples."""


class Npz(Split, target="dtrain.datasets.npz"):
    """Arrays of a NumPy file."""

    path: f.Path
    """The .npz file."""
    inputs: Arrays = "x"
    """Array of inputs, a list of arrays, or arrays by the names of inputs."""
    target: Arrays | None = "y"
    """Array of targets, a list, or arrays by the names of outputs; null: no targets."""
    weight: Arrays | None = None
    """Array of the weights of the examples; null: all weigh 1."""
    validation: f.Path | None = None
    """File to evaluate on, which has the same arrays; null: a part is split off."""
    validation_inputs: Arrays | None = None
    """Arrays of validation inputs in the same file; null: a part is split off."""
    validation_target: Arrays | None = None
    """Arrays of validation targets in the same file."""
    validation_weight: Arrays | None = None
    """Array of the weights of the validation examples."""
    scale: Annotated[float, f.within(-f.LARGE, f.LARGE)] = 1.0
    """Factor of the inputs; 0.00392156862745098 turns bytes into 0..1."""


class Npy(Split, target="dtrain.datasets.npy"):
    """Arrays of NumPy files, each with one array."""

    path: Files
    """Files of the inputs; a file, a pattern, or a list of them, joined by their names."""
    target: Files | None = None
    """Files of the targets; null: no targets."""
    weight: Files | None = None
    """Files of the weights of the examples; null: all weigh 1."""
    validation: Files | None = None
    """Files of inputs to evaluate on; null: a part of the rows is split off."""
    validation_target: Files | None = None
    """Files of targets to evaluate on."""
    validation_weight: Files | None = None
    """Files of the weights of the validation examples."""
    scale: Annotated[float, f.within(-f.LARGE, f.LARGE)] = 1.0
    """Factor of the inputs; 0.00392156862745098 turns bytes into 0..1."""


class ImageFolder(Split, target="dtrain.datasets.image_folder"):
    """Images in one sub-folder a class."""

    path: f.Path
    """The folder, with class folders or with train/ and val/; or a CSV of paths and classes."""
    size: ImageSize | None = [64, 64]
    """Height and width that images are resized to."""
    channels: Annotated[int, f.within(1, 3)] = 3
    """1 for gray, 3 for colors."""
    validation: f.Path | None = None
    """Folder or CSV to evaluate on; null: val/ beside train/, or a part is held out."""
    cache: Annotated[Literal["none", "memory", "disk"], f.scope("host")] = "none"
    """Where decoded images are cached: none, memory, or disk (dtrain's cache folder)."""


class Mixture(Dataset, target="dtrain.datasets.mixture"):
    """Several datasets, each drawn as often as its weight says."""

    members: Members
    """The datasets by name, each a node with _target_."""
    weights: Weights | None = None
    """How often each is drawn, by name; null: as often as it has examples."""


class Text(Dataset, target="dtrain.datasets.text"):
    """A text, for models that predict the next token."""

    path: Files | None = None
    """A text file, a pattern, a list, a folder with train/; null: 200,000 made-up letters."""
    tokens: Literal["bytes", "characters"] = "bytes"
    """What a token is: bytes or characters."""
    length: f.Count = 64
    """Tokens of an example."""
    stride: f.Count | None = None
    """Tokens from one example to the next; null: length."""
    validation: Files | None = None
    """Files to evaluate on; null: the end of the text."""
    validation_split: f.Fraction = 0.1
    """Share of the text that is kept for validation, its end."""


class Columns(Split):
    """Columns of rows."""

    inputs: ColumnNames | None = None
    """Column, list of columns of numbers, or columns by name; null: all but the target."""
    target: ColumnNames | None
    """Column, list of columns of numbers, or columns by the names of outputs; null: none."""
    weight: ColumnNames | None = None
    """Column of the weights of the examples; null: all weigh 1."""
    classes: f.Width | None = None
    """Number of classes; null: those of the target's column, which is read for it."""
    images: Images | None = None
    """Columns of encoded images, each with height, width and channels."""


class Table(Columns):
    """Columns of rows in files."""

    path: Files
    """A file, a pattern such as shards/*.parquet, or a list of them; ordered by name."""
    validation: Files | None = None
    """Files to evaluate on; null: a part of the rows is split off."""


class Encoded(Columns):
    """Columns of rows whose inputs become one matrix of numbers."""

    columns: Kinds | None = None
    """Kinds of columns: number, boolean, date, category, text or skip, or the form of dates such as
    "%d/%m/%Y"; null: by values."""
    empty: Cells | None = None
    """Cells that mean nothing, such as ["?", -999]; null: the usual ones among numbers."""


class TableFiles(Encoded, target="dtrain.datasets.table"):
    """A table in files: Parquet, Arrow, CSV or JSON lines."""

    path: Files
    """A file, a pattern such as shards/*.parquet, a list of them, or a folder."""
    target: ColumnNames | None = None
    """Column, list of columns of numbers, or columns by the names of outputs; null: none, and of
    text files whose inputs are not named the last column."""
    validation: Files | None = None
    """Files to evaluate on; null: a part of the rows is split off."""
    format: Literal["parquet", "arrow", "csv", "json"] | None = None
    """Parquet, arrow, csv or json; null: by the file."""
    separator: Separator | None = None
    """Character between the columns of text; null: it is found out; tab is one, too."""
    header: bool | None = None
    """The first line has names; false: they are 0, 1, ...; null: it is found out."""
    encoding: Encoding | None = None
    """Of text, such as cp1252 or shift_jis; null: it is found out."""
    skip_rows: SkipRows | None = None
    """Lines of text to leave out: how many above the names, or a list of their numbers."""
    comment: f.Line | None = None
    """Lines of text that begin so are left out; null: none."""
    quote: Literal['"', "'", "none"] | None = None
    """Character around cells of text; none: there is none; null: a double quote."""


class HuggingFace(Encoded, target="dtrain.datasets.huggingface"):
    """A dataset of Hugging Face's package datasets."""

    path: Files | None
    """The folder of a Dataset or a DatasetDict that save_to_disk has written; or tar files."""
    name: f.Line | None = None
    """Of a dataset in the package's cache, NAME or NAME/CONFIGURATION."""
    train: f.Line = "train"
    """Split to train on."""
    validation: Files | None = None
    """Split or tar files to evaluate on; null: a part of the rows is split off."""


class TFRecord(Table, target="dtrain.datasets.tfrecord"):
    """TFRecord files of tf.train.Example."""

    features: Features
    """Types of features by name, such as {image: {dtype: string}}; with null first in its shape one
    has a length that differs."""


class ArrayRecord(TFRecord, target="dtrain.datasets.array_record"):
    """ArrayRecord files of tf.train.Example."""


class Tfds(Columns, target="dtrain.datasets.tfds"):
    """What TensorFlow Datasets has prepared on this machine."""

    builder: f.Line
    """Name of the dataset, NAME, or NAME/CONFIG:1.0.0 where there are several."""
    train: f.Line = "train"
    """Split to train on, or a part of one such as train[:80%]."""
    validation: f.Line | None = None
    """Split to evaluate on; null: a part of the examples is split off."""
    data_dir: f.Path | None = None
    """Folder of datasets; null: $TFDS_DATA_DIR, or ~/tensorflow_datasets."""
    target: ColumnNames | None = None
    """Feature, list of numbers, or features by output; null: the supervised target."""
