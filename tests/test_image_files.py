"""Images in files: the same numbers with a cache and without, and files that are no images."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.data import cache
from dtrain.data.example import Example
from dtrain.data.transforms import applied
from dtrain.errors import DataError, UsageError
from dtrain.host import usage


def images(*sizes: tuple[int, int], count: int = 70) -> None:
    """Write images of these sizes in turn, in two classes; more than are decoded at once."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for label in ("cat", "dog"):
        Path("images", label).mkdir(parents=True, exist_ok=True)
        for i in range(count // 2):
            height, width = sizes[i % len(sizes)]
            pixels = draw.integers(0, 256, (height, width, 3), np.uint8)
            kind = ("png", "jpg")[i % 2]
            Image.fromarray(pixels).save(f"images/{label}/{i}.{kind}")


def finished(source: Any, parts: Any) -> Any:
    """Return what the transforms of the graph make of a batch."""
    return applied(source, Example.of(parts), of_arrays=False).parts


def whole(source: Any) -> tuple[np.ndarray, np.ndarray]:
    """Read all examples as the input pipeline does."""
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.reading import take

    take(source, tf.zeros([1], tf.int64))  # what is decoded once is decoded outside of a graph
    load = tf.autograph.experimental.do_not_convert(lambda rows: take(source, rows))
    batches = list(tf.data.Dataset.range(len(source)).batch(16).map(load).as_numpy_iterator())
    return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])


@pytest.mark.task
@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [([(6, 5)], "uint8"), ([(9, 4)], "float32"), ([(6, 5)] * 33 + [(7, 5)], "float32")],
)
def test_the_bits_are_those_without_a_cache(
    place: str, channels: int, sizes: list[tuple[int, int]], dtype: str
) -> None:
    import tensorflow as tf

    images(*sizes)
    plain = datasets.image_folder("images", [6, 5], channels, validation_split=0.3)
    kept = datasets.image_folder("images", [6, 5], channels, validation_split=0.3, cache=place)
    for ours, theirs in ((kept.train, plain.train), (kept.validation, plain.validation)):
        assert len(ours) == len(theirs)
        (x, y), (expected, labels) = whole(ours), whole(theirs)
        assert x.dtype == np.float32 and x.shape == (len(ours), 6, 5, channels)
        np.testing.assert_array_equal(x.view(np.uint32), expected.view(np.uint32))
        assert (
            y.tolist()
            == labels.tolist()
            == ours.info.labels().tolist()
            == theirs.info.labels().tolist()
        )
        assert [ours.info.place(i) for i in range(3)] == [theirs.info.place(i) for i in range(3)]
        order = np.array([7, 0, 7])
        pixels, _ = ours[order]
        assert pixels.dtype == dtype
        at_once, _ = finished(ours, (tf.constant(pixels), tf.zeros(3)))
        np.testing.assert_array_equal(at_once, expected[order])


@pytest.mark.task
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_images_are_decoded_once(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images((6, 5))

    def read(**options: Any) -> tuple[np.ndarray, str]:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            splits = datasets.image_folder("images", [6, 5], cache=place, **options)
            both = np.concatenate([whole(splits.train)[0], whole(splits.validation)[0]])
        return both, printed.getvalue()

    found, printed = read()
    assert printed == f"notice: dataset.cache={place}: 70 images are decoded once\n"
    again, printed = read()
    assert np.array_equal(found, again) and bool(printed) == (place == "memory")
    _, printed = read(channels=1)
    assert printed
    os.utime("images/cat/0.png", ns=(1, 1))
    assert read()[1]
    # In another process.
    train = datasets.image_folder("images", [6, 5], cache=place).train
    train[np.arange(3)]
    with contextlib.redirect_stderr(io.StringIO()) as output:
        sent = pickle.loads(pickle.dumps(train))
        np.testing.assert_array_equal(sent[np.arange(3)][0], train[np.arange(3)][0])
    assert not output.getvalue()


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    images((6, 5))
    needed = 70 * 6 * 5 * 3
    monkeypatch.setattr(usage, "available", lambda: needed)
    with pytest.raises(UsageError) as caught:
        datasets.image_folder("images", [6, 5], cache="memory")
    message = str(caught.value)
    assert message.startswith("dataset.cache=memory: 70 images of [6, 5, 3] as uint8 take 0.0 GiB,")
    assert message.endswith("accepted: disk, or none; type: dataset.cache=disk")
    monkeypatch.setattr(usage, "available", lambda: 2 * needed)
    datasets.image_folder("images", [6, 5], cache="memory")


@pytest.mark.task
def test_what_does_not_fit_as_float32_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    images((7, 5))
    needed = 70 * 6 * 5 * 3
    monkeypatch.setattr(usage, "available", lambda: 3 * needed)
    train = datasets.image_folder("images", [6, 5], cache="memory").train
    with pytest.raises(UsageError, match=r"^dataset.cache=memory: .* as float32 take"):
        train[np.arange(1)]


def spoiled(how: str) -> str:
    """Write images of which one is none; return its path."""
    images((6, 5))
    path = Path("images/dog/33.jpg")
    if how == "text":
        path.write_text("<html>not found</html>")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:200])
    else:
        path.unlink()
    return str(path)


@pytest.mark.task
@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("text", "is no image that can be read (Unknown image file format. One of JPEG"),
        ("empty", "is no image that can be read (Input is empty.)"),
        ("cut", "is no image that can be read (jpeg::Uncompress failed."),
        ("gone", "cannot be read (No such file or directory)"),
    ],
)
@pytest.mark.parametrize("place", ["none", "memory", "disk"])
def test_a_file_that_is_no_image_is_named(how: str, problem: str, place: str) -> None:
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.reading import take

    images((6, 5))
    splits = datasets.image_folder("images", [6, 5], validation_split=0, cache=place)
    path = spoiled(how)
    train = splits.train
    at = next(i for i in range(len(train)) if train.info.place(i) == path)
    rows = [0, at, 1]
    with pytest.raises(DataError) as caught:
        take(train, tf.constant(rows))
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert "{{" not in str(caught.value) and "[Op" not in str(caught.value)
    if place == "none":
        with pytest.raises(tf.errors.OpError):
            whole(train)


@pytest.mark.task
def test_a_file_of_decoded_images_that_is_cut_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER, "kept")
    images((6, 5))
    train = datasets.image_folder("images", [6, 5], cache="disk").train
    train[np.arange(2)]
    [path] = Path("kept").glob("*.npy")
    os.truncate(path, 200)
    with pytest.raises(DataError, match=r"images.npy: was cut off: it has 200 bytes"):
        train[np.arange(2)]
