from __future__ import annotations

import gc
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.errors import UsageError


def refusal(name: str, arguments: dict[str, Any]) -> str:
    try:
        getattr(datasets, name)(**arguments)
    except UsageError as error:  # not pytest.raises: it would keep open what the frames hold
        return str(error)
    pytest.fail("it was not refused")


def test_digits() -> None:
    splits = datasets.digits()
    assert splits.count_classes() == 10
    assert splits.validation is not None
    assert (len(splits.train), len(splits.validation)) == (1438, 359)
    whole = datasets.digits(validation_split=0)
    assert whole.validation is None
    x, y = whole.train.x, whole.train.y
    assert x.shape == (1797, 8, 8, 1) and x.dtype == np.float32
    assert (x.min(), x.max()) == (0, 1) and np.array_equal(x * 16, np.floor(x * 16))
    assert y.dtype == np.int64
    digest = hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()
    assert digest.startswith("8b3b6ae90863430b")
    # scikit-learn's own figures; and the first image, which is a 0 with a hole in the middle.
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert y[:5].tolist() == [0, 1, 2, 3, 4]
    assert (x[0, 3, :, 0] * 16).tolist() == [0, 4, 12, 0, 0, 8, 8, 0]


def test_synthetic() -> None:
    made = datasets.synthetic(50, 20, [3, 2], classes=4, noise=0.0, data_seed=1)
    again = datasets.synthetic(50, 20, [3, 2], classes=4, noise=0.0, data_seed=1)
    other = datasets.synthetic(50, 20, [3, 2], classes=4, noise=0.0, data_seed=2)
    assert made.classes == 4 and made.validation is not None and again.validation is not None
    for name in ("x", "y"):
        assert np.array_equal(getattr(made.train, name), getattr(again.train, name))
        assert np.array_equal(getattr(made.validation, name), getattr(again.validation, name))
    assert not np.array_equal(made.train.x, other.train.x)
    assert made.train.x.shape == (50, 3, 2) and made.train.x.dtype == np.float32
    assert set(made.train.y) == {0, 1, 2, 3}
    # Without noise an example is the pattern of its class, in both parts.
    for part in (made.train, made.validation):
        for row, label in zip(part.x, part.y, strict=True):
            assert np.array_equal(row, made.train.x[list(made.train.y).index(label)])
    noisy = datasets.synthetic(50, 20, [3, 2], classes=4, noise=0.5, data_seed=1).train
    assert 0.3 < np.std(noisy.x[noisy.y == 0], axis=0).mean() < 0.7
    assert datasets.synthetic(1, 0).validation is None
    assert datasets.synthetic(1, 0).train.x.shape == (1, 28, 28, 1)


# -- files ---------------------------------------------------------------------------------------


def save(**arrays: Any) -> Callable[[], None]:
    return lambda: np.savez("a.npz", **arrays)


def images() -> None:
    from PIL import Image

    for label, name in enumerate(("cat", "dog", "eel")):
        Path("images", name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (6, 5), (100 * label, 10 * i, 255)).save(f"images/{name}/{i}.png")
    Path("images/cat/notes.txt").write_text("no image")
    Path("images/stray.png").write_text("in no class")


ROWS = np.arange(20)


def test_npz() -> None:
    image = np.arange(20 * 4, dtype=np.uint8).reshape(20, 2, 2)
    held = np.zeros((3, 2, 2))
    save(x=image, y=ROWS % 3, a=held, b=np.array([5, 0, 0]), r=ROWS + 0.5, h=np.eye(20)[:, :3])()
    splits = datasets.npz("a.npz", validation_inputs="a", validation_target="b", scale=0.5)
    assert np.array_equal(splits.train.x, image / 2) and splits.train.x.dtype == np.float32
    assert splits.train.y.dtype == np.int64
    assert splits.validation is not None and len(splits.validation) == 3
    assert splits.count_classes() == 6, "the greatest label may be in the validation part alone"
    for name, dtype in (("r", np.float32), ("h", np.float32)):
        other = datasets.npz("a.npz", target=name, validation_split=0)
        assert other.train.y.dtype == dtype and other.count_classes() is None


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_of_an_npz_the_inputs_are_read_when_they_are_needed(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.arange(20 * 4, dtype=np.uint8).reshape(20, 2, 2)
    write("a.npz", x=image, y=ROWS % 3, a=image[:3], b=ROWS[:3])
    read: list[str] = []
    whole = np.lib.npyio.NpzFile.__getitem__

    def counted(archive: Any, name: str) -> Any:
        read.append(name)
        return whole(archive, name)

    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", counted)
    splits = datasets.npz("a.npz")
    both = datasets.npz("a.npz", validation_inputs="a", validation_target="b")
    assert splits.validation is not None and both.validation is not None
    assert [len(s) for s in (splits.train, splits.validation)] == [16, 4]
    assert [len(s) for s in (both.train, both.validation)] == [20, 3]
    assert read == ["y", "y", "b"]
    assert splits.validation.x.shape == (4, 2, 2) and splits.train.x.shape == (16, 2, 2)
    assert read == ["y", "y", "b", "x"], "once for both parts"
    rows = np.concatenate([splits.train.x, splits.validation.x])[:, 0, 0]
    assert sorted(rows) == image[:, 0, 0].tolist()


def test_inputs_that_are_damaged_are_refused_when_they_are_read() -> None:
    np.savez("a.npz", x=np.arange(999) % 7, y=np.arange(999) % 3)
    data = bytearray(Path("a.npz").read_bytes())
    data[1000] ^= 255
    Path("a.npz").write_bytes(data)
    train = datasets.npz("a.npz").train
    with pytest.raises(UsageError, match=r"^dataset.path=a.npz: cannot be read as .npz \(Bad CRC"):
        _ = train.x


#: (what makes the file, function, arguments, key and value, parts of the message, what to type)
REFUSED: dict[str, tuple[Callable[[], object] | None, str, dict[str, Any], str, list[str], str]] = {
    "fraction of 1": (
        None, "digits", {"validation_split": 1}, "dataset.validation_split=1", ["but not 1"],
        "dataset.validation_split=0.2",
    ),
    "npz without x": (
        save(x_train=ROWS, labels=ROWS), "npz", {"path": "a.npz"}, "dataset.inputs=x",
        ["a.npz has no array of that name", "x_train, labels"], "dataset.inputs=NAME",
    ),
    "npz without y": (
        save(x=ROWS, label=ROWS), "npz", {"path": "a.npz", "target": "labels"},
        "dataset.target=labels", ["x, label"], "dataset.target=label",
    ),
    "channels": (
        None, "image_folder", {"path": ".", "channels": 4}, "dataset.channels=4", ["1 or 3"],
        "dataset.channels=3",
    ),
    "no folder": (
        None, "image_folder", {"path": "no"}, "dataset.path=no", ["no such folder"],
        "CLASS/NAME",
    ),
    "no images": (
        lambda: [images(), Path("empty/cat").mkdir(parents=True)],
        "image_folder", {"path": "images/cat"}, "dataset.path=images/cat",
        ["holds no images in sub-folders", ".png"], "CLASS/NAME",
    ),
}  # fmt: skip


def check_refusal(case: tuple[Any, ...]) -> None:
    make, function, arguments, given, parts, typed = case
    if make is not None:
        make()
    message = refusal(function, arguments)
    assert message.startswith(f"{given}: "), message
    assert not [part for part in parts if part not in message], message
    assert typed in message


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    check_refusal(REFUSED[case])


#: What could be read and could not be trained on.
UNUSABLE = {
    "npz text inputs": (
        save(x=np.array(["a", "b"]), y=np.arange(2)), "npz", {"path": "a.npz"}, "dataset.inputs=x",
        ["numbers"], "dataset.inputs=NAME",
    ),
    "npz scalar": (
        save(x=np.array(1.0), y=np.array(1)), "npz", {"path": "a.npz"}, "dataset.inputs=x",
        ["rows"], "dataset.inputs=NAME",
    ),
    "npz of no rows": (
        save(x=np.zeros((0, 2)), y=np.zeros(0)), "npz", {"path": "a.npz"},
        "dataset.validation_split=0.2", ["0 examples"], "dataset.validation_split=0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_data_is_refused(case: str) -> None:
    check_refusal(UNUSABLE[case])


def damaged() -> bytes:
    np.savez_compressed("b.npz", x=np.arange(999) % 7)
    data = bytearray(Path("b.npz").read_bytes())
    data[60] ^= 255
    return bytes(data)


def written(write: Callable[..., None], **options: Any) -> bytes:
    write("b.npz", **options)
    return next(Path().glob("b.npz*")).read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda: b"hello", id="text"),
        pytest.param(lambda: written(np.save, arr=ROWS), id="one array"),
        pytest.param(lambda: b"", id="empty"),
        pytest.param(damaged, id="damaged"),
        pytest.param(lambda: written(np.savez, x=ROWS)[:-40], id="torn"),
        pytest.param(lambda: written(np.savez, x=np.array([{}])), id="objects"),
    ],
)
def test_an_unreadable_npz_is_refused_and_closed(content: Callable[[], bytes]) -> None:
    Path("a.npz").write_bytes(content())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            message = refusal("npz", {"path": "a.npz"})
        finally:
            gc.collect()
    assert message.startswith("dataset.path=a.npz: cannot be read as .npz ("), message
    assert not caught


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.task
@pytest.mark.parametrize("channels", [1, 3])
def test_image_files_take(tmp_path: Path, channels: int) -> None:
    import tensorflow as tf
    from PIL import Image

    grey = np.arange(30, dtype=np.uint8).reshape(5, 6) * 8
    colour = np.stack([grey, 255 - grey, np.full_like(grey, 17)], -1)
    even = np.full_like(colour, 200)
    files = {"a.png": grey, "b.png": colour, "c.jpg": even, "d.jpeg": even[..., 0]}
    if channels == 3:
        files |= {"e.bmp": colour, "f.gif": even}
    paths = [str(tmp_path / name) for name in files]
    for path, pixels in zip(paths, files.values(), strict=True):
        Image.fromarray(pixels).save(path)
    source = datasets.ImageFiles(paths, np.arange(len(paths)) + 7, (5, 6), channels)

    def load(rows: Any) -> Any:
        return source.decode(source.gather(rows))

    wanted = np.arange(len(paths))[::-1].copy()
    (inside,) = tf.data.Dataset.from_tensors(wanted).map(load)
    for images, labels in (inside, load(tf.constant(wanted))):
        assert labels.numpy().tolist() == (wanted + 7).tolist() and labels.dtype == tf.int64
        assert images.shape == (len(paths), 5, 6, channels) and images.dtype == tf.float32
        for row, pixels in zip(images.numpy()[::-1], files.values(), strict=True):
            if pixels.ndim == 2:
                expected = np.repeat(pixels[..., None], channels, -1)
            elif channels == 3:
                expected = pixels
            else:
                expected = (pixels @ [0.299, 0.587, 0.114])[..., None]
            np.testing.assert_allclose(row, expected / 255, atol=1.6 / 255)

    halved = datasets.ImageFiles(paths[:1], np.zeros(1, np.int64), (5, 3), channels)
    (row,) = halved.decode(halved.gather(tf.constant([0])))[0].numpy()
    expected = (grey[:, ::2] + grey[:, 1::2].astype(np.float32)) / 2
    np.testing.assert_allclose(row[..., 0], expected / 255, atol=1e-5)
