"""Text as tokens that follow each other: of a file, or a made-up sample that needs none."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

import numpy as np

from dtrain.data.files import DataFile, Paths, divided, files
from dtrain.data.holdout import Holdout
from dtrain.data.sources import Splits, Windows
from dtrain.errors import UsageError, nearest, refuse

#: Bytes of a text whose characters the controller counts, at most.
SMALL = 64 << 20
#: Words of :func:`sample`.
WHO = "baker bear bird captain cat cow doctor dog duck farmer friend frog goat hunter king"
HOW = "brave clever cold gentle green happy little lost proud quiet strange tired"
DO = "admire draw find follow forget help hide like paint remember see want"
WHAT = "apple boat book candle door garden hat lamp letter picture ring stone"
WHERE = "barn bridge castle church forest harbour house market mill river road village"
THEN = "dream laugh listen run shout sing sleep speak stop travel wait work"


def text(
    path: Paths | None = None, tokens: str = "bytes", length: int = 64, stride: int | None = None,
    validation: Paths | None = None, validation_split: float = 0.1,
) -> Splits:  # fmt: skip
    """Windows of a text: for each token, the next one is to be predicted.

    The first part of the text is trained on and the last is held out; no window reaches into both.

    Args:
        path: a text file, a pattern, or a list of them, which are one text in the order of their
            names; a folder with the files in ``train/`` and ``val/``; None for :func:`sample`.
        tokens: ``bytes`` (256 classes, of any file) or ``characters`` (of UTF-8; their classes are
            in the order of their code points. All of the file is looked at for that: what is held
            out has no character that is not a class).
        length: tokens of an example, int32 ``[length]``. Its targets are as many, one further on.
        stride: from the first token of an example to that of the next; ``length`` if None.
        validation: files to evaluate on; None: the end of the text.
        validation_split: fraction to hold out.

    Raises:
        UsageError: there is no such file, or no example in it; it is no UTF-8; an argument is out
            of range.
    """
    stride = length if stride is None else stride
    if tokens not in ("bytes", "characters"):  # typed in Python: no schema has seen it
        near = nearest(tokens, ("bytes", "characters")) or "bytes"
        refuse("dataset.tokens", "is no kind of token", tokens, typed=f"dataset.tokens={near}")
    Holdout(validation_split)
    if isinstance(path, str) and (folders := divided(path)):
        path, *parts = [f"{folder}/*" for folder in folders]
        validation = validation or next(iter(parts), None)
    beside = [] if validation is None else files(validation, "dataset.validation")
    given = [*([] if path is None else files(path)), *beside]
    read = functools.cache(lambda: _bytes(given))
    size = sum(file.size() for file in given) if given else len(read())

    def held_of(count: int) -> int:
        """Return how many of the tokens, which are the last, are evaluated on."""
        if not beside:
            return round(count * validation_split)
        if tokens == "bytes":
            return sum(file.size() for file in beside)
        return len(_bytes(beside).decode())

    classes: int | Callable[[], int]
    count: int | None
    if tokens == "bytes":
        classes, count = 256, size
        whole = functools.cache(lambda: np.frombuffer(read(), np.uint8))
    else:
        both = functools.cache(lambda: _characters(read(), path))
        whole = functools.cache(lambda: both()[0])
        if size > SMALL:  # the task reads it
            classes, count = lambda: both()[1], None
        else:
            classes, count = both()[1], len(whole())

    def cut(count: int) -> int:
        """Return how many of the tokens, which are the first, are trained on."""
        held = held_of(count)
        _check_room(count - held, "to train on", tokens, length, path)
        if held:
            _check_room(held, "to evaluate on", tokens, length, path)
        return count - held

    first = None if count is None else cut(count)
    last = None if count is None or first is None else count - first
    return Splits(
        Windows(lambda: whole()[: cut(len(whole()))], length, stride, first),
        Windows(lambda: whole()[cut(len(whole())) :], length, stride, last)
        if held_of(count or 1 << 20) else None,
        classes,
    )  # fmt: skip


def _bytes(given: Sequence[DataFile]) -> bytes:
    """Read files one after the other; none of them is the sample."""
    if not given:
        return sample().encode()
    parts = []
    for file in given:
        with file.open() as opened:
            parts.append(opened.read())
    return b"".join(parts)


def sample(characters: int = 200_000, seed: int = 0) -> str:
    """Make up English, which is the same everywhere.

    Two sentences about somebody belong together: verbs and the pronoun agree with the subject, and
    the second may come back to a thing of the first.

    Args:
        characters: at least so many, all of them ASCII.
        seed: of the choices.
    """
    draw = random.Random(seed).random  # the only numbers that no version of Python may change

    def one(words: str) -> str:
        choice = words.split()
        return choice[int(draw() * len(choice))]

    pairs: list[str] = []
    size = 0
    while size < characters:
        many, back, thing = draw() < 0.5, draw() < 0.5, one(WHAT)
        subject = f"Some {one(HOW)} {one(WHO)}s" if many else f"The {one(HOW)} {one(WHO)}"
        pronoun, ending = ("They", "") if many else ("It", "s")
        first = f"{subject} {one(DO)}{ending} the {thing} in the {one(WHERE)}."
        second = f"{one(DO)}{ending} the {thing}" if back else f"{one(THEN)}{ending}"
        pairs.append(f"{first} {pronoun} {second}.\n")
        size += len(pairs[-1])
    return "".join(pairs)


def _characters(data: bytes, path: object) -> tuple[np.ndarray, int]:
    """Return the number of each character, int32 ``[n]``, and how many different ones there are."""
    try:
        points = np.frombuffer(data.decode().encode("utf-32-le"), np.uint32)
    except UnicodeDecodeError as error:
        at = error.start
        raise UsageError("dataset.path", f"is no UTF-8 (byte 0x{data[at]:02x} at offset {at:,})",
                         path, accepted="text in UTF-8, or tokens that are bytes",
                         typed="dataset.tokens=bytes") from None  # fmt: skip
    present = np.zeros(0x110000, np.int32)
    present[points] = 1
    return (np.cumsum(present, dtype=np.int32) - 1)[points], int(present.sum())


def _check_room(n: int, purpose: str, tokens: str, length: int, path: object) -> None:
    """Refuse a part of the text without an example and the token after it."""
    if n < 2:
        refuse("dataset.path", f"has {n} {tokens} {purpose}, which makes no example", path,
               accepted="a longer text, or another dataset.validation_split")  # fmt: skip
    if n <= length:
        refuse("dataset.length", f"the text has {n:,} {tokens} {purpose}, and an example takes one "
               "more than its length", length, accepted=f"1 to {n - 1:,}",
               typed=f"dataset.length={n - 1}")  # fmt: skip
