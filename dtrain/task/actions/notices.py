"""Notices of what an epoch logs and the journal does not have, each written once."""

from __future__ import annotations

from collections.abc import Iterable

from dtrain.task.recorder import Records


class Notices:
    """Reports what is missing among the logs of an epoch, and what of them is not recorded.

    Args:
        records: writes.
        objective: name of the metric by which the best checkpoint is chosen.
    """

    def __init__(self, records: Records, objective: str):
        self._records = records
        self._objective = objective
        self._noticed: set[str] = set()  # names that a notice was written of

    def objective(self, logs: Iterable[str]) -> None:
        """Report an objective that is not among the names of the logs."""
        name, known = self._objective, sorted(logs)
        if name in known or name in self._noticed:
            return
        self._noticed.add(name)
        message = f"objective={name} is not among the metrics of this run ({', '.join(known)})"
        self._records.event("notice", message=f"{message}; no checkpoint is kept as the best")

    def ignored(self, names: Iterable[str]) -> None:
        """Report names under which callbacks have put what is no finite number."""
        if new := sorted(set(names) - self._noticed):
            self._noticed.update(new)
            message = f"callbacks put into logs what is no finite number: {', '.join(new)}"
            self._records.event("notice", message=f"{message}; it is not recorded")
