"""Forms of the keys of datasets: files, columns, features, lengths, members."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any

import yaml

from dtrain.config.forms import CHARACTERS, ELEMENTS, by_name, choice, node_problem, words
from dtrain.config.ranges import LARGE, MANY, Each, Form, Range, short

_FILES = 1_000_000  # files or columns that one key may name
_KINDS = ("number", "boolean", "date", "category", "text", "skip")
#: Dates as ``strptime`` reads them.
_FORM = re.compile(r"[^\n%]{0,50}(%[aAbBdfHIjmMpSyYzZ][^\n%]{0,50}){1,20}")
_LINES = Range(1, LARGE)
_KEYS, _DTYPES = {"dtype", "shape"}, ("string", "int64", "float32")


def _separator(value: Any) -> str | None:
    if value == "tab":
        return None
    if not isinstance(value, str) or len(value) != 1:
        return "is not one character"
    if value in "\n\r\0\"'." or value.isalnum():
        return "cannot stand between columns"
    return None


def _encoding(value: Any) -> str | None:
    try:
        "".encode(value)
    except (LookupError, TypeError, ValueError):
        return "is no encoding of texts that Python knows"
    return None


def _skip_rows(value: Any) -> str | None:
    if not isinstance(value, list):
        return _LINES.problem(value)
    if not 1 <= len(value) <= 1000:
        return f"names {len(value):,} lines"
    return next((f"{short(v)} {p}" for v in value if (p := _LINES.problem(v))), None)


def _members(value: Any) -> str | None:
    if not isinstance(value, dict) or None in value.values():
        return "is no mapping from names to datasets"
    return by_name(value, node_problem)


def _weights(value: Any) -> str | None:
    if not isinstance(value, dict) or None in value.values():
        return "is no mapping from names to weights"
    return by_name(value, Range(0, LARGE, above=True).problem)


def _pad(value: Any) -> str | None:
    if not isinstance(value, dict) or not value:
        return "is no mapping from inputs to lengths"
    for name, given in value.items():
        # Of several inputs without names the places are numbers.
        problem = None if type(name) is int else words(name, 1000)
        if problem is not None:
            return f"{short(name)} {problem}"
        if not isinstance(given, dict) or not given.keys() <= {"length", "buckets", "value"}:
            return f"{short(name)}: {short(given)} has other keys than length, buckets and value"
        if ("length" in given) == ("buckets" in given):
            return f"{short(name)}: {short(given)} has not one of length and buckets"
        sizes = given["buckets"] if "buckets" in given else [given["length"]]
        if not isinstance(sizes, list) or not sizes:
            return f"{short(name)}: {short(sizes)} is no list of lengths"
        problem = next((p for n in sizes if (p := Range(1, MANY).problem(n))), None)
        if problem is not None or not all(isinstance(n, int) for n in sizes):
            return f"{short(name)}: {short(sizes)} {problem or 'is not a whole number'}"
        problem = _filling(given.get("value", 0))
        if problem is not None:
            return f"{short(name)}: {short(given['value'])} {problem}"
    return None


def _filling(value: Any) -> str | None:
    if isinstance(value, str):
        return words(value, 1000) if value else None
    return None if isinstance(value, bool) else Range(-LARGE, LARGE).problem(value)


def _features(value: Any) -> str | None:
    """Say why ``value`` cannot declare the features of ``tf.train.Example``."""
    if not isinstance(value, dict) or not value:
        return "is no mapping from features to their types"
    for name, given in value.items():
        problem = words(name, 1000)
        if problem is not None:
            return f"{short(name)} {problem}"
        if not isinstance(given, dict) or "dtype" not in given or not given.keys() <= _KEYS:
            return f"{short(name)}: {short(given)} is not a dtype, and perhaps a shape"
        if given["dtype"] not in _DTYPES:
            return f"{short(name)}: {short(given['dtype'])} is none of {', '.join(_DTYPES)}"
        shape = [] if given.get("shape") is None else given["shape"]
        if not isinstance(shape, list) or len(shape) > 8:
            return f"{short(name)}: {short(shape)} is no shape"
        sizes = shape[1:] if shape[:1] == [None] else shape  # null is a length that differs
        for size in sizes:
            problem = Range(1, MANY).problem(size)
            if problem is not None or not isinstance(size, int):
                return f"{short(name)}: {short(shape)} {problem or 'is not of whole numbers'}"
        if math.prod(sizes) > ELEMENTS:
            return f"{short(name)}: {short(shape)} makes an example of {math.prod(sizes):,} numbers"
    return None


def _paths(value: Any) -> str | None:
    if not isinstance(value, list):
        return words(value, CHARACTERS)
    if not 1 <= len(value) <= _FILES:
        return f"names {len(value):,} files"
    return next((f"{short(v)} {p}" for v in value if (p := words(v, CHARACTERS))), None)


def _columns(value: Any) -> str | None:
    """Say why ``value`` cannot name columns: one, a list of them, or such by names of inputs."""
    if isinstance(value, dict):
        if not 1 <= len(value) <= _FILES:
            return f"has {len(value):,} names"
        for name, part in value.items():
            problem = words(name, 1000) or _columns(part)
            if problem is not None:
                return f"{short(name)}: {short(part)} {problem}"
        return None
    if isinstance(value, list):
        if not 1 <= len(value) <= _FILES:
            return f"names {len(value):,} columns"
        return next((f"{short(v)} {p}" for v in value if (p := words(v, 1000))), None)
    return words(value, 1000)


def _images(value: Any) -> str | None:
    if not isinstance(value, dict) or not value:
        return "is no mapping from columns to sizes"
    for name, size in value.items():
        problem = words(name, 1000)
        if problem is not None:
            return f"{short(name)} {problem}"
        if not isinstance(size, list) or len(size) != 3:
            return f"{short(name)}: {short(size)} is not height, width and channels"
        problem = next((p for n in size if (p := Range(1, 16_384).problem(n))), None)
        if problem is not None:
            return f"{short(name)}: {short(size)} {problem}"
    return None


def _split_by(value: Any) -> str | None:
    if isinstance(value, str):
        return None if value in ("random", "classes") else "is neither random nor classes"
    if not isinstance(value, dict) or not {"by"} <= value.keys() <= {"by", "ordered"}:
        return "is not {by: COLUMN}"
    if not isinstance(value.get("ordered", True), bool):
        return "has no true or false for ordered"
    return words(value["by"], 1000)


def _cell(value: Any) -> str | None:
    is_cell = isinstance(value, str | int | float) and not isinstance(value, bool)
    return None if is_cell and len(str(value)) <= 1000 else "is no text, and no number"


def _kinds(value: Any) -> str | None:
    if isinstance(value, str):
        with contextlib.suppress(yaml.YAMLError):
            value = yaml.safe_load(value)
    if not isinstance(value, dict) or not value:
        return "is no mapping from columns to kinds"
    for name, kind in value.items():
        if kind not in _KINDS and (not isinstance(kind, str) or not _FORM.fullmatch(kind)):
            return f"{short(name)}: {short(kind)} is none of {', '.join(_KINDS)}"
    return None


PATHS = Form("a path, a pattern such as shards/*.parquet, or a list of them", _paths, "FILE")
COLUMNS = Form("a column, a list of columns, or columns by name", _columns, "COLUMN")
ARRAYS = Form("the name of an array, a list of such, or names by input or output", _columns, "NAME")
IMAGES = Form("sizes of images by column", _images, "{image: [64, 64, 3]}")
SPLIT_BY = Form("random, classes, or {by: COLUMN}", _split_by, "classes")
ENCODING = Form("an encoding that Python knows", _encoding, "cp1252")
SKIP_ROWS = Form("a number of lines, or a list of the numbers of lines", _skip_rows, "1")
QUOTE = choice('"', "'", "none")
SEPARATOR = Form("one character, or tab", _separator, "';'")
TOKENS = choice("bytes", "characters")
MEMBERS = Form("nodes with _target_, by name", _members,
               "{a: {_target_: dtrain.datasets.digits}}")  # fmt: skip
WEIGHTS = Form("null, or numbers above 0 by name", _weights, "{NAME: 1.0}")
PAD = Form("null, or lengths by input", _pad, "{tokens: {length: 128}}")
FEATURES = Form(
    "types of features by name; null in a shape is a length that differs", _features,
    "{image: {dtype: string}, label: {dtype: int64}, x: {dtype: float32, shape: [8]}}",
)  # fmt: skip
KINDS = Form("kinds or forms by column", _kinds, "{city: category, note: text, id: skip}")
CELLS = Each(Form("a text or a number", _cell, "'?'"), 1, 1000, "['?', -999]")
FORMAT = choice("parquet", "arrow", "csv", "json")
CACHE = choice("none", "memory", "disk")
IMAGE_SIZE = Each(Range(1, 16_384), 2, 2, "[64,64]")
