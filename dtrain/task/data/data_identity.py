"""The identity of a run's data: its size, its structure, and a hash of a sample of its content.

A sample of files is the bytes at some places of each, whatever becomes of them; of data without
files it is some examples, spread evenly. It is the same on every host: times are no part of it, as
a copy has others. It is compared with that of the run before, and between hosts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.config import tree
from dtrain.config.tree import Config
from dtrain.data import nest
from dtrain.data.files import DataFile, reading
from dtrain.data.mixture import Concatenated
from dtrain.data.sources import Source, Splits
from dtrain.data.streams import Stream, examples_in
from dtrain.errors import refuse
from dtrain.files.fields import Json
from dtrain.run import identity
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.cluster import Cluster
from dtrain.task.backends.base import Tasks
from dtrain.task.data.reading import arrays, first

#: Of a sample: places in each file at most, bytes at each, and examples.
PLACES, BYTES, EXAMPLES = 16, 1 << 16, 256
#: Files of a sample that are looked into, and places in all of them: each start of each task reads
#: them.
MOST = 1024
#: Characters of a structure that a record has; the digest is of all.
_TEXT = 10_000

#: What of the configuration decides what a metric of given examples and weights is.
_DECLARED = (
    "model", "trainer.loss", "trainer.loss_weights", "trainer.metrics", "hardware.precision"
)  # fmt: skip
#: Keys of datasets that say nothing of which examples are evaluated: where they are, and how those
#: of the training are drawn.
_NOT_EVALUATED = (
    "path", "validation", "data_dir", "augment", "shuffle", "window", "balance",
)  # fmt: skip


def records(splits: Splits) -> dict[str, Json]:
    """Return what the data is, by split.

    Args:
        splits: as they are read, without what changes examples.

    Raises:
        DataError: it cannot be read.
    """
    by_split = {"train": _record(splits.train)}
    if splits.validation is not None:
        by_split["validation"] = _record(splits.validation)
    if splits.columns is not None:
        by_split["train"]["columns"] = splits.columns
    return by_split


def _record(source: Source | Stream) -> Json:
    row = np.zeros(1, np.int64)
    one = first(source, 1) if isinstance(source, Stream) else arrays(source, row)
    examples = examples_in(source)
    structure = nest.outline(one)  # the first axis is that of the batch, of one example
    digest = _digest(source)
    digest.update(f"{examples}\0{structure}".encode())
    return {"examples": examples, "structure": structure[:_TEXT], "digest": digest.hexdigest()}


def _digest(source: Any) -> hashlib.blake2b:
    """Return a hash of a sample of the content of a source."""
    if isinstance(source, Concatenated):  # of which some members may be of files, and some not
        members = b"".join(_digest(member).digest() for member in source.members)
        return hashlib.blake2b(members, digest_size=16)
    if isinstance(source, Stream):
        return nest.digest([first(source, EXAMPLES)])
    if files := source.info.files():
        digest = of_files(files)
        digest.update(source.info.reading.encode())
        return digest
    return nest.digest([arrays(source, sampled(len(source), EXAMPLES))])


def sampled(count: int, most: int) -> np.ndarray:
    """Return the indices of a sample of ``count``, int64: spread evenly, the last one too."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))


def of_files(files: Sequence[DataFile]) -> hashlib.blake2b:
    """Return a hash of the names and sizes of files, in their order, and of a sample of each.

    Raises:
        DataError: one cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    sample = set(sampled(len(files), MOST).tolist())  # of very many, as images are
    places = min(PLACES, MOST // len(sample))
    for number, file in enumerate(files):
        size = file.size()
        digest.update(f"{file.name.rpartition('/')[2]}\0{size}\0".encode(errors="replace"))
        begins: Sequence[int] = range(0, size, BYTES)
        if size > places * BYTES:  # the first bytes, the last ones, and some between
            begins = [(size - BYTES) * place // max(1, places - 1) for place in range(places)]
        if number in sample:
            with reading(file.name), file.open() as opened:
                for begin in begins:
                    opened.seek(begin)
                    digest.update(opened.read(BYTES))
    return digest


def difference(one: Json | None, other: Json | None) -> str | None:
    """Return how two records of a split differ, as a clause about ``one``; None if they do not."""
    one, other = one or {"examples": 0}, other or {"examples": 0}
    if one.get("digest") == other.get("digest"):
        return None
    for name, text in (("examples", "{:,} examples"), ("structure", "examples of {}")):
        if one.get(name) != other.get(name):
            here, there = (
                f"an unknown number of {name}" if (v := each.get(name)) is None else text.format(v)
                for each in (one, other)
            )
            return f"has {here}, where it is {there}"
    return "has other content"


def evaluated(config: Config, by_split: dict[str, Json]) -> str:
    """Return a digest of the examples that are evaluated, wherever they are; empty for none.

    Two models whose metrics are to be compared were evaluated on the same ones.

    Args:
        config: of the run or the command.
        by_split: of :func:`records`.
    """
    if "validation" not in by_split:
        return ""
    node = identity.deciding(tree.select(config, "dataset"))
    declared = {name: value for name, value in node.items() if name not in _NOT_EVALUATED}
    text = json.dumps([by_split["validation"]["digest"], declared], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def declared(config: Config) -> str:
    """Return a hash of what decides the metrics of given weights and examples."""
    fingerprints = identity.fingerprints(config)
    decides = {name: fingerprints[name] for name in _DECLARED}
    text = json.dumps(decides, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def check_past(
    by_split: dict[str, Json], past: Checkpoint | None, accepted: bool, forked: bool
) -> str | None:
    """Compare the data with that of the checkpoint that the run continues from.

    Args:
        by_split: records of now.
        past: the checkpoint; None where the run begins.
        accepted: ``dataset.accept_changes``.
        forked: it is of another run.

    Returns:
        A sentence about what changed, where that is accepted.

    Raises:
        UsageError: the data has changed, and a run of one history would be trained on two.
    """
    saved = {} if past is None else past.meta.get("data", {})
    changes = {
        split: changed.replace("where it is", "where it was")
        for split, before in saved.items()  # a fork may do without a split
        if split in by_split and (changed := difference(by_split[split], before)) is not None
    }
    sentence = "; ".join(f"the {split} data {changed}" for split, changed in changes.items())
    if changes and not (accepted or forked):
        problem = sentence if len(changes) > 1 else f"the data {next(iter(changes.values()))}"
        refuse("dataset", f"{problem} when the checkpoint was saved", ", ".join(changes),
               accepted="the data that the run began with", hint="dataset.accept_changes=true to "
               "continue with other data, or fork=RUN_DIR")  # fmt: skip
    return sentence or None


def check_hosts(by_split: dict[str, Json], tasks: Tasks, cluster: Cluster) -> None:
    """Compare the data of all tasks that read some; each must call it at the same point.

    Args:
        by_split: records of this task.
        tasks: that read.
        cluster: all tasks.

    Raises:
        UsageError: that of another host is other data, on every task.
    """
    names = [task.name for task in cluster.tasks if not task.serves]
    chief, *others = tasks.gather(by_split)
    for name, other in zip(names[1:], others, strict=True):
        for split in ("train", "validation", "test"):
            differs = difference(other.get(split), chief.get(split))
            if differs is not None:
                data = "training" if split == "train" else split
                differs = differs.replace("where it is", "where the chief has")
                refuse("dataset", f"the {data} data is not the chief's: this task {differs}", name,
                       accepted="the same data on every host; a shuffle with a seed",
                       hint="copy the chief's files to every host, or use a path that all "
                       "share")  # fmt: skip


def check_stream(splits: Splits, alone: bool) -> str | None:
    """Return what is to be reported of a stream that gives other examples each time it is made.

    Args:
        splits: of which some are streams.
        alone: whether one process reads it, once.

    Raises:
        UsageError: several hosts would read different examples.
    """
    both = {"training": splits.train, "validation": splits.validation}
    for split, source in both.items():
        if not isinstance(source, Stream) or source.steady is not False:
            continue
        if not alone:
            refuse("dataset", "gives other examples each time it is read, and every host reads it",
                   f"{split} stream", accepted="a stream that is the same for all",
                   hint="a seed for its shuffle, or for the generator's own draws")  # fmt: skip
        return (
            f"the {split} stream gives other examples each time it is read: a resumed run does not "
            "continue where it was; give its shuffle a seed"
        )
    return None
