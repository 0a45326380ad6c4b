"""Types of the keys of datasets that are tables: formats with columns."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import MISSING

from dtrain.config.data_forms import (
    CELLS,
    COLUMNS,
    ENCODING,
    FEATURES,
    FORMAT,
    IMAGES,
    KINDS,
    PATHS,
    QUOTE,
    SEPARATOR,
    SKIP_ROWS,
)
from dtrain.config.forms import PATH, target, text
from dtrain.config.presets.datasets import Split
from dtrain.config.ranges import WIDE, formed, within


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

    inputs: Any | None = formed(None, COLUMNS)
    target: Any | None = formed(MISSING, COLUMNS)
    weight: Any | None = formed(None, COLUMNS)
    classes: int | None = within(None, 1, WIDE)
    images: Any | None = formed(None, IMAGES)


@dataclasses.dataclass
class Table(Columns):
    """Columns of rows in files.

    Attributes:
        path: a file, a pattern such as shards/*.parquet, or a list of them; ordered by name.
        validation: files to evaluate on; null: a part of the rows is split off.
    """

    path: Any = formed(MISSING, PATHS)
    validation: Any | None = formed(None, PATHS)


@dataclasses.dataclass
class Encoded(Columns):
    """Columns of rows whose inputs become one matrix of numbers.

    Attributes:
        inputs: list of columns, column, or columns by name; null: all but the target.
        columns: kinds of columns: number, boolean, date, category, text or skip, or the form of
            dates such as "%d/%m/%Y"; null: by values.
        empty: cells that mean nothing, such as ["?", -999]; null: the usual ones among numbers.
    """

    columns: Any | None = formed(None, KINDS)
    empty: Any | None = formed(None, CELLS)


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
    path: Any = formed(MISSING, PATHS)
    target: Any | None = formed(None, COLUMNS)
    validation: Any | None = formed(None, PATHS)
    format: str | None = formed(None, FORMAT)
    separator: str | None = formed(None, SEPARATOR)
    header: bool | None = None
    encoding: str | None = formed(None, ENCODING)
    skip_rows: Any | None = formed(None, SKIP_ROWS)
    comment: str | None = formed(None, text())
    quote: str | None = formed(None, QUOTE)


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
    path: Any | None = formed(MISSING, PATHS)
    name: str | None = formed(None, text())
    train: str = formed("train", text())
    validation: Any | None = formed(None, PATHS)


@dataclasses.dataclass
class TFRecord(Table):
    """TFRecord files of tf.train.Example.

    Attributes:
        _target_: function that loads the data.
        features: types of features by name, such as {image: {dtype: string}}; with null first in
            its shape one has a length that differs.
    """

    _target_: str = target("dtrain.datasets.tfrecord")
    features: Any = formed(MISSING, FEATURES)


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
    target: Any | None = formed(None, COLUMNS)
