"""The supervisor's decisions: a launcher that tells a story, and a clock that only it moves."""

from __future__ import annotations

import os
import signal
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtrain import errors
from dtrain.job import supervisor as module
from dtrain.job.supervisor import Signals, Supervisor
from dtrain.launchers import Launcher, LocalProcesses
from dtrain.run.cluster import Cluster, Task
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, write_json

ONE = Cluster((Task("chief", 0, 1),), "cpu", 1, {})
WORKERS = Cluster((Task("chief", 0, 1), Task("worker", 0, 1), Task("worker", 1, 1)), "cpu", 3, {})
SERVERS = Cluster(
    (
        Task("chief", 0, 0),
        Task("worker", 0, 1, serves=True, replaceable=True),
        Task("worker", 1, 1, serves=True, replaceable=True),
        Task("ps", 0, 0, serves=True),
    ),
    "cpu",
    2,
    {},
)
GRACE, START, STALL = 30.0, 60.0, 100.0
FOR_EVER = 3_000.0


class Story(Launcher, LocalProcesses):
    """Tells what happens when, and notes what it is asked to do, and when."""

    def __init__(self, rundir: RunDir, stall: float | None = None):
        super().__init__(GRACE, START, stall, 0)
        self.now = 1000.0
        self._rundir = rundir
        self._events: list[tuple[float, Callable[[], Any]]] = []
        self._news: list[tuple[str, str]] = []
        self._codes: dict[str, int] = {}
        self.stopped: set[str] = set()  # by SIGSTOP
        self.asked: list[tuple[float, str]] = []

    def at(self, seconds: float, *actions: Callable[[], Any]) -> Story:
        """Let something happen ``seconds`` after the beginning."""
        self._events += [(1000.0 + seconds, action) for action in actions]
        self._events.sort(key=lambda event: event[0])
        return self

    def word(self, word: str, *names: str) -> Callable[[], None]:
        return lambda: self._news.extend((name, word) for name in names)

    def come(self, *names: str) -> Story:
        """Let tasks join, and the chief take its first step."""
        self.at(1, self.word("started", *names)).at(2, self.word("joined", *names))
        return self.at(3, self.word("training", "chief-0"))

    def end_with(self, code: int, *names: str) -> Callable[[], None]:
        def act() -> None:
            self._codes.update(dict.fromkeys(names, code))
            self._news += [(name, "ended") for name in names]

        return act

    def progress(self, step: int) -> Callable[[], None]:
        return lambda: write_json(self._rundir.progress, {"step": step})

    def note(self, what: str) -> None:
        self.asked.append((round(self.now - 1000.0), what))

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        raise AssertionError("the supervisor starts nothing at first")

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        self.now += timeout
        assert self.now < FOR_EVER + 2000, "this goes on for ever"
        while self._events and self._events[0][0] <= self.now:
            self._events.pop(0)[1]()
        news, self._news = self._news, []
        return news

    def stop(self) -> None:
        self.note("stop")

    def kill(self) -> None:
        raise AssertionError("that is for who called the supervisor")

    def start_again(self, name: str) -> None:
        self.note(f"start {name} again")

    def end(self, name: str) -> None:
        self.note(f"end {name}")
        self.stopped.discard(name)
        self.end_with(-9, name)()

    def exit_codes(self) -> dict[str, int]:
        return dict(self._codes)

    def frozen(self) -> set[str]:
        return set(self.stopped)

    def dump(self) -> None:
        self.note("dump")

    # What the supervisor sees as the module time.
    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Watched:
    """What the supervisor made of a story."""

    def __init__(self, story: Story, cluster: Cluster, rundir: RunDir):
        self.said: list[str] = []
        self.looks = 0
        self.signals = Signals()
        self.signals.started = True
        self._story = story
        view: Any = types.SimpleNamespace(message=self.said.append, detail=self.said.append)
        self._supervisor = Supervisor(story, cluster, rundir, view)

    def __call__(self) -> Failure | None:
        with self.signals:
            return self._supervisor.watch(self.signals, self._look)

    def _look(self) -> None:
        self.looks += 1

    @property
    def seconds(self) -> float:
        return round(self._story.now - 1000.0)

    @property
    def replaced(self) -> int:
        return self._supervisor.replaced


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "run")


@pytest.fixture
def story(rundir: RunDir, monkeypatch: pytest.MonkeyPatch) -> Story:
    story = Story(rundir)
    monkeypatch.setattr(module, "time", story)
    return story


@pytest.fixture
def watched(story: Story, rundir: RunDir) -> Callable[[Cluster], Watched]:
    return lambda cluster: Watched(story, cluster, rundir)


def names(cluster: Cluster) -> list[str]:
    return [task.name for task in cluster.tasks]


def ctrl_c(number: signal.Signals = signal.SIGINT) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def test_a_job_that_ends_well(story: Story, watched: Any) -> None:
    story.come(*names(WORKERS)).at(50, story.end_with(0, "worker-1"))
    story.at(60, story.end_with(0, "worker-0", "chief-0"))
    job = watched(WORKERS)
    assert job() is None
    assert (job.seconds, job.said, story.asked) == (60, [], [])
    assert job.looks == pytest.approx(60 / module.INTERVAL, abs=2)


def test_tasks_that_serve_need_not_end(story: Story, watched: Any) -> None:
    story.come(*names(SERVERS)).at(50, story.end_with(0, "chief-0"))
    job = watched(SERVERS)
    assert job() is None
    assert job.seconds == 50


# --- who came


@pytest.mark.parametrize(
    ("started", "joined", "first", "reason"),
    [
        ((), (), "worker-0", "did not start within 60 s (launcher.start_timeout); "
         "nor did worker-1, chief-0"),
        (("chief-0", "worker-1"), (), "worker-0",
         "did not start within 60 s (launcher.start_timeout)"),
        (("chief-0", "worker-0", "worker-1"), ("worker-0",), "worker-1",
         "did not join the cluster within 60 s (launcher.start_timeout); nor did chief-0"),
        (("chief-0", "worker-0", "worker-1"), ("worker-0", "worker-1"), "chief-0",
         "did not join the cluster within 60 s (launcher.start_timeout)"),
    ],
)  # fmt: skip
def test_a_task_that_never_comes(
    started: tuple[str, ...], joined: tuple[str, ...], first: str, reason: str, story: Story,
    watched: Any,
) -> None:  # fmt: skip
    story.at(1, story.word("started", *started)).at(2, story.word("joined", *joined))
    job = watched(WORKERS)
    assert job() == Failure("absent", first, reason)
    assert job.seconds == START


def test_tasks_that_other_commands_follow(
    story: Story, watched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With launcher=env there is no news of the others: they are not missed, nor waited for."""
    monkeypatch.setattr(Story, "followed", lambda self, cluster: (cluster.chief,), raising=False)
    story.come("chief-0").at(500, story.end_with(0, "chief-0"))
    job = watched(WORKERS)
    assert job() is None
    assert (job.seconds, job.said) == (500, [])


def test_a_task_of_another_host_that_is_lost(
    story: Story, watched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Story, "followed", lambda self, cluster: (cluster.chief,), raising=False)
    story.losses["worker-1"] = Failure("lost", "worker-1", "worker-1 is gone")
    story.come("chief-0").at(50, story.word("lost", "worker-1", "worker-0"))
    job = watched(WORKERS)
    assert job() == Failure("lost", "worker-1", "worker-1 is gone")
    assert job.seconds == 50


def test_a_task_that_is_lost_when_the_chief_has_done_all(
    story: Story, watched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Story, "followed", lambda self, cluster: (cluster.chief,), raising=False)
    story.come("chief-0")
    story.at(50, story.end_with(0, "chief-0"), story.word("lost", "worker-1"))
    assert watched(WORKERS)() is None


# --- who died


def test_one_that_a_signal_ended_is_named_first(story: Story, watched: Any) -> None:
    """The others, which miss it, may be found dead at the same look."""
    story.come(*names(WORKERS))
    story.at(10, story.end_with(1, "chief-0", "worker-0"), story.end_with(-9, "worker-1"))
    job = watched(WORKERS)
    assert job() == Failure("died", "worker-1", "ended by SIGKILL")
    assert job.seconds == 10


def test_the_first_failure_wins(story: Story, watched: Any) -> None:
    story.come(*names(WORKERS)).at(10, story.end_with(3, "worker-0"))
    story.at(10.3, story.end_with(-9, "worker-1"))
    assert watched(WORKERS)() == Failure("failed", "worker-0")


@pytest.mark.parametrize("code", [errors.OK, errors.FAILED, errors.INTERRUPTED])
def test_a_server_that_ends(code: int, story: Story, watched: Any) -> None:
    """Whatever it says of itself: its variables are gone."""
    story.come(*names(SERVERS)).at(10, story.end_with(code, "ps-0"))
    assert watched(SERVERS)() == Failure("failed", "ps-0")


@pytest.mark.parametrize("cluster", [WORKERS, SERVERS])
def test_a_port_that_is_taken(cluster: Cluster, story: Story, watched: Any) -> None:
    story.at(1, story.word("started", *names(cluster)))
    story.at(2, story.end_with(errors.PORT_TAKEN, "worker-1"))
    expected = Failure("port", "worker-1", "its port was taken by another program")
    assert watched(cluster)() == expected


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (-11, "ended by SIGSEGV"),
        (1, "ended with exit code 1"),
        (-(signal.SIGRTMIN + 3), "ended by SIGRTMIN+3"),
    ],
)
def test_a_worker_that_is_replaced(code: int, how: str, story: Story, watched: Any) -> None:
    story.come(*names(SERVERS)).at(100, story.end_with(code, "worker-1"))
    story.at(100 + START - 1, story.word("started", "worker-1"), story.word("joined", "worker-1"))
    story.at(300, story.end_with(-9, "worker-1"))
    story.at(310, story.word("joined", "worker-1"))
    story.at(500, story.end_with(0, "chief-0"))
    job = watched(SERVERS)
    assert job() is None
    assert job.said == [
        f"worker-1 {how}: it is started again",
        "worker-1 ended by SIGKILL: it is started again",
    ]
    assert story.asked == [(100, "start worker-1 again"), (300, "start worker-1 again")]
    assert job.replaced == 2


def test_a_replaced_worker_that_does_not_come(story: Story, watched: Any) -> None:
    story.come(*names(SERVERS)).at(100, story.end_with(1, "worker-1"))
    job = watched(SERVERS)
    assert job() == Failure(
        "absent", "worker-1", "did not join the cluster within 60 s (launcher.start_timeout)"
    )
    assert job.seconds == 100 + START


@pytest.mark.parametrize(("code", "reason"), [(-9, "ended by SIGKILL"), (1, None)])
def test_a_worker_that_dies_before_it_has_joined(
    code: int, reason: str | None, story: Story, watched: Any
) -> None:
    """It would die again."""
    story.at(1, story.word("started", *names(SERVERS)))
    story.at(2, story.word("joined", "chief-0", "worker-0", "ps-0"))
    story.at(3, story.end_with(code, "worker-1"))
    job = watched(SERVERS)
    assert job() == Failure("died" if code < 0 else "failed", "worker-1", reason)
    assert (job.replaced, story.asked) == (0, [])


@pytest.mark.parametrize("code", [errors.OK, errors.INTERRUPTED])
@pytest.mark.parametrize(
    ("cluster", "late"), [(WORKERS, "worker-1"), (SERVERS, "worker-1"), (SERVERS, "ps-0")]
)
def test_who_dies_as_the_chief_ends_is_not_missed(
    code: int, cluster: Cluster, late: str, story: Story, watched: Any
) -> None:
    """TensorFlow ends a task whose chief has left, and that may be seen at the same look."""
    story.come(*names(cluster))
    story.at(10, story.end_with(-6, late), story.end_with(code, "chief-0"))
    story.at(12, story.end_with(0, "worker-0"))
    job = watched(cluster)
    assert job() is None
    assert (job.said, job.replaced, story.asked) == ([], 0, [])


# --- who hangs


def test_a_frozen_task_is_given_up(story: Story, watched: Any) -> None:
    story.come(*names(WORKERS)).at(100, lambda: story.stopped.add("worker-1"))
    job = watched(WORKERS)
    assert job() == Failure("frozen", "worker-1", "was stopped (SIGSTOP) for 5 s")
    assert job.seconds == 100 + module.FROZEN_SECONDS
    assert story.asked == []


def test_a_task_that_goes_on_in_time_is_kept(story: Story, watched: Any) -> None:
    story.come(*names(WORKERS))
    for second in (100, 105, 110):  # never for five seconds on end
        story.at(second, lambda: story.stopped.add("worker-1"))
        story.at(second + 4, lambda: story.stopped.discard("worker-1"))
    story.at(200, story.end_with(0, *names(WORKERS)))
    assert watched(WORKERS)() is None


def test_a_frozen_worker_is_replaced(story: Story, watched: Any) -> None:
    story.come(*names(SERVERS)).at(100, lambda: story.stopped.add("worker-0"))
    story.at(120, story.word("joined", "worker-0")).at(200, story.end_with(0, "chief-0"))
    job = watched(SERVERS)
    assert job() is None
    assert story.asked == [(105, "end worker-0"), (105, "start worker-0 again")]
    assert job.said == ["worker-0 ended by SIGKILL: it is started again"]


def stalled(chief: str = "chief-0") -> Failure:
    return Failure(
        "stalled",
        chief,
        "no step in 100 s (launcher.stall_timeout); where every task was stands at the end of its "
        "log",
    )


def test_a_stall(story: Story, watched: Any) -> None:
    story.stall_timeout = STALL
    story.come(*names(WORKERS)).at(10, story.progress(1))
    story.at(90, story.progress(2)).at(180, story.progress(3))
    job = watched(WORKERS)
    assert job() == stalled()
    assert story.asked == [(180 + STALL, "dump")]
    assert job.seconds == 180 + STALL + module.DUMP_SECONDS  # for the stacks to be written


def test_a_stall_before_the_first_step(story: Story, watched: Any) -> None:
    """The time counts from when the last task joined."""
    story.stall_timeout = STALL
    story.at(1, story.word("started", *names(WORKERS)))
    story.at(3, story.word("joined", "chief-0", "worker-0")).at(
        50, story.word("joined", "worker-1")
    )
    job = watched(WORKERS)
    assert job() == stalled()
    assert story.asked == [(50 + STALL, "dump")]


def test_a_worker_that_dies_again_and_again(story: Story, watched: Any) -> None:
    """That it joins is no progress: somebody is to look at it."""
    story.stall_timeout = STALL
    story.come(*names(SERVERS)).at(10, story.progress(1))
    for second in range(20, 400, 10):
        story.at(second, story.end_with(-11, "worker-0"))
        story.at(second + 5, story.word("joined", "worker-0"))
    job = watched(SERVERS)
    assert job() == stalled()
    assert story.asked[-1] == (10 + STALL, "dump")
    assert job.replaced == 10


# --- who asked to stop

SAVING = "stopping: saving a checkpoint (once more: stop at once)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP])
def test_a_request_to_stop(number: signal.Signals, story: Story, watched: Any) -> None:
    story.come(*names(WORKERS)).at(100, ctrl_c(number))
    story.at(110, story.end_with(errors.INTERRUPTED, *names(WORKERS)))
    before = signal.getsignal(number)
    job = watched(WORKERS)
    assert job() is None
    assert (job.seconds, job.said, story.asked) == (110, [SAVING], [(100, "stop")])
    assert job.signals.count == 1
    assert signal.getsignal(number) is before


def test_a_second_request(story: Story, watched: Any) -> None:
    story.come(*names(WORKERS)).at(100, ctrl_c()).at(103, ctrl_c(signal.SIGTERM))
    job = watched(WORKERS)
    assert job() is None
    assert (job.seconds, job.said) == (103, [SAVING, "stopping at once"])
    assert story.asked == [(100, "stop")]


def test_a_task_that_is_asked_to_stop(story: Story, watched: Any) -> None:
    story.come(*names(SERVERS)).at(100, story.word("stop", "ps-0", "worker-1"))
    story.at(110, story.end_with(errors.INTERRUPTED, "chief-0"))
    job = watched(SERVERS)
    assert job() is None
    assert job.said == ["ps-0 was asked to stop: saving a checkpoint"]
    assert (job.signals.count, story.asked) == (0, [(100, "stop")])


@pytest.mark.parametrize("later", [0, 1])
def test_ctrl_c_at_a_terminal_is_one_request(later: int, story: Story, watched: Any) -> None:
    """It reaches the controller and every task; those that serve pass it on."""
    story.come(*names(SERVERS)).at(100, story.word("stop", "ps-0", "worker-0", "worker-1"))
    story.at(100 + later, ctrl_c())
    story.at(110, story.end_with(errors.INTERRUPTED, "chief-0"))
    job = watched(SERVERS)
    assert job() is None
    assert job.seconds == 110
    assert "stopping at once" not in job.said
    assert story.asked == [(100, "stop")]


def test_tasks_that_do_not_stop(story: Story, watched: Any) -> None:
    story.come(*names(WORKERS)).at(100, ctrl_c())
    job = watched(WORKERS)
    assert job() is None
    assert job.said == [SAVING, "the tasks did not stop in time: ended by force"]
    assert job.seconds == 100 + GRACE


def test_a_task_that_lingers(story: Story, watched: Any) -> None:
    """All end at the same step: who is not gone soon after the first will not go."""
    story.come(*names(WORKERS)).at(100, story.end_with(0, "chief-0"))
    story.at(110, story.end_with(0, "worker-0"))
    job = watched(WORKERS)
    assert job() is None
    assert job.seconds == 100 + GRACE
    assert job.said == ["the tasks did not stop in time: ended by force"]


NOTHING = "no step was taken, nothing is to be saved"


@pytest.mark.parametrize("cluster", [ONE, WORKERS, SERVERS])
def test_a_request_before_the_first_step_is_obeyed_at_once(
    cluster: Cluster, story: Story, watched: Any
) -> None:
    """Whatever the tasks are doing: some of it ends in minutes, or never."""
    story.at(1, story.word("started", *names(cluster)))
    story.at(2, story.word("joined", *names(cluster))).at(30, ctrl_c())
    job = watched(cluster)
    assert job() is None
    assert (job.seconds, job.said, story.asked) == (30, [f"stopping: {NOTHING}"], [])
    assert job._supervisor.asked


@pytest.mark.parametrize("cluster", [WORKERS, SERVERS])
def test_a_task_that_is_asked_before_the_first_step(
    cluster: Cluster, story: Story, watched: Any
) -> None:
    story.at(1, story.word("started", *names(cluster)), story.word("joined", "worker-0"))
    story.at(20, story.word("stop", "worker-0", "worker-1"))
    job = watched(cluster)
    assert job() is None
    assert (job.seconds, story.asked) == (20, [])
    assert job.said == [f"worker-0 was asked to stop: {NOTHING}"]
    assert job._supervisor.asked


def test_a_terminal_that_is_closed_asks_once(story: Story, watched: Any) -> None:
    """Its shell says it again, and perhaps a third asks too: that is no second request."""
    story.come(*names(WORKERS)).at(100, ctrl_c(signal.SIGHUP), ctrl_c(signal.SIGHUP))
    story.at(101, ctrl_c(signal.SIGHUP))
    story.at(110, story.end_with(errors.INTERRUPTED, *names(WORKERS)))
    job = watched(WORKERS)
    assert job() is None
    assert (job.seconds, job.said, job.signals.count) == (110, [SAVING], 1)


def test_nohup_is_respected(story: Story, watched: Any) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        story.come("chief-0").at(100, ctrl_c(signal.SIGHUP))
        story.at(500, story.end_with(0, "chief-0"))
        job = watched(ONE)
        assert job() is None
        assert (job.seconds, job.said) == (500, [])
    finally:
        signal.signal(signal.SIGHUP, before)


# --- who reads


def test_a_task_that_reads_has_time_to_join(story: Story, watched: Any) -> None:
    """A checkpoint of 100 GB, or TensorFlow from a slow disk; the others wait for it."""
    story.at(1, story.word("started", *names(WORKERS)))
    story.at(2, story.word("joined", "worker-0", "worker-1"))
    for second in range(10, 600, 50):
        story.at(second, story.word("reading", "chief-0"))
    story.at(605, story.word("joined", "chief-0"), story.word("training", "chief-0"))
    story.at(700, story.end_with(0, *names(WORKERS)))
    job = watched(WORKERS)
    assert job() is None
    assert job.seconds == 700


def test_data_that_is_loaded_is_no_stall(story: Story, watched: Any) -> None:
    story.stall_timeout = STALL
    story.at(1, story.word("started", "chief-0")).at(2, story.word("joined", "chief-0"))
    for second in range(50, 1000, 50):
        story.at(second, story.word("reading", "chief-0"))
    story.at(1000, story.progress(1), story.word("training", "chief-0"))
    story.at(1050, story.word("reading", "chief-0"))  # as if: a step is what counts now
    job = watched(ONE)
    assert job() == stalled()
    assert story.asked == [(1000 + STALL, "dump")]


def test_a_signal_before_anything_has_started() -> None:
    with Signals() as signals:
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()()
        assert signals.count == 1
        signals.started = True
        ctrl_c(signal.SIGUSR2)()
        assert signals.count == 2
