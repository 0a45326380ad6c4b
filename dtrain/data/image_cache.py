"""``dataset.cache``: images that are decoded once, and kept in memory or in a file."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.data.file_arrays import FileArray, of_files
from dtrain.data.files import DataFile
from dtrain.data.image_files import ImageFiles
from dtrain.data.images import NoImageError, by_pillow
from dtrain.data.sources import Info, Source
from dtrain.data.transforms import InGraph, operations
from dtrain.errors import DataError, UsageError
from dtrain.host import memory

#: Images that are decoded at once.
_BATCH = 64
#: Of the free memory, what decoded images may take.
_SHARE = 0.8


class Decoded:
    """All images of files, decoded and resized when one of them is first needed.

    They are kept as bytes where each file has the size that is asked for, which are the numbers of
    the input graph before it divides them by 255; else as float32, as the graph makes them.

    Args:
        images: which.
        place: ``memory`` or ``disk``.

    Raises:
        UsageError: they do not fit into the memory that is free.
    """

    def __init__(self, images: ImageFiles, place: str):
        self.images = images
        self._place = place
        self._array: np.ndarray | FileArray | None = None
        self._check_room(np.dtype(np.uint8))

    @property
    def _shape(self) -> tuple[int, int, int]:
        return (*self.images.size, self.images.channels)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return some images: ``[b, height, width, channels]``, uint8 or float32.

        Raises:
            UsageError: they do not fit where they are to be kept.
            DataError: naming a file that cannot be read or decoded.
        """
        if self._array is None:
            self._array = self._in_memory() if self._place == "memory" else self._on_disk()
        if isinstance(self._array, FileArray):
            return self._array.take(np.asarray(indices))
        return self._array[indices]

    def _check_room(self, dtype: np.dtype[Any]) -> None:
        need = len(self.images) * int(np.prod(self._shape)) * dtype.itemsize
        what = f"{len(self.images):,} images of {list(self._shape)} as {dtype} take "
        what += memory.text(need)
        if self._place == "memory":
            free = memory.available()
            if free is not None and need > _SHARE * free:
                raise UsageError(
                    "dataset.cache", "memory", f"{what}, and {memory.text(free)} are free",
                    "disk, or none", "dataset.cache=disk",
                )  # fmt: skip

    def _in_memory(self) -> np.ndarray:
        self._announce()
        made = np.empty(0)

        def begin(dtype: np.dtype[Any]) -> None:
            nonlocal made
            self._check_room(dtype)
            made = np.empty((len(self.images), *self._shape), dtype)

        for at, batch in self._batches(begin):
            made[at : at + len(batch)] = batch
        return made

    def _on_disk(self) -> FileArray:
        from dtrain.data import cache  # not above: with NumPy alone datasets can be imported

        path = cache.cached("images.npy", self._key(), self._write)
        return of_files([DataFile(str(path))], "dataset.cache")

    def _key(self) -> str:
        """Return what decoded images depend on; another version may decode otherwise."""
        module = importlib.import_module("tensorflow" if _by_tensorflow() else "PIL")
        decoder = f"{module.__version__}" if _by_tensorflow() else f"Pillow {module.__version__}"
        found = hashlib.sha256()
        for path in self.images.paths:
            found.update(f"{os.path.abspath(path)}\0{DataFile(path).stamp()}\0".encode())
        return f"dtrain images 1 {decoder} {self._shape} {found.hexdigest()}"

    def _write(self, path: Path) -> None:
        self._announce()
        with path.open("xb") as file:

            def begin(dtype: np.dtype[Any]) -> None:
                self._check_room(dtype)
                file.seek(0)  # what is written anew is of a wider type, and covers all
                shape = (len(self.images), *self._shape)
                header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)

            for _, batch in self._batches(begin):
                file.write(batch.data)

    def _announce(self) -> None:
        text = f"notice: dataset.cache={self._place}: {len(self.images):,} images are decoded once"
        print(text, file=sys.stderr, flush=True)

    def _batches(self, begin: Any) -> Iterator[tuple[int, np.ndarray]]:
        """Yield where the images of a batch begin, and the images.

        Args:
            begin: called with their type before the first; where one image has another size, it is
                called again, and they begin anew.
        """
        begin(np.dtype(np.uint8))
        for at, (batch, same) in self._mapped(functools.partial(_as_they_are, self._shape)):
            if not same.all():
                break
            yield at, batch
        else:
            return
        begin(np.dtype(np.float32))
        for at, (batch, _) in self._mapped(self.images.decode):
            yield at, batch

    def _mapped(self, finish: Any) -> Iterator[tuple[int, Any]]:
        """Read all images as the input pipeline does, so that their numbers are those of it."""
        count = len(self.images)
        if not _by_tensorflow():
            for at in range(0, count, _BATCH):
                try:
                    yield at, finish(self.images[np.arange(at, min(at + _BATCH, count))])
                except NoImageError as error:
                    place = self.images.info.place(at + error.row)
                    raise DataError(place, str(error)) from None
            return
        import tensorflow as tf

        def plain(function: Any) -> Any:
            return tf.autograph.experimental.do_not_convert(function)

        with tf.device("CPU:0"):
            batches = tf.data.Dataset.range(count).batch(_BATCH)
            read = batches.map(plain(lambda rows: self.images.gather(rows)), tf.data.AUTOTUNE)
            made = read.map(plain(lambda *parts: finish(parts)), tf.data.AUTOTUNE)
            at = 0
            try:
                for found in made.prefetch(2).as_numpy_iterator():
                    yield at, found
                    at += _BATCH
            except tf.errors.OpError:
                self.images.check(np.arange(at, min(at + _BATCH, count)))
                raise


def _as_they_are(shape: tuple[int, int, int], parts: tuple[Any, Any]) -> tuple[Any, Any]:
    """Decode: to ``(uint8 [b, ...], bool [b])``; where that is False the size is another."""
    if isinstance(parts[0], np.ndarray):
        images = list(by_pillow(parts[0], shape[2]))
        is_same = [image.shape == shape for image in images]
        other = np.zeros(shape, np.uint8)
        kept = [image if same else other for image, same in zip(images, is_same, strict=True)]
        return np.stack(kept), np.array(is_same)
    import tensorflow as tf

    def load(image: Any) -> tuple[Any, Any]:
        image = tf.io.decode_image(image, channels=shape[2], expand_animations=False)
        same = tf.reduce_all(tf.equal(tf.shape(image), shape))
        image = tf.cond(same, lambda: image, lambda: tf.zeros(shape, tf.uint8))
        return tf.ensure_shape(image, shape), same

    return tf.map_fn(load, parts[0], fn_output_signature=(tf.uint8, tf.bool))


def _by_tensorflow() -> bool:
    """Whether TensorFlow decodes: other backends do not import it."""
    import keras

    return str(keras.config.backend()) == "tensorflow"


class DecodedImages(Source):
    """Examples of decoded images.

    Args:
        decoded: has them.
        rows: int64 ``[n]``, which of them.
    """

    def __init__(self, decoded: Decoded, rows: np.ndarray):
        self._decoded = decoded
        self._rows = rows
        self.transforms = (InGraph(self.scaled, takes_arrays=True),)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def info(self) -> Info:
        """That of the images, at these rows."""
        own, rows = self._decoded.images.info, self._rows

        def files() -> list[DataFile]:
            every = own.files()
            return [every[int(row)] for row in rows]

        return dataclasses.replace(
            own, files=files, place=lambda i: own.place(int(rows[i])),
            labels=lambda: self._decoded.images.y[rows],
        )  # fmt: skip

    def __getitem__(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read: int64 ``[b]`` to ``([b, height, width, channels], int64 [b])``."""
        rows = self._rows[np.asarray(indices)]
        return self._decoded.rows(rows), self._decoded.images.y[rows]

    def scaled(self, parts: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the images as float32 in 0..1."""
        pixels, labels = parts
        if pixels.dtype.name == "uint8":
            pixels = operations(pixels).cast(pixels, "float32") / 255.0
        return pixels, labels
