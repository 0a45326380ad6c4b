"""Examples of records: what a record is, and how it is parsed, in the input graph or in Python."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from dtrain.data import nest, tf_example
from dtrain.data.example import place, trimmed
from dtrain.data.record_files import RecordFiles
from dtrain.data.tabular.source import TableSource
from dtrain.data.tabular.table import Column, arranged
from dtrain.data.transforms import InGraph
from dtrain.errors import DataError, UsageError

#: The feature of records that are not taken apart.
RECORD = "record"
#: Types of NumPy, by those that ``dataset.features`` declares.
_DTYPES = {"string": np.dtype(object), "int64": np.dtype(np.int64), "float32": np.dtype(np.float32)}


def declared(features: Mapping[str, Mapping[str, Any]]) -> dict[str, Column]:
    """Return the features that ``dataset.features`` declares."""
    return {
        name: Column(_DTYPES[how["dtype"]], tuple(how.get("shape") or ()))
        for name, how in features.items()
    }


class Examples:
    """Records that are ``tf.train.Example``.

    Args:
        features: by name, as the records have them.
        lengths: that rows of different lengths are padded to, and cut after: ``length`` and
            ``value`` by the feature.

    Attributes:
        columns: what becomes of the features.
    """

    def __init__(
        self, features: Mapping[str, Column], lengths: Mapping[str, Mapping[str, Any]] = {}
    ):
        self.features, self._lengths = features, lengths
        self.columns = dict(features)
        for name, how in lengths.items():
            shape = (int(how["length"]), *features[name].shape[1:])
            self.columns[name] = dataclasses.replace(features[name], shape=shape)

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
        for name in self._lengths.keys() & set(names):
            fill, column = self._lengths[name].get("value"), self.columns[name]
            if fill is None:
                fill = 0 if column.is_number else ""
            parsed[name] = parsed[name].to_tensor(fill, shape=[None, *column.shape])
        return dict(parsed)

    def read(
        self, records: np.ndarray, names: Sequence[str], where: Callable[[int], str]
    ) -> dict[str, np.ndarray]:
        """Parse records without TensorFlow.

        Args:
            records: objects ``[b]``.
            names: of features.
            where: returns the place of a record.

        Raises:
            DataError: one is not as it is declared.
        """
        values: dict[str, Any] = tf_example.parse(
            records, {name: self.features[name] for name in names}, where
        )
        for name in self._lengths.keys() & set(names):
            how = self._lengths[name]
            values[name] = values[name].padded(int(how["length"]), how.get("value"))
        return values


class SavedArrays:
    """Records that are what ``numpy.save`` or ``numpy.savez`` writes.

    Those of ``save`` are a feature, ``record``; of ``savez`` each array is one. Their types and
    shapes are those of the first record.

    Args:
        files: have the records.
    """

    def __init__(self, files: RecordFiles):
        first = _saved(files.records(np.array([0]))[0], files.where(0)) if len(files) else {}
        self.columns = {name: Column(value.dtype, value.shape) for name, value in first.items()}

    def read(
        self, records: np.ndarray, names: Sequence[str], where: Callable[[int], str]
    ) -> dict[str, np.ndarray]:
        """Read arrays (arguments of :meth:`Examples.read`)."""
        made = {
            name: np.empty((len(records), *self.columns[name].item), self.columns[name].dtype)
            for name in names
        }
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

    columns = {RECORD: Column(np.dtype(object))}

    def read(
        self, records: np.ndarray, names: Sequence[str], where: Callable[[int], str]
    ) -> dict[str, np.ndarray]:
        """Return records."""
        return dict.fromkeys(names, records)


class RecordSource(TableSource):
    """Examples that are read as records, which a transform parses.

    Args:
        table: of :class:`Examples`. The others are those of :class:`TableSource`.

    Raises:
        UsageError: a feature is not declared.
    """

    table: RecordFiles

    def __init__(self, table: RecordFiles, *arguments: Any, **options: Any):
        super().__init__(table, *arguments, **options)
        self.transforms = (self._parsing(),)

    def padded(self, lengths: Mapping[str, Any]) -> RecordSource:
        """Return the source with features of one length, padded in the graph; longer ones are cut.

        Args:
            lengths: by feature, or by the place of an example where it is (``dataset.pad``).

        Raises:
            UsageError: one names no feature of different lengths, or no one length.
        """
        roles = tuple(role.names for role in (self.inputs, self.target, self.weight) if role)
        places = {place(where): name for where, name in nest.named(roles)}
        features = self.table.kind.features
        ragged = [name for name, feature in features.items() if feature.is_ragged]
        made = {}
        for key, how in lengths.items():
            name = places.get(key, key)
            if name not in ragged:
                raise UsageError(
                    "dataset.pad", key, "is no feature of different lengths",
                    ", ".join(ragged) or "features whose shape begins with null",
                    f"dataset.pad={{{(ragged or ['NAME'])[0]}:{{length:128}}}}",
                )  # fmt: skip
            if "length" not in how:
                raise UsageError(
                    "dataset.pad", f"{{{key}: {dict(how)}}}", "features of TFRecord files are "
                    "padded to one length", "a length", f"dataset.pad={{{key}:{{length:128}}}}",
                )  # fmt: skip
            made[name] = how
        return self._changed(table=self.table.of_kind(Examples(features, made)))

    def _changed(self, **attributes: Any) -> Self:
        made = super()._changed(**attributes)
        made.transforms = (made._parsing(),)
        return made

    def _parsing(self) -> InGraph:
        return InGraph(self.parse, takes_arrays=True)

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read: int64 ``[b]`` to the records as they are, objects ``[b]``, and the indices.

        Raises:
            UsageError: a feature has no length that it could be padded to.
            DataError: a file cannot be read, or is not the one that it was.
        """
        for name in self._names:
            if self.table.columns[name].is_ragged:
                raise UsageError(
                    "dataset.pad", "null", f"the feature {name} has rows of different lengths",
                    "a length for each such feature", f"dataset.pad={{{name}:{{length:128}}}}",
                )  # fmt: skip
        indices = np.asarray(indices)
        return self.table.records(self._at(indices)), indices

    def reread(self, indices: np.ndarray) -> None:
        """Parse records, and name file, record, byte and feature of what is not as declared."""
        super().__getitem__(indices)

    def parse(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Parse records: to ``(x, y)``, ``(x, y, weight)`` or ``(x,)``.

        A tensor of records of which one is not as it is declared raises what TensorFlow raises,
        which names no file; of one that is no ``tf.train.Example`` a ``UnicodeDecodeError``.

        Args:
            parts: of :meth:`__getitem__`, arrays or tensors.

        Raises:
            DataError: of arrays, naming file, record, byte and feature.
        """
        records, indices = parts
        if isinstance(records, np.ndarray):
            values = self.table.parsed(records, self._at(indices), self._names)
            return self._example(values, indices)
        import tensorflow as tf

        values = self.table.kind.parsed(records, self._names)
        y = weight = None
        if self.target is not None:
            targets = {n: self._graph_target(values[n], n) for n in self.target.columns()}
            y = arranged(self.target.names, targets, _side_by_side)
        if self.weight is not None:
            weights = {n: tf.cast(values[n], tf.float32) for n in self.weight.columns()}
            weight = arranged(self.weight.names, weights, _side_by_side)
        return trimmed([arranged(self.inputs.names, values, _side_by_side), y, weight])

    def _graph_target(self, value: Any, name: str) -> Any:
        """Return targets: those of text as numbers of classes, others if they are finite."""
        import tensorflow as tf

        if value.dtype.is_floating:
            return tf.debugging.check_numerics(value, "the target is NaN or infinite")
        if value.dtype != tf.string:
            return value
        # There is no search in sorted text, and a table would be a resource, which stays in one
        # process: it is searched by 62 bits of a hash.
        words = tf.constant(self.words(name))
        keys = tf.strings.to_hash_bucket_fast(words, 1 << 62)
        order = tf.argsort(keys)
        asked = tf.strings.to_hash_bucket_fast(value, 1 << 62)
        at = tf.searchsorted(tf.gather(keys, order), tf.reshape(asked, [-1]))
        at = tf.gather(order, tf.reshape(tf.minimum(at, tf.size(words) - 1), tf.shape(asked)))
        is_known = tf.debugging.assert_equal(
            tf.gather(words, at), value, "the target is none of the classes"
        )
        with tf.control_dependencies([] if is_known is None else [is_known]):
            return tf.cast(at, tf.int64)


def _side_by_side(tensors: list[Any]) -> Any:
    import tensorflow as tf

    return tf.stack([tf.cast(tensor, tf.float32) for tensor in tensors], axis=1)
