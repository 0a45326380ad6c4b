"""Text as windows of tokens, and what a model's loss on them is."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import datasets
from dtrain.data import text as module
from dtrain.data.sources import Windows
from dtrain.data.streams import known_length
from tests.test_datasets import check_refusal

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write(content: str | bytes, name: str = "a.txt") -> Callable[[], Any]:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda: Path(name).write_bytes(data)


def read(source: Any, alphabet: str = LETTERS, first: int = ord("a")) -> list[tuple[str, str]]:
    """Return all examples of a source as texts."""
    x, y = (np.asarray(part) for part in source[np.arange(len(source))])
    assert x.dtype == y.dtype == np.int32

    def words(rows: np.ndarray) -> list[str]:
        return ["".join(alphabet[token - first] for token in row) for row in rows]

    return list(zip(words(x), words(y), strict=True))


@pytest.mark.task
def test_windows_follow_each_other() -> None:
    write(LETTERS)()
    splits = datasets.text("a.txt", length=5, validation_split=0.25)  # 20 letters (and 6)
    assert splits.classes == 256 and splits.validation is not None
    assert read(splits.train) == [("abcde", "bcdef"), ("fghij", "ghijk"), ("klmno", "lmnop")]
    assert read(splits.validation) == [("uvwxy", "vwxyz")], "none reaches into both parts"
    for stride, count in ((1, 15), (2, 8), (7, 3), (14, 2), (15, 1)):
        source = datasets.text("a.txt", length=5, stride=stride, validation_split=0.25).train
        starts = [i * stride for i in range(count)]
        assert read(source) == [(LETTERS[i : i + 5], LETTERS[i + 1 : i + 6]) for i in starts]
    whole = datasets.text("a.txt", length=25, validation_split=0)
    assert read(whole.train) == [(LETTERS[:-1], LETTERS[1:])] and whole.validation is None
    assert datasets.text("a.txt", length=25, validation_split=0.01).validation is None


@pytest.mark.task
def test_windows_are_cut_in_the_graph_and_from_tensors_elsewhere() -> None:
    import tensorflow as tf

    for kind in (np.uint8, np.int32):
        source = Windows(np.arange(20, dtype=kind), 5, 4)
        elsewhere = Windows(np.zeros(20, kind), 5, 4)
        elsewhere.bind(source.tensors())
        for each in (source, elsewhere):
            dataset = tf.data.Dataset.from_tensors(np.array([2, 0, 2])).map(each.gather)
            assert dataset.element_spec == (tf.TensorSpec([3, 5], tf.int32),) * 2
            [(x, y)] = dataset
            assert x.numpy().tolist() == [[8, 9, 10, 11, 12], [0, 1, 2, 3, 4], [8, 9, 10, 11, 12]]
            assert np.array_equal(y, x + 1)


@pytest.mark.task
def test_characters_are_classes_in_the_order_of_their_code_points() -> None:
    written = "ab\r\naé漢𝄞b" * 3 + "ü"
    write(written)()
    splits = datasets.text("a.txt", tokens="characters", length=2, validation_split=0.1)
    alphabet = "\n\rabéü漢𝄞"
    assert splits.classes == 8 and splits.validation is not None
    starts = range(0, 24, 2)  # of 25 characters
    expected = [(written[i : i + 2], written[i + 1 : i + 3]) for i in starts if i + 3 <= 25]
    assert read(splits.train, alphabet, 0) == expected
    assert read(splits.validation, alphabet, 0) == [("𝄞b", "bü")], "a class that training has not"


def test_the_sample_is_the_same_everywhere() -> None:
    made = module.sample()
    digest = hashlib.sha256(made.encode()).hexdigest()
    assert digest == "b71243d0910b731c15141a1a40486048f2513228c33408ccd1e1007733c2caa0"
    assert len(made) == 200_059 and made.isascii()
    assert module.sample(100, seed=1) != module.sample(100) == made[: len(module.sample(100))]
    # Verbs and pronouns agree, and a second sentence with a thing has that of the first.
    pair = re.compile(
        r"(?:The \w+ \w+ \w+s|Some \w+ \w+s \w+) the (\w+) in the \w+\. "
        r"(?:It \w+s|They \w+)(?: the (\w+))?\."
    )
    things = [pair.fullmatch(line).groups() for line in made.splitlines()]  # type: ignore[union-attr]
    assert {second for first, second in things if first != second} == {None}
    found = datasets.text()
    assert found.validation is not None
    joined = np.concatenate([found.train.tokens, found.validation.tokens])
    assert joined.tobytes() == made.encode()


def test_what_there_is_to_learn_in_the_sample() -> None:
    """The figures of docs/data.md, in nats a character."""

    def entropy(counts: np.ndarray) -> float:
        share = counts[counts > 0] / counts.sum()
        return float(-(share * np.log(share)).sum())

    made = np.frombuffer(module.sample().encode(), np.uint8).astype(np.int64)
    single, pairs = np.bincount(made), np.bincount(made[:-1] * 256 + made[1:])
    lists = (module.WHAT, module.HOW, module.WHO, module.DO, module.WHERE, module.THEN)
    assert len(module.DO.split()) == len(module.THEN.split()), "of which one is the last choice"
    choices = [2, 2, *(len(words.split()) for words in lists)]
    chosen = sum(map(math.log, choices)) * np.sum(made == ord("\n")) / len(made)
    assert (round(entropy(single), 2), round(entropy(pairs) - entropy(single), 2)) == (2.92, 1.78)
    assert round(chosen, 2) == 0.26


@pytest.mark.task
@pytest.mark.parametrize(("kind", "devices"), [("OneDevice", 1), ("Mirrored", 2)])
def test_loss_and_accuracy_are_means_over_tokens(kind: str, devices: int) -> None:
    from tests.test_steps import BATCH, in_order, prepare, settings

    config = settings(
        model={"_target_": "dtrain.models.transformer", "width": 8, "blocks": 1, "heads": 2},
        dataset={"_target_": "dtrain.datasets.text", "length": 8, "validation_split": 0.00085},
    )
    model, _, steps, splits = prepare(kind, devices, config)

    def expected(x: Any, y: Any) -> dict[str, float]:
        chances = np.asarray(model(x))
        of_targets = np.take_along_axis(chances, y[..., None], -1)
        return {"loss": -np.log(of_targets).mean(), "accuracy": np.mean(chances.argmax(-1) == y)}

    before = expected(*in_order(splits.train, 1))
    assert steps.results(steps.train(1)) == pytest.approx(before, rel=1e-5)
    steps.train(20)
    # 21 examples: two batches of 8 and a rest that two replicas do not share evenly.
    held = splits.validation
    assert len(held) == 21
    x, y = (np.asarray(part) for part in held[np.arange(21)])
    after = expected(x, y)
    assert steps.results(steps.evaluate(*divmod(21, steps.evaluation_examples))) == pytest.approx(
        after, rel=1e-5
    )
    assert after["loss"] < before["loss"] and BATCH == 8


#: (what makes the file, function, arguments, key and value, parts of the message, what to type)
REFUSED: dict[str, tuple[Any, ...]] = {
    "empty": (
        write(""), "text", {"path": "a.txt"}, "dataset.path=a.txt",
        ["has 0 bytes to train on, which makes no example"], "a longer text",
    ),
    "empty, of characters": (
        write(""), "text", {"path": "a.txt", "tokens": "characters"}, "dataset.path=a.txt",
        ["has 0 characters"], "a longer text",
    ),
    "all held out": (
        write("ab"), "text", {"path": "a.txt", "validation_split": 0.9}, "dataset.path=a.txt",
        ["has 0 bytes to train on"], "a longer text",
    ),
    "shorter than an example": (
        write(LETTERS), "text", {"path": "a.txt", "length": 26, "validation_split": 0},
        "dataset.length=26",
        ["the text has 26 bytes to train on, and an example takes one more than its length",
         "accepted: 1 to 25"],
        "dataset.length=25",
    ),
    "shorter than an example to evaluate on": (
        write(LETTERS), "text", {"path": "a.txt", "length": 5}, "dataset.length=5",
        ["3 bytes to evaluate on", "accepted: 1 to 2"], "dataset.length=2",
    ),
    "one byte to evaluate on": (
        write("0123456789"), "text", {"path": "a.txt", "length": 5}, "dataset.path=a.txt",
        ["1 bytes to evaluate on", "another dataset.validation_split"], "a longer text",
    ),
    "the sample": (
        None, "text", {"length": 200_058, "validation_split": 0.5}, "dataset.length=200058",
        ["100,029 bytes to train on"], "dataset.length=100028",
    ),
    "no UTF-8": (
        write(b"caf\xe9 and more"), "text", {"path": "a.txt", "tokens": "characters"},
        "dataset.path=a.txt", ["is no UTF-8 (byte 0xe9 at offset 3)"], "dataset.tokens=bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    check_refusal(REFUSED[case])


@pytest.mark.task
def test_several_files_are_one_text() -> None:
    write(LETTERS[:10])()
    write(LETTERS[10:], "b.txt")()
    one = datasets.text("[ab].txt", length=25, validation_split=0)
    assert read(one.train) == [(LETTERS[:-1], LETTERS[1:])]


@pytest.mark.task
def test_the_characters_of_a_large_text_are_counted_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(LETTERS)()
    options = {"length": 5, "tokens": "characters", "validation_split": 0.25}
    known = datasets.text("a.txt", **options)
    monkeypatch.setattr(module, "SMALL", 0)
    found = datasets.text("a.txt", **options)
    assert known_length(found.train) is None
    assert found.count_classes() == known.count_classes() == 26
    assert read(found.train, first=0) == read(known.train, first=0)
    assert read(found.validation, first=0) == read(known.validation, first=0)
