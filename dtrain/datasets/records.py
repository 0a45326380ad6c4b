"""Records in files of many: TFRecord, ArrayRecord, and what TensorFlow Datasets has prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from dtrain.data.files import Paths, files, not_installed
from dtrain.data.holdout import Holdout, HoldoutKeys
from dtrain.data.nest import Leaf, Ragged
from dtrain.data.record_files import ArrayRecordFiles, TFRecordFiles, reason
from dtrain.data.sources import Splits
from dtrain.data.tabular.source import TableSource
from dtrain.data.tabular.table import Column, Names, Table
from dtrain.datasets.tables import of_files, of_sources
from dtrain.errors import UsageError, refuse
from dtrain.files.fields import Values


def tfrecord(
    path: Paths, features: Mapping[str, Values], target: Names, inputs: Names = None,
    weight: Names = None, validation: Paths | None = None, classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None, **holdout: Unpack[HoldoutKeys],
) -> Splits:  # fmt: skip
    """Examples (``tf.train.Example``) of TFRecord files, in any order.

    Before the first run the files are read once, with all checksums, for an index of the records.
    What is compressed (GZIP, ZLIB) is unpacked into the cache.

    Args:
        path: a file, a pattern, or a list of them.
        features: by name: ``dtype`` (string, int64 or float32) and ``shape`` of each, which is one
            value if not given; with null first it has a length that differs (``dataset.pad``).
        target: a feature, a list of numbers, or features by name. Text is classes, in alphabetical
            order.
        inputs: as the target; None for all that are neither target nor weight.
        weight: a feature, or None.
        validation: files to evaluate on; None: a part of the records is held out.
        classes: number of classes; None: those of the target, for which all records are read.
        images: features of encoded images, by name: height, width and channels of each.
        **holdout: how a part is held out (:class:`dtrain.data.holdout.Holdout`).
    """
    return of_files(
        lambda files: TFRecordFiles(files, features), path, inputs, target, weight, validation,
        Holdout(**holdout), classes, images,
    )  # fmt: skip


def array_record(
    path: Paths, features: Mapping[str, Values], target: Names, inputs: Names = None,
    weight: Names = None, validation: Paths | None = None, classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None, **holdout: Unpack[HoldoutKeys],
) -> Splits:  # fmt: skip
    """Examples (``tf.train.Example``) of ArrayRecord files, as Grain's own source reads them.

    Args:
        path, features, target, inputs, weight, validation, classes, images, **holdout: as of
            :func:`tfrecord`.
    """
    return of_files(
        lambda files: ArrayRecordFiles(files, features), path, inputs, target, weight, validation,
        Holdout(**holdout), classes, images,
    )  # fmt: skip


def tfds(
    builder: str, train: str = "train", validation: str | None = None, data_dir: str | None = None,
    target: Names = None, inputs: Names = None, weight: Names = None, classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None, **holdout: Unpack[HoldoutKeys],
) -> Splits:  # fmt: skip
    """Examples that TensorFlow Datasets has prepared, as its ``data_source`` gives them.

    Columns are its features, but for those that have others inside. Images become float32 in 0..1.
    Nothing is downloaded.

    Args:
        builder: name of the dataset, with a configuration and a version where there are several.
        train: split to train on, or a part of one: ``train[:80%]``.
        validation: split to evaluate on; None: a part of the examples is split off.
        data_dir: folder of datasets; None: ``$TFDS_DATA_DIR``, else ``~/tensorflow_datasets``.
        target: a feature, a list of numbers, or features by name; None: that of the dataset's
            supervised keys.
        inputs: as the target.
        weight: a feature, or None.
        classes: number of classes; None: as the dataset says, or those of the target, for which all
            examples are read.
        images: sizes of images, by name: height, width and channels; those of one size have it.
        **holdout: how a part is held out (:class:`dtrain.data.holdout.Holdout`).
    """
    table, held = Prepared(builder, data_dir, train), None
    own_inputs, own_target, *_ = table.supervised or (None, None)
    if inputs is None and target in (None, own_target):
        inputs = own_inputs
    target = own_target if target is None else target
    if target is None:
        refuse("dataset.target", f"{builder} does not say which feature is the target", "null",
               accepted=", ".join(table.columns))  # fmt: skip
    whole = TableSource(table, inputs, target, weight)
    if validation is not None:
        other = Prepared(builder, data_dir, validation)
        held = TableSource(other, whole.inputs.names, target, weight, words=whole.words)
    if classes is None and isinstance(target, str):
        classes = table.classes.get(target)
    own = {name: table.images[name] for name in whole.inputs.columns() if name in table.images}
    sizes = own | dict(images or {})
    if lacking := next((name for name, size in sizes.items() if size is None), None):
        refuse("dataset.images", f"the images {lacking} have different sizes", "null",
               accepted="a size for all",
               typed=f"dataset.images={{{lacking}:[64,64,3]}}")  # fmt: skip
    return of_sources(whole, held, "train", train, Holdout(**holdout), classes, sizes)


class Prepared(Table):
    """A split of what TensorFlow Datasets has prepared: its own data source, as it decodes it.

    Images stay as they are encoded.

    Args:
        builder, data_dir: as of :func:`tfds`.
        split: the split, or a part of one such as ``train[:80%]``.

    Attributes:
        images: sizes of the features that are images; None where they differ.
        classes: how many there are, by the features that are classes.
        supervised: (inputs, target), or None.

    Raises:
        UsageError: the package is not installed, or has no such dataset or split there.
    """

    def __init__(self, builder: str, data_dir: str | None, split: str):
        try:
            from tensorflow_datasets.core import decode, read_only_builder
        except ImportError as error:
            raise not_installed("tfds", "tfds", error) from None
        self.columns, self.refused = {}, dict[str, str]()
        self.images, self.classes = dict[str, Any](), dict[str, int]()
        try:
            made: Any = read_only_builder.builder_from_files(builder, data_dir=data_dir)
            features = made.info.features
            for name, feature in sorted(features.items()):  # a map of the file has no order
                shape = features.shape[name]
                if type(feature).__name__ == "Image":
                    self.columns[name] = Column(np.dtype(object), kind="bytes")
                    self.images[name] = None if None in shape else list(shape)
                elif isinstance(shape, Mapping) or None in shape[1:]:
                    self.refused[name] = "holds features, or lists of lists"
                else:
                    self.columns[name] = Column(np.dtype(feature.np_dtype), tuple(shape))
                if getattr(feature, "num_classes", None):
                    self.classes[name] = feature.num_classes
            raw = {name: decode.SkipDecoding() for name in self.images}
            self._source = made.as_data_source(split=split, decoders=raw)
            shards = made.info.splits[split].file_instructions
        except Exception as error:  # of the package, for each way that a folder can be wrong
            folder = data_dir or "the usual folder"
            raise UsageError("dataset.builder",
                             f"cannot be read from {folder} ({split}: {reason(error)})", builder,
                             accepted="a split that download_and_prepare(file_format='array_record'"
                             ") of tensorflow_datasets has written there",
                             hint="dataset.data_dir=FOLDER") from None  # fmt: skip
        self.supervised, self._title = made.info.supervised_keys, f"{builder} {split}"
        self.files = files([str(shard.filename) for shard in shards], "dataset.builder")

    def __len__(self) -> int:
        return len(self._source)

    def read(
        self, rows: np.ndarray, names: Sequence[str], with_empty: bool = False
    ) -> dict[str, Leaf]:
        """Read features of some rows; none is empty."""
        examples = self._source.__getitems__(rows.tolist())
        made: dict[str, Leaf] = {}
        for name in names:
            column, values = self.columns[name], [example[name] for example in examples]
            made[name] = (
                Ragged.of([np.asarray(v, column.dtype).reshape(-1, *column.item) for v in values])
                if column.is_ragged else np.array(values, column.dtype)
            )  # fmt: skip
        return made

    def where(self, row: int) -> str:
        """Return the place of an example."""
        return f"{self._title}, example {row:,}"
