from __future__ import annotations

import collections
import fnmatch
import hashlib
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from dtrain.errors import CheckpointError
from dtrain.run import checkpoint
from dtrain.run.checkpoint import arrays as arrays_module
from dtrain.run.checkpoint import format

DTYPES = "?bBhHiIlLefd"
META: dict[str, Any] = {"position": 3, "text": "é", "a": {"b": [1.5, None]}, "objective": 0.25}


def arrays(scale: int = 1) -> dict[str, np.ndarray]:
    """Arrays of every kind and layout that NumPy has for numbers."""
    table = np.arange(24).reshape(2, 3, 4) * scale
    found = {f"dtype {code}": table.astype(code) for code in DTYPES}
    return found | {
        "0-d": np.array(3.5 * scale),
        "none": np.zeros((0, 4), np.float32),
        "transposed": table.T,
        "every other": table[:, ::2],
        "big-endian": table.astype(">i4"),
        "path/with é:0": table,
    }


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def test_round_trip(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path / "new" / "folder", 7, arrays(), META)
    assert path == tmp_path / "new" / "folder" / "7"
    assert names(path.parent) == {"7", "latest"}
    assert names(path) == {"state.safetensors", "manifest.json"}
    found = checkpoint.load(path)
    assert (found.step, found.path, found.meta) == (7, path, META)
    assert found.arrays.keys() == arrays().keys()
    for name, array in arrays().items():
        assert found.arrays[name].dtype == array.dtype.newbyteorder("="), name
        assert found.arrays[name].shape == array.shape, name
        assert np.array_equal(found.arrays[name], array), name


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_round_trip_of_what_numpy_has_no_type_for(tmp_path: Path, dtype: Any) -> None:
    array = np.array([[1.5, -2.0, 0.25]]).astype(dtype)
    found = checkpoint.load(checkpoint.save(tmp_path, 1, {"v": array}, {})).arrays["v"]
    assert found.dtype == dtype and np.array_equal(found, array)


def test_it_is_a_file_of_safetensors(tmp_path: Path) -> None:
    """Its own reader finds the same, small arrays and large ones, in memory that is aligned."""
    given = {n: a for n, a in arrays().items() if a.dtype.kind != "c"}
    given["large"] = np.arange(3 * arrays_module.SMALL, dtype=np.int64)
    path = checkpoint.save(tmp_path, 1, given, {})
    found = safetensors.numpy.load_file(path / "state.safetensors")
    assert found.keys() == given.keys()
    for name, array in given.items():
        assert np.array_equal(found[name], array), name
        assert found[name].shape == array.shape, name
    data = (path / "state.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    for name, about in header.items():
        assert (8 + int.from_bytes(data[:8], "little")) % 8 == 0
        assert about["data_offsets"][0] % given[name].dtype.itemsize == 0, name


def test_a_file_that_safetensors_wrote_is_read(tmp_path: Path) -> None:
    given = {n: np.ascontiguousarray(a).reshape(a.shape) for n, a in arrays().items()}
    given = {n: a.astype(a.dtype.newbyteorder("=")) for n, a in given.items()}
    path = checkpoint.save(tmp_path, 1, given, META)
    data = safetensors.numpy.save(given, {"made": "elsewhere"})
    (path / "state.safetensors").write_bytes(data)
    about = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite(path, files={"state.safetensors": about})
    found = checkpoint.load(path).arrays
    assert checkpoint.digest(found) == checkpoint.digest(arrays())


def test_a_state_is_in_memory_once(tmp_path: Path) -> None:
    """It is neither written nor read through copies of the whole."""
    count, size = 8, 1 << 22
    given = {f"{i}": np.full(size, i, np.float32) for i in range(count)}
    whole = sum(array.nbytes for array in given.values())

    def peak(call: Callable[[], Any]) -> tuple[int, Any]:
        tracemalloc.start()
        result = call()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most, result

    most, path = peak(lambda: checkpoint.save(tmp_path, 1, given, {}))
    assert most < whole / 4, "of one array: which of its numbers are finite"
    most, found = peak(lambda: checkpoint.load(path))
    assert most < whole * 1.1
    assert checkpoint.digest(found.arrays) == checkpoint.digest(given)
    most, _ = peak(lambda: collections.deque(checkpoint.pack(found), maxlen=0))
    assert most < whole / 4


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"", b""),
        (b"[]", b""),
        (b"5", b""),
        (b'{"a": 5}', b""),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', bytes(4)),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}', bytes(12)),
        (b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', bytes(4)),
        (b'{"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}', bytes(4)),
        (b'{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}', bytes(4)),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', bytes(2)),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', bytes(9)),
        (b'{"a": {"dtype": "U8", "shape": [99999999999999], "data_offsets": [0, 9]}}', bytes(9)),
        (b"[" * 100_000, b""),
    ],
)
def test_a_file_that_is_none_of_safetensors(tmp_path: Path, header: bytes, data: bytes) -> None:
    """With checksums that fit: they are no secret."""
    path = checkpoint.save(tmp_path, 1, {}, {})
    whole = len(header).to_bytes(8, "little") + header + data
    for state in (whole, whole[:5], b"\xff" * 8):
        (path / "state.safetensors").write_bytes(state)
        about = {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}
        rewrite(path, files={"state.safetensors": about})
        with pytest.raises(CheckpointError, match="of another version; this is dtrain"):
            checkpoint.load(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ml_dtypes.bfloat16])
def test_what_is_not_finite_is_refused(tmp_path: Path, value: float, dtype: Any) -> None:
    checkpoint.save(tmp_path, 1, {"w/kernel": np.ones(3)}, {})
    bad = np.array([0, value, 1]).astype(dtype)
    with pytest.raises(CheckpointError, match="w/kernel is not finite at step 2"):
        checkpoint.save(tmp_path, 2, {"a": np.ones(1), "w/kernel": bad}, {})
    assert names(tmp_path) == {"1", "latest"}


def passed_on(past: checkpoint.Checkpoint) -> checkpoint.Checkpoint | None:
    """Return what another process makes of the bytes of ``past``, all of which it takes."""
    data = b"".join(checkpoint.pack(past))
    pieces = iter([data[begin : begin + 7] for begin in range(0, len(data), 7)])
    found = checkpoint.unpack(pieces)
    assert next(pieces, None) is None
    return found


@pytest.mark.parametrize("dtype", [None, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_packed_for_another_process(dtype: Any) -> None:
    given = arrays()
    if dtype is not None:
        given["special"] = np.array([[1.5, -2.0, 0.25], [0.0, np.inf, 4.0]]).astype(dtype)
    past = checkpoint.Checkpoint(7, Path("/a/b c/é"), given, {**META, "newline": "a\nb"})
    found = passed_on(past)
    assert (found.step, found.path, found.meta) == (past.step, past.path, past.meta)
    assert found.arrays.keys() == given.keys()
    for name, array in given.items():
        assert found.arrays[name].dtype == array.dtype.newbyteorder("="), name
        assert found.arrays[name].shape == array.shape, name
        assert np.array_equal(found.arrays[name], array), name
        assert not np.shares_memory(found.arrays[name], array), name


@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
def test_every_damaged_byte_is_found(tmp_path: Path, name: str) -> None:
    path = checkpoint.save(tmp_path, 5, {"a": np.arange(6.0), "b": np.array(1)}, META)
    whole = (path / name).read_bytes()
    for length in range(0, len(whole), 7):
        (path / name).write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            checkpoint.load(path)
    (path / name).write_bytes(whole)
    with (path / name).open("r+b", buffering=0) as file:
        for position in range(len(whole)):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([whole[position] ^ 1 << bit]), position)
                with pytest.raises(CheckpointError):
                    checkpoint.load(path)
            os.pwrite(file.fileno(), whole[position : position + 1], position)
    assert checkpoint.load(path).step == 5


# -- identity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"b": np.arange(6.0)},
        {"a": np.arange(6.0), "b": np.zeros(0)},
        {"a": np.arange(6.0).reshape(2, 3)},
        {"a": np.arange(6.0).view(np.int64)},
        {"a": np.arange(6)},
        {"a": np.array([0, 1, 2, 3, 4, np.nextafter(5, 6)])},
        {"a": np.array([-0.0, 1, 2, 3, 4, 5])},
    ],
)
def test_the_digest_depends_on_all_else(other: dict[str, np.ndarray]) -> None:
    assert checkpoint.digest(other) != checkpoint.digest({"a": np.arange(6.0)})


def test_the_digest_is_saved_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoint.save(tmp_path, 1, arrays(), META)
    assert format.read_manifest(path)["digest"] == checkpoint.digest(arrays())
    assert checkpoint.digest(checkpoint.load(path).arrays) == checkpoint.digest(arrays())
    # As if another version of safetensors read whole files in another way.
    decode = format.decode
    monkeypatch.setattr(format, "decode", lambda *given: {**decode(*given), "0-d": np.array(0)})
    with pytest.raises(CheckpointError, match=f"{path} does not match its digest"):
        checkpoint.load(path)


def rewrite(path: Path, **changes: Any) -> None:
    """Write the manifest with other values, None for none, and a checksum that fits."""
    manifest = {**json.loads((path / "manifest.json").read_text()), **changes, "sha256": None}
    manifest = {k: v for k, v in manifest.items() if v is not None or k == "sha256"}
    text = json.dumps(manifest, sort_keys=True)
    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest, indent=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"meta": []}, "manifest.json: meta a list is not a mapping"),
        ({"files": None}, "manifest.json: files is not there"),
        ({"files": {}}, "1: KeyError*(written by dtrain 0.0.9; this is dtrain"),
        ({"step": None}, "manifest.json: step is not there"),
        ({"dtypes": {"none": 5}}, "manifest.json: dtypes.none 5 is not text"),
        ({"dtypes": {"absent": "bfloat16"}}, "1: KeyError*(written by dtrain 0.0.9; this is"),
        ({"digest": None}, "digest is not there (written by dtrain 0.0.9; this is dtrain"),
    ],
)
def test_one_of_another_version_is_told(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = checkpoint.save(tmp_path, 1, arrays(), {"versions": {"dtrain": "0.0.9"}})
    rewrite(path, **changes)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path)
    assert fnmatch.fnmatchcase(str(caught.value), f"*{message}*")


# -- numbers that are none -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [
        "f2",
        "f4",
        "f8",
        "c8",
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e4m3fn,  # has NaN, and no infinity
        ml_dtypes.float8_e4m3fnuz,
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_that_is_not_finite_is_named(value: float, dtype: Any) -> None:
    with np.errstate(all="ignore"):
        bad = np.array([[0, 1], [value, 2]]).astype(dtype)
    good = np.ones((2, 2)).astype(dtype)
    assert checkpoint.non_finite({"a": good, "c": bad, "b": bad}) == "c"
    assert checkpoint.non_finite({"a": good, "b": good[:0]}) is None
    assert checkpoint.non_finite({"0-d": bad[1, 0].reshape(())}) == "0-d"
