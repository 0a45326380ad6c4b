"""``trainer.max_time``: a run that ends where its time is over."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from dtrain.config import durations
from dtrain.run.folder import RunDir


@dataclasses.dataclass(frozen=True)
class TimeLimit:
    """When a training ends, whatever it has reached.

    Attributes:
        value: of the configuration, for messages.
        end: in seconds since 1970; None: never.
    """

    value: Any = None
    end: float | None = None

    @classmethod
    def of(cls, value: Any, rundir: RunDir) -> TimeLimit:
        """Return the limit of the command that has begun, or resumed, the run.

        That command has written the configuration, once: tasks that are restarted have what is
        left of its time.
        """
        limit = durations.seconds(value)
        if limit is None:
            return cls()
        return cls(value, os.stat(rundir.config).st_mtime + limit)

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self.end is not None and time.time() >= self.end
