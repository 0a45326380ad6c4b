"""Compressed TFRecord files, whose records can only be read one after the other: a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data import transforms
from dtrain.data.example import Example
from dtrain.data.files import DataFile
from dtrain.data.formats import tfrecord_file
from dtrain.data.formats.examples import ExampleTable, RecordSource
from dtrain.data.formats.tfrecord_features import Feature
from dtrain.data.images import with_images
from dtrain.data.streams import Stream
from dtrain.data.tables import Names
from dtrain.errors import UsageError

#: Records that are parsed at once.
_BATCH = 256


class _Unindexed(ExampleTable):
    """What records of compressed files are; which they are is known only by reading them."""

    def __init__(self, files: list[DataFile], features: Mapping[str, Feature]):
        self.files = files
        self.declare(features)

    def __len__(self) -> int:
        raise TypeError("a stream has no length that is known")

    def records(self, rows: np.ndarray) -> np.ndarray:
        """Refuse: there is no random access."""
        raise TypeError("a stream has no random access")

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """Refuse: there is no random access."""
        raise TypeError("a stream has no random access")

    def where(self, row: int) -> str:
        """Return which record."""
        return f"record {row:,}"


def stream(
    files: list[DataFile],
    features: Mapping[str, Feature],
    inputs: Names,
    target: Names,
    weight: Names,
    images: Mapping[str, Sequence[int]] | None,
) -> Stream:
    """Return the examples of compressed files, in the order of files and records.

    Args:
        files: compressed by gzip or zlib, or not at all.
        features: as they are declared.
        inputs, target, weight: features, as of :class:`dtrain.data.tables.TableSource`.
        images: height, width and channels of encoded images, by feature.

    Raises:
        UsageError: a target is text, of which the classes are known only when all is read; or a
            length differs.
    """
    source: Any = RecordSource(_Unindexed(files, features), inputs, target, weight)
    roles = [role for role in (source.inputs, source.target, source.weight) if role is not None]
    for name in (name for role in roles for name in role.columns()):
        if features[name].is_ragged:
            raise _refused(files, f"the feature {name!r} has a length that differs")
    for name in () if source.target is None else source.target.columns():
        if not source.table.columns[name].is_number:
            raise _refused(files, f"the target {name!r} is text, whose classes are not known")
    if images:
        source = with_images(source, images)
    kinds = [tfrecord_file.compression(file) or "" for file in files]

    def made() -> Any:
        import tensorflow as tf

        parts = [
            tf.data.TFRecordDataset(str(file.local()), compression_type=kind)
            for file, kind in zip(files, kinds, strict=True)
        ]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.concatenate(part)

        def parsed(records: Any) -> tuple[Any, ...]:
            return transforms.applied(source, Example(records), of_arrays=False).parts

        plain = tf.autograph.experimental.do_not_convert(parsed)
        return whole.batch(_BATCH).map(plain, tf.data.AUTOTUNE, deterministic=True)

    return Stream(made, batched=True, files=files)


def _refused(files: list[DataFile], problem: str) -> UsageError:
    return UsageError(
        "dataset.path", files[0].name, f"is compressed, so it is read as a stream, and {problem}",
        "TFRecord files that are not compressed", "write them anew, without compression",
    )  # fmt: skip
