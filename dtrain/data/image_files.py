"""Images in files of their own: read and decoded in the input graph, or in Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.data.files import DataFile
from dtrain.data.images import decoded
from dtrain.data.sources import Captured, Info
from dtrain.data.transforms import InGraph
from dtrain.errors import DataError


class ImageFiles(Captured):
    """Images on disk, read and decoded when they are taken.

    Args:
        paths: image files, ``n`` of them (PNG, JPEG, BMP or GIF).
        labels: int64 ``[n]``.
        size: height and width that every image is resized to, in pixels.
        channels: 1 (grey) or 3 (RGB).
        names: of the classes, in their order; none where they have none.
        originals: the files that ``paths`` were converted from; None: they are the files.
    """

    def __init__(
        self,
        paths: list[str],
        labels: np.ndarray,
        size: tuple[int, int],
        channels: int,
        names: Sequence[str] = (),
        originals: list[str] | None = None,
    ):
        self._names = list(names)
        self._originals = paths if originals is None else originals
        self.paths = paths
        self.y = labels
        self.size = size
        self.channels = channels
        self._last = np.zeros(0, np.int64)
        self.transforms = (InGraph(self.decode, takes_arrays=True),)

    def _values(self) -> Iterable[Any]:
        return self.paths, self.y

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def info(self) -> Info:
        """The files, one an image, and the classes."""
        return Info(
            files=lambda: [DataFile(path) for path in self._originals],
            place=lambda i: self._originals[i],
            class_names=lambda: self._names, labels=lambda: self.y,
        )  # fmt: skip

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, Any]:
        """Read: int64 ``[b]`` to arrays, as :meth:`gather` has tensors.

        Raises:
            DataError: naming the file.
        """
        encoded = np.empty(len(indices), object)
        for at, index in enumerate(indices):
            try:
                encoded[at] = Path(self.paths[int(index)]).read_bytes()
            except OSError as error:
                path = self._originals[int(index)]
                raise DataError(path, f"cannot be read ({error.strerror})") from None
        return encoded, self.y[indices]

    def gather(self, indices: Any) -> tuple[Any, Any]:
        """Read: int64 ``[b]`` to ``(text [b], as the files have it, int64 [b])``.

        Raises:
            DataError: outside of a graph, naming the file.
        """
        import tensorflow as tf

        paths, labels = self.tensors()
        if tf.executing_eagerly():
            self._last = np.asarray(indices)
        try:
            encoded = tf.map_fn(tf.io.read_file, tf.gather(paths, indices))
        except tf.errors.OpError:
            self.check(self._last)
            raise
        return encoded, tf.gather(labels, indices)

    def decode(self, parts: tuple[Any, Any]) -> tuple[Any, Any]:
        """Decode: to ``(float32 [b, height, width, channels] in 0..1, int64 [b])``.

        In a graph an image that cannot be decoded raises what TensorFlow raises, which names no
        file.

        Raises:
            DataError: outside of a graph, naming the file.
            NoImageError: one of arrays is no image.
        """
        if isinstance(parts[0], np.ndarray):
            return decoded(parts[0], *self.size, self.channels), parts[1]
        import tensorflow as tf

        try:
            return decoded(parts[0], *self.size, self.channels), parts[1]
        except tf.errors.OpError:
            self.check(self._last)  # outside of a graph they have just been read
            raise

    def check(self, indices: np.ndarray) -> None:
        """Read and decode some of the images, one by one.

        Raises:
            DataError: naming the first file that cannot be.
        """
        import tensorflow as tf

        for index in indices:
            (encoded,), _ = self[np.array([index])]
            try:
                tf.io.decode_image(encoded, self.channels, expand_animations=False)
            except tf.errors.OpError as error:
                # Without the names of operations that stand before and behind it.
                reason = re.sub(r"^\{\{.*?\}\} | \[Op:.*", "", str(error.message))
                path = self._originals[int(index)]
                raise DataError(path, f"is no image that can be read ({reason})") from None
