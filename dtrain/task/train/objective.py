"""The objective of a run that trains: as it was typed, or chosen once its metrics are known."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from dtrain.config.objective import AUTO, ORDER, SPEED, Mode, first
from dtrain.task.train.recorder import Records


class Objective:
    """The metric that says which checkpoint is the best.

    Args:
        name: of the configuration; ``auto`` for the first of
            :data:`dtrain.config.objective.ORDER` that the run has.
        mode: of the configuration.
        records: of the run.
        meta: of the checkpoint that the run is resumed from: what was chosen before stays.

    Attributes:
        name: of the metric, None as long as it is not chosen.
        mode: ``max`` or ``min``; None where no objective is chosen yet.
    """

    def __init__(
        self, name: str, mode: Mode, records: Records, meta: Mapping[str, Any] | None = None
    ):
        self._mode, self._records = mode, records
        self._reported = False  # that the run does not have it
        self.name: str | None = None
        self.mode: str | None = None
        name = (meta or {}).get("objective_name") or name if name == AUTO else name
        if name != AUTO:
            self._set(name)

    def _set(self, name: str) -> None:
        self.name, self.mode = name, self._mode.of(name).name
        self._records.compare_by(name, self.mode)

    def fields(self) -> dict[str, str]:
        """Return name and mode for an event of the journal; nothing as long as none is chosen."""
        if self.name is None or self.mode is None:
            return {}
        return {"objective": self.name, "objective_mode": self.mode}

    def choose(self, names: Collection[str]) -> None:
        """Choose among the names of metrics, unless that is done; say so where it is no accuracy.

        Args:
            names: of what the run has; empty where that is not known yet.
        """
        name = first(names)
        if self.name is not None or name is None:
            return
        self._set(name)
        if name != ORDER[0]:
            message = f"objective={name}: this run has no {ORDER[0]}"
            self._records.event("notice", message=message)

    def see(self, step: int, logs: Mapping[str, float], whole: bool = True) -> None:
        """Choose among the logs of an epoch; report an objective that is not there.

        Args:
            step: of the logs.
            logs: by name.
            whole: they are those of training and of the validation.
        """
        if self.name is None:
            self.choose(logs)
            if self.name is not None:
                self._records.event("objective", step=step, **self.fields())
        if not whole or self._reported or self.name in (SPEED, *logs):
            return
        self._reported = True
        message = f"objective={self.name} is not among the metrics of this run"
        if self.name is None:
            message = f"objective={AUTO}: this run has none of {', '.join(ORDER)}"
        message += f" ({', '.join(sorted(logs))}); no checkpoint is kept as the best"
        self._records.event("notice", message=message)

    def value(self, logs: Mapping[str, float], speed: float = 0.0) -> float | None:
        """Return its value; None where there is none, or no finite number.

        Args:
            logs: values of metrics by name.
            speed: examples per second so far, 0 where that is not known yet.
        """
        value = logs.get(self.name) if self.name is not None else None
        if self.name == SPEED:
            value = speed or None
        return value if value is not None and math.isfinite(value) else None
