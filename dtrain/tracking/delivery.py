"""A thread that delivers to a server, whatever becomes of it. Training never waits for it."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from dtrain import secrets
from dtrain.config.tree import Config
from dtrain.files.fields import Json
from dtrain.run import evaluations, schemas
from dtrain.run.folder import RunDir
from dtrain.run.journal import Follower
from dtrain.tracking.base import TrackedRun, Tracker, tracked_run

#: Seconds between two deliveries: each costs a transaction while training continues.
INTERVAL = 5.0
#: Longest wait between two tries while the server is away, in seconds; it doubles up to there.
LONGEST = 30.0
#: Seconds between two tries at the end.
RETRY_SECONDS = 1.0
#: Longest wait for the last delivery, in seconds; and where the server is found to be away. The
#: first delivery of all makes the tables of a SQLite store, which takes a while on busy cores.
LAST_SECONDS = 60.0
AWAY_SECONDS = 15.0
#: Seconds after which the user hears that the store is locked by others.
BUSY_SECONDS = 60.0
#: Events that are read from the journal at once: the others wait there, and not in memory.
EVENTS = 1000
#: Events that are kept for the trackers of a run that have not taken them yet.
WINDOW = 10_000
_CHARACTERS = 300  # of an error: MLflow's may hold a whole page
#: Stores that were reported as away: once for all jobs of a sweep.
_reported: set[str] = set()


class Delivery:
    """Calls ``deliver`` from a thread, and again after an error.

    Args:
        place: where it delivers to.
        deliver: ships what there is; gets None, and in the end what :meth:`finish` was given.
            Returns whether there was anything, and so whether the server is there.
        resynchronize: called after an error: what was being done may have been done.
        warn: called with one line when the server is away, and when it is back.
        prepare: called once, before anything: what takes long, such as importing a client.
        name: of what is delivered, which begins its messages.
    """

    def __init__(
        self, place: str, deliver: Callable[[tuple[str, float] | None], bool],
        resynchronize: Callable[[], None], warn: Callable[[str], None],
        prepare: Callable[[], None] = lambda: None, name: str = "tracking",
    ):  # fmt: skip
        self._place, self._name = place, name
        self._prepare = prepare
        self._deliver = deliver
        self._resynchronize = resynchronize
        self._warn = warn
        self._ending = threading.Event()
        self._left = threading.Event()  # no thread waits any more
        self._last: tuple[str, float] | None = None
        self._done = False
        self._away_since: float | None = None
        self._warned = False
        self._problem: str | None = None  # of the last try, where that failed
        work = contextvars.copy_context().run  # what the command may read this thread may, too
        self._thread = threading.Thread(target=work, args=(self._run,), name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if sys.platform == "linux":
            # A thread's own niceness: tracking gives way to training where cores are short.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        with contextlib.suppress(Exception):  # the first delivery says what is wrong
            self._prepare()  # seconds of CPU, while the tasks import TensorFlow
        wait = INTERVAL
        while not self._left.is_set():
            ending = self._ending.wait(wait)
            if ending and self._last is None:
                return
            try:
                if self._deliver(self._last if ending else None):
                    self._succeeded()
                    wait = INTERVAL
            except Exception as error:  # whatever a server, a driver or a proxy may raise
                self._failed(error)
                wait = min(2 * wait, LONGEST)
                if ending:
                    self._left.wait(RETRY_SECONDS)
                continue
            if ending:
                self._done = True
                return

    def _failed(self, error: Exception) -> None:
        self._resynchronize()
        now = time.monotonic()
        self._problem = reason(error)
        self._away_since = self._away_since or now
        # Others write to the same file: that is no outage, and passes.
        busy = "database is locked" in str(error) and now - self._away_since < BUSY_SECONDS
        if self._warned or busy:
            return
        self._warned = True
        if self._place not in _reported:
            _reported.add(self._place)
            self._warn(f"{self._name}: {self._problem}; training continues")

    def _succeeded(self) -> None:
        if self._place in _reported:
            _reported.discard(self._place)
            self._warn(f"{self._name}: back again")
        self._away_since, self._warned, self._problem = None, False, None

    def end(self, last: tuple[str, float] | None) -> None:
        """Let the rest be delivered, which :meth:`finish` waits for."""
        self._last = last
        self._ending.set()

    def finish(self, last: tuple[str, float] | None, longest: float = LAST_SECONDS) -> bool:
        """Deliver the rest; with None nothing was recorded, and nothing is.

        Args:
            last: the final status, and when it was reached, seconds since the epoch.
            longest: seconds that it waits, unless the server is away.

        Returns:
            Whether all is delivered; it waits for that, but not for long.
        """
        self.end(last)
        begun = time.monotonic()
        while self._thread.is_alive():
            away = self._away_since is not None
            if time.monotonic() - begun > (AWAY_SECONDS if away else longest):
                break
            self._thread.join(0.1)
        self._left.set()
        if last is not None and not self._done and not self._warned:
            why = self._problem or (
                f"{self._place} is not ready after {longest:.0f} s: the first delivery to a new "
                "store makes its tables, which takes long on a busy machine"
            )
            self._warn(f"{self._name}: {why}")
        return self._done


def reason(error: Exception) -> str:
    """Return an error in one line without secrets."""
    lines = secrets.mask(str(error)).splitlines() or [type(error).__name__]
    text = lines[0]
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"


class _Source:
    """What is recorded of a run while it trains: its journal, and what others evaluate of it."""

    def __init__(self, rundir: RunDir):
        self._journal, self._evaluated = Follower(rundir.journal), Follower(rundir.evaluated)

    def some(self) -> list[Json]:
        """Return the next events; few enough that a long journal is not in memory."""
        events = list(itertools.islice(self._journal.events(), EVENTS))
        return events + list(evaluations.as_points(self._evaluated.events()))


class JournalFeed:
    """Reads a run once for several readers, each with its own position.

    One that is more than :data:`WINDOW` events behind, as its server is away, reads by itself, from
    the beginning, until it has caught up: trackers pass over what they have.

    Args:
        rundir: of the run.
        past: times of the starts of a resumed run that earlier commands made.
        readers: how many there are.
    """

    def __init__(self, rundir: RunDir, past: Collection[float], readers: int):
        self._rundir, self._past = rundir, past
        # Looks whether training has begun, and keeps nothing.
        self._ahead, self._began = Follower(rundir.journal), False
        self._source = _Source(rundir)
        self._window: collections.deque[Json] = collections.deque()
        self._first = 0  # number of the first event in the window
        self._positions = [0] * readers
        self._own: dict[int, _Source] = {}
        self._lock = threading.Lock()

    def take(self, reader: int, ending: bool) -> list[Json]:
        """Return the next events of a reader; none before training begins, unless it is ending."""
        with self._lock:
            self._began = self._began or any(
                event["event"] == "start" and event["time"] not in self._past
                for event in self._ahead.events()
            )
            if not (self._began or ending):
                return []
            end = self._first + len(self._window)
            if self._positions[reader] < self._first and reader not in self._own:
                self._own[reader] = _Source(self._rundir)
            if reader in self._own:
                events = self._own[reader].some()
                if len(events) < EVENTS:  # it has what all have read by now
                    del self._own[reader]
                    self._positions[reader] = end
                return events
            if self._positions[reader] == end:
                self._window.extend(self._source.some())
            events = list(itertools.islice(self._window, self._positions[reader] - self._first,
                                          None))[:EVENTS]  # fmt: skip
            self._positions[reader] += len(events)
            together = [at for each, at in enumerate(self._positions) if each not in self._own]
            read_by_all = min(together, default=self._first + len(self._window))
            while self._first < read_by_all or len(self._window) > WINDOW:
                self._window.popleft()
                self._first += 1
            return events


class _Part:
    """One tracker of a run that trains, and its thread."""

    def __init__(
        self, tracker: Tracker, run: TrackedRun, warn: Callable[[str], None],
        take: Callable[[bool], list[Json]], name: str,
    ):  # fmt: skip
        self.tracker, self._run, self._take = tracker, run, take
        self._pending: list[Json] = []
        self._started = time.time()
        self.delivery = Delivery(
            str(tracker.address), self.deliver, tracker.resynchronize, warn, tracker.prepare, name
        )

    def deliver(self, last: tuple[str, float] | None) -> bool:
        shipped = False
        while self._pending or (more := self._take(last is not None)):
            self._pending = self._pending or more
            self.tracker.open(self._run, self._started)
            self.tracker.write(self._pending)
            self._pending = []
            shipped = True
        if last is not None:
            self.tracker.open(self._run, self._started)
            self.tracker.close(*last)
        return shipped or last is not None


class RunDelivery:
    """Follows a journal and ships it to each tracker while the run trains.

    Args:
        tracker: does the writing.
        run: what is recorded.
        warn: called with one line when a server is away, and when it is back.
        past: times of the starts of a resumed run that earlier commands made.
    """

    def __init__(
        self, tracker: Tracker, run: TrackedRun, warn: Callable[[str], None],
        past: Collection[float] = (),
    ):  # fmt: skip
        feed, several = JournalFeed(run.rundir, past, len(tracker.parts)), len(tracker.parts) > 1
        self._parts = [
            _Part(each, run, warn, functools.partial(feed.take, number),
                  f"tracking ({each.label})" if several else "tracking")
            for number, each in enumerate(tracker.parts)
        ]  # fmt: skip

    def finish(self, status: str | None, ended: float) -> list[str]:
        """Ship the rest and set the status; with None nothing was recorded, and nothing is.

        Returns:
            The names of the trackers that have not got everything.
        """
        last = None if status is None else (status, ended)
        for part in self._parts:  # all at once, so that none waits for another
            part.delivery.end(last)
        return [part.tracker.label for part in self._parts if not part.delivery.finish(last)]


def ship_folder(tracker: Tracker, config: Config, rundir: RunDir) -> str | None:
    """Make a tracker hold what a run folder holds, whatever is missing there.

    Args:
        tracker: of the run, or another one; of several each gets it, whatever becomes of another.
        config: of the run.
        rundir: the folder, in which no command is at work.

    Returns:
        A sentence about damaged lines of its journal; None where there are none.

    Raises:
        DamagedFile: another file of it cannot be used.
    """
    run, (started, status, ended) = _run_and_end(config, rundir)
    points, notice = list(evaluations.as_points(evaluations.read(rundir))), None
    failed: list[Exception] = []
    for part in tracker.parts:
        follower = Follower(rundir.journal)
        events = follower.events()
        try:
            part.open(run, started)
            while some := list(itertools.islice(events, EVENTS)):  # not all of a long run at once
                part.write(some)
            part.write(points)
            part.close(status, ended)
        except Exception as error:  # whatever a server, a driver or a proxy may raise
            if len(tracker.parts) > 1:
                error.add_note(part.label)
            failed.append(error)
        notice = follower.notice()
    if failed:
        raise failed[0]
    return notice


def ship_added(tracker: Tracker, config: Config, rundir: RunDir) -> None:
    """Make a tracker hold what was evaluated of a run that has ended.

    Args:
        tracker, config, rundir: as of :func:`ship_folder`.
    """
    run, ended = _run_and_end(config, rundir)
    points = list(evaluations.as_points(evaluations.read(rundir)))
    for part in tracker.parts:
        if part.is_shipped(rundir):
            part.add(run, points, ended)
        else:
            ship_folder(part, config, rundir)


def _run_and_end(config: Config, rundir: RunDir) -> tuple[TrackedRun, tuple[float, str, float]]:
    """Return what is recorded of a run that has ended: when it began, how it ended, and when."""
    result: Any = schemas.read(rundir.result, schemas.Result) or {}
    first = next(Follower(rundir.journal).events(), {"time": time.time()})
    started = result.get("started") or first["time"]
    # No result: the controller was killed and could not say how the run ended.
    ended = started + (result.get("seconds") or 0.0)
    status = result.get("status", "KILLED")
    return tracked_run(config, rundir), (started, status, ended)
