"""Records that are ``tf.train.Example``, parsed without TensorFlow.

The message is that of TensorFlow's ``core/example/example.proto``, under a name of its own, so that
both can be in one process.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from dtrain.data.nest import Ragged
from dtrain.data.tabular.table import Column
from dtrain.errors import DataError

_Field = descriptor_pb2.FieldDescriptorProto
_LISTS = {"bytes_list": "string", "float_list": "float32", "int64_list": "int64"}


@functools.cache
def message_class() -> Any:
    """Return the class of the message."""
    file = descriptor_pb2.FileDescriptorProto(
        name="dtrain/example.proto", package="dtrain", syntax="proto3"
    )

    def field(owner: Any, name: str, number: int, kind: Any, repeated: bool = False) -> None:
        label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        made = owner.field.add(name=name, number=number, label=label)
        if isinstance(kind, str):
            made.type, made.type_name = _Field.TYPE_MESSAGE, f".dtrain.{kind}"
        else:
            made.type = kind

    lists = {"BytesList": _Field.TYPE_BYTES, "FloatList": _Field.TYPE_FLOAT,
             "Int64List": _Field.TYPE_INT64}  # fmt: skip
    for name, kind in lists.items():
        field(file.message_type.add(name=name), "value", 1, kind, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(zip(_LISTS, lists, strict=True), 1):
        field(feature, name, number, kind)
        feature.field[-1].oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, _Field.TYPE_STRING)
    field(entry, "value", 2, "Feature")
    field(features, "feature", 1, "Features.FeatureEntry", repeated=True)
    field(file.message_type.add(name="Example"), "features", 1, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("dtrain.Example"))


def parse(
    records: Iterable[bytes], features: Mapping[str, Column], where: Callable[[int], str]
) -> dict[str, np.ndarray | Ragged]:
    """Return features of records, each ``[b, ...]``; those of different lengths are ragged.

    Args:
        records: serialized.
        features: those wanted, as they are declared.
        where: returns the place of a record.

    Raises:
        DataError: a record is not as it is declared.
    """
    maps, of_bytes = [], message_class().FromString
    for at, record in enumerate(records):
        try:
            maps.append(of_bytes(record).features.feature)
        except message.DecodeError:
            raise DataError(where(at), "is no tf.train.Example") from None
    return {name: _values(name, feature, maps, where) for name, feature in features.items()}


def _values(
    name: str, feature: Column, maps: Sequence[Any], where: Callable[[int], str]
) -> np.ndarray | Ragged:
    dtype = "string" if feature.dtype == object else str(feature.dtype)
    kind = next(key for key, value in _LISTS.items() if value == dtype)
    lists: list[Any] = []
    for at, there in enumerate(maps):
        held = there[name].WhichOneof("kind") if name in there else None
        if held is None and not feature.is_ragged:
            has = ", ".join(sorted(there)) or "none"
            raise DataError(where(at), f"has no feature {name!r}; it has {has}")
        if held not in (None, kind):
            problem = f"feature {name!r} holds {_LISTS[held]}, and is declared {dtype}"
            raise DataError(where(at), problem)
        lists.append(getattr(there[name], kind))
    counts = np.array([len(each.value) for each in lists], np.int64)
    size = int(np.prod([n for n in feature.shape if n is not None]))
    bad = counts % size != 0 if feature.is_ragged else counts != size
    if bad.any():
        at = int(np.argmax(bad))
        text = ", ".join("null" if n is None else str(n) for n in feature.shape)
        raise DataError(
            where(at),
            f"feature {name!r} has {counts[at]:,} values, which are none of shape [{text}]",
        )
    if kind == "float_list":
        # Serialized, they are what is in memory of them: many times as fast as one by one.
        data = (each.SerializeToString()[-4 * n :] for each, n in zip(lists, counts, strict=True))
        values = np.frombuffer(b"".join(data), "<f4")
    else:
        each_value = itertools.chain.from_iterable(each.value for each in lists)
        values = np.fromiter(each_value, feature.dtype, int(counts.sum()))
    if feature.is_ragged:
        return Ragged(values.reshape(-1, *feature.shape[1:]), counts // size)
    return values.reshape(len(maps), *feature.shape)
