"""A module of a user's own with sources of several kinds, which tests copy into their folder."""

from __future__ import annotations

import atexit
import os
import pathlib
import random
import signal
import socket
import sys
import threading

import numpy as np

from dtrain.data.nest import Ragged
from dtrain.data.sources import Source, Splits
from dtrain.errors import DataError, UsageError

EXAMPLES = 90


class Kinds(Source):
    """Examples of a kind; 90 to train on, 40 to evaluate on."""

    def __init__(self, kind, examples=EXAMPLES, **held):
        self.kind, self.examples = kind, examples
        vars(self).update(held)

    def __len__(self):
        return self.examples

    def __getitem__(self, rows):
        return getattr(self, self.kind)(rows)

    def numbers(self, rows):
        x = np.stack([np.random.default_rng(int(row)).normal(size=(5, 3)) for row in rows])
        return x.astype("float32"), rows, 1.0 / (1 + rows)

    def lists(self, rows):
        return [[row, row / 2] for row in rows.tolist()], [int(row) for row in rows], None

    def texts(self, rows):
        words = [f"row {row} \u00e9" * (int(row) % 4) for row in rows]
        several = {
            "text": np.array(words, object),
            "fixed": np.array(words),
            "bytes": np.array([word.encode() + b"\0\xff" for word in words], object),
        }
        return several, rows % 3

    def nested(self, rows):
        image = np.add.outer(rows, np.arange(12)).reshape(-1, 4, 3).astype("uint8")
        return {"b": image, "a": [image[:, ::2], image.swapaxes(1, 2)]}, (rows, rows * 0.5)

    def ragged(self, rows):
        tokens = Ragged.of([np.arange(int(row) % 7 + 1) + row for row in rows])
        return {"tokens": tokens, "row": rows}, rows

    def large(self, rows):
        return np.repeat(rows, 100_000).reshape(len(rows), -1).astype("float32"), rows

    def state(self, rows):
        return self.held[rows], rows

    def unlike(self, rows):
        return self.draw(len(rows)), rows

    def within(self, rows):
        names = ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "DTRAIN_STARTED", "PYTHONSAFEPATH"]
        if len(rows) == 1:  # of a trial
            return np.zeros(1, object), rows
        found = [os.environ.get(name) for name in names]
        found += [name for name in ("tensorflow", "omegaconf") if name in sys.modules]
        return np.array([found] * len(rows)), rows

    def torn(self, rows):
        if 45 in rows:
            raise DataError("example 45", "is torn")
        return rows, rows

    def together(self, rows):
        if len(rows) > 1:
            with socket.socket(socket.AF_UNIX) as meeting:
                meeting.connect("meeting")
                meeting.recv(1)
        return rows[:, None].astype("float32"), rows

    def failing(self, rows):
        if len(rows) == 1:
            return rows, rows
        problem = {
            2: DataError("FILE, row 7", "is cut short"),
            3: UsageError("dataset.path", "is gone", "a", accepted="a file", hint="b"),
            4: ValueError("no such thing"),
            5: Odd("what", "ever"),
            6: MemoryError(),
        }
        if len(rows) in problem:
            raise problem[len(rows)]
        if len(rows) == 7:
            sys.exit(3)
        if len(rows) == 8:
            os.kill(os.getpid(), signal.SIGSEGV)
        if len(rows) == 9:
            pathlib.Path("stuck").touch()
            threading.Event().wait()
        return rows, rows


class Odd(Exception):
    """Cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def plain(kind):
    with open("calls", "a") as file:
        file.write("called\n")
    return Splits(Kinds(kind), Kinds(kind, 40), 3)


def held(how, examples=EXAMPLES):
    """Sources that hold something."""
    draws = np.random.default_rng()
    if how == "array":
        return Kinds("state", held=np.arange(200.0))
    if how == "mapped":
        np.save("held.npy", np.arange(200.0))
        return Kinds("state", held=np.load("held.npy", mmap_mode="r")[3:])
    if how == "unseeded":
        return Kinds("state", held=draws.normal(size=200))
    if how == "unseeded, not to be pickled":
        return Kinds("state", held=draws.normal(size=200), other=lambda: 0)
    if how == "unseeded draws":
        return Kinds("unlike", draw=lambda count: np.random.default_rng().normal(size=count))
    if how == "a lambda":
        return Kinds("unlike", draw=lambda count: np.ones((count, 2)))
    if how == "a file":
        return Kinds("numbers", file=open("held.txt", "w"))
    if how == "other length":
        folder = pathlib.Path("calls")
        folder.mkdir(exist_ok=True)
        (folder / str(os.getpid())).touch()
        return Kinds("numbers", len(list(folder.iterdir())) + 9, other=lambda: 0)
    if how == "only once":
        pathlib.Path("once").rmdir()
        return Kinds("numbers", other=lambda: 0)


def leaving(kind):
    if "pytest" not in sys.modules:
        atexit.register(lambda: pathlib.Path("left", str(os.getpid())).touch())
    return Splits(Kinds(kind, other=lambda: 0), Kinds(kind, 7))


class Noisy:
    def __len__(self):
        return 16

    def __getitem__(self, row):
        return np.float32([np.random.normal(), random.random()]), row


def noisy():
    return Noisy(), Noisy()
