"""Keys of the ``dataset`` group that are for every dataset, and not for its function."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

from dtrain.files.fields import Json, Values


class Shuffle(enum.Enum):
    """In which order a pass of training has the examples."""

    auto = 1
    examples = 2
    blocks = 3
    none = 4


class Task(enum.Enum):
    """What the targets are."""

    auto = 1
    classification = 2
    regression = 3


class OnError(enum.Enum):
    """What becomes of an example that cannot be read."""

    fail = 1
    skip = 2


@dataclasses.dataclass(frozen=True)
class Options:
    """How the examples of a dataset are read, whatever they are.

    Attributes:
        augment: node of a function that changes training examples; None for none.
        shuffle: the order of a pass; ``auto`` is by blocks where the source is read in some.
        window: blocks that are mixed with each other.
        balance: whether every class is drawn as often as any other.
        pad: by the place of a leaf (``tokens``), what its rows of different lengths become.
        workers: processes that read; 0: the task itself.
        on_error: what becomes of an example that cannot be read.
        accept_changes: whether a run may continue on data that is not what it was.
        task: whether targets are classes or numbers; ``auto`` looks at them.
        test: files that are evaluated at the end of a training, and by ``evaluate``.
    """

    augment: Values | Sequence[Values] | None = None
    shuffle: Shuffle = Shuffle.auto
    window: int = 8
    balance: bool = False
    pad: Values | None = None
    workers: int = 0
    on_error: OnError = OnError.fail
    accept_changes: bool = False
    task: Task = Task.auto
    test: object = None


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Options)}


def divided(node: Values) -> tuple[Json, Options]:
    """Divide a ``dataset`` node into that of its function, and the options.

    Args:
        node: plain, its values checked.
    """
    own = {name: value for name, value in node.items() if name not in _DEFAULTS}
    given = {name: _made(name, value) for name, value in node.items() if name in _DEFAULTS}
    return own, Options(**given)


def _made(name: str, value: Any) -> Any:
    default = _DEFAULTS[name]
    if value is None:
        return default
    return type(default)[value] if isinstance(default, enum.Enum) else value


def is_default(name: str, value: object) -> bool:
    """Say whether a key is an option, and the value its default: whether it is written, then."""
    return name in _DEFAULTS and name != "augment" and _made(name, value) == _DEFAULTS[name]
