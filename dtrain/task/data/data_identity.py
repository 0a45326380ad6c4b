"""The identity of a run's data: recorded, compared with the run's before, and between hosts."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from dtrain.config import load
from dtrain.config.schema import Config
from dtrain.data import identity, nest, options
from dtrain.data.mixture import Concatenated
from dtrain.data.sources import Source, Splits
from dtrain.data.streams import Stream, examples_in
from dtrain.errors import UsageError
from dtrain.run.checkpoint import Checkpoint
from dtrain.run.cluster import Cluster
from dtrain.task.backends.base import Tasks
from dtrain.task.data import reading

#: Keys of datasets that say nothing of which examples are evaluated: where they are, and how those
#: of the training are drawn.
_NOT_EVALUATED = (
    "path", "validation", "data_dir", "augment", "shuffle", "window", "balance",
)  # fmt: skip


def records(splits: Splits) -> dict[str, dict[str, Any]]:
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


def _record(source: Source | Stream) -> dict[str, Any]:
    if isinstance(source, Stream):
        one, examples = reading.first(source, 1), examples_in(source)
    else:
        one, examples = reading.arrays(source, np.zeros(1, np.int64)), len(source)
    structure = nest.outline(one)  # the first axis is that of the batch, of one example
    digest = _digest(source)
    digest.update(f"{examples}\0{structure}".encode())
    return identity.record(examples, structure, digest.hexdigest(), list(source.info.files()))


def _digest(source: Any) -> Any:
    """Return a hash of a sample of the content of a source."""
    if isinstance(source, Concatenated):  # of which some members may be of files, and some not
        members = b"".join(_digest(member).digest() for member in source.members)
        return hashlib.blake2b(members, digest_size=16)
    if isinstance(source, Stream):
        return identity.of_arrays([reading.first(source, identity.EXAMPLES)])
    if not (files := list(source.info.files())):
        return identity.of_arrays([reading.arrays(source, identity.sampled(len(source)))])
    digest = identity.of_files(files)
    digest.update(source.info.reading.encode())
    return digest


def digests(by_split: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return of records what a checkpoint keeps."""
    return {
        split: {name: each[name] for name in ("examples", "structure", "digest")}
        for split, each in by_split.items()
    }


def evaluated(config: Config, by_split: dict[str, dict[str, Any]]) -> str:
    """Return a digest of the examples that are evaluated, wherever they are; empty for none.

    Two models whose metrics are to be compared were evaluated on the same ones.

    Args:
        config: of the run or the command.
        by_split: of :func:`records`.
    """
    if "validation" not in by_split:
        return ""
    node = options.deciding(load.select(config, "dataset"))
    declared = {name: value for name, value in node.items() if name not in _NOT_EVALUATED}
    text = json.dumps([by_split["validation"]["digest"], declared], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def check_past(
    by_split: dict[str, dict[str, Any]], past: Checkpoint | None, accepted: bool, forked: bool
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
    saved, changes = {} if past is None else past.meta.get("data", {}), {}
    for split, before in saved.items():
        if split not in by_split:  # a fork may do without a split
            continue
        changed = identity.differences(by_split[split], before)
        if changed is not None:
            changes[split] = changed.replace("where it is", "where it was")
    sentence = "; ".join(f"the {split} data {changed}" for split, changed in changes.items())
    if changes and not (accepted or forked):
        problem = sentence if len(changes) > 1 else f"the data {next(iter(changes.values()))}"
        raise UsageError(
            "dataset", ", ".join(changes), f"{problem} when the checkpoint was saved",
            "the data that the run began with",
            "dataset.accept_changes=true to continue with other data, or fork=RUN_DIR",
        )  # fmt: skip
    return sentence or None


def check_hosts(by_split: dict[str, dict[str, Any]], tasks: Tasks, cluster: Cluster) -> None:
    """Compare the data of all tasks that read some; each must call it at the same point.

    Args:
        by_split: records of this task.
        tasks: that read.
        cluster: all tasks.

    Raises:
        UsageError: that of another host is other data, on every task.
    """
    names = [task.name for task in cluster.tasks if not task.serves]
    first, *others = tasks.gather(digests(by_split))
    for name, other in zip(names[1:], others, strict=True):
        for split in ("train", "validation"):
            own, chief = other.get(split), first.get(split)
            if own == chief:
                continue
            what = "has other content or another structure"
            if (count := _counted(own)) != _counted(chief):
                what = f"has {count}, and that of the chief {_counted(chief)}"
            data = "training" if split == "train" else split
            raise UsageError(
                "dataset", name, f"the {data} data of this task {what}",
                "the same data on every host; a stream that is shuffled, by a seed",
                "copy the chief's files to every host, or use a path that all of them share",
            )  # fmt: skip


def _counted(record: dict[str, Any] | None) -> str:
    if record is None:
        return "no examples"
    examples = record["examples"]
    return "examples of an unknown number" if examples is None else f"{examples:,} examples"


def check_stream(splits: Splits, alone: bool) -> str | None:
    """Return what is to be reported of a stream that gives other examples each time it is made.

    Args:
        splits: of which some are streams.
        alone: whether one process reads it, once.

    Raises:
        UsageError: several hosts would read different examples.
    """
    both = {"training": splits.train, "validation": splits.validation}
    unsteady = [
        name
        for name, source in both.items()
        if isinstance(source, Stream) and source.steady is False
    ]
    for split in unsteady:
        if not alone:
            raise UsageError(
                "dataset", f"{split} stream", "gives other examples each time it is read, and "
                "every host reads it", "a stream that is the same for all",
                "a seed for its shuffle, or for the generator's own draws",
            )  # fmt: skip
        return (
            f"the {split} stream gives other examples each time it is read: a resumed run does not "
            "continue where it was; give its shuffle a seed"
        )
    return None
