"""Saves checkpoints from a thread of its own, and keeps the newest ones and the best."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from dtrain.errors import CheckpointError
from dtrain.files.fields import Json, Values
from dtrain.run.checkpoint import store
from dtrain.run.checkpoint.arrays import digest
from dtrain.run.checkpoint.format import read_manifest


def objective(meta: Values) -> float | None:
    """Return the objective that was saved with a checkpoint, None if none or not a number."""
    found = meta.get("objective")
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    return float(found) if abs(found) <= sys.float_info.max else None


def compared(meta: Values) -> tuple[str | None, str | None]:
    """Return the name of a checkpoint's objective and ``max`` or ``min``; None where unknown."""
    name, mode = meta.get("objective_name"), meta.get("objective_mode")
    return (name if isinstance(name, str) else None), (mode if mode in ("max", "min") else None)


def best(objectives: Mapping[int, float], mode: str) -> int | None:
    """Return the step with the best objective, the earliest of equals.

    Args:
        objectives: by step.
        mode: ``max`` or ``min``: which is better.
    """
    sign = -1 if mode == "min" else 1
    return max(objectives, key=lambda step: (sign * objectives[step], -step), default=None)


class Writer:
    """Saves checkpoints from a thread, and keeps the newest ones and the best.

    It begins by removing what killed saves have left in the folder, and an uncommitted checkpoint
    with it: call :func:`~dtrain.run.checkpoint.newest` before.

    Args:
        folder: where checkpoints go.
        keep: how many of the newest stay.
        best: whether the one with the best objective stays too.
        mode: ``max`` or ``min``: which objective is better, until :meth:`compare_by`.
        saved: called from the thread with the step of each checkpoint that is on the disk.
        before: called from the thread before each save: a run continues from the checkpoint as if
            everything up to it were recorded, so it has to be, on the disk.
        resumed: step of the sound checkpoint that the run is resumed from. A run that was killed
            before it had removed what this one replaces has it removed now.
        objective: its name. Checkpoints with the value of another one are not compared.
    """

    def __init__(
        self, folder: Path, keep: int, best: bool, mode: str, saved: Callable[[int], None],
        before: Callable[[], None] = lambda: None, resumed: int | None = None,
        objective: str | None = None,
    ):  # fmt: skip
        self._objective = objective
        self._folder = folder
        self._keep = keep
        self._best = best
        self._saved = saved
        self._before = before
        self._mode = mode
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self._last: tuple[int, str] | None = None  # step and digest of what it has saved last
        self.last_step = resumed  # what a resumed run would begin with
        self.objectives: dict[int, float] = {}
        store.tidy(folder)
        for step in store.steps(folder):
            try:
                self._note(step, read_manifest(folder / str(step))["meta"])
            except CheckpointError:
                continue  # damaged: `newest` says so
        if resumed is not None:
            self._discard(self._old(resumed))

    def compare_by(self, objective: str, mode: str) -> None:
        """Set the name of the objective, and whether the best is the largest or the smallest."""
        self._objective, self._mode = objective, mode

    def _note(self, step: int, meta: Json) -> None:
        self.objectives.pop(step, None)
        value, (name, _) = objective(meta), compared(meta)
        if value is not None and (None in (name, self._objective) or name == self._objective):
            self.objectives[step] = value

    def best_step(self) -> int | None:
        """Return the saved step with the best objective, the earliest of equals."""
        return best(self.objectives, self._mode)

    def submit(self, step: int, arrays: dict[str, np.ndarray], meta: Json) -> None:
        """Begin to save; waits only where the previous save still runs.

        Where ``step`` was the last to be saved, and its arrays were the same, only ``meta`` is
        written anew.

        Args:
            step: global step.
            arrays: a snapshot that does not change any more.
            meta: JSON values; ``objective`` (float or None) decides which is the best.

        Raises:
            CheckpointError: the previous save failed.
        """
        self.wait()
        self._thread = threading.Thread(
            target=self._save, args=(step, arrays, meta), name="checkpoint", daemon=True
        )
        self._thread.start()

    def _save(self, step: int, arrays: dict[str, np.ndarray], meta: Json) -> None:
        try:
            self._before()
        except OSError as error:
            self._error = CheckpointError(
                f"step {step} was not saved: what comes before it cannot be recorded: {error}"
            )
            return
        again = self._last is not None and self._last[0] == step
        try:
            if again and self._last == (step, digest(arrays)):
                store.rewrite(self._folder, step, meta)
            else:
                path = store.save(self._folder, step, arrays, meta)
                self._last = step, read_manifest(path)["digest"]
            self.last_step = step
            self._note(step, meta)
            if not again:
                self._saved(step)
            # ORDER: only now are the others not the last any more. Later ones are those that the
            # run passed over as damaged when it was resumed.
            later = {other for other in store.steps(self._folder) if other > step}
            self._discard(self._old(step) | later)
        except CheckpointError as error:
            self._error = error
        except Exception as error:  # of `saved`: it must not be lost with the thread
            self._error = CheckpointError(f"step {step} was saved, but not reported: {error}")
            self._error.__cause__ = error

    def _old(self, newest: int) -> set[int]:
        """Return the steps up to ``newest`` that need not stay."""
        saved = [step for step in store.steps(self._folder) if step <= newest]
        kept = set(saved[-self._keep :])
        top = best({s: found for s, found in self.objectives.items() if s <= newest}, self._mode)
        return set(saved) - kept - ({top} if self._best else set())

    def _discard(self, steps: set[int]) -> None:
        store.discard(self._folder, [self._folder / str(step) for step in sorted(steps)])
        for step in steps:
            self.objectives.pop(step, None)

    def wait(self) -> None:
        """Wait for the save that is under way.

        Raises:
            CheckpointError: it failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
