"""Records in files of many: TFRecord, ArrayRecord, and what TensorFlow Datasets has prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from dtrain.data.holdout import Holdout, HoldoutKeys
from dtrain.data.record_files import ArrayRecordFiles, Prepared, TFRecordFiles
from dtrain.data.sources import Splits
from dtrain.data.tabular.source import TableSource
from dtrain.data.tabular.table import Names
from dtrain.datasets.tables import of_files, of_sources
from dtrain.errors import UsageError


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
