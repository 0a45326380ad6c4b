"""TensorBoard event files: a projection of the journal, written by the chief.

Train and validation go to two sub-folders of one logdir under the same names, so that TensorBoard
draws them into one chart, as Keras does.
"""

from __future__ import annotations

import csv
import itertools
import struct
import sys
import time
import types
from collections.abc import Iterable
from pathlib import Path

import keras
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from dtrain.files import writing
from dtrain.files.fields import Json
from dtrain.run import evaluations, times
from dtrain.run.folder import RunDir
from dtrain.run.journal import Follower
from dtrain.task.aliases import Foreign
from dtrain.task.backends.runtime import runtime

# TensorBoard writes by TensorFlow's file system where this module is not there (its target
# ``//tensorboard/compat:no_tensorflow``), and imports all of TensorFlow for it.
sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))

#: Of a table, the rows that are shown, with its head.
_ROWS = 50
_STATUS = {"FINISHED": "STATUS_SUCCESS", "FAILED": "STATUS_FAILURE", "KILLED": "STATUS_UNKNOWN"}


class Summaries:
    """Writes scalars, and on request histograms and a profiler trace.

    Args:
        folder: the logdir of the run. What an earlier start of the same run left there is
            replaced by the points that the journal holds.
        past: the journal of that earlier start.
        histograms: write the distribution of every weight at each epoch's end.
        profile_steps: first and last step of a trace, or None.
        job: of a sweep, its ``number`` and what ``differs``, for TensorBoard's view of the
            hyperparameters; None of a single run.
    """

    def __init__(
        self, folder: Path, past: Path, histograms: bool, profile_steps: tuple[int, int] | None,
        job: Json | None = None,
    ):  # fmt: skip
        writing.remove(folder)
        self._folder = folder
        self._writers: dict[str, EventFileWriter] = {}
        self._histograms = histograms
        self.profile_steps = profile_steps
        self._profiling = False
        self._shown: set[tuple[int, str]] = set()
        self._session = None if job is None else self._begin(job)
        for event in Follower(past).events():
            if event["event"] == "metrics":
                self.scalars(event["step"], event["metrics"])
            elif event["event"] == "tag":
                self.text(event["step"], f"tags/{event['name']}", event["value"])
            elif event["event"] == "file":
                self.file(event["step"], event["name"], event["kind"], past.parent / event["path"])
        write_evaluations(folder, evaluations.read(RunDir(past.parent)))

    def _begin(self, job: Json) -> Foreign:
        # Here and in `close`: most runs are no jobs of a sweep, and would wait for it.
        from tensorboard.plugins.hparams import api as hparams

        writer = EventFileWriter(str(self._folder))
        values = {key: _number(text) for key, text in job["differs"].items()}
        _write(writer, 0, hparams.hparams_pb(values, trial_id=f"job {job['number']}"))
        writer.flush()  # it is shown while the run continues
        return writer

    def _writer(self, split: str) -> EventFileWriter:
        if split not in self._writers:
            self._writers[split] = EventFileWriter(str(self._folder / split))
        return self._writers[split]

    def scalars(self, step: int, metrics: dict[str, float]) -> None:
        """Write one point of the journal; ``val_x`` is ``x`` of ``validation``."""
        splits: dict[str, dict[str, float]] = {}
        for name, value in metrics.items():
            split = "validation" if name.startswith("val_") else "train"
            splits.setdefault(split, {})[name.removeprefix("val_")] = value
        for split, values in splits.items():
            _point(self._writer(split), step, values)

    def text(self, step: int, name: str, text: str) -> None:
        """Write a text, which may have Markdown."""
        from tensorboard.plugins.text.summary_v2 import text_pb  # here: few runs have one

        _write(self._writer("train"), step, text_pb(name, text))

    def file(self, step: int, name: str, kind: str, path: Path) -> None:
        """Write an image, or the first rows of a table, that user code has logged."""
        key = (step, name)
        if key in self._shown or not path.is_file():  # a resumed run logs some anew
            return
        self._shown.add(key)
        if kind == "image":
            data = path.read_bytes()
            width, height = struct.unpack(">II", data[16:24])  # of a PNG
            image = Summary.Image(
                encoded_image_string=data, width=width, height=height, colorspace=3
            )
            value = Summary.Value(tag=name, image=image)
            _write(self._writer("train"), step, Summary(value=[value]))
        elif kind == "table":
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(itertools.islice(csv.reader(file), _ROWS))
            lines = [f"| {' | '.join(each)} |" for each in rows]
            self.text(step, name, "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]))

    def weights(self, step: int, model: keras.Model) -> None:
        """Write histograms, where they were asked for."""
        if self._histograms:
            for variable in model.trainable_variables:
                histogram = histogram_pb(variable.path, variable.numpy())
                _write(self._writer("train"), step, histogram)

    def profile(self, step: int) -> None:
        """Start or stop the trace where ``step`` is its first or last."""
        if self.profile_steps is None:
            return
        first, last = self.profile_steps
        if not self._profiling and first <= step < last:
            runtime().start_trace(str(self._folder))
            self._profiling = True
        elif self._profiling and step >= last:
            runtime().stop_trace()
            self._profiling = False

    def flush(self) -> None:
        """Hand what was written to the system."""
        for writer in self._writers.values():
            writer.flush()

    def close(self, status: str = "KILLED") -> None:
        """End a trace that still runs, and close the files; ``status`` is how the run ended."""
        if self._profiling:
            runtime().stop_trace()
        if self._session is not None:
            from tensorboard.plugins.hparams import api_pb2, summary

            end = summary.session_end_pb(api_pb2.Status.Value(_STATUS[status]))
            _write(self._session, 0, end)
            self._session.close()
        for writer in self._writers.values():
            writer.close()


def write_evaluations(folder: Path, events: Iterable[Json]) -> None:
    """Write evaluations of a run's checkpoints beside its own points, each prefix as a split.

    Args:
        folder: the logdir of the run.
        events: events of :mod:`dtrain.run.evaluations`.
    """
    writers: dict[str, EventFileWriter] = {}
    for event in events:
        prefix = event["prefix"]
        if prefix not in writers:
            writers[prefix] = EventFileWriter(str(folder / prefix))
        _point(writers[prefix], event["step"], event["metrics"])
    for writer in writers.values():
        writer.close()


def _point(writer: EventFileWriter, step: int, metrics: dict[str, float]) -> None:
    """Write what is known of one step, as one event."""
    values = [scalar_pb(times.shown(name), value).value[0] for name, value in metrics.items()]
    _write(writer, step, Summary(value=values))


def _write(writer: EventFileWriter, step: int, summary: Foreign) -> None:
    event = Event(wall_time=time.time(), step=step)
    # As bytes: some of TensorBoard's plugins make messages of TensorFlow's classes.
    event.summary.ParseFromString(summary.SerializeToString())
    writer.add_event(event)


def _number(text: str) -> bool | int | float | str:
    """Return ``text`` as the number that it is, so that TensorBoard has an axis for it."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
