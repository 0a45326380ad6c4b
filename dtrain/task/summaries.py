"""TensorBoard event files: a projection of the journal, written by the chief.

Train and validation go to two sub-folders of one logdir under the same names, so that TensorBoard
draws them into one chart, as Keras does.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from dtrain import journal


class Summaries:
    """Writes scalars, and on request histograms and a profiler trace.

    Args:
        folder: the logdir of the run. What an earlier start of the same run left there is
            replaced by the points that the journal holds.
        past: the journal of that earlier start.
        histograms: write the distribution of every weight at each epoch's end.
        profile_steps: first and last step of a trace, or None.
    """

    def __init__(
        self, folder: Path, past: Path, histograms: bool, profile_steps: tuple[int, int] | None
    ):
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        self._writers: dict[str, Any] = {}
        self._histograms = histograms
        self.profile_steps = profile_steps
        self._profiling = False
        for event in journal.read(past):
            if event["event"] == "metrics":
                self.scalars(event["step"], event["metrics"])

    def _writer(self, split: str) -> Any:
        if split not in self._writers:
            self._writers[split] = tf.summary.create_file_writer(str(self._folder / split))
        return self._writers[split]

    def scalars(self, step: int, metrics: dict[str, float]) -> None:
        """Write one point of the journal; ``val_x`` is ``x`` of ``validation``."""
        for name, value in metrics.items():
            split = "validation" if name.startswith("val_") else "train"
            with self._writer(split).as_default(step=step):
                tf.summary.scalar(name.removeprefix("val_"), value)

    def weights(self, step: int, model: keras.Model) -> None:
        """Write histograms, where they were asked for."""
        if self._histograms:
            with self._writer("train").as_default(step=step):
                for variable in model.trainable_variables:
                    tf.summary.histogram(variable.path, variable.numpy())

    def profile(self, step: int) -> None:
        """Start or stop the trace where ``step`` is its first or last."""
        if self.profile_steps is None:
            return
        first, last = self.profile_steps
        if not self._profiling and first <= step < last:
            tf.profiler.experimental.start(str(self._folder))
            self._profiling = True
        elif self._profiling and step >= last:
            tf.profiler.experimental.stop()
            self._profiling = False

    def flush(self) -> None:
        """Hand what was written to the system."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """End a trace that still runs, and close the files."""
        if self._profiling:
            tf.profiler.experimental.stop()
        for writer in self._writers.values():
            writer.close()
