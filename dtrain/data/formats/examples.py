"""Records that are ``tf.train.Example``: read as they are, and parsed in the input graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.example import place
from dtrain.data.formats.tfrecord_features import Feature, padded
from dtrain.data.ragged import Ragged
from dtrain.data.tables import Table, TableSource
from dtrain.errors import DataError, UsageError

#: Bytes of records that are in memory at once where all of a column is read.
BYTES = 32 << 20


class ExampleTable(Table):
    """Rows that are records of examples, whose columns are their features.

    Attributes:
        features: as they are declared, by name.
    """

    features: dict[str, Feature]

    def declare(self, features: Mapping[str, Feature]) -> None:
        """Take the examples for such of these features."""
        self.features = dict(features)
        self.columns = {name: feature.column() for name, feature in features.items()}

    @abstractmethod
    def records(self, rows: np.ndarray) -> np.ndarray:
        """Read records as they are: int64 ``[b]`` to objects ``[b]``, each ``bytes``.

        Raises:
            DataError: a file cannot be read, or is not the one that it was.
        """

    @abstractmethod
    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """Return how many bytes records have, at least about: ``[b]``."""

    def parsed(self, records: Any, names: Sequence[str]) -> dict[str, Any]:
        """Parse records, a tensor of text ``[b]``: in the graph, or at once outside of one."""
        import tensorflow as tf

        found = tf.io.parse_example(records, {name: self.features[name].spec() for name in names})
        return {name: self.features[name].padded(found[name]) for name in names}

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read features of some records."""
        parts = [self._read(rows[part], names) for part in self._stretches(rows)]
        return {name: _joined([part[name] for part in parts]) for name in names}

    def _stretches(self, rows: np.ndarray) -> list[slice]:
        """Divide records into stretches that need so much memory at most."""
        ends = np.cumsum(self.sizes(rows))
        found, begin = [], 0
        while begin < len(rows):
            before = ends[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + BYTES, side="right")))
            found.append(slice(begin, end))
            begin = end
        return found

    def _read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        import tensorflow as tf

        records = self.records(rows)
        try:
            # At once, also where the classes of text are first needed: while a graph is traced.
            with tf.init_scope(), tf.device("CPU:0"):
                found = self.parsed(tf.constant(records), names)
        except (tf.errors.OpError, UnicodeDecodeError):  # whose text has the bytes of a record
            for row, record in zip(rows, records, strict=True):
                problem = self._problem(record, names)
                if problem is not None:
                    raise DataError(self.where(int(row)), problem) from None
            raise
        return {name: _plain(value) for name, value in found.items()}

    def _problem(self, record: bytes, names: Sequence[str]) -> str | None:
        """Return what is wrong with a record; None where nothing is."""
        import tensorflow as tf
        from google.protobuf.message import DecodeError

        try:
            found = tf.train.Example.FromString(record).features.feature
        except DecodeError:
            return "is no tf.train.Example"
        kinds = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}
        for name in names:
            feature = self.features[name]
            kind = found[name].WhichOneof("kind") if name in found else None
            if kind is None:
                if feature.is_ragged:
                    continue
                has = ", ".join(sorted(found)) or "none"
                return f"has no feature {name!r}; it has {has}"
            if kinds[kind] != feature.dtype:
                return f"feature {name!r} holds {kinds[kind]}, and is declared {feature.dtype}"
            count = len(getattr(found[name], kind).value)
            shape = [size for size in feature.shape if size is not None]
            size = int(np.prod(shape))
            if count % size if feature.is_ragged else count != size:
                text = ", ".join("null" if n is None else str(n) for n in feature.shape)
                return f"feature {name!r} has {count:,} values, which are none of shape [{text}]"
        return None


def _plain(value: Any) -> Any:
    if hasattr(value, "row_splits"):
        return Ragged(value.values.numpy(), value.row_lengths().numpy())
    return value.numpy()


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], Ragged):
        lengths = np.concatenate([part.lengths for part in parts])
        return Ragged(np.concatenate([part.values for part in parts]), lengths)
    return np.concatenate(parts)


class RecordSource(TableSource):
    """Examples of records: read as they are, and parsed in the input graph.

    Args:
        table: has the records. The others are those of :class:`TableSource`.

    Raises:
        UsageError: a feature is not declared.
    """

    table: ExampleTable

    def __init__(self, table: ExampleTable, *arguments: Any, **options: Any):
        super().__init__(table, *arguments, **options)
        self._last = np.zeros(0, np.int64)

    def pad(self, lengths: Mapping[str, Any]) -> None:
        """Pad features of different lengths from now on, and cut what is longer.

        Args:
            lengths: by feature, or by the place of an example where it is (``dataset.pad``).

        Raises:
            UsageError: one names no feature of different lengths, or no one length.
        """
        parts = nest.named(tuple(role.names for role in self._roles()))
        features = self.table.features
        self.table.declare(padded(features, {place(n): name for n, name in parts}, lengths))

    def take(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read: int64 ``[b]`` to the records as they are, objects ``[b]``, alone.

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
        self._last = np.asarray(indices)
        return (self.table.records(self._at(self._last)),)

    def finish(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Parse: to ``(x, y)``, ``(x, y, weight)`` or ``(x,)``.

        In a graph a record that is not as it is declared raises what TensorFlow raises, which names
        no file; of one that is no ``tf.train.Example`` that is a ``UnicodeDecodeError``.

        Raises:
            DataError: outside of a graph, naming file, record, byte and feature.
        """
        import tensorflow as tf

        try:
            return self._finished(parts[0])
        except (tf.errors.OpError, UnicodeDecodeError):
            if tf.executing_eagerly():  # then they have just been read
                super().take(self._last)
            raise

    def _finished(self, records: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        values = self.table.parsed(records, self._names)
        made = [_arranged(self.inputs.names, values)]
        if self.target is not None:
            targets = {name: self._sound(values[name], name) for name in self.target.columns()}
            made.append(_arranged(self.target.names, targets))
        if self.weight is not None:
            if self.target is None:
                made.append(None)
            weights = {n: tf.cast(values[n], tf.float32) for n in self.weight.columns()}
            made.append(_arranged(self.weight.names, weights))
        return tuple(made)

    def _sound(self, value: Any, name: str) -> Any:
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


def _arranged(names: Any, values: Mapping[str, Any]) -> Any:
    """Return the structure of tensors, as :meth:`dtrain.data.tables.Role.arrange` of arrays."""
    import tensorflow as tf

    if isinstance(names, Mapping):
        return {str(key): _arranged(part, values) for key, part in names.items()}
    if isinstance(names, str):
        return values[names]
    return tf.stack([tf.cast(values[name], tf.float32) for name in names], axis=1)
