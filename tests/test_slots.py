"""Memory of readers and their task: what is written there is read there, and used again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from dtrain.data.ragged import Ragged
from dtrain.task.data import slots
from tests.test_readers import load, reading, same

__all__ = ["load"]  # a fixture


def test_a_frame() -> None:
    def texts(*words: Any) -> np.ndarray:
        return np.array(words, object)

    whole = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    value = (
        {"none": None, "empty": np.zeros((0, 3)), "texts": texts("a", b"\0", "")},
        (whole, whole.T, whole[:, ::2], np.array(3), np.arange(3, dtype=">f4")),
        np.ones(3, ml_dtypes.bfloat16), Ragged(np.arange(3), np.array([2, 0, 1])),
    )  # fmt: skip
    frame = slots.Frame(value)
    memory = slots.mapped(slots.made(frame.size), frame.size)
    frame.write(memory)
    found = slots.read(np.frombuffer(memory, np.uint8), frame.lengths)
    same(found, value)
    assert found[1][0].ctypes.data % 64 == 0


def test_memory_is_used_again_when_nothing_refers_to_it(load: Any) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("dtrain-reader")

    with reading(load("plain", kind="large"), 1) as pool:
        rows = np.arange(6)
        before = mapped()
        for _ in range(20):
            pool.splits.train[rows]
        assert mapped() == before + 1
        kept = [pool.splits.train[rows + i][0][:, 0] for i in range(5)]
        assert mapped() == before + 5, "of an array that is kept, or a part of it"
        pool.splits.train[np.arange(60)]  # what is too small for it is given up
        assert mapped() == before + 6
        assert [column.tolist() for column in kept] == [(rows + i).tolist() for i in range(5)]
        del kept
        for _ in range(20):
            held = [pool.splits.train[rows] for _ in range(3)]
        assert mapped() == before + 6
        [[child]] = [pool._children]
        assert all(x.ctypes.data % 64 == 0 for x, _ in held), "TensorFlow would copy it"
        links = [os.readlink(link) for link in Path(f"/proc/{child._process.pid}/fd").iterdir()]
        assert not any("/dev/shm" in link for link in links), links
