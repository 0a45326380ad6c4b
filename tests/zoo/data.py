"""Small datasets for the models of the zoo, drawn by NumPy's stable raw generator."""

from __future__ import annotations

from typing import Any

import numpy as np

from dtrain.data.sources import Arrays, Source, Splits

TRAIN, HELD = 96, 21


def _rows(*shape: int) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(7))
    return generator.standard_normal((TRAIN + HELD, *shape)).astype(np.float32)


def _splits(*parts: np.ndarray, classes: int | None = None) -> Splits:
    return Splits(
        Arrays(*(part[:TRAIN] for part in parts)),
        Arrays(*(part[TRAIN:] for part in parts)),
        classes,
    )


def points() -> Splits:
    """Three classes of eight numbers each."""
    x = _rows(8)
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    return _splits(x, y, classes=3)


def halves() -> Splits:
    """Two classes, whose targets are numbers in rows of one."""
    x = _rows(8)
    return _splits(x, (x[:, :1] > 0).astype(np.float32), classes=1)


def lines() -> Splits:
    """A number to be predicted."""
    x = _rows(8)
    return _splits(x, x[:, :1] * 2 - x[:, 1:2], classes=1)


def images() -> Splits:
    """Three classes of pictures."""
    x = _rows(8, 8, 1)
    y = (x.mean((1, 2, 3)) > 0).astype(np.int64) + (x[:, 0, 0, 0] > 0)
    return _splits(x, y, classes=3)


def masks() -> Splits:
    """Pictures, and for each pixel whether it is light."""
    x = _rows(8, 8, 1)
    return _splits(x, (x > 0.3).astype(np.float32), classes=1)


def tokens() -> Splits:
    """Sequences of tokens of different lengths, padded by 0, and their class."""
    raw = np.abs(_rows(6) * 5).astype(np.int64) % 10 + 1
    lengths = np.abs(_rows(1)[:, 0] * 3).astype(np.int64) % 5 + 2
    raw[np.arange(6) >= lengths[:, None]] = 0
    return _splits(raw, raw.sum(1) % 3, classes=3)


def tagged() -> Splits:
    """Sequences of tokens of different lengths, and a class for each token."""
    raw = np.abs(_rows(6) * 5).astype(np.int64) % 10 + 1
    lengths = np.abs(_rows(1)[:, 0] * 3).astype(np.int64) % 5 + 2
    raw[np.arange(6) >= lengths[:, None]] = 0
    return _splits(raw, raw % 3, classes=3)


class Alone(Source):
    """A source of inputs without targets."""

    def __init__(self, x: np.ndarray):
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, indices: np.ndarray) -> tuple[Any]:
        return (self.x[indices],)


def alone() -> Splits:
    """Numbers without a target, of an autoencoder."""
    x = _rows(8)
    return Splits(Alone(x[:TRAIN]), Alone(x[TRAIN:]), None)


def photos() -> Splits:
    """Pictures of whole numbers."""
    x = (_rows(8, 8, 3) * 40 + 128).clip(0, 255).astype(np.uint8)
    y = (x.mean((1, 2, 3)) > 128).astype(np.int64) + (x[:, 0, 0, 0] > 128)
    return _splits(x, y, classes=3)


def boxes() -> Splits:
    """Pictures, and whether there is something on each, with the four edges of its box."""
    x = _rows(8, 8, 1)
    there = (x.mean((1, 2, 3)) > 0).astype(np.float32)
    edges = np.stack([x[:, i, i, 0] for i in range(4)], 1)
    return _splits(x, np.concatenate([there[:, None], edges], 1), classes=5)


def spoken() -> Splits:
    """Five tokens of a source, then a start and four of the target behind each; the target."""
    source = np.abs(_rows(5) * 5).astype(np.int64) % 9 + 1
    target = source[:, ::-1]
    start = np.full((len(source), 1), 10)
    return _splits(np.concatenate([source, start, target[:, :-1]], 1), target, classes=11)


def photos_of_whole_batches() -> Splits:
    """Pictures, of which a multiple of a batch is held out."""
    splits = photos()
    x, y = splits.validation[np.arange(16)]
    return Splits(splits.train, Arrays(x, y), splits.classes)
