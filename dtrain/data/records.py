"""Examples of records: in any order, most of them parsed in the input graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from dtrain.data import nest
from dtrain.data.example import place
from dtrain.data.record_files import RecordFiles
from dtrain.data.record_kinds import Examples
from dtrain.data.tabular.source import TableSource
from dtrain.data.tabular.table import Table, arranged
from dtrain.data.transforms import InGraph
from dtrain.errors import UsageError

#: Bytes of records that are in memory at once where all of a feature is read.
BYTES = 32 << 20


class RecordTable(Table):
    """Rows that are records, whose columns are their features.

    Args:
        records: all of them.
        kind: what a record is: :class:`Examples`, :class:`SavedArrays` or :class:`Bytes`.
    """

    def __init__(self, records: RecordFiles, kind: Any):
        self.files, self.records, self.kind = records.files, records, kind
        self.columns = {name: feature.column() for name, feature in kind.features.items()}

    def known_length(self) -> int | None:
        """Return how many there are; None where files would have to be read to know it."""
        return self.records.known_length()

    def __len__(self) -> int:
        return len(self.records)

    def read(
        self, rows: np.ndarray, names: Sequence[str], with_empty: bool = False
    ) -> dict[str, np.ndarray]:
        """Read features of some records, outside of a graph; none is empty."""
        size = sum(file.size() for file in self.files)
        step = max(1, BYTES * len(self) // max(1, size))
        parts = [self._read(rows[at : at + step], names) for at in range(0, len(rows), step)]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def _read(self, rows: np.ndarray, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        values: Mapping[str, np.ndarray] = self.kind.read(
            self.records.read(rows), names, lambda at: self.where(int(rows[at]))
        )
        return values

    def where(self, row: int) -> str:
        """Return the place of a record."""
        return self.records.where(row)

    def blocks(self) -> np.ndarray | None:
        """Return how many records, one after the other, are read at once; None for one."""
        return self.records.blocks()


class RecordSource(TableSource):
    """Examples that are read as records, which the input graph parses.

    Args:
        table: of :class:`Examples`. The others are those of :class:`TableSource`.

    Raises:
        UsageError: a feature is not declared.
    """

    table: RecordTable

    def __init__(self, table: RecordTable, *arguments: Any, **options: Any):
        super().__init__(table, *arguments, **options)
        self._last = np.zeros(0, np.int64)
        self.transforms = (InGraph(self.parse),)

    def padded(self, lengths: Mapping[str, Any]) -> RecordSource:
        """Return the source with features of one length, padded in the graph; longer ones are cut.

        Args:
            lengths: by feature, or by the place of an example where it is (``dataset.pad``).

        Raises:
            UsageError: one names no feature of different lengths, or no one length.
        """
        roles = tuple(role.names for role in (self.inputs, self.target, self.weight) if role)
        places = {place(where): name for where, name in nest.named(roles)}
        features = dict(self.table.kind.features)
        ragged = [name for name, feature in features.items() if feature.is_ragged]
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
            features[name] = dataclasses.replace(
                features[name], length=int(how["length"]), value=how.get("value")
            )
        table = RecordTable(self.table.records, Examples(features))
        return self._changed(table=table)

    def _changed(self, **attributes: Any) -> Self:
        made = super()._changed(**attributes)
        made.transforms = (InGraph(made.parse),)
        return made

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
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
        return (self.table.records.read(self._at(self._last)),)

    def parse(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
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
                super().__getitem__(self._last)
            raise

    def _finished(self, records: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        values = self.table.kind.parsed(records, self._names)
        made = [arranged(self.inputs.names, values, _side_by_side)]
        if self.target is not None:
            targets = {n: self._graph_target(values[n], n) for n in self.target.columns()}
            made.append(arranged(self.target.names, targets, _side_by_side))
        if self.weight is not None:
            made += [None] if self.target is None else []
            weights = {n: tf.cast(values[n], tf.float32) for n in self.weight.columns()}
            made.append(arranged(self.weight.names, weights, _side_by_side))
        return tuple(made)

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
