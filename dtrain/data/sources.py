"""Sources: random access to examples, so that their order needs no state but a position.

TensorFlow is imported only where examples are read: the controller looks at the data before
anything is started.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from dtrain.data import nest
from dtrain.data.example import Dataset, Example, trimmed
from dtrain.data.nest import Leaf, Nest, Parts, Ragged, Tensor
from dtrain.data.options import Task
from dtrain.data.target_kind import Counted
from dtrain.data.transforms import Padding, Transform
from dtrain.errors import DataError, refuse
from dtrain.files.fields import Values

if TYPE_CHECKING:
    from dtrain.data.encoding import Encoding
    from dtrain.data.files import DataFile

#: Examples of which one that can be read shows the structure.
TRIED = 100


def _place(index: int) -> str:
    return f"example {index:,}"


def _none(*_: object) -> None:
    return None


@dataclasses.dataclass(frozen=True)
class Info:
    """What a source knows of its examples besides themselves.

    Functions are called where they are needed, and may read.

    Attributes:
        files: returns those that it is of, for its identity.
        reading: how they are read, where that is declared, for its identity, too.
        counted: whether its length is known without reading a file.
        place: makes of an index the place of the example for messages, such as ``FILE, row 17``.
        class_names: returns the names of the classes that the targets are numbers of, in order.
        labels: returns the targets without the inputs, ``[n, ...]``, where that is cheaper than all
            of the examples and they are one array; else None.
        column: returns a column of a table by its name, ``[n, ...]``, be it an input or not; None
            where there is none of that name.
        blocks: returns how many examples, one after the other, are read at once, int64 ``[k]``, for
            ``dataset.shuffle=blocks``; None where each is read by itself at no greater cost.
    """

    files: Callable[[], Sequence[DataFile]] = tuple
    reading: str = ""
    counted: bool = True
    place: Callable[[int], str] = _place
    class_names: Callable[[], Sequence[str]] = tuple
    labels: Callable[[], np.ndarray | None] = _none
    column: Callable[[str], np.ndarray | None] = _none
    blocks: Callable[[], np.ndarray | None] = _none


class Source(ABC):
    """Random access to examples, a batch at a time.

    A source of your own has ``__len__`` and ``__getitem__``, and ``info`` where it knows more.

    ``__getitem__`` is called by one thread of a process at a time, and so are those of all sources
    that are not ``in_graph``: two may read from one open file. The order of the calls means
    nothing. With ``dataset.workers`` it is called in other processes, on copies of it.

    Attributes:
        thread_safe: whether several threads may be in its ``__getitem__`` at once.
        in_graph: whether :meth:`gather` reads it in TensorFlow's input graph.
        readers: processes that read it; 0: the task does.
        transforms: what changes its batches, in order. Those of tensors, such as
            :class:`dtrain.data.transforms.InGraph`, are traced into the input graph and run in
            several threads: records are parsed and images decoded there.
    """

    thread_safe = False
    in_graph = False
    readers = 0
    transforms: tuple[Transform, ...] = ()

    @property
    def info(self) -> Info:
        """What is known besides the examples."""
        return Info()

    @abstractmethod
    def __len__(self) -> int:
        """Return how many examples there are."""

    @abstractmethod
    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Return the examples at ``indices``.

        Args:
            indices: int64 ``[b]``, in any order, with repetitions.

        Returns:
            ``(x, y)``, ``(x, y, sample_weight)`` or ``(x,)``. Each is an array with ``b`` rows, of
            any type (text included), or a dict, list or tuple of such.
        """

    def gather(self, indices: Tensor) -> Parts:
        """Return tensors of the examples at a tensor int64 ``[b]``, in a graph or at once."""
        raise NotImplementedError("it is not read in the graph")

    def reread(self, indices: np.ndarray) -> None:
        """Read some examples again, where TensorFlow's error of them does not say which it is.

        Raises:
            DataError: naming what cannot be read.
        """
        return

    def padded(self, lengths: Values) -> Source:
        """Return the source with rows of one length: ``dataset.pad``.

        Args:
            lengths: as of :class:`dtrain.data.transforms.Padding`.

        Raises:
            UsageError: a length is of no rows of different lengths.
            DataError: no example can be read.
        """
        return self.changed(Padding(lengths, self._readable()))

    def changed(self, transform: Transform) -> Self:
        """Return the source with batches that are changed once more; those of arrays come first."""
        made, before = copy.copy(self), self.transforms
        made.transforms = (transform, *before) if transform.of_arrays else (*before, transform)
        return made

    def _readable(self) -> Example:
        """Return the first example that can be read: those before it may be left out."""
        problem: DataError | None = None
        for row in range(min(len(self), TRIED)):
            try:
                return Example.of(self[np.array([row])])
            except DataError as error:
                problem = problem or error
        assert problem is not None, "a source without examples is refused before"
        raise problem


class View(Source):
    """Another source, of which something is changed; the rest is as it is there.

    Args:
        source: the other one.
    """

    def __init__(self, source: Source):
        self.source = source
        self.thread_safe, self.in_graph = source.thread_safe, source.in_graph
        self.readers, self.transforms = source.readers, source.transforms

    @property
    def info(self) -> Info:
        """That of the source."""
        return self.source.info

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Return the examples at ``indices``."""
        return self.source[indices]

    def gather(self, indices: Tensor) -> Parts:
        """Return tensors of the examples at ``indices``."""
        return self.source.gather(indices)

    def reread(self, indices: np.ndarray) -> None:
        """Name what cannot be read of the examples at ``indices``."""
        self.source.reread(indices)


@dataclasses.dataclass(frozen=True)
class Splits:
    """What a dataset function returns.

    Attributes:
        train: what to train on: a :class:`Source`, or anything that
            :func:`dtrain.data.convert.adapted` makes one of.
        validation: what to evaluate on, of the same kinds; or None.
        test: what to evaluate once at the end, with the best checkpoint; or None.
        classes: number of classes of an integer label, or a function that counts them where a model
            needs to know; None for anything else.
        task: whether the targets are classes or numbers; ``auto``: as they look.
        columns: of a table: the names of its columns that are ``inputs`` and ``target``; other
            files that the model is used on are read by them.
        encoding: of a table whose columns become one matrix: returns how, fitted on ``train``.
        notices: sentences about the data for the user, such as what was left out.
    """

    train: Dataset
    validation: Dataset = None
    classes: int | Callable[[], int | None] | None = None
    task: Task = Task.auto
    columns: Mapping[str, Nest] | None = None
    encoding: Callable[[], Encoding] | None = None
    notices: tuple[str, ...] = ()
    test: Dataset = None

    def count_classes(self) -> int | None:
        """Return the number of classes; None where targets are no classes.

        Raises:
            UsageError: the targets are not what ``task`` says.
        """
        if self.task is Task.regression:
            return None
        if self.task is Task.classification and isinstance(self.classes, Counted):
            return self.classes.highest()
        return self.classes() if callable(self.classes) else self.classes


class Captured(Source):
    """A source that reads from tensors, which a worker of a cluster may have a copy of."""

    in_graph = True
    _tensors: list[Tensor] | None = None

    def _values(self) -> Iterable[Leaf]:
        """Return what becomes of the tensors: arrays, or lists of numbers or texts."""
        raise NotImplementedError

    def tensors(self) -> list[Tensor]:
        """Return what :meth:`gather` reads from; made at the first call.

        They are eager, for an input function to capture: constants inside its graph would be
        copied with it and could not pass 2 GB.
        """
        if self._tensors is None:
            import tensorflow as tf

            with tf.init_scope(), tf.device("CPU:0"):
                self._tensors = [tf.convert_to_tensor(value) for value in self._values()]
        return self._tensors

    def bind(self, tensors: Iterable[Tensor]) -> None:
        """Read from ``tensors``: the same values in another place."""
        self._tensors = list(tensors)


class Arrays(Captured):
    """Examples in memory.

    Args:
        x: inputs: an array ``[n, ...]`` of numbers or texts, a dict, list or tuple of such, or a
            function that reads them. It is called when they are first needed: the controller, which
            needs their number alone, never does.
        y: targets, an array or a structure of arrays; None for none.
        weight: of the examples, as ``y``.
        examples: how many there are; None: as many as there are targets, weights or inputs.
        class_names: of the classes that the targets are numbers of, in their order.

    Raises:
        UsageError: the arrays have different numbers of rows.
    """

    def __init__(
        self, x: Nest | Callable[[], Nest], y: Nest = None, weight: Nest = None,
        examples: int | None = None, class_names: Sequence[str] | None = None,
    ):  # fmt: skip
        self._class_names = [] if class_names is None else [str(name) for name in class_names]
        self._x = x if callable(x) else nest.structured(x)
        self.y = nest.structured(y)
        self.weight = nest.structured(weight)
        known = [self.y, self.weight, *([] if callable(x) else [self._x])]
        rows = [len(leaf) for part in known if part is not None for leaf in nest.leaves(part)]
        if examples is not None:
            rows.append(examples)
        self._examples = rows[0] if rows else len(nest.leaves(self.x)[0])
        if len(set(rows)) > 1:
            counts = " and ".join(f"{count:,}" for count in sorted(set(rows)))
            refuse("dataset", f"its arrays have {counts} rows", "Arrays",
                   accepted="arrays with one row for each example")  # fmt: skip
        if any(isinstance(leaf, Ragged) for part in known for leaf in nest.leaves(part)):
            refuse("dataset", "has rows of different lengths", "Arrays", accepted="rows of one "
                   "length, or a list of examples [(x, y), ...] and dataset.pad")  # fmt: skip

    @property
    def x(self) -> Nest:
        """The inputs."""
        if callable(self._x):
            self._x = nest.structured(self._x())
        return self._x

    @property
    def info(self) -> Info:
        """The names of the classes, and the targets where they are one array."""
        labels = None if nest.is_nest(self.y) else self.y
        return Info(class_names=lambda: self._class_names, labels=lambda: labels)

    def subset(self, rows: np.ndarray) -> Arrays:
        """Return some of the examples, in their order; their inputs are read when needed."""

        def some(values: Nest) -> Nest:
            return nest.mapped(lambda array: array[rows], values)

        y, weight = some(self.y), some(self.weight)
        return Arrays(lambda: some(self.x), y, weight, len(rows), self._class_names)

    def _parts(self) -> Parts:
        """Return inputs, targets and weights, without those at the end that there are none of."""
        return trimmed([self.x, self.y, self.weight])

    def _values(self) -> Iterable[Leaf]:
        return [leaf for leaf in nest.leaves(self._parts()) if leaf is not None]

    def __len__(self) -> int:
        return self._examples

    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Return rows as arrays ``(x, y)``, ``(x, y, weight)`` or ``(x,)``."""
        return nest.mapped(lambda leaf: np.asarray(leaf)[indices], self._parts())

    def gather(self, indices: Tensor) -> Parts:
        """Gather rows in a graph: a tensor ``[b]`` to tensors, as the source has arrays."""
        import tensorflow as tf

        tensors = iter(self.tensors())
        return nest.mapped(lambda _: tf.gather(next(tensors), indices), self._parts())


class Windows(Captured):
    """Stretches of one long sequence, each with what follows its every token.

    Args:
        tokens: whole numbers, ``[n]`` of any integer type, with ``n > length``; or a function that
            reads them. It is called when they are first needed, which in the controller they never
            are.
        length: tokens of an example.
        stride: from the first token of an example to that of the next. With ``length`` every
            token is a target once, but for the first and those that fill no example at the end.
        count: how many tokens there are; None: as many as are read.
    """

    def __init__(
        self, tokens: np.ndarray | Callable[[], np.ndarray], length: int, stride: int,
        count: int | None = None,
    ):  # fmt: skip
        self._read = tokens
        self._count = count if callable(tokens) else len(tokens)
        self.length = length
        self.stride = stride

    @property
    def tokens(self) -> np.ndarray:
        """The sequence."""
        if callable(self._read):
            self._read = self._read()
            self._count = len(self._read)
        return self._read

    @property
    def info(self) -> Info:
        """Whether the text has to be read to count its examples."""
        return Info(counted=self._count is not None)

    def _values(self) -> Iterable[Leaf]:
        return (self.tokens,)

    def __len__(self) -> int:
        count = len(self.tokens) if self._count is None else self._count
        return (count - 1 - self.length) // self.stride + 1

    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Cut out: int64 ``[b]`` to ``(int32 [b, length], int32 [b, length])``."""
        at = indices[:, None] * self.stride + np.arange(self.length + 1)
        window = self.tokens[at].astype(np.int32)
        return window[:, :-1], window[:, 1:]

    def gather(self, indices: Tensor) -> Parts:
        """Cut out in a graph: a tensor ``[b]`` to tensors, as the source has arrays."""
        import tensorflow as tf

        starts = tf.cast(indices, tf.int64)[:, tf.newaxis] * self.stride
        at = starts + tf.range(self.length + 1, dtype=tf.int64)
        window = tf.cast(tf.gather(self.tensors()[0], at), tf.int32)
        return window[:, :-1], window[:, 1:]
