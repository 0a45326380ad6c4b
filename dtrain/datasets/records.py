"""Records in files of many: TFRecord, ArrayRecord, and what TensorFlow Datasets has prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from dtrain.data.files import DataFile
from dtrain.data.holdout import Holdout, HoldoutKeys
from dtrain.data.record_files import ArrayRecordFiles, RecordFiles, TFRecordFiles
from dtrain.data.records import Bytes, Examples, RecordSource, SavedArrays, declared
from dtrain.data.sources import Splits
from dtrain.data.tabular.source import TableSource
from dtrain.data.tabular.table import Names
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
    known = declared(features)
    return of_files(
        lambda files: TFRecordFiles(files).of_kind(Examples(known)), path, inputs, target, weight,
        validation, Holdout(**holdout), classes, images, RecordSource,
    )  # fmt: skip


def array_record(
    path: str | Sequence[str],
    target: Names,
    decode: str = "example",
    features: Mapping[str, Mapping[str, Any]] | None = None,
    inputs: Names = None,
    weight: Names = None,
    validation: str | Sequence[str] | None = None,
    classes: int | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
    **holdout: Unpack[HoldoutKeys],
) -> Splits:
    """Records of ArrayRecord files, in any order, by the index that each file has.

    Args:
        path: a file, a pattern, or a list of them.
        target: a column, a list of columns of numbers, or columns by name; None for none.
        decode: what a record is. ``example``: a ``tf.train.Example``; its columns are ``features``.
            ``npy``: what ``numpy.savez`` writes, whose arrays are its columns, or ``numpy.save``,
            whose array is the column ``record``. ``bytes``: bytes, the column ``record``.
        features: of an example, by name: ``dtype`` (string, int64 or float32) and ``shape`` of
            each, as of ``dataset=tfrecord``.
        inputs: as the target; None for all that are neither target nor weight.
        weight: a column, or None.
        validation: files to evaluate on; None: a part of the records is held out.
        classes: number of classes; None: those of the target, for which all records are read.
        images: columns of encoded images, by name: height, width and channels of each.
        **holdout: how a part is held out (:class:`dtrain.data.holdout.Holdout`).
    """
    kinds: dict[str, Callable[[RecordFiles], Any]] = {
        "example": lambda _: Examples(declared(features or {})),
        "npy": SavedArrays,
        "bytes": lambda _: Bytes(),
    }
    if decode not in kinds:
        raise UsageError(
            "dataset.decode", decode, "is nothing that a record is decoded as",
            "example, npy or bytes", f"dataset.decode={nearest(decode, kinds) or 'NAME'}",
        )  # fmt: skip
    if decode == "example" and features is None:
        raise UsageError(
            "dataset.features", "null", "what the examples have is not declared",
            "types of features by name", "'dataset.features={x: {dtype: float32, shape: [8]}}'",
        )  # fmt: skip

    def table(files: list[DataFile]) -> RecordFiles:
        records = ArrayRecordFiles(files)
        return records.of_kind(kinds[decode](records))

    return of_files(
        table, path, inputs, target, weight, validation, Holdout(**holdout), classes,
        images, RecordSource if decode == "example" else TableSource,
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
    """Examples of a dataset that TensorFlow Datasets has prepared on this machine.

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
    from dtrain.data.tfds import Prepared  # not above: few have the package

    prepared = Prepared(builder, data_dir)
    if target is None:
        if prepared.supervised is None:
            raise UsageError(
                "dataset.target", "null", f"{builder} does not say which feature is the target",
                ", ".join(prepared.features), "dataset.target=FEATURE",
            )  # fmt: skip
        target = prepared.supervised[1]
    if inputs is None and prepared.supervised is not None and target == prepared.supervised[1]:
        inputs = prepared.supervised[0]
    if classes is None and isinstance(target, str):
        classes = prepared.classes.get(target)
    whole, held = prepared.source("dataset.train", train, inputs, target, weight), None
    if validation is not None:
        key, names = "dataset.validation", whole.inputs.names
        held = prepared.source(key, validation, names, target, weight, words=whole.words)
    sizes = prepared.sizes(whole, images)
    return of_sources(whole, held, "train", train, Holdout(**holdout), classes, sizes or None)
