"""What TensorFlow Datasets has prepared in a folder: read by record, as its files have them.

The package says what is in the folder, without TensorFlow and without the code that made it; the
records are parsed as those of ``dataset=tfrecord``. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data.files import files, is_address, not_installed
from dtrain.data.record_files import ArrayRecordFiles, TFRecordFiles
from dtrain.data.records import Examples, RecordSource
from dtrain.data.tabular.table import Column, Names
from dtrain.errors import UsageError, nearest

#: Formats of files that have records of ``tf.train.Example``, by their names.
_FORMATS = ("array_record", "tfrecord")


class Prepared:
    """A dataset that is there, as its ``dataset_info.json`` and ``features.json`` say.

    Args:
        name: of it; where there are several configurations or versions ``NAME/CONFIG:1.0.0``.
        data_dir: folder of datasets; None: ``$TFDS_DATA_DIR``, else ``~/tensorflow_datasets``.

    Attributes:
        features: by name; those inside of others as ``OUTER/INNER``.
        images: of those that are images: height, width, channels; None where they differ.
        classes: of those that are classes, how many there are.
        supervised: (inputs, target), or None.

    Raises:
        UsageError: the package is not installed, or there is no such dataset.
    """

    def __init__(self, name: str, data_dir: str | None):
        self.name = name
        self._builder = _builder(name, data_dir)
        info = self._builder.info
        self.format = str(getattr(info.file_format, "value", info.file_format))
        if self.format not in _FORMATS:
            raise UsageError(
                "dataset.builder", name, f"is prepared as {self.format}, of which dtrain reads no "
                "examples", " or ".join(_FORMATS),
                "prepare it with download_and_prepare(file_format='array_record')",
            )  # fmt: skip
        self.features: dict[str, Column] = {}
        self.images: dict[str, list[int] | None] = {}
        self.classes: dict[str, int] = {}
        for column, feature, stored in _leaves(info.features, info.features.get_serialized_info()):
            kind = type(feature).__name__
            parsed = _column(feature, stored, kind == "Image")
            if parsed is None:
                continue
            self.features[column] = parsed
            if kind == "Image":
                self.images[column] = None if None in feature.shape else list(feature.shape)
            if kind == "ClassLabel" and feature.num_classes is not None:
                self.classes[column] = int(feature.num_classes)
        keys = info.supervised_keys
        pair = keys is not None and all(isinstance(each, str) for each in keys[:2])
        self.supervised: tuple[str, str] | None = keys[:2] if pair else None

    def source(
        self,
        key: str,
        split: str,
        inputs: Names,
        target: Names,
        weight: Names,
        **options: Any,
    ) -> RecordSource:
        """Return the examples of a split, or of a part of one, such as ``train[:80%]``.

        Args:
            key: that names the split.
            split: it.
            inputs, target, weight, options: as of :class:`RecordSource`.

        Raises:
            UsageError: there is none of that name, or its files are not what was prepared.
        """
        splits = self._builder.info.splits
        try:
            shards = splits[split].file_instructions
        except (KeyError, ValueError, AssertionError) as error:
            near = nearest(split, splits) or "NAME"
            raise UsageError(
                key, split, f"{self.name} has no such split ({str(error).strip().splitlines()[0]})",
                f"{', '.join(splits)}, or a part such as {near}[:80%]", f"{key}={near}",
            ) from None  # fmt: skip
        # They are in the order of their names, which is that of files().
        paths = files([str(shard.filename) for shard in shards], key)
        sizes = [int(shard.examples_in_shard) for shard in shards]
        records = (TFRecordFiles if self.format == "tfrecord" else ArrayRecordFiles)(paths)
        if self.format == "array_record" and len(records) != sum(sizes):
            raise UsageError(
                "dataset.builder", self.name, f"its files have {len(records):,} records, and its "
                f"dataset_info.json says {sum(sizes):,}", "files as they were prepared",
                "prepare it again",
            )  # fmt: skip
        table = records.of_kind(Examples(self.features))
        source = RecordSource(table, inputs, target, weight, **options)
        for name in [] if source.target is None else source.target.columns():
            if name in self.images:
                raise UsageError(
                    "dataset.target", name, "is an image", "a feature of numbers or text",
                    "dataset.target=FEATURE",
                )  # fmt: skip
        rows = [
            np.arange(begin + shard.skip, begin + shard.skip + shard.take)
            for begin, shard in zip(np.cumsum([0, *sizes]), shards, strict=False)
        ]
        taken = np.concatenate(rows)
        return source if len(taken) == sum(sizes) else source.subset(taken)

    def sizes(
        self, source: RecordSource, images: Mapping[str, Sequence[int]] | None
    ) -> dict[str, Sequence[int]]:
        """Return the sizes of the images among the inputs: as given, else as they are declared."""
        found: dict[str, Sequence[int]] = dict(images or {})
        for name in source.inputs.columns():
            if name in self.images and name not in found:
                size = self.images[name]
                if size is None:
                    raise UsageError(
                        "dataset.images", "null", f"the images {name} have different sizes",
                        "a size that they are resized to", f"dataset.images={{{name}:[64,64,3]}}",
                    )  # fmt: skip
                found[name] = size
        return found


def _column(feature: Any, stored: Any, is_image: bool) -> Column | None:
    """Return what a feature is in its records; None where it cannot be parsed."""
    dtype, shape, whole = np.dtype(stored.np_dtype), stored.shape, np.dtype(feature.np_dtype)
    if is_image and whole != np.uint8:
        return None
    if not is_image and dtype.kind == "O" and whole.kind != "O":
        return None  # numbers that are packed
    if None in shape[1:] or getattr(stored, "sequence_rank", 0) not in (0, 1, None):
        return None  # lists of lists
    kinds: dict[str, Any] = {"O": object, "f": np.float32}
    return Column(np.dtype(kinds.get(dtype.kind, np.int64)), tuple(shape))


def _leaves(features: Any, stored: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each feature with its name in the records, and how it is stored there."""
    inner = getattr(features, "feature", features)  # of a sequence
    if isinstance(stored, Mapping) and hasattr(inner, "items"):
        for key, part in sorted(inner.items()):  # a map of the file has no order
            if key in stored:
                yield from _leaves(part, stored[key], f"{name}/{key}" if name else str(key))
    elif not isinstance(stored, Mapping):
        yield name, features, stored


def _builder(name: str, data_dir: str | None) -> Any:
    if data_dir is not None and is_address(data_dir):
        raise UsageError(
            "dataset.data_dir", data_dir, "is an address", "a folder", "dataset.data_dir=FOLDER"
        )
    try:
        from tensorflow_datasets.core import read_only_builder
    except ImportError as error:
        raise not_installed("tfds", "tfds", error) from None
    try:
        return read_only_builder.builder_from_files(name, data_dir=data_dir)
    except Exception as error:  # of the package, for each way that a folder can be wrong
        place = data_dir or "the usual folder"
        raise UsageError(
            "dataset.builder", name, f"no such dataset is prepared in {place} "
            f"({str(error).strip().splitlines()[0]})",
            "one that download_and_prepare of tensorflow_datasets has prepared there",
            "dataset.data_dir=FOLDER dataset.builder=NAME",
        ) from None  # fmt: skip
