"""Sources: random access to examples, so that their order needs no state but a position.

TensorFlow is imported only inside ``take``: the controller looks at the data before anything is
started.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np


class Source(Protocol):
    """Random access to examples.

    A source of your own needs ``__len__`` and ``take``; ``take(indices)`` gets int64 ``[b]`` and
    returns ``(x, y)`` or ``(x, y, sample_weight)``, each with ``b`` rows. ``in_graph = True``
    says that ``indices`` is a tensor and the result is made of tensors. One that holds tensors may
    have ``tensors()`` and ``bind(tensors)``, as :class:`Arrays`: they are then sent to each worker
    of a parameter-server cluster once, and not with every step.
    """

    def __len__(self) -> int: ...

    def take(self, indices: Any) -> tuple[Any, ...]:
        """Return the examples at ``indices``."""


@dataclasses.dataclass(frozen=True)
class Splits:
    """What a dataset function returns.

    Attributes:
        train: the source to train on.
        validation: the source to evaluate on, or None.
        classes: number of classes of an integer label; None for anything else.
    """

    train: Source
    validation: Source | None = None
    classes: int | None = None


class Arrays:
    """Examples in memory.

    Args:
        x: inputs, ``[n, ...]``.
        y: targets, ``[n, ...]``.
    """

    in_graph = True

    def __init__(self, x: np.ndarray, y: np.ndarray):
        self.x = x
        self.y = y
        self._tensors: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: Any) -> tuple[Any, Any]:
        """Gather rows: int64 ``[b]`` to ``(x [b, ...], y [b, ...])``."""
        import tensorflow as tf

        x, y = self.tensors()
        return tf.gather(x, indices), tf.gather(y, indices)

    def tensors(self) -> list[Any]:
        """Return what :meth:`take` reads from; made at the first call."""
        if self._tensors is None:
            self._tensors = _captured(self.x, self.y)
        return self._tensors

    def bind(self, tensors: Any) -> None:
        """Read from ``tensors``: the same values in another place."""
        self._tensors = list(tensors)


class ImageFiles:
    """Images on disk, read and decoded when they are taken.

    Args:
        paths: image files, ``n`` of them (PNG, JPEG, BMP or GIF).
        labels: int64 ``[n]``.
        size: height and width that every image is resized to, in pixels.
        channels: 1 (grey) or 3 (RGB).
    """

    in_graph = True

    def __init__(self, paths: list[str], labels: np.ndarray, size: tuple[int, int], channels: int):
        self.paths = paths
        self.y = labels
        self.size = size
        self.channels = channels
        self._tensors: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: Any) -> tuple[Any, Any]:
        """Read: int64 ``[b]`` to ``(float32 [b, height, width, channels] in 0..1, int64 [b])``."""
        import tensorflow as tf

        def load(path: Any) -> Any:
            image = tf.io.decode_image(
                tf.io.read_file(path), channels=self.channels, expand_animations=False
            )
            image = tf.image.resize(tf.cast(image, tf.float32) / 255.0, self.size)
            return tf.ensure_shape(image, (*self.size, self.channels))

        paths, labels = self.tensors()
        images = tf.map_fn(load, tf.gather(paths, indices), fn_output_signature=tf.float32)
        return images, tf.gather(labels, indices)

    def tensors(self) -> list[Any]:
        """Return what :meth:`take` reads from; made at the first call."""
        if self._tensors is None:
            self._tensors = _captured(self.paths, self.y)
        return self._tensors

    def bind(self, tensors: Any) -> None:
        """Read from ``tensors``: the same values in another place."""
        self._tensors = list(tensors)


def _captured(*values: Any) -> list[Any]:
    """Return eager tensors for an input function to capture.

    Constants inside its graph would be copied with it and could not pass 2 GB.
    """
    import tensorflow as tf

    with tf.init_scope(), tf.device("CPU:0"):
        return [tf.convert_to_tensor(value) for value in values]
