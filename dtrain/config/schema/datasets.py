"""The keys of datasets: the parameters of the function that an option names, and those of all."""

import contextlib
import re
from collections.abc import Callable
from typing import Annotated, Literal

import yaml

from dtrain.config.fields import (
    CHARACTERS,
    LARGE,
    MANY,
    Amount,
    Count,
    Form,
    Fraction,
    Group,
    Index,
    Line,
    Path,
    Plain,
    Seed,
    Shape,
    Target,
    Width,
    items,
    line_problem,
    mapping_problem,
    node_problem,
    range_problem,
    scope,
    short,
    target,
    within,
)  # fmt: skip

_FILES = 1_000_000  # files or columns that one key may name
_KINDS = ("number", "boolean", "date", "category", "text", "skip")
#: Dates as ``strptime`` reads them.
_DATE = re.compile(r"[^\n%]{0,50}(%[aAbBdfHIjmMpSyYzZ][^\n%]{0,50}){1,20}")


def _one_or_list(
    accepted: str, why: Callable[[Plain], str | None], most: int, example: str
) -> Form:
    """Return the form of what is in order, or of a list of such."""

    def problem(value: Plain) -> str | None:
        return _list_problem(value, why, most) if isinstance(value, list) else why(value)

    return Form(accepted, problem, example)


def _list_problem(
    value: list[Plain], why: Callable[[Plain], str | None], most: int, least: int = 1
) -> str | None:
    if not least <= len(value) <= most:
        return f"has {len(value)} items"
    return next((f"{short(each)} {wrong}" for each in value if (wrong := why(each))), None)


def _by_name(
    accepted: str, why: Callable[[Plain], str | None], example: str, places: bool = False
) -> Form:
    """Return the form of a mapping from names, of which none has null."""

    def problem(value: Plain) -> str | None:
        if not isinstance(value, dict) or None in value.values():
            return f"is no mapping: {accepted}"
        return mapping_problem(value, why, places)

    return Form(accepted, problem, example)


def _columns(value: Plain) -> str | None:
    """Say why ``value`` cannot name columns: one, a list of them, or such by names of inputs."""
    if isinstance(value, dict):
        return "is no mapping" if None in value.values() else mapping_problem(value, _columns)
    return _NAMES.problem(value)


def _separator(value: Plain) -> str | None:
    if value == "tab":
        return None
    if not isinstance(value, str) or len(value) != 1:
        return "is not one character"
    if value in "\n\r\0\"'." or value.isalnum():
        return "cannot stand between columns"
    return None


def _encoding(value: Plain) -> str | None:
    try:
        "".encode(value)
    except (LookupError, TypeError, ValueError):
        return "is no encoding of texts that Python knows"
    return None


def _sizes(least: int, most: int, high: int) -> Callable[[Plain], str | None]:
    """Return what says why a value is no list of so many whole numbers from 1."""

    def problem(value: Plain) -> str | None:
        if not isinstance(value, list):
            return "is not a list"
        return _list_problem(value, lambda n: range_problem(n, 1, high, whole=True), most, least)

    return problem


def _padding(value: Plain) -> str | None:
    if not isinstance(value, dict) or not value.keys() <= {"length", "buckets", "value"}:
        return "has other keys than length, buckets and value"
    if ("length" in value) == ("buckets" in value):
        return "has not one of length and buckets"
    lengths = value["buckets"] if "buckets" in value else [value["length"]]
    problem = _sizes(1, 1000, MANY)(lengths)
    if problem is not None:
        return f"has wrong lengths ({problem})"
    filling = value.get("value", 0)
    if isinstance(filling, str):
        problem = line_problem(filling) if filling else None
    elif not isinstance(filling, bool):
        problem = range_problem(filling, -LARGE, LARGE)
    return problem and f"has a wrong value ({problem})"


def _feature(value: Plain) -> str | None:
    """Say why ``value`` cannot declare a feature of ``tf.train.Example``."""
    if not isinstance(value, dict) or not {"dtype"} <= value.keys() <= {"dtype", "shape"}:
        return "is not a dtype, and perhaps a shape"
    if value["dtype"] not in ("string", "int64", "float32"):
        return "has a dtype that is none of string, int64, float32"
    shape = [] if value.get("shape") is None else value["shape"]
    if isinstance(shape, list) and shape[:1] == [None]:  # a length that differs
        shape = shape[1:]
    problem = _sizes(0, 8, MANY)(shape)
    return problem and f"has a wrong shape ({problem})"


def _split_by(value: Plain) -> str | None:
    if isinstance(value, str):
        return None if value in ("random", "classes") else "is neither random nor classes"
    if not isinstance(value, dict) or not {"by"} <= value.keys() <= {"by", "ordered"}:
        return "is not {by: COLUMN}"
    if not isinstance(value.get("ordered", True), bool):
        return "has no true or false for ordered"
    return line_problem(value["by"])


def _cell(value: Plain) -> str | None:
    is_cell = isinstance(value, str | int | float) and not isinstance(value, bool)
    return None if is_cell and len(str(value)) <= 1000 else "is no text, and no number"


def _kind(value: Plain) -> str | None:
    fits = value in _KINDS or (isinstance(value, str) and _DATE.fullmatch(value))
    return None if fits else f"is none of {', '.join(_KINDS)}"


def _kinds(value: Plain) -> str | None:
    if isinstance(value, str):
        with contextlib.suppress(yaml.YAMLError):
            value = yaml.safe_load(value)
    return _KINDS_BY_COLUMN.problem(value)


_NAMES = _one_or_list("", line_problem, _FILES, "")
_KINDS_BY_COLUMN = _by_name("kinds by column", _kind, "", places=True)
Files = Annotated[
    Plain,
    _one_or_list("a path, a pattern such as shards/*.parquet, or a list of them",
                 lambda value: line_problem(value, CHARACTERS), _FILES, "FILE"),
]  # fmt: skip
ColumnNames = Annotated[
    Plain, Form("a column, a list of columns, or columns by name", _columns, "COLUMN")
]
Arrays = Annotated[
    Plain,
    Form("the name of an array, a list of such, or names by input or output", _columns, "NAME"),
]
Images = Annotated[
    Plain, _by_name("sizes of images by column", _sizes(3, 3, 16_384), "{image: [64, 64, 3]}")
]
SplitBy = Annotated[Plain, Form("random, classes, or {by: COLUMN}", _split_by, "classes")]
Encoding = Annotated[str, Form("an encoding that Python knows", _encoding, "cp1252")]
SkipRows = Annotated[
    Plain,
    _one_or_list("a number of lines, or a list of the numbers of lines",
                 lambda value: range_problem(value, 1, LARGE), 1000, "1"),
]  # fmt: skip
Separator = Annotated[str, Form("one character, or tab", _separator, "';'")]
Members = Annotated[
    Plain,
    _by_name("nodes with _target_, by name", node_problem,
             "{a: {_target_: dtrain.datasets.digits}}"),
]  # fmt: skip
Weights = Annotated[
    Plain,
    _by_name("numbers above 0, by name", lambda value: range_problem(value, 0, LARGE, above=True),
             "{NAME: 1.0}"),
]  # fmt: skip
#: Of several inputs without names the places are numbers.
Pad = Annotated[
    Plain, _by_name("lengths by input", _padding, "{tokens: {length: 128}}", places=True)
]
Features = Annotated[
    Plain,
    _by_name("types of features by name; null in a shape is a length that differs", _feature,
             "{image: {dtype: string}, label: {dtype: int64}, x: {dtype: float32, shape: [8]}}"),
]  # fmt: skip
Kinds = Annotated[
    Plain, Form("kinds or forms by column", _kinds, "{city: category, note: text, id: skip}")
]
Cells = Annotated[list[Annotated[Plain, Form("a text or a number", _cell, "'?'")]], items(1, 1000)]
ImageSize = Annotated[list[Annotated[int, within(1, 16_384)]], items(2, 2)]
Augment = Annotated[
    Plain,
    _one_or_list("a node with _target_, or a list of them", node_problem, 1000,
                 "[{_target_: keras.layers.RandomFlip}]"),
]  # fmt: skip


class Dataset(Group, scope="data"):
    """Keys of every dataset beside those of its function."""

    task: Literal["auto", "classification", "regression"] = "auto"
    """Targets are classes (classification) or numbers (regression); auto looks at them."""
    augment: Augment | None = None
    """Nodes that change training examples, in turn: Keras' layers, dtrain.augment.*."""
    shuffle: Literal["auto", "examples", "blocks", "none"] = "auto"
    """Order of a pass: examples, blocks (of what is read at once), none, or auto."""
    window: Count = 8
    """Blocks whose examples are mixed with each other, of shuffle=blocks."""
    balance: bool = False
    """Draw each class as often as any other."""
    pad: Pad | None = None
    """Lengths to pad rows of different lengths to, {tokens: {length: 128, value: 0}}."""
    workers: Annotated[int, within(0, 1000), scope("host")] = 0
    """Reader processes for Python sources; 0: the task itself reads."""
    on_error: Literal["fail", "skip"] = "fail"
    """Fail, or skip: leave out unreadable examples; all are read once before."""
    accept_changes: Annotated[bool, scope("command")] = False
    """Resume a run although its data has changed."""
    test: Annotated[Files | None, scope("length")] = None
    """Files that `evaluate` evaluates on, all of their rows; null: the validation."""


class Split(Dataset):
    """A dataset of which a part is held out for validation."""

    validation_split: Fraction = 0.2
    """Share of the examples that is split off for validation."""
    split_seed: Seed = 0
    """Seed of the shuffle before the split."""
    split: SplitBy | None = None
    """Random; classes: the same share of each class in both parts; or {by: COLUMN}."""
    folds: Annotated[int, within(2, MANY)] | None = None
    """Parts of a cross validation; null: none."""
    fold: Index = 0
    """The part that is held out, from 0."""


class Digits(Split):
    """Handwritten digits."""

    target_: Target = target("dtrain.datasets.digits")


class Synthetic(Dataset):
    """Made-up examples: one random pattern a class, plus normal noise."""

    target_: Target = target("dtrain.datasets.synthetic")
    examples: Count = 10000
    """Training examples."""
    validation_examples: Index = 1000
    """Validation examples."""
    shape: Shape | None = [28, 28, 1]
    """Shape of one example."""
    classes: Width = 10
    """Number of classes."""
    noise: Amount = 1.0
    """Standard deviation of the noise; that of the patterns is 1."""
    data_seed: Seed = 0
    """Seed of the examples."""


class Npz(Split):
    """Arrays of a NumPy file."""

    target_: Target = target("dtrain.datasets.npz")
    path: Path
    """The .npz file."""
    inputs: Arrays = "x"
    """Array of inputs, a list of arrays, or arrays by the names of inputs."""
    target: Arrays | None = "y"
    """Array of targets, a list, or arrays by the names of outputs; null: no targets."""
    weight: Arrays | None = None
    """Array of the weights of the examples; null: all weigh 1."""
    validation: Path | None = None
    """File to evaluate on, which has the same arrays; null: a part is split off."""
    validation_inputs: Arrays | None = None
    """Arrays of validation inputs in the same file; null: a part is split off."""
    validation_target: Arrays | None = None
    """Arrays of validation targets in the same file."""
    validation_weight: Arrays | None = None
    """Array of the weights of the validation examples."""
    scale: Annotated[float, within(-LARGE, LARGE)] = 1.0
    """Factor of the inputs; 0.00392156862745098 turns bytes into 0..1."""


class Npy(Split):
    """Arrays of NumPy files, each with one array."""

    target_: Target = target("dtrain.datasets.npy")
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
    scale: Annotated[float, within(-LARGE, LARGE)] = 1.0
    """Factor of the inputs; 0.00392156862745098 turns bytes into 0..1."""


class ImageFolder(Split):
    """Images in one sub-folder a class."""

    target_: Target = target("dtrain.datasets.image_folder")
    path: Path
    """The folder, with class folders or with train/ and val/; or a CSV of paths and classes."""
    size: ImageSize | None = [64, 64]
    """Height and width that images are resized to."""
    channels: Annotated[int, within(1, 3)] = 3
    """1 for gray, 3 for colors."""
    validation: Path | None = None
    """Folder or CSV to evaluate on; null: val/ beside train/, or a part is held out."""
    cache: Annotated[Literal["none", "memory", "disk"], scope("host")] = "none"
    """Where decoded images are cached: none, memory, or disk (dtrain's cache folder)."""


class Mixture(Dataset):
    """Several datasets, each drawn as often as its weight says."""

    target_: Target = target("dtrain.datasets.mixture")
    members: Members
    """The datasets by name, each a node with _target_."""
    weights: Weights | None = None
    """How often each is drawn, by name; null: as often as it has examples."""


class Text(Dataset):
    """A text, for models that predict the next token."""

    target_: Target = target("dtrain.datasets.text")
    path: Files | None = None
    """A text file, a pattern, a list, a folder with train/; null: 200,000 made-up letters."""
    tokens: Literal["bytes", "characters"] = "bytes"
    """What a token is: bytes or characters."""
    length: Count = 64
    """Tokens of an example."""
    stride: Count | None = None
    """Tokens from one example to the next; null: length."""
    validation: Files | None = None
    """Files to evaluate on; null: the end of the text."""
    validation_split: Fraction = 0.1
    """Share of the text that is kept for validation, its end."""


class Columns(Split):
    """Columns of rows."""

    inputs: ColumnNames | None = None
    """Column, list of columns of numbers, or columns by name; null: all but the target."""
    target: ColumnNames | None
    """Column, list of columns of numbers, or columns by the names of outputs; null: none."""
    weight: ColumnNames | None = None
    """Column of the weights of the examples; null: all weigh 1."""
    classes: Width | None = None
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


class TableFiles(Encoded):
    """A table in files: Parquet, Arrow, CSV or JSON lines."""

    target_: Target = target("dtrain.datasets.table")
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
    comment: Line | None = None
    """Lines of text that begin so are left out; null: none."""
    quote: Literal['"', "'", "none"] | None = None
    """Character around cells of text; none: there is none; null: a double quote."""


class HuggingFace(Encoded):
    """A dataset of Hugging Face's package datasets."""

    target_: Target = target("dtrain.datasets.huggingface")
    path: Files | None
    """The folder of a Dataset or a DatasetDict that save_to_disk has written; or tar files."""
    name: Line | None = None
    """Of a dataset in the package's cache, NAME or NAME/CONFIGURATION."""
    train: Line = "train"
    """Split to train on."""
    validation: Files | None = None
    """Split or tar files to evaluate on; null: a part of the rows is split off."""


class TFRecord(Table):
    """TFRecord files of tf.train.Example."""

    target_: Target = target("dtrain.datasets.tfrecord")
    features: Features
    """Types of features by name, such as {image: {dtype: string}}; with null first in its shape one
    has a length that differs."""


class ArrayRecord(TFRecord):
    """ArrayRecord files of tf.train.Example."""

    target_: Target = target("dtrain.datasets.array_record")


class Tfds(Columns):
    """What TensorFlow Datasets has prepared on this machine."""

    target_: Target = target("dtrain.datasets.tfds")
    builder: Line
    """Name of the dataset, NAME, or NAME/CONFIG:1.0.0 where there are several."""
    train: Line = "train"
    """Split to train on, or a part of one such as train[:80%]."""
    validation: Line | None = None
    """Split to evaluate on; null: a part of the examples is split off."""
    data_dir: Path | None = None
    """Folder of datasets; null: $TFDS_DATA_DIR, or ~/tensorflow_datasets."""
    target: ColumnNames | None = None
    """Feature, list of numbers, or features by output; null: the supervised target."""
