"""Whether all examples of a dataset can be read, which a training finds out at its last one."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dtrain.data.mixture import Concatenated
from dtrain.data.sources import Splits
from dtrain.data.streams import Stream
from dtrain.task import reading

#: After which no more examples are read, unless all are to be.
SECONDS = 10.0


def sentence(splits: Splits, everything: bool) -> str | None:
    """Read the examples of both splits, and return how many can be read; None of streams.

    Args:
        splits: the examples.
        everything: all of them, however long it takes.

    Raises:
        DataError: naming the first that cannot be read.
    """
    sources = [each for split in (splits.train, splits.validation) for each in _members(split)]
    if any(isinstance(source, Stream) for source in sources):
        return None
    end = time.monotonic() + SECONDS
    total, count = sum(map(len, sources)), 0
    for source in sources:
        for begin in range(0, len(source), reading.CHUNK):
            if not everything and time.monotonic() > end:
                return f"{count:,} of {total:,} examples can be read; --check reads all"
            some = min(reading.CHUNK, len(source) - begin)
            problem = reading.first_bad(source, np.arange(begin, begin + some))
            if problem is not None:
                raise problem
            count += some
    return f"all {total:,} examples can be read"


def _members(source: Any) -> list[Any]:
    if source is None:
        return []
    if isinstance(source, Concatenated):
        return [each for member in source.members for each in _members(member)]
    return [source]
