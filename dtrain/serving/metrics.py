"""Counts and times, in the text that Prometheus reads."""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterator, Mapping

#: Upper ends of the buckets: seconds of a request, rows of a batch.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
#: Names of values of a moment, with their lines of help.
_GAUGES = {
    "dtrain_ready": "1 where the model answers",
    "dtrain_queue_rows": "rows that wait for the model",
}


class Histogram:
    """How many values fell in each bucket.

    Args:
        ends: the upper ends of the buckets, ascending.

    Attributes:
        sum: of all values.
    """

    def __init__(self, ends: tuple[float, ...]):
        self._ends = ends
        self._counts = [0] * (len(ends) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect.bisect_left(self._ends, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """Yield its lines.

        Args:
            name: of the metric.
            labels: of all of them, with a comma behind; or empty.
        """
        total = 0
        for end, count in zip((*map(str, self._ends), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}le="{end}"}} {total}'
        braces = f"{{{labels.rstrip(',')}}}" if labels else ""
        yield f"{name}_sum{braces} {self.sum:.6f}"
        yield f"{name}_count{braces} {total}"


class Metrics:
    """What a server counts; all of it on its event loop.

    Attributes:
        swaps, refused, rollbacks, restarts: how many versions came to serve or could not, how
            often the version before was gone back to, and a process was started again.
    """

    def __init__(self) -> None:
        self.swaps = self.refused = self.rollbacks = self.restarts = 0
        self._requests: collections.Counter[tuple[str, int]] = collections.Counter()
        self._seconds: dict[str, Histogram] = {}
        self._rows = Histogram(_ROWS)

    def request(self, protocol: str, status: int, seconds: float) -> None:
        """Count a request.

        Args:
            protocol: in which it was asked.
            status: of the answer.
            seconds: that it took.
        """
        self._requests[protocol, status] += 1
        if protocol not in self._seconds:
            self._seconds[protocol] = Histogram(_SECONDS)
        self._seconds[protocol].add(seconds)

    def batch(self, rows: int) -> None:
        """Count a batch."""
        self._rows.add(rows)

    @property
    def requests(self) -> int:
        """How many requests there were."""
        return self._requests.total()

    @property
    def seconds(self) -> float:
        """How long all of them took together."""
        return sum(each.sum for each in self._seconds.values())

    def text(self, version: str | None, gauges: Mapping[str, float]) -> str:
        """Return all of it.

        Args:
            version: that serves.
            gauges: values by name, of :data:`_GAUGES`.
        """
        return "\n".join(self._lines(version, gauges)) + "\n"

    def _lines(self, version: str | None, gauges: Mapping[str, float]) -> Iterator[str]:
        name = "dtrain_requests_total"
        yield from _head(name, "counter", "requests by protocol and status of the answer")
        for (protocol, status), count in sorted(self._requests.items()):
            yield f'{name}{{protocol="{protocol}",status="{status}"}} {count}'
        name = "dtrain_request_seconds"
        yield from _head(name, "histogram", "from the first byte of a request to its answer")
        for protocol, histogram in sorted(self._seconds.items()):
            yield from histogram.lines(name, f'protocol="{protocol}",')
        name = "dtrain_batch_rows"
        yield from _head(name, "histogram", "rows of the batches that the model computed")
        yield from self._rows.lines(name)
        for name, about, count in (
            ("dtrain_swaps_total", "versions that came to serve after the first", self.swaps),
            ("dtrain_refused_versions_total", "versions that could not serve", self.refused),
            ("dtrain_rollbacks_total", "times that the version before was taken", self.rollbacks),
            ("dtrain_restarts_total", "times that a model's process was started again",
             self.restarts),
        ):  # fmt: skip
            yield from _head(name, "counter", about)
            yield f"{name} {count}"
        for name, about in _GAUGES.items():
            yield from _head(name, "gauge", about)
            yield f"{name} {gauges[name]:g}"
        if version is not None:
            yield from _head("dtrain_model_info", "gauge", "the version that serves")
            shown = version.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
            yield f'dtrain_model_info{{version="{shown}"}} 1'


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
