"""Encoded images, of a column or in files of their own: decoded in the input graph, or by Pillow.

PNGs become the same numbers, JPEGs and colors that become gray do not: the two round differently.
With ``dataset.cache`` those of files are decoded once, and kept in memory or in a file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from dtrain.data import cache, failures
from dtrain.data.example import Dataset
from dtrain.data.file_arrays import FileArray, of_files, write
from dtrain.data.files import DataFile, reading
from dtrain.data.nest import DType, Leaf, Nest, Parts, Tensor
from dtrain.data.sources import Captured, Info, Source
from dtrain.data.transforms import InGraph, operations
from dtrain.errors import DataError, refuse
from dtrain.files import writing
from dtrain.host import usage

T = TypeVar("T")
#: Images of a batch that are decoded without a loop, at most.
UNROLLED = 256


def with_images(source: Dataset, sizes: Mapping[str, Sequence[int]]) -> Dataset:
    """Return a source of which some inputs are encoded images (PNG, JPEG, BMP or GIF), decoded.

    Args:
        source: of a table, has them as bytes.
        sizes: by the column: height and width that its images are resized to, in pixels, and
            channels (1 for gray, 3 for colors).

    Raises:
        UsageError: one is no column of inputs, or holds no bytes.
    """
    encoded = [n for n in source.inputs.columns() if not source.table.columns[n].is_number]
    for name, size in sizes.items():
        if name not in encoded:
            refuse("dataset.images", "is no input of encoded images", name,
                   accepted=", ".join(encoded) or "none",
                   hint="dataset.images={COLUMN:[64,64,3]}")  # fmt: skip
        if size[2] not in (1, 3):
            refuse("dataset.images", "is not height, width, channels", f"{{{name}: {list(size)}}}",
                   accepted="two numbers of pixels, and 1 (gray) or 3 (colors)",
                   typed=f"dataset.images={{{name}:[64,64,3]}}")  # fmt: skip
    shapes = {name: tuple(size) for name, size in sizes.items()}
    decode = functools.partial(_with_decoded, shapes, source.inputs.names)
    return source.changed(InGraph(decode, takes_arrays=True))


def _with_decoded(sizes: Mapping[str, tuple[int, ...]], names: Nest, parts: Parts) -> Parts:
    """Return a batch, its images float32 ``[b, height, width, channels]`` in 0..1.

    Args:
        sizes: by the column: height, width, channels.
        names: of the columns of the inputs; those of a list are one array, and no images.
        parts: inputs, targets and weights.
    """

    def finished(names: Nest, x: Nest) -> Nest:
        if isinstance(names, Mapping):
            return {str(key): finished(part, x[str(key)]) for key, part in names.items()}
        return decoded(x, *sizes[names]) if isinstance(names, str) and names in sizes else x

    return finished(names, parts[0]), *parts[1:]


class NoImageError(ValueError):
    """Bytes that are no image.

    Attributes:
        row: which of a batch.
    """

    def __init__(self, row: int, reason: str):
        super().__init__(f"is no image that can be read ({reason})")
        self.row = row


def decoded(encoded: Tensor, height: int, width: int, channels: int) -> Tensor:
    """Decode and resize: text ``[b]`` to float32 ``[b, height, width, channels]`` in 0..1.

    Args:
        encoded: a tensor, or an array, of which Pillow makes arrays.
        height, width, channels: of the images.

    Raises:
        NoImageError: one of an array is none.
    """
    if isinstance(encoded, np.ndarray):
        return np.stack([_resized(image, height, width) for image in by_pillow(encoded, channels)])
    import tensorflow as tf

    shape = (height, width, channels)

    def decode(image: Tensor) -> Tensor:
        return tf.io.decode_image(image, channels=channels, expand_animations=False)

    def resized(image: Tensor) -> Tensor:
        image = tf.image.resize(tf.cast(image, tf.float32) / 255.0, (height, width))
        return tf.ensure_shape(image, shape)

    if encoded.shape[0] is None or encoded.shape[0] > UNROLLED:
        return tf.map_fn(
            lambda image: resized(decode(image)), encoded, fn_output_signature=tf.float32
        )
    # Without a loop, and without resizing where all have the size: 1.2 to 1.6 times as fast for
    # JPEGs of 64 x 64. Resizing to the same size gives the same numbers.
    images = [decode(image) for image in tf.unstack(encoded)]
    same = tf.reduce_all([tf.reduce_all(tf.equal(tf.shape(image), shape)) for image in images])
    return tf.cond(
        same,
        lambda: tf.cast(tf.stack([tf.ensure_shape(i, shape) for i in images]), tf.float32) / 255.0,
        lambda: tf.stack([resized(image) for image in images]),
    )


def by_pillow(encoded: np.ndarray, channels: int) -> Iterator[np.ndarray]:
    """Decode: bytes ``[b]`` to uint8 ``[height, width, channels]``, each of its own size.

    Raises:
        NoImageError: one is none.
    """
    from PIL import Image, UnidentifiedImageError

    for row, data in enumerate(encoded):
        try:
            with Image.open(io.BytesIO(data)) as image:
                mode = "L" if channels == 1 else "RGB"
                image.draft(mode, None)  # the gray of a JPEG is one of the parts that it is made of
                pixels = np.asarray(of_eight_bits(image).convert(mode))
        except UnidentifiedImageError:  # whose text is of an object of Python
            raise NoImageError(row, "of no format that is known") from None
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise NoImageError(row, str(error)) from None
        yield pixels.reshape(*pixels.shape[:2], channels)


def of_eight_bits(image: Tensor) -> Tensor:
    """Return an image of Pillow; of 16 bits, or 32 that hold 16, the upper 8, as TensorFlow does.

    Pillow itself would cut them at 255.
    """
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    values = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
    return Image.fromarray((values >> 8).astype(np.uint8))


def _resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return float32 in 0..1 of another size: bilinear, as ``tf.image.resize``."""
    image = pixels.astype(np.float32) / np.float32(255)
    for axis, size in ((1, width), (0, height)):
        if image.shape[axis] == size:
            continue
        scale = np.float32(image.shape[axis]) / np.float32(size)
        at = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
        low = np.floor(at)
        share = np.expand_dims(at - low, tuple(other for other in range(3) if other != axis))
        before = np.take(image, np.maximum(low, 0).astype(int), axis)
        after = np.take(image, np.minimum(np.ceil(at), image.shape[axis] - 1).astype(int), axis)
        image = before + (after - before) * share
    return image


#: Images that are decoded at once.
_BATCH = 64
#: Of the free memory, what decoded images may take.
_SHARE = 0.8


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
        self, paths: list[str], labels: np.ndarray, size: tuple[int, int], channels: int,
        names: Sequence[str] = (), originals: list[str] | None = None,
    ):  # fmt: skip
        self._names = list(names)
        self._originals = paths if originals is None else originals
        self.paths = paths
        self.y = labels
        self.size = size
        self.channels = channels
        self.transforms = (InGraph(self.decode, takes_arrays=True),)

    def _values(self) -> Iterable[Leaf]:
        return self.paths, self.y

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, rows: np.ndarray) -> ImageFiles:
        """Return some of the images, in their order."""
        paths, originals = ([each[i] for i in rows] for each in (self.paths, self._originals))
        return ImageFiles(paths, self.y[rows], self.size, self.channels, self._names, originals)

    @property
    def info(self) -> Info:
        """The files, one an image, and the classes, which are a part of the identity."""
        return Info(
            files=lambda: [DataFile(path) for path in self._originals], reading=self._labelling,
            place=lambda i: self._originals[i],
            class_names=lambda: self._names, labels=lambda: self.y,
        )  # fmt: skip

    @functools.cached_property
    def _labelling(self) -> str:
        return hashlib.sha256(self.y.tobytes()).hexdigest()

    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Read: int64 ``[b]`` to arrays, as :meth:`gather` has tensors.

        Raises:
            DataError: naming the file.
        """
        encoded = np.empty(len(indices), object)
        for at, index in enumerate(indices):
            with reading(self._originals[int(index)]):
                encoded[at] = Path(self.paths[int(index)]).read_bytes()
        return encoded, self.y[indices]

    def gather(self, indices: Tensor) -> Parts:
        """Read: int64 ``[b]`` to ``(text [b], as the files have it, int64 [b])``."""
        import tensorflow as tf

        paths, labels = self.tensors()
        encoded = tf.map_fn(tf.io.read_file, tf.gather(paths, indices))
        return encoded, tf.gather(labels, indices)

    def decode(self, parts: Parts) -> Parts:
        """Decode: to ``(float32 [b, height, width, channels] in 0..1, int64 [b])``.

        Raises:
            NoImageError: one of arrays is no image; of tensors TensorFlow's own error is raised.
        """
        return decoded(parts[0], *self.size, self.channels), parts[1]

    def reread(self, indices: np.ndarray) -> None:
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
                problem = f"is no image that can be read ({failures.reason(error)})"
                raise DataError(self._originals[int(index)], problem) from None


class _NoBytesError(Exception):
    """An image was resized: its numbers are no bytes divided by 255."""


class Decoded:
    """All images of files, decoded and resized when one of them is first needed.

    They are kept as bytes where each file has the size that is asked for, which the input graph
    divides by 255 again; else as float32, as the graph makes them.

    Args:
        images: which.
        place: ``memory`` or ``disk``.

    Raises:
        UsageError: they do not fit into the memory that is free.
    """

    def __init__(self, images: ImageFiles, place: str):
        self.images = images
        self._place = place
        self._shape = (len(images), *images.size, images.channels)
        self._check_room(np.dtype(np.uint8))

    @functools.cached_property
    def array(self) -> np.ndarray | FileArray:
        """All of them: ``[n, height, width, channels]``, uint8 or float32.

        Raises:
            UsageError: they do not fit where they are to be kept.
            DataError: naming a file that cannot be read or decoded.
        """
        if self._place == "memory":
            return self._made(self._in_memory)

        def make(path: Path) -> None:
            def kept(dtype: DType, batches: Iterable[np.ndarray]) -> None:
                writing.remove(path)  # as bytes, where they are to be float32 now
                write(path, dtype, self._shape, batches)

            self._made(kept)

        path = cache.cached("images.npy", self._key(), make)
        return of_files([DataFile(str(path))], "dataset.cache")

    def _check_room(self, dtype: DType) -> None:
        need, free = int(np.prod(self._shape)) * dtype.itemsize, usage.available()
        if self._place == "memory" and need > _SHARE * free:
            refuse("dataset.cache", f"{len(self.images):,} images of {list(self._shape[1:])} as "
                   f"{dtype} take {usage.text(need)}, and {usage.text(free)} are free", "memory",
                   accepted="disk, or none", typed="dataset.cache=disk")  # fmt: skip

    def _key(self) -> str:
        """Return what decoded images depend on; another version may decode otherwise."""
        decoder = importlib.import_module("tensorflow" if _by_tensorflow() else "PIL")
        name = "" if _by_tensorflow() else "Pillow "
        digest = hashlib.sha256()
        for path in self.images.paths:
            digest.update(f"{os.path.abspath(path)}\0{DataFile(path).stamp()}\0".encode())
        version = f"{name}{decoder.__version__}"
        return f"dtrain images 1 {version} {self._shape[1:]} {digest.hexdigest()}"

    def _made(self, keep: Callable[[DType, Iterator[np.ndarray]], T]) -> T:
        """Return what ``keep`` makes of the type of the images, and of them, batch by batch."""
        cache.announce(f"dataset.cache={self._place}: {len(self.images):,} images are decoded once")
        with contextlib.suppress(_NoBytesError):
            return keep(np.dtype(np.uint8), self._as_bytes())
        self._check_room(np.dtype(np.float32))
        return keep(np.dtype(np.float32), self._batches())

    def _in_memory(self, dtype: DType, batches: Iterator[np.ndarray]) -> np.ndarray:
        made, at = np.empty(self._shape, dtype), 0
        for batch in batches:
            made[at : at + len(batch)] = batch
            at += len(batch)
        return made

    def _as_bytes(self) -> Iterator[np.ndarray]:
        for images in self._batches():
            pixels = np.round(images * 255).astype(np.uint8)
            if not np.array_equal(pixels.astype(np.float32) / np.float32(255), images):
                raise _NoBytesError
            yield pixels

    def _batches(self) -> Iterator[np.ndarray]:
        """Read all images as the input pipeline does, so that their numbers are those of it."""
        count = len(self.images)
        if not _by_tensorflow():
            for at in range(0, count, _BATCH):
                try:
                    rows = np.arange(at, min(at + _BATCH, count))
                    yield self.images.decode(self.images[rows])[0]
                except NoImageError as error:
                    place = self.images.info.place(at + error.row)
                    raise DataError(place, str(error)) from None
            return
        import tensorflow as tf

        load = tf.autograph.experimental.do_not_convert(
            lambda rows: self.images.decode(self.images.gather(rows))[0]
        )
        with tf.device("CPU:0"):
            made = tf.data.Dataset.range(count).batch(_BATCH).map(load, tf.data.AUTOTUNE)
            at = 0
            try:
                for images in made.prefetch(2).as_numpy_iterator():
                    yield images
                    at += _BATCH
            except tf.errors.OpError:
                self.images.reread(np.arange(at, min(at + _BATCH, count)))
                raise


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
        self._decoded, self._rows = decoded, rows
        self._images = decoded.images.subset(rows)
        self.transforms = (InGraph(self.scaled, takes_arrays=True),)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def info(self) -> Info:
        """That of the images."""
        return self._images.info

    def __getitem__(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read: int64 ``[b]`` to ``([b, height, width, channels], int64 [b])``."""
        indices = np.asarray(indices)
        return self._decoded.array[self._rows[indices]], self._images.y[indices]

    def scaled(self, parts: Parts) -> Parts:
        """Return the images as float32 in 0..1."""
        pixels, labels = parts
        if pixels.dtype.name == "uint8":
            pixels = operations(pixels).cast(pixels, "float32") / 255.0
        return pixels, labels
