"""Features of ``tf.train.Example``, as ``dataset.features`` and ``dataset.pad`` declare them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from dtrain.data.tables import Column
from dtrain.errors import UsageError

#: Types of NumPy, by those of features.
_DTYPES = {"string": object, "int64": np.int64, "float32": np.float32}


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of an example, as it is declared.

    Attributes:
        dtype: ``string``, ``int64`` or ``float32``.
        shape: of its values; None in the first place for a length that differs.
        length: that such rows are padded to, and cut after; None where nothing says it.
        value: what they are padded with.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    length: int | None = None
    value: Any = None

    @property
    def is_ragged(self) -> bool:
        """Whether its length differs."""
        return None in self.shape

    def column(self) -> Column:
        """Return what it is in a table."""
        shape = (self.length, *self.shape[1:]) if self.is_ragged else self.shape
        return Column(np.dtype(_DTYPES[self.dtype]), shape)

    def spec(self) -> Any:
        """Return how TensorFlow parses it."""
        import tensorflow as tf

        if not self.is_ragged:
            return tf.io.FixedLenFeature(self.shape, self.dtype)
        sizes = [tf.io.RaggedFeature.UniformRowLength(size) for size in self.shape[1:]]
        return tf.io.RaggedFeature(self.dtype, partitions=sizes, row_splits_dtype=tf.int64)

    def padded(self, values: Any) -> Any:
        """Return an array ``[b, length, ...]`` of ragged ones; others as they are."""
        if not self.is_ragged or self.length is None:
            return values
        fill = ("" if self.dtype == "string" else 0) if self.value is None else self.value
        return values.to_tensor(fill, shape=[None, self.length, *self.shape[1:]])


def declared(features: Mapping[str, Mapping[str, Any]]) -> dict[str, Feature]:
    """Return the features that ``dataset.features`` declares."""
    return {
        name: Feature(given["dtype"], tuple(given.get("shape") or ()))
        for name, given in features.items()
    }


def padded(
    features: Mapping[str, Feature], names: Mapping[str, str], lengths: Mapping[str, Any]
) -> dict[str, Feature]:
    """Return the features with the lengths that ``dataset.pad`` says.

    Args:
        features: by name.
        names: of features, by the places of an example where they are.
        lengths: by place, or by feature.

    Raises:
        UsageError: one names no feature of different lengths, or no one length.
    """
    made = dict(features)
    for given, how in lengths.items():
        name = names.get(given, given)
        ragged = [each for each, feature in features.items() if feature.is_ragged]
        if name not in ragged:
            raise UsageError(
                "dataset.pad", given, "is no feature of different lengths",
                ", ".join(ragged) or "features whose shape begins with null",
                f"dataset.pad={{{(ragged or ['NAME'])[0]}:{{length:128}}}}",
            )  # fmt: skip
        if "length" not in how:
            raise UsageError(
                "dataset.pad", f"{{{given}: {dict(how)}}}", "features of TFRecord files are padded "
                "to one length", "a length", f"dataset.pad={{{given}:{{length:128}}}}",
            )  # fmt: skip
        length, value = int(how["length"]), how.get("value")
        made[name] = dataclasses.replace(made[name], length=length, value=value)
    return made
