"""Records in files of many: TFRecord, ArrayRecord, and what TensorFlow Datasets has prepared."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from dtrain.data.files import files, not_installed
from dtrain.data.holdout import Holdout, HoldoutKeys
from dtrain.data.nest import Ragged
from dtrain.data.record_files import ArrayRecordFiles, TFRecordFiles, reason
from dtrain.data.sources import Splits
from dtrain.data.tabular.source import TableSource
from dtrain.data.tabular.table import Column, Names, Table
from dtrain.datasets.tables import of_files, of_sources
from dtrain.errors import UsageError, nearest


def tfrecord(
    path: str | Sequence[str],
    features: Mapping[str, Mapping[str, Any]],
    target: Names,
    inputs: Names = None,
    weight: Names = None,
    validation: str | Sequence[str] | None = None,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
    **holdout: Unpack[HoldoutKeys],
) -> Splits:
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
    path: str | Sequence[str],
    features: Mapping[str, Mapping[str, Any]],
    target: Names,
    inputs: Names = None,
    weight: Names = None,
    validation: str | Sequence[str] | None = None,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
    **holdout: Unpack[HoldoutKeys],
) -> Splits:
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
    builder: str,
    train: str = "train",
    validation: str | None = None,
    data_dir: str | None = None,
    target: Names = None,
    inputs: Names = None,
    weight: Names = None,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
    **holdout: Unpack[HoldoutKeys],
) -> Splits:
    """Examples that TensorFlow Datasets has prepared, as its ``data_source`` gives them.

    Columns are its features; those inside of others are called ``OUTER/INNER``. Images become
    float32 in 0..1. Nothing is downloaded.

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
    table, held = Prepared(builder, data_dir, "dataset.train", train), None
    own_inputs, own_target, *_ = table.supervised or (None, None)
    if target is None and own_target is None:
        raise UsageError(
            "dataset.target", "null", f"{builder} does not say which feature is the target",
            ", ".join(table.columns), "dataset.target=FEATURE",
        )  # fmt: skip
    target = own_target if target is None else target
    if inputs is None and target == own_target:
        inputs = own_inputs
    whole = TableSource(table, inputs, target, weight)
    if validation is not None:
        other = Prepared(builder, data_dir, "dataset.validation", validation)
        held = TableSource(other, whole.inputs.names, target, weight, words=whole.words)
    if classes is None and isinstance(target, str):
        classes = table.classes.get(target)
    names = [name for name in whole.inputs.columns() if name in table.images]
    sizes = {name: (images or {}).get(name) or table.images[name] for name in names}
    if lacking := next((name for name, size in sizes.items() if size is None), None):
        raise UsageError(
            "dataset.images", "null", f"the images {lacking} have different sizes",
            "a size that they are resized to", f"dataset.images={{{lacking}:[64,64,3]}}",
        )  # fmt: skip
    sizes = {**(images or {}), **sizes}
    return of_sources(whole, held, "train", train, Holdout(**holdout), classes, sizes)


class Prepared(Table):
    """A split of what TensorFlow Datasets has prepared: its own data source, as it decodes it.

    Images stay as they are encoded.

    Args:
        builder: name of the dataset; where there are several ``NAME/CONFIG:1.0.0``.
        data_dir: folder of datasets; None: ``$TFDS_DATA_DIR``, else ``~/tensorflow_datasets``.
        key, split: the split, or a part of one such as ``train[:80%]``, and the key that names it.

    Attributes:
        images: sizes of the features that are images of one size.
        classes: how many there are, by the features that are classes.
        supervised: (inputs, target), or None.

    Raises:
        UsageError: the package is not installed, or has no such dataset or split there.
    """

    def __init__(self, builder: str, data_dir: str | None, key: str, split: str):
        try:
            from tensorflow_datasets.core import decode, read_only_builder
        except ImportError as error:
            raise not_installed("tfds", "tfds", error) from None
        try:
            made: Any = read_only_builder.builder_from_files(builder, data_dir=data_dir)
        except Exception as error:  # of the package, for each way that a folder can be wrong
            place = data_dir or "the usual folder"
            raise UsageError(
                "dataset.builder", builder, f"no such dataset is prepared in {place} "
                f"({reason(error)})", "one that download_and_prepare of tensorflow_datasets has "
                "prepared there", "dataset.data_dir=FOLDER dataset.builder=NAME",
            ) from None  # fmt: skip
        self.columns, self.refused = {}, dict[str, str]()
        self.images, self.classes = dict[str, Any](), dict[str, int]()
        for name, feature, shape in _leaves(made.info.features, made.info.features.shape):
            self.columns[name] = Column(np.dtype(feature.np_dtype), shape)
            if type(feature).__name__ == "Image":
                self.columns[name] = Column(np.dtype(object), kind="bytes")
                self.images[name] = None if None in shape else list(shape)
            elif None in shape[1:]:
                del self.columns[name]
                self.refused[name] = "holds lists of lists"
            if getattr(feature, "num_classes", None):
                self.classes[name] = feature.num_classes
        raw: dict[str, Any] = {}
        for name in self.images:
            *outer, last = name.split("/")
            functools.reduce(lambda part, each: part.setdefault(each, {}), outer, raw)[last] = (
                decode.SkipDecoding()
            )
        self._title, self.supervised = f"{builder} {split}", made.info.supervised_keys
        try:
            self._source = made.as_data_source(split=split, decoders=raw)
            shards = made.info.splits[split].file_instructions
        except NotImplementedError as error:
            raise UsageError(
                "dataset.builder", builder, f"is prepared as {made.info.file_format.value}, which "
                "cannot be read in any order", "array_record",
                "prepare it with download_and_prepare(file_format='array_record')",
            ) from error  # fmt: skip
        except (KeyError, ValueError, AssertionError) as error:
            near = nearest(split, made.info.splits) or "NAME"
            raise UsageError(
                key, split, f"{builder} has no such split ({reason(error)})",
                f"{', '.join(made.info.splits)}, or a part such as {near}[:80%]", f"{key}={near}",
            ) from None  # fmt: skip
        self.files = files([str(shard.filename) for shard in shards], key)

    def __len__(self) -> int:
        return len(self._source)

    def read(
        self, rows: np.ndarray, names: Sequence[str], with_empty: bool = False
    ) -> dict[str, Any]:
        """Read features of some rows; none is empty."""
        examples = self._source.__getitems__(rows.tolist())
        made: dict[str, Any] = {}
        for name in names:
            path, dtype, shape = name.split("/"), self.columns[name].dtype, self.columns[name].item
            values = [functools.reduce(operator.getitem, path, example) for example in examples]
            made[name] = (
                Ragged.of([np.asarray(value, dtype).reshape(-1, *shape) for value in values])
                if self.columns[name].is_ragged else np.array(values, dtype)
            )  # fmt: skip
        return made

    def where(self, row: int) -> str:
        """Return the place of an example."""
        return f"{self._title}, example {row:,}"


def _leaves(features: Any, shapes: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each feature by its name, and its shape; of those inside of others ``OUTER/INNER``."""
    inner = getattr(features, "feature", features)  # of a sequence
    if not hasattr(inner, "items"):
        yield name, features, tuple(shapes)
        return
    for key, part in sorted(inner.items()):  # a map of the file has no order
        yield from _leaves(part, shapes[key], f"{name}/{key}" if name else str(key))
