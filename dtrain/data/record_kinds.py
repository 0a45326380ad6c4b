"""What records are: ``tf.train.Example``, which the input graph parses, arrays, or bytes."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data.record_files import RecordFiles
from dtrain.data.tabular.table import Column
from dtrain.errors import DataError

#: The feature of records that are not taken apart.
RECORD = "record"
#: Types of NumPy, by those that ``dataset.features`` declares.
_DTYPES = {"string": np.dtype(object), "int64": np.dtype(np.int64), "float32": np.dtype(np.float32)}


@dataclasses.dataclass(frozen=True)
class Feature(Column):
    """One feature of an example.

    Attributes:
        length: that rows of different lengths are padded to, and cut after; None where nothing
            says it.
        value: what they are padded with.
    """

    length: int | None = None
    value: Any = None

    def column(self) -> Column:
        """Return what it is in a table."""
        shape = (self.length, *self.shape[1:]) if self.is_ragged else self.shape
        return Column(self.dtype, shape)


def declared(features: Mapping[str, Mapping[str, Any]]) -> dict[str, Feature]:
    """Return the features that ``dataset.features`` declares."""
    return {
        name: Feature(_DTYPES[how["dtype"]], tuple(how.get("shape") or ()))
        for name, how in features.items()
    }


class Examples:
    """Records that are ``tf.train.Example``.

    Args:
        features: by name.
    """

    in_graph = True

    def __init__(self, features: Mapping[str, Feature]):
        self.features = dict(features)

    def parsed(self, records: Any, names: Sequence[str]) -> dict[str, Any]:
        """Parse records, a tensor of text ``[b]``: in the graph, or at once outside of one."""
        import tensorflow as tf

        specs: dict[str, Any] = {}
        for name in names:
            feature = self.features[name]
            kind = tf.string if feature.dtype == object else feature.dtype
            if feature.is_ragged:
                sizes = [tf.io.RaggedFeature.UniformRowLength(n) for n in feature.shape[1:]]
                specs[name] = tf.io.RaggedFeature(kind, None, sizes, tf.int64)
            else:
                specs[name] = tf.io.FixedLenFeature(feature.shape, kind)
        parsed = tf.io.parse_example(records, specs)
        for name in names:
            feature = self.features[name]
            if feature.length is not None:
                fill = feature.value
                if fill is None:
                    fill = 0 if feature.is_number else ""
                shape = [None, feature.length, *feature.shape[1:]]
                parsed[name] = parsed[name].to_tensor(fill, shape=shape)
        return dict(parsed)

    def read(
        self, records: np.ndarray, names: Sequence[str], where: Callable[[int], str]
    ) -> dict[str, np.ndarray]:
        """Parse records at once.

        Args:
            records: objects ``[b]``.
            names: of features.
            where: returns the place of a record.

        Raises:
            DataError: one is not as it is declared.
        """
        import tensorflow as tf

        try:
            # At once, also where the classes of text are first needed: while a graph is traced.
            with tf.init_scope(), tf.device("CPU:0"):
                parsed = self.parsed(tf.constant(records), names)
        except (tf.errors.OpError, UnicodeDecodeError):  # whose text has the bytes of a record
            for at, record in enumerate(records):
                problem = self._problem(record, names)
                if problem is not None:
                    raise DataError(where(at), problem) from None
            raise
        return {name: value.numpy() for name, value in parsed.items()}

    def _problem(self, record: bytes, names: Sequence[str]) -> str | None:
        """Return what is wrong with a record; None where nothing is."""
        import tensorflow as tf
        from google.protobuf.message import DecodeError

        try:
            there = tf.train.Example.FromString(record).features.feature
        except DecodeError:
            return "is no tf.train.Example"
        kinds = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}
        for name in names:
            feature = self.features[name]
            kind = there[name].WhichOneof("kind") if name in there else None
            if kind is None:
                if feature.is_ragged:
                    continue
                return f"has no feature {name!r}; it has {', '.join(sorted(there)) or 'none'}"
            dtype = "string" if feature.dtype == object else str(feature.dtype)
            if kinds[kind] != dtype:
                return f"feature {name!r} holds {kinds[kind]}, and is declared {dtype}"
            count = len(getattr(there[name], kind).value)
            size = int(np.prod([n for n in feature.shape if n is not None]))
            if count % size if feature.is_ragged else count != size:
                text = ", ".join("null" if n is None else str(n) for n in feature.shape)
                return f"feature {name!r} has {count:,} values, which are none of shape [{text}]"
        return None


class SavedArrays:
    """Records that are what ``numpy.save`` or ``numpy.savez`` writes.

    Those of ``save`` are a feature, ``record``; of ``savez`` each array is one. Their types and
    shapes are those of the first record.

    Args:
        files: have the records.
    """

    in_graph = False

    def __init__(self, files: RecordFiles):
        first = _saved(files.read(np.array([0]))[0], files.where(0)) if len(files) else {}
        self.features = {name: Feature(value.dtype, value.shape) for name, value in first.items()}

    def read(
        self, records: np.ndarray, names: Sequence[str], where: Callable[[int], str]
    ) -> dict[str, np.ndarray]:
        """Read arrays (arguments of :meth:`Examples.read`)."""
        made: dict[str, np.ndarray] = {}
        for name in names:
            shape: Any = self.features[name].shape
            made[name] = np.empty((len(records), *shape), self.features[name].dtype)
        for at, record in enumerate(records):
            arrays = _saved(record, where(at))
            for name, values in made.items():
                array, like = arrays.get(name), (values.dtype, values.shape[1:])
                if array is None or (array.dtype, array.shape) != like:
                    has = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
                    raise DataError(
                        f"{where(at)}, column {name!r}",
                        f"holds {has}, and the first record {like[0]} {list(like[1])}",
                    )
                values[at] = array
        return made


def _saved(record: bytes, where: str) -> dict[str, np.ndarray]:
    try:
        loaded = np.load(io.BytesIO(record), allow_pickle=False)
        return {RECORD: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile) as error:
        reason = str(error).split("\n")[0]
        raise DataError(where, f"is no array of NumPy ({reason})") from None


class Bytes:
    """Records as they are: one feature, ``record``."""

    in_graph = False
    features = {RECORD: Feature(np.dtype(object))}

    def read(
        self, records: np.ndarray, names: Sequence[str], where: Callable[[int], str]
    ) -> dict[str, np.ndarray]:
        """Return records."""
        return dict.fromkeys(names, records)
