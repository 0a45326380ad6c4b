"""Schemas of the datasets in conf/dataset/ that are columns of rows, as datasets.py."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import MISSING

from dtrain.config.data_forms import COLUMNS, DECODE, FEATURES, INDEX, PATHS
from dtrain.config.forms import PATH, SEPARATOR, target, text
from dtrain.config.presets.datasets import Columns, Split, Table
from dtrain.config.ranges import formed


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
class TFRecord(Table):
    """TFRecord files of tf.train.Example.

    Attributes:
        _target_: function that loads the data.
        features: types of features by name, such as {image: {dtype: string}}; with null first in
            its shape one has a length that differs.
        index: where it is kept where each record begins: cache, or beside the file.
    """

    _target_: str = target("dtrain.datasets.tfrecord")
    features: Any = formed(MISSING, FEATURES)
    index: str = formed("cache", INDEX)


@dataclasses.dataclass
class ArrayRecord(Table):
    """Records of ArrayRecord files.

    Attributes:
        _target_: function that loads the data.
        target: column, list of columns of numbers, or columns by the names of outputs; null: none.
        decode: what a record is: example (tf.train.Example), npy (of numpy.save or savez) or bytes.
        features: types of the features of an example by name, such as {image: {dtype: string}}.
    """

    _target_: str = target("dtrain.datasets.array_record")
    target: Any | None = formed(MISSING, COLUMNS)
    decode: str = formed("example", DECODE)
    features: Any | None = formed(None, FEATURES)


@dataclasses.dataclass
class Tfds(Columns):
    """What TensorFlow Datasets has prepared on this machine.

    Attributes:
        _target_: function that loads the data.
        builder: name of the dataset, NAME, or NAME/CONFIG:1.0.0 where there are several.
        split: split to train on, or a part of one such as train[:80%].
        validation: split to evaluate on; null: a part of the examples is split off.
        data_dir: folder of datasets; null: $TFDS_DATA_DIR, or ~/tensorflow_datasets.
        target: feature, list of numbers, or features by output; null: as the dataset says.
    """

    _target_: str = target("dtrain.datasets.tfds")
    builder: str = formed(MISSING, text())
    split: str = formed("train", text())
    validation: str | None = formed(None, text())
    data_dir: str | None = formed(None, PATH)
    target: Any | None = formed(None, COLUMNS)


@dataclasses.dataclass
class WebDataset(Table):
    """Tar files whose members belong together by their names; a column is an extension.

    Attributes:
        _target_: function that loads the data.
    """

    _target_: str = target("dtrain.datasets.webdataset")
