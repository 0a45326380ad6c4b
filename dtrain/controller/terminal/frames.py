"""Tracebacks without what is not the user's: the log has them whole."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

import dtrain

_HEAD = "Traceback (most recent call last):"
#: Files of dtrain's, of what it calls the user's code through, and of Python itself.
_OTHERS = re.compile(
    rf'  File "({re.escape(os.path.dirname(dtrain.__file__))}/'
    r"|.*/(site|dist)-packages/(dtrain|keras|tensorflow|numpy|hydra|omegaconf)/"
    r"|.*/lib/python3\.\d+/(?!(site|dist)-packages/)|<frozen )"
)


class Frames:
    """Leaves frames out of tracebacks that come line by line."""

    def __init__(self) -> None:
        self._inside = self._headed = self._leaves = False

    def kept(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines without those of other frames; a traceback of none is its last line."""
        for line in lines:
            if line == _HEAD:
                self._inside, self._headed, self._leaves = True, False, False
                continue
            if self._inside:
                if line.startswith('  File "'):
                    self._leaves = _OTHERS.match(line) is not None
                elif not line.startswith("  "):
                    self._inside = False
                if self._inside and self._leaves:
                    continue
                if self._inside and not self._headed:
                    self._headed = True
                    yield _HEAD
            yield line
