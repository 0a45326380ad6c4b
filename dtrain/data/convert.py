"""What a dataset function may return, as users have their data, made sources and streams."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping

from dtrain.data import nest
from dtrain.data.example import (
    Dataset,
    Example,
    check_rows,
    is_array,
    is_frame,
    rows_of,
    structured,
)
from dtrain.data.foreign import Batches, Generated, Rows
from dtrain.data.nest import Nest
from dtrain.data.sources import Arrays, Source, Splits
from dtrain.data.streams import Stream
from dtrain.data.target_kind import of_labels
from dtrain.errors import UsageError, refuse

#: Names of splits in a mapping of them, as the datasets of Hugging Face have.
_TRAIN = ("train", "training")
_VALIDATION = ("validation", "valid", "val", "dev", "test")
#: What is accepted of a dataset function.
ACCEPTED = (
    "dtrain.datasets.Splits(train, validation), or train alone, or (train, validation); each "
    "(x, y) arrays, a source, what has __len__ and __getitem__, a keras.utils.PyDataset, a "
    "tf.data.Dataset, a generator function, or what can be iterated over again and again"
)
_RETURN = "return dtrain.datasets.Splits(train=(x, y), validation=(x, y))"


def adapted(value: Dataset, key: str = "dataset") -> Splits:
    """Return the splits that a dataset function has returned.

    Args:
        value: as it returned it.
        key: for messages.

    Raises:
        UsageError: it is nothing that can be read, or could be read in two ways.
    """
    if isinstance(value, Splits):
        splits = value
    elif isinstance(value, Mapping) and any(name in value for name in _TRAIN):
        held = [name for name in _VALIDATION if name in value]
        test = value["test"] if len(held) > 1 and "test" in held else None
        train = next(value[name] for name in _TRAIN if name in value)
        splits = Splits(train, value[held[0]] if held else None, test=test)
    else:
        splits = Splits(*_divided(value, key))
    train = _source(splits.train, key, "train")
    if train is None:
        raise _refused(key, None, "train")
    validation = _source(splits.validation, key, "validation")
    classes = splits.classes
    if classes is None and isinstance(train, Arrays):
        parts = [train, *([] if validation is None else [validation])]
        labels = [each.info.labels() if isinstance(each, Arrays) else None for each in parts]
        classes = of_labels(*labels)
    test = _source(splits.test, key, "test")
    return dataclasses.replace(
        splits, train=train, validation=validation, classes=classes, test=test
    )


def _divided(value: Dataset, key: str) -> tuple[Dataset, Dataset]:
    """Return (train, validation) of what may be either, or one pair of inputs and targets."""
    if not isinstance(value, tuple | list) or _is_examples(value):
        return value, None
    if len(value) != 2:
        if any(map(_is_data, value)):  # (train, validation, test)
            refuse(key, "some are datasets by themselves, and a run has one to train on and one "
                   "to evaluate on", f"{len(value)} parts", accepted=ACCEPTED,
                   hint="return train, validation")  # fmt: skip
        return value, None  # (x, y, sample_weight), or nothing that is known
    first, second = value
    if second is not None and (_is_data(first) or _is_data(second)):
        return first, second
    pairs = [_pair_rows(part) is not None or _is_examples(part) for part in (first, second)]
    if second is None and (pairs[0] or _is_data(first)):
        return first, None
    if not all(pairs):
        return value, None
    # ((a, b), (c, d)): two splits as of keras.datasets, or two inputs and two targets.
    if _pair_rows(first) is None or _pair_rows(first) != _pair_rows(second):
        return first, second
    refuse(key, "may be training and validation, or inputs and targets: all have as many rows",
           "((a, b), (c, d))", accepted=ACCEPTED, hint=_RETURN)  # fmt: skip


def _pair_rows(value: object) -> int | None:
    """Return how many rows the parts of (x, y) have; None where they differ, or it is none."""
    if not isinstance(value, tuple | list) or len(value) not in (2, 3):
        return None
    found = {rows_of(part) for part in value}
    return found.pop() if len(found) == 1 else None


def _is_examples(value: object) -> bool:
    """Whether a value is a list of examples, each (x, y) or a mapping, and no list of arrays."""
    if not isinstance(value, list) or not value:
        return False
    if not all(
        isinstance(each, Mapping) or (isinstance(each, tuple) and 1 <= len(each) <= 3)
        for each in value
    ):
        return False
    # Of so few, arrays are arrays: [(x, y), (x, y)] are splits.
    return len(value) > 3 or not all(rows_of(each) is not None for each in value)


def _is_data(value: object) -> bool:
    """Whether a value is a dataset by itself, and no part of one."""
    if value is None or nest.is_nest(value):
        return False
    return not (is_array(value) or isinstance(value, str | bytes | int | float))


def _source(value: Dataset, key: str, split: str) -> Source | Stream | None:
    if value is None or isinstance(value, Stream):
        return value
    if isinstance(value, Source):
        if value.in_graph and type(value).gather is Source.gather:
            refuse(key, "has in_graph=True and no gather(indices), which makes tensors of a tensor",
                   f"a {type(value).__name__}",
                   accepted="a source with __getitem__ alone, of arrays, or with both")  # fmt: skip
        return value
    if _is_tf_dataset(value):
        return Stream(lambda: value, single=True)
    if _is_examples(value):
        return Rows(value, key)
    if nest.is_nest(value) or is_array(value):
        return _arrays(value, key, split)
    if _is_py_dataset(value):
        return Batches(value, key)
    if type(value).__module__.startswith("torch.utils.data") and hasattr(value, "dataset"):
        refuse(key, "makes batches itself, and a run makes its own, in an order of its seed",
               f"a {type(value).__name__}", accepted="the dataset that it was made of",
               hint="return loader.dataset")  # fmt: skip
    if type(value).__module__.split(".")[0] == "datasets":
        names = ", ".join(getattr(value, "column_names", None) or [])
        refuse(key, f"does not say which columns are inputs and which is the target ({names})",
               f"a {type(value).__name__} of Hugging Face",
               accepted="dtrain.datasets.columns(dataset, inputs=..., target=...)",
               hint="dataset=huggingface dataset.path=FOLDER dataset.target=COLUMN")  # fmt: skip
    has_rows = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    if has_rows and not isinstance(value, str | bytes | type):
        return Rows(value, key)
    return _stream(value, key, split)


def _stream(value: Dataset, key: str, split: str) -> Stream:
    """Return what can only be gone through."""
    if inspect.isgenerator(value) or (hasattr(value, "__next__") and not callable(value)):
        refuse(key, "can be read once, and a run reads pass after pass",
               f"a {type(value).__name__}", accepted="the generator function itself")  # fmt: skip
    if inspect.isgeneratorfunction(getattr(value, "func", value)):  # or a partial of one
        return Generated(value, key)
    if inspect.isclass(value):
        raise _refused(key, value, split)
    # Again and again, as an IterableDataset of PyTorch.
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes):
        return Generated(value.__iter__, key)
    if not callable(value) or not _needs_nothing(value):
        raise _refused(key, value, split)
    made = value()
    if _is_tf_dataset(made):
        return Stream(value, single=value() is made)
    other = isinstance(made, Mapping | tuple | str | bytes) or is_array(made)
    if isinstance(made, Iterable) and not other:
        return Generated(value, key)
    refuse(key, f"returns a {type(made).__name__} and no iterator", f"a function ({split})",
           accepted="a generator function, of examples or batches", hint=_RETURN)  # fmt: skip


def _refused(key: str, value: object, split: str) -> UsageError:
    if value is None:
        return UsageError(f"{key}._target_", f"its function returned None ({split})",
                          accepted=ACCEPTED, hint="return the data")  # fmt: skip
    problem = f"is no data ({split})"
    is_object = not isinstance(value, str | bytes | type | tuple | list | Mapping)
    if is_object and hasattr(value, "__getitem__"):
        problem = "has __getitem__ and no __len__: how many examples it has is not known"
    elif inspect.isclass(value):
        problem = f"is the class {value.__name__}, and no dataset that was made of it"
    return UsageError(f"{key}._target_", problem, f"a {type(value).__name__}", accepted=ACCEPTED,
                      hint=_RETURN)  # fmt: skip


def _needs_nothing(function: Callable[..., object]) -> bool:
    """Whether a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def _is_tf_dataset(value: object) -> bool:
    return hasattr(value, "element_spec") and hasattr(value, "batch")


def _is_py_dataset(value: object) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.utils.PyDataset)


def _arrays(value: Nest, key: str, split: str) -> Arrays:
    """Return arrays in memory: (x, y), (x, y, sample_weight), or inputs alone."""
    parts = value if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(parts) <= 3 or parts[0] is None:
        raise _refused(key, value, split)
    example = Example.of(parts, lambda part: structured(part, key, split), key, split)
    x = example.x
    if hasattr(parts[0], "to_numpy") and not is_frame(parts[0]):
        x = x[:, None]  # one column of a table, as Keras' fit has it
    hint = "return {'train': x, 'validation': x_val} for inputs alone" if len(parts) == 2 else None
    check_rows(example, key, split, hint)
    return Arrays(x, example.y, example.weight)
