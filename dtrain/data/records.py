"""Examples of records: in any order, most of them parsed in the input graph."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data.files import DataFile
from dtrain.data.images import decoded
from dtrain.data.order import blocks_of
from dtrain.data.padding import place
from dtrain.data.record_files import RecordFiles
from dtrain.data.record_kinds import Examples, Feature
from dtrain.data.sources import Splits
from dtrain.data.splits import check_fraction, split_indices
from dtrain.data.target_kind import Counted
from dtrain.errors import DataError, UsageError, nearest

#: Features of one role: one, a list of numbers that are put side by side, or by name.
Names = str | Sequence[str] | Mapping[str, Any] | None
#: Places of a source's names, and of the parts of an example.
_TARGET, _WEIGHT = 1, 2
#: Bytes of records that are in memory at once where all of a feature is read.
BYTES = 32 << 20


class RecordSource:
    """Examples of records: read as they are, and most of them parsed in the input graph.

    Floating inputs become float32; whole targets int64, others float32. Targets of text are
    classes, in alphabetical order.

    Args:
        files: have the records.
        kind: what a record is: :class:`Examples`, :class:`SavedArrays` or :class:`Bytes`.
        inputs: features; None for all that are neither target nor weight.
        target, weight: features, or None.
        words: the classes of targets that are text, by feature; None: those of the records.

    Raises:
        UsageError: there is no such feature, or one cannot be what it is to be.
    """

    def __init__(
        self,
        files: RecordFiles,
        kind: Any,
        inputs: Names,
        target: Names,
        weight: Names = None,
        words: Callable[[str], np.ndarray] | None = None,
    ):
        self.records, self._kind = files, kind
        self._own_words: dict[str, np.ndarray] = {}
        self._words, self._drawn = words, None
        self.images: dict[str, tuple[int, ...]] = {}
        if inputs is None:
            others = [*flat(target), *flat(weight)]
            rest = [name for name in kind.features if name not in others]
            inputs = rest[0] if len(rest) == 1 else rest
        self.names = (inputs, target, weight)
        for key, names in zip(("inputs", "target", "weight"), self.names, strict=True):
            self._check(f"dataset.{key}", names, names)
        for name in flat(weight):
            if not kind.features[name].is_number or kind.features[name].is_ragged:
                raise UsageError(
                    "dataset.weight", name, f"holds {kind.features[name]}, and weights are numbers",
                    "a feature of numbers", "dataset.weight=null",
                )  # fmt: skip
        self._last = np.zeros(0, np.int64)

    def _check(self, key: str, whole: Names, part: Any) -> None:
        """Refuse names of one role that cannot be it."""
        features, file = self._kind.features, self.records.files[0].name
        if isinstance(part, str):
            if part not in features:
                near = nearest(part, features) or "NAME"
                raise UsageError(
                    key, part, f"{file} has no such column", ", ".join(features),
                    f"{key}={near}" if part is whole else f"{near} in place of {part}",
                )  # fmt: skip
        elif isinstance(part, Mapping) and part:
            for each in part.values():
                self._check(key, whole, each)
        elif isinstance(part, Sequence) and part:
            for name in part:
                self._check(key, whole, name)
                if not features[name].is_number or features[name].shape:
                    raise UsageError(
                        key, whole, f"the columns of a list become one array, and {name} holds "
                        f"{features[name]}",
                        "columns with one number a row in a list; others by a name: {NAME: COLUMN}",
                        f"'{key}={{{','.join(f'{name}:{name}' for name in part)}}}'",
                    )  # fmt: skip
        elif part is not None:
            raise UsageError(
                key, whole, "names no columns", "a column, a list of columns, or columns by name",
                f"{key}=COLUMN",
            )  # fmt: skip

    @property
    def features(self) -> dict[str, Feature]:
        """What the records have, by name."""
        features: dict[str, Feature] = self._kind.features
        return features

    def decode(self, sizes: Mapping[str, Sequence[int]]) -> None:
        """Decode images among the inputs: float32 ``[b, height, width, channels]`` in 0..1.

        Args:
            sizes: by feature: height and width that its images are resized to, and channels.

        Raises:
            UsageError: one is no input of bytes, or no such size.
        """
        encoded = [n for n in dict.fromkeys(flat(self.names[0])) if not self.features[n].is_number]
        for name, size in sizes.items():
            if name not in encoded:
                raise UsageError(
                    "dataset.images", name, "is no input of encoded images",
                    ", ".join(encoded) or "none", "dataset.images={COLUMN:[64,64,3]}",
                )  # fmt: skip
            if len(size) != 3 or min(size) < 1 or size[2] not in (1, 3):
                raise UsageError(
                    "dataset.images", f"{{{name}: {list(size)}}}", "is not height, width, channels",
                    "two numbers of pixels, and 1 (gray) or 3 (colors)",
                    f"dataset.images={{{name}:[64,64,3]}}",
                )  # fmt: skip
            self.images[name] = tuple(size)

    def pad(self, lengths: Mapping[str, Any]) -> None:
        """Pad features of different lengths from now on, and cut what is longer.

        Args:
            lengths: by feature, or by the place of an example where it is (``dataset.pad``).

        Raises:
            UsageError: one names no feature of different lengths, or no one length.
        """
        from dtrain.data import nest

        roles = tuple(names for names in self.names if names is not None)
        places = {place(where): name for where, name in nest.named(roles)}
        features = dict(self.features)
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
        self._kind = Examples(features)

    # Which records

    def subset(self, rows: np.ndarray | Callable[[], np.ndarray]) -> RecordSource:
        """Return the source of some of the records, in their order, or drawn when first needed."""
        made = object.__new__(type(self))
        # The classes of text are those of all records, as those of whole numbers are.
        made.__dict__.update(self.__dict__, _words=self.words, _drawn=rows, images={**self.images})
        if self._drawn is not None and not callable(rows):
            made._drawn = self._at(rows)
        return made

    @property
    def rows(self) -> np.ndarray | None:
        """The records that are examples, int64 ``[n]``; None for all."""
        if callable(self._drawn):
            self._drawn = self._drawn()
        return self._drawn

    def known_length(self) -> int | None:
        """Return the length, or None where files would have to be read to know it."""
        if self._drawn is None or (callable(self._drawn) and self.records.known_length() is None):
            return self.records.known_length()
        return len(self)

    def __len__(self) -> int:
        return len(self.records) if self.rows is None else len(self.rows)

    def _at(self, indices: Any) -> np.ndarray:
        indices = np.asarray(indices)
        return indices if self.rows is None else np.asarray(self.rows[indices])

    def where(self, index: int) -> str:
        """Return the place of an example for messages."""
        return self.records.where(int(self._at([index])[0]))

    def blocks(self) -> np.ndarray | None:
        """Return how many examples, one after the other, are read at once; None for one."""
        blocks = self.records.blocks()
        return blocks if blocks is None or self.rows is None else blocks_of(blocks, self.rows)

    @property
    def files(self) -> list[DataFile]:
        """The files that it is of."""
        return self.records.files

    # Examples

    def take(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read: int64 ``[b]`` to what :meth:`finish` makes examples of.

        Raises:
            UsageError: a feature has no length that it could be padded to.
            DataError: a file cannot be read, or is not the one that it was.
        """
        names = self._used()
        for name in names:
            if self.features[name].is_ragged and self.features[name].length is None:
                raise UsageError(
                    "dataset.pad", "null", f"the feature {name} has rows of different lengths",
                    "a length for each such feature", f"dataset.pad={{{name}:{{length:128}}}}",
                )  # fmt: skip
        self._last = np.asarray(indices)
        rows = self._at(self._last)
        if self._kind.in_graph:
            return (self.records.read(rows),)
        values = self._read(rows, names)

        def part(role: int, name: str) -> np.ndarray:
            if role == _TARGET:
                return self._target(values[name], name, rows)
            is_float = role == _WEIGHT or values[name].dtype.kind == "f"
            return values[name].astype(np.float32, copy=False) if is_float else values[name]

        return self._arranged(part, lambda parts: np.stack(parts, axis=1, dtype=np.float32))

    def _used(self) -> list[str]:
        return list(dict.fromkeys(name for names in self.names for name in flat(names)))

    def _read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Read features of records, outside of a graph."""
        values: dict[str, np.ndarray] = self._kind.read(
            self.records.read(rows), names, lambda at: self.records.where(int(rows[at]))
        )
        return values

    def _arranged(
        self, part: Callable[[int, str], Any], stack: Callable[[list[Any]], Any]
    ) -> tuple[Any, ...]:
        """Return ``(x, y)``, ``(x, y, weight)`` or ``(x,)``, by what the features are in a role."""

        def made(role: int, names: Names) -> Any:
            if isinstance(names, Mapping):
                return {str(key): made(role, each) for key, each in names.items()}
            if names is None or isinstance(names, str):
                return None if names is None else part(role, names)
            return stack([part(role, name) for name in names])

        _, target, weight = self.names
        count = 3 if weight is not None else 2 if target is not None else 1
        return tuple(made(role, self.names[role]) for role in range(count))

    def finish(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Parse, and decode images.

        In a graph a record that is not as it is declared raises what TensorFlow raises, which names
        no file; of one that is no ``tf.train.Example`` that is a ``UnicodeDecodeError``.

        Raises:
            DataError: outside of a graph, naming file, record, byte and feature.
        """
        import tensorflow as tf

        if self._kind.in_graph:
            try:
                parts = self._finished(parts[0])
            except (tf.errors.OpError, UnicodeDecodeError):
                if tf.executing_eagerly():  # then they have just been read
                    self._explain(self._at(self._last))
                raise
        if not self.images:
            return parts

        def images(names: Names, value: Any) -> Any:
            if isinstance(names, Mapping):
                return {str(key): images(part, value[str(key)]) for key, part in names.items()}
            is_image = isinstance(names, str) and names in self.images
            return decoded(value, *self.images[names]) if is_image else value  # type: ignore

        return images(self.names[0], parts[0]), *parts[1:]

    def _finished(self, records: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        values = self._kind.parsed(records, self._used())

        def part(role: int, name: str) -> Any:
            if role == _WEIGHT:
                return tf.cast(values[name], tf.float32)
            return self._graph_target(values[name], name) if role == _TARGET else values[name]

        return self._arranged(
            part, lambda parts: tf.stack([tf.cast(each, tf.float32) for each in parts], axis=1)
        )

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

    def _explain(self, rows: np.ndarray) -> None:
        """Raise what is wrong with records of which TensorFlow has refused one."""
        values = self._read(rows, self._used())
        for name in flat(self.names[_TARGET]):
            self._target(values[name], name, rows)

    # Targets

    def _target(self, values: np.ndarray, name: str, rows: np.ndarray) -> np.ndarray:
        """Return targets; those of text are the numbers of their classes."""
        if values.dtype == object:
            texts, words = self._texts(values, name, rows), self.words(name)
            at = np.searchsorted(words, texts)
            is_sound = (at < len(words)) & (words[np.minimum(at, len(words) - 1)] == texts)
            made = at.astype(np.int64)
        else:
            made = values.astype(np.int64 if values.dtype.kind in "biu" else np.float32)
            is_sound = np.isfinite(made).reshape(len(made), -1).all(axis=1)
        if not is_sound.all():
            wrong = int(np.argmin(is_sound))
            raise DataError(
                f"{self.records.where(int(rows[wrong]))}, column {name!r}",
                "the target is NaN or infinite" if values.dtype != object
                else f"{str(texts[wrong])!r} is none of the classes",
            )  # fmt: skip
        return made

    def _texts(self, values: np.ndarray, name: str, rows: np.ndarray) -> np.ndarray:
        texts = []
        for row, value in zip(rows, values, strict=True):
            try:
                texts.append(value.decode())
            except UnicodeDecodeError:
                where = f"{self.records.where(int(row))}, column {name!r}"
                raise DataError(where, f"{value[:20]!r} is no text in UTF-8") from None
        return np.array(texts, np.str_)

    def _pieces(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Read a feature of all examples, in pieces: the numbers of the records, and the values."""
        size = sum(file.size() for file in self.files)
        step = max(1, BYTES * len(self.records) // max(1, size))
        for begin in range(0, len(self), step):
            rows = self._at(np.arange(begin, min(begin + step, len(self))))
            yield rows, self._read(rows, [name])[name]

    def column(self, name: str) -> np.ndarray | None:
        """Return a feature of all examples, be it used or not; None where there is no such one.

        Raises:
            DataError: it cannot be read.
        """
        if name not in self.features or self.features[name].is_ragged:
            return None
        parts = [
            self._texts(values, name, rows) if values.dtype == object else values
            for rows, values in self._pieces(name)
        ]
        return np.concatenate(parts) if parts else None

    def labels(self) -> np.ndarray | None:
        """Return the targets without the inputs, ``[n, ...]``; None where they are not one array.

        Raises:
            DataError: one cannot be read, or is NaN or infinite.
        """
        name = self.names[1]
        if not isinstance(name, str) or self.features[name].is_ragged:
            return None
        parts = [self._target(values, name, rows) for rows, values in self._pieces(name)]
        return np.concatenate(parts) if parts else None

    def words(self, name: str | None = None) -> np.ndarray:
        """Return the classes of a target that is text, sorted; reads all of its feature once.

        Args:
            name: of the feature; None: the first that is text. Of none there is no class.
        """
        if name is None:
            name = next((n for n in flat(self.names[1]) if not self.features[n].is_number), None)
        if name is None:
            return np.array([], np.str_)
        if self._words is not None:
            return self._words(name)
        if name not in self._own_words:
            seen: set[str] = set()
            for rows, values in self._pieces(name):
                seen.update(self._texts(values, name, rows).tolist())
            self._own_words[name] = np.array(sorted(seen), np.str_)
        return self._own_words[name]

    def target_values(self) -> Iterator[np.ndarray]:
        """Read targets of one number an example, as they are in the records, in pieces."""
        name = self.names[1]
        if (
            isinstance(name, str)
            and self.features[name].is_number
            and not self.features[name].shape
        ):
            yield from (values for _, values in self._pieces(name))


def flat(names: Any) -> Iterator[str]:
    """Yield the features of a role."""
    if isinstance(names, str):
        yield names
    elif names is not None:
        for part in names.values() if isinstance(names, Mapping) else names:
            yield from flat(part)


def split_records(
    train: RecordSource,
    held: RecordSource | None,
    key: tuple[str, object],
    validation_split: float,
    split_seed: int,
    classes: int | None,
    images: Mapping[str, Sequence[int]] | None,
) -> Splits:
    """Return the examples to train and to evaluate on.

    Args:
        train: to train on, and to split a part off where ``held`` is None.
        held: to evaluate on.
        key: that names the records, and its value.
        validation_split, split_seed: of the part that is split off. Where nothing knows yet how
            many records there are, it is drawn when it is first needed.
        classes: number of classes; None: those of the target, for which all records are read.
        images: sizes of encoded images, by feature.

    Raises:
        UsageError: there is nothing to train on, or an image or the target cannot be what it is.
    """
    if train.known_length() == 0:
        raise UsageError(
            f"dataset.{key[0]}", key[1], "has no row to train on", "data with at least one row",
            f"dataset.{key[0]}=ANOTHER",
        )  # fmt: skip
    for source in (train, held):
        if source is not None:
            source.decode(images or {})
    for name in flat(train.names[1]):
        if held is not None and str(train.features[name]) != str(held.features[name]):
            raise UsageError(
                "dataset.validation_path", held.files[0].name, f"the column {name} holds "
                f"{held.features[name]}, and {train.features[name]} in what is trained on",
                "files with the same columns", "dataset.validation_path=ANOTHER",
            )  # fmt: skip
    whole, columns = train, train.names
    count: int | Callable[[], int | None] | None = classes
    if held is None and validation_split:
        check_fraction(validation_split)
        draw = functools.partial(_drawn, whole, validation_split, split_seed)
        first, second = functools.partial(draw, 0), functools.partial(draw, 1)
        if whole.known_length() is None:
            train, held = whole.subset(first), whole.subset(second)
        else:
            train, rows = whole.subset(first()), second()
            held = whole.subset(rows) if len(rows) else None
    target, parts = whole.names[1], [train, *([] if held is None else [held])]
    if classes is None and isinstance(target, str):
        if whole.features[target].is_number:
            count = Counted(*(part.target_values for part in parts), where=train.where)
        else:
            count = functools.partial(_count_words, parts)
    return Splits(train, held, count, columns={"inputs": columns[0], "target": columns[1]})


def _drawn(source: RecordSource, fraction: float, seed: int, part: int) -> np.ndarray:
    return split_indices(len(source), fraction, seed)[part]


def _count_words(parts: Sequence[RecordSource]) -> int:
    return max(len(part.words()) for part in parts)
