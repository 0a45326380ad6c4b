"""Records in files of many: TFRecord files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtrain.data.files import DataFile, files
from dtrain.data.sources import Splits
from dtrain.data.splits import of_tables
from dtrain.data.tables import Names
from dtrain.errors import UsageError


def tfrecord(
    path: str | Sequence[str],
    features: Mapping[str, Mapping[str, Any]],
    target: Names,
    inputs: Names = None,
    weight: Names = None,
    validation_path: str | Sequence[str] | None = None,
    validation_split: float = 0.2,
    split_seed: int = 0,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
    index: str = "cache",
) -> Splits:
    """Examples (``tf.train.Example``) of TFRecord files, in any order; compressed ones as a stream.

    Before the first run the files are passed once, with all checksums, for an index of the records.

    Args:
        path: a file, a pattern, or a list of them.
        features: by name: ``dtype`` (string, int64 or float32) and ``shape`` of each, which is one
            value if not given; with null first it has a length that differs (``dataset.pad``).
        target: a feature, a list of numbers, or features by name. Text is classes, in alphabetical
            order.
        inputs: as the target; None for all that are neither target nor weight.
        weight: a feature, or None.
        validation_path: files to evaluate on; None: a part of the records is split off.
        validation_split: fraction to split off.
        split_seed: of the shuffle before the split.
        classes: number of classes; None: those of the target, for which all records are read.
        images: features of encoded images, by name: height, width and channels of each.
        index: ``cache``, or ``beside`` (``FILE.index``, where that folder can be written).
    """
    # Not above: with NumPy alone the other datasets can be imported.
    from dtrain.data.formats import tfrecord_file
    from dtrain.data.formats.examples import RecordSource
    from dtrain.data.formats.tfrecord import TFRecords
    from dtrain.data.formats.tfrecord_features import declared
    from dtrain.data.formats.tfrecord_stream import stream

    if index not in ("cache", "beside"):
        raise UsageError(
            "dataset.index", index, "is no place of an index", "cache or beside",
            "dataset.index=cache",
        )  # fmt: skip
    known = declared(features)
    found = files(path)
    if any(map(tfrecord_file.compression, found)):
        if validation_path is None and validation_split:
            raise UsageError(
                "dataset.validation_split", validation_split, f"{found[0].name} is compressed, so "
                "it is read as a stream, of which no part can be split off",
                "0, or files to evaluate on", "dataset.validation_split=0",
            )  # fmt: skip
        held = None
        if validation_path is not None:
            others = files(validation_path, "dataset.validation_path")
            held = stream(others, known, inputs, target, weight, images)
        return Splits(stream(found, known, inputs, target, weight, images), held, classes)

    def table(given: list[DataFile]) -> TFRecords:
        return TFRecords(given, known, index == "beside")

    return of_tables(
        table, path, inputs, target, weight, validation_path, validation_split, split_seed, classes,
        images, RecordSource,
    )  # fmt: skip
