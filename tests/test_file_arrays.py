"""Arrays of NumPy's files that are too large for the memory; the referee is NumPy itself."""

from __future__ import annotations

import pickle
import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.data import cache, file_arrays
from dtrain.datasets.arrays import StoredArrays
from dtrain.errors import DataError, UsageError

N = 60
DRAWN = np.random.default_rng(1)
IMAGES = DRAWN.integers(0, 255, (N, 5, 4), np.uint8)
#: Any order, repeated, neighbours.
WANTED = np.array([7, 7, 0, 59, 3, 4, 5, 2, 58, 59])


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(file_arrays, "LARGE", 0)
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))


def arrays(dtype: Any, order: Any = "C") -> np.ndarray:
    return np.asarray(DRAWN.normal(0, 40, (N, 3, 2, 4)).astype(dtype), order=order)


def compare(splits: Any, x: np.ndarray, y: np.ndarray, scale: float = 1.0) -> None:
    """Compare with what is held in memory."""
    source = splits.train
    assert isinstance(source, StoredArrays) and len(source) == N
    for _ in range(2):
        taken = source[WANTED]
        assert np.array_equal(taken[0], x[WANTED].astype(np.float32) * np.float32(scale))
        assert np.array_equal(taken[1], y[WANTED])
        assert (taken[0].dtype, taken[1].dtype) == (np.float32, y.dtype)
        assert source[np.array([4])][0].shape == (1, *x.shape[1:])
        source = pickle.loads(pickle.dumps(source))
    assert np.array_equal(source.info.labels(), y)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", ">i2", "<f2", "f4", ">f8", "?"])
def test_npz(write: Any, order: str, dtype: str) -> None:
    x, y = arrays(dtype, order), np.arange(N) % 7
    write("a.npz", x=x, y=y.astype(dtype))
    expected = y.astype(dtype).astype(np.int64)
    compare(datasets.npz("a.npz", validation_split=0, scale=0.5), x, expected, 0.5)
    small = datasets.npz("a.npz", validation_split=0).classes
    assert callable(small) and small() == expected.max() + 1


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy(order: str) -> None:
    x, y = arrays("f4", order), np.arange(N) % 7
    for number, part in enumerate(np.split(np.arange(N), [10, 35])):
        np.save(f"x{number}.npy", np.asarray(x[part], order=order))  # type: ignore[call-overload]
        np.save(f"y{number}.npy", y[part])
    splits = datasets.npy("x*.npy", ["y2.npy", "y[01].npy"], validation_split=0)
    compare(splits, x, y)
    assert [file.name for file in splits.train.info.files()] == [
        f"{a}{n}.npy" for a in "xy" for n in range(3)
    ]
    assert (
        splits.train.info.place(9) == "x0.npy, row 9"
        and splits.train.info.place(35) == "x2.npy, row 0"
    )
    held = datasets.npy("x0.npy", "y0.npy", None, "x1.npy", "y1.npy")
    assert len(held.train) == 10 and np.array_equal(held.validation[[24]][0], x[[34]])
    assert held.count_classes() == 7


def test_a_small_array_in_the_order_of_fortran_needs_no_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_arrays, "LARGE", 1 << 40)
    x = arrays("f4", "F")
    np.save("x.npy", x)
    assert np.array_equal(datasets.npy("x.npy", validation_split=0).train.x, x)
    assert not Path("cache").exists()


def in_both(path: str, **arguments: Any) -> tuple[Any, Any]:
    """Return the splits from the file, and from memory."""
    stored = datasets.npz(path, **arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_arrays, "LARGE", 1 << 40)
        return stored, datasets.npz(path, **arguments)


def test_a_split_is_that_of_arrays_in_memory() -> None:
    np.savez("a.npz", x=IMAGES, y=np.arange(N) % 5, w=np.arange(N) * 0.5)
    stored, memory = in_both("a.npz", weight="w", scale=0.25, validation_split=0.3, split_seed=5)
    for part in ("train", "validation"):
        one, other = getattr(stored, part), getattr(memory, part)
        x, y, weight = one[np.arange(len(other))]
        assert np.array_equal(x, other.x) and np.array_equal(y, other.y)
        assert np.array_equal(weight, other.weight) and weight.dtype == np.float32
        assert len(one) == len(other)
    assert stored.count_classes() == memory.count_classes() == 5
    assert len(stored.train.subset(np.array([3, 1]))) == 2
    assert datasets.npz("a.npz", validation_split=0).validation is None


#: Targets, as float64: their type for the model, and how many classes.
LABELS: dict[str, tuple[np.ndarray, type, int | None]] = {
    "whole floats": (np.arange(N) % 4 * 1.0, np.int64, 4),
    "floats": (np.arange(N) * 0.5, np.float32, None),
    "negative floats": (np.arange(N) * -0.5, np.float32, None),
    "whole but for the last": (np.append(np.zeros(N - 1), 0.5), np.float32, None),
    "one-hot": (np.eye(N)[:, :3], np.float32, None),
    "whole rows": (np.eye(N, dtype=np.int16)[:, :3], np.int64, None),
    "booleans": (np.arange(N) % 2 == 0, np.int64, 2),
}


@pytest.mark.parametrize("case", LABELS)
def test_targets_are_those_in_memory(case: str) -> None:
    y, dtype, classes = LABELS[case]
    np.savez("a.npz", x=IMAGES, y=y)
    stored, memory = in_both("a.npz", validation_split=0)
    found = stored.train[WANTED][1]
    assert np.array_equal(found, memory.train.y[WANTED]) and found.dtype == dtype
    assert memory.train.y.dtype == dtype
    assert stored.count_classes() == memory.count_classes() == classes


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_targets_that_can_be_none_are_refused_as_in_memory(value: float) -> None:
    np.savez("a.npz", x=IMAGES, y=np.append(np.zeros(N - 1), value))
    stored = datasets.npz("a.npz", validation_split=0)
    with pytest.raises(UsageError) as caught:
        stored.train[np.array([0])]
    with pytest.raises(UsageError) as other:
        in_both("a.npz")
    assert str(caught.value) == str(other.value)


def test_a_row_of_targets_that_is_not_finite_is_named() -> None:
    y = np.zeros((N, 3))
    y[17, 1] = np.nan
    np.savez("a.npz", x=IMAGES, y=y)
    train = datasets.npz("a.npz", validation_split=0).train
    train[np.array([16, 18])]
    with pytest.raises(DataError, match=r"^a\.npz, row 17: y is NaN or infinite there$"):
        train[np.array([16, 17])]


def test_structures() -> None:
    np.savez("a.npz", a=IMAGES, b=np.arange(N) * 2, y=np.arange(N), z=np.arange(N) + 0.5)
    stored, memory = in_both(
        "a.npz", inputs={"pixels": "a", "more": {"n": "b"}}, target=["y", "z"], weight=["z", "z"]
    )
    for part in (stored.validation, memory.validation):
        assert len(part) == 12
    found = stored.validation[np.arange(12)]
    assert np.array_equal(found[0]["pixels"], memory.validation.x["pixels"])
    assert np.array_equal(found[0]["more"]["n"], memory.validation.x["more"]["n"])
    for one, other in zip(
        found[1] + found[2], memory.validation.y + memory.validation.weight, strict=True
    ):
        assert np.array_equal(one, other)
    assert isinstance(found[1], tuple) and stored.validation.info.labels() is None
    assert stored.count_classes() is None and memory.count_classes() is None
    bare, memory = in_both("a.npz", inputs="a", target=None, validation_split=0)
    assert len(bare.train[WANTED]) == 1 and memory.train.y is None
    weighted = datasets.npz("a.npz", inputs="a", target=None, weight="z").train[[3, 1]]
    assert weighted[1] is None and weighted[2].dtype == np.float32


def test_validation_arrays() -> None:
    np.savez("a.npz", x=IMAGES, y=np.arange(N) % 9, v=IMAGES[:9], u=np.arange(9) + 4, w=np.ones(9))
    stored, memory = in_both(
        "a.npz", validation_inputs="v", validation_target="u", validation_weight="w"
    )
    assert np.array_equal(stored.validation[np.arange(9)][0], memory.validation.x)
    assert len(stored.validation[[0]]) == len(memory.validation._parts()) == 3
    assert stored.count_classes() == memory.count_classes() == 13


def test_the_controller_reads_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed("a.npz", x=IMAGES, y=np.arange(N))
    np.save("x.npy", IMAGES)
    np.save("y.npy", np.arange(N))

    def never(*_: object) -> Any:
        pytest.fail("rows were read")

    for name in ("__getitem__", "whole"):
        monkeypatch.setattr(file_arrays.FileArray, name, never)
    for splits in (datasets.npz("a.npz"), datasets.npy("x.npy", "y.npy")):
        assert len(splits.train) == 48 and len(splits.validation) == 12
        pickle.dumps(splits)
    assert not Path("cache").exists()


def test_an_archive_is_unpacked_once() -> None:
    np.savez_compressed("a.npz", x=IMAGES, y=np.arange(N))
    datasets.npz("a.npz").train[[3, 1]]
    found = {path: path.stat().st_ino for path in Path("cache").glob("*.npy")}
    assert len(found) == 2
    datasets.npz("a.npz").train[[1]]
    assert {path: path.stat().st_ino for path in Path("cache").glob("*.npy")} == found
    np.savez_compressed("a.npz", x=IMAGES + 1, y=np.arange(N))
    assert np.array_equal(datasets.npz("a.npz", validation_split=0).train[[3]][0], IMAGES[[3]] + 1)
    assert len(list(Path("cache").glob("*.npy"))) == 4


def test_small_compressed_arrays_of_a_large_file_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed("a.npz", x=IMAGES, y=np.arange(N), w=np.arange(N, dtype=np.uint8))
    monkeypatch.setattr(file_arrays, "LARGE", IMAGES.nbytes)
    train = datasets.npz("a.npz", weight="w", validation_split=0).train
    assert np.array_equal(train[WANTED][1], WANTED)
    assert len(list(Path("cache").glob("*.npy"))) == 1


def test_several_threads_may_read() -> None:
    x = np.arange(40_000).reshape(400, 100)
    np.savez("a.npz", x=x, y=np.arange(400))
    train = datasets.npz("a.npz", validation_split=0).train
    assert train.thread_safe
    wrong = []

    def read(seed: int) -> None:
        for at in np.random.default_rng(seed).integers(0, 400, (50, 16)):
            taken = train[at]
            if not (np.array_equal(taken[0], x[at]) and np.array_equal(taken[1], at)):
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_file_that_is_cut_off_later() -> None:
    np.savez("a.npz", x=IMAGES, y=np.arange(N))
    np.save("x.npy", IMAGES)
    train = datasets.npz("a.npz", validation_split=0).train
    other = datasets.npy("x.npy", validation_split=0).train
    other[WANTED]
    again = pickle.loads(pickle.dumps(other))
    for name in ("a.npz", "x.npy"):
        with open(name, "r+b") as file:
            file.truncate(500)
    with pytest.raises(UsageError, match=r"^dataset.path=a\.npz: cannot be read as .npz"):
        train[WANTED]
    with pytest.raises(DataError, match=r"^x\.npy: was cut off: it has 500 bytes, not 1,328$"):
        other[np.array([0, 59])]
    with pytest.raises(DataError, match=r"^x\.npy: is shorter than its header says$"):
        again[WANTED]
    Path("x.npy").unlink()
    with pytest.raises(DataError, match=r"^x\.npy: cannot be read \(No such file"):
        pickle.loads(pickle.dumps(other))[WANTED]


def refusal(name: str, *arguments: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        splits = getattr(datasets, name)(*arguments, **options)
        splits.train[np.array([0])]
    return str(caught.value)


def test_damage_is_found_when_it_is_unpacked() -> None:
    np.savez_compressed("a.npz", x=IMAGES, y=np.arange(N))
    with zipfile.ZipFile("a.npz") as archive:
        info = archive.getinfo("x.npy")
    data = bytearray(Path("a.npz").read_bytes())
    data[info.header_offset + 400] ^= 255
    Path("a.npz").write_bytes(data)
    found = refusal("npz", "a.npz")
    assert found.startswith("dataset.path=a.npz: cannot be read as .npz ("), found
    assert not list(Path("cache").glob("*.npy"))


def test_a_head_that_says_too_much() -> None:
    np.save("b.npy", np.zeros(4))
    data = Path("b.npy").read_bytes().replace(b"(4,)", b"(9,)")
    Path("x.npy").write_bytes(data)
    with zipfile.ZipFile("a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", data)
    problem = "x: its header says 72 bytes, and it has 160"
    assert problem in refusal("npz", "a.npz", y=None)
    assert "its header says 72 bytes, and it has 160" in refusal("npy", "x.npy")


#: Arguments of npy, and what is said of them.
REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("text.npy",), {}, "dataset.path=text.npy: cannot be read as .npy ("),
    (("one.npy",), {}, "dataset.path=one.npy: cannot be read as .npy (it holds a single value)"),
    (("words.npy",), {}, "dataset.path=words.npy: has type <U1"),
    (("x.npy", "objects.npy"), {}, "dataset.target=objects.npy: cannot be read as .npy (it h"),
    (("x.npy", "short.npy"), {}, "dataset.target=short.npy: has 3 rows and the inputs 60"),
    ((["x.npy", "short.npy"],), {}, "dataset.path=x.npy: has rows of shape (5, 4)"),
    (("x.npy",), {"validation": "short.npy"},
     "dataset.validation=short.npy: holds examples of shape ()"),
    (("x.npy", "y.npy"), {"validation": "x.npy"},
     "dataset.validation_target=None: is missing beside dataset.validation=x.npy"),
    (("x.npy", "y.npy"), {"validation_target": "y.npy"},
     "dataset.validation=None: is missing beside dataset.validation_target=y.npy"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_is_refused_of_npy(case: int) -> None:
    for name, array in {"x": IMAGES, "y": np.arange(N), "short": np.arange(3), "one": np.array(1),
                        "words": np.array(["a"]), "objects": np.array([None])}.items():  # fmt: skip
        np.save(f"{name}.npy", array)
    Path("text.npy").write_text("no array")
    arguments, options, expected = REFUSED[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = refusal("npy", *arguments, **options)
    assert found.startswith(expected), found


def test_what_is_refused_of_structures() -> None:
    np.savez("a.npz", x=IMAGES, y=np.arange(N), short=np.arange(3))
    for options, expected in (
        ({"inputs": {"a": "x", "b": "y"}, "validation_inputs": "x", "validation_target": "y"},
         "dataset.validation_inputs=x: is no structure like that of {'a': 'x', 'b': 'y'}"),
        ({"inputs": ["x", "short"]}, "dataset.inputs=short: has 3 rows and the inputs 60"),
        ({"weight": "short"}, "dataset.weight=short: has 3 rows and the inputs 60"),
        ({"target": {"a": "y", "b": "z"}}, "dataset.target=z: a.npz has no array of that name"),
        ({"validation_weight": "y"},
         "dataset.validation_inputs=None: is missing beside dataset.validation_weight=y"),
    ):  # fmt: skip
        found = refusal("npz", "a.npz", **options)  # type: ignore[arg-type]
        assert found.startswith(expected), found
