"""A job's bookkeeping: starts and restarts, exit codes, what is recorded; without processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import errors
from dtrain.config import schema, tree
from dtrain.errors import DamagedFile, TrainingError, UsageError
from dtrain.job import run as module
from dtrain.job.checks import start as start_job
from dtrain.job.plan import Plan
from dtrain.job.run import PORT_TRIES, Job, JobSpec
from dtrain.launchers import Launcher
from dtrain.run import checkpoint
from dtrain.run.cluster import Cluster, Task
from dtrain.run.failure import Failure, sentence
from dtrain.run.folder import RunDir, read_json, write_json
from dtrain.run.journal import Journal, read
from dtrain.run.outcome import Outcome
from dtrain.task.strategies.plans import OneReplica
from tests.test_schema import composed

WORKERS = Cluster((Task("chief", 0, 1), Task("worker", 0, 1)), "cpu", 2, {})
SERVERS = Cluster(
    (
        Task("chief", 0, 0),
        Task("worker", 0, 1, serves=True, replaceable=True),
        Task("ps", 0, 0, serves=True),
    ),
    "cpu",
    1,
    {},
)


class Told(Launcher):
    """Each start is a function that does what the tasks would, and returns their exit codes."""

    def __init__(self, *starts: Callable[[RunDir], dict[str, int]], max_restarts: int = 0):
        super().__init__(30, 60, None, max_restarts)
        self._starts = list(starts)
        self._codes: dict[str, int] = {}
        self._told: set[str] = set()
        self.places = 0
        self.asked: list[Any] = []
        self.at_first_look: Callable[[], None] | None = None

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        self.asked.append("start")
        self.places += 1
        cluster = cluster.at([f"127.0.0.1:{self.places}{i}" for i, _ in enumerate(cluster.tasks)])
        write_json(rundir.cluster, cluster.to_json())
        self._told = set()
        self._codes = {}
        self._codes = self._starts.pop(0)(rundir)
        return cluster

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        if self.at_first_look is not None:
            self.at_first_look()
            self.at_first_look = None
        news = [(name, "ended") for name in self._codes if name not in self._told]
        self._told.update(self._codes)
        return news

    def stop(self) -> None:
        self.asked.append("stop")

    def kill(self) -> None:
        self.asked.append("kill")

    def exit_codes(self) -> dict[str, int]:
        return self._codes

    def farewell(self, code: int) -> None:
        self.asked.append(code)


def lines(rundir: RunDir, *events: tuple[str, int, dict[str, Any]]) -> None:
    journal = Journal(rundir.journal)
    for event, step, fields in events:
        journal.write(event, step=step, **fields)
    journal.close()


META = {"objective": None, "pending_validation": False}


def save(rundir: RunDir, step: int) -> None:
    checkpoint.save(rundir.checkpoints, step, {"a": np.zeros(1)}, META)


STARTED = {"parameters": 42, "objective": "val_accuracy", "objective_mode": "max"}


def trains(codes: dict[str, int], steps: int = 8, first: int = 1) -> Callable[[RunDir], Any]:
    """Return a start that trains, saves every fourth step, and ends so."""

    def act(rundir: RunDir) -> dict[str, int]:
        lines(rundir, ("start", first - 1, STARTED))
        for step in range(first, steps + 1):
            lines(rundir, ("metrics", step, {"metrics": {"val_accuracy": step / 10}}))
            write_json(rundir.progress, progress(step))
            if step % 4 == 0:
                save(rundir, step)
        if codes.get("chief-0") == 0:
            lines(rundir, ("end", steps, {"metrics": {"val_accuracy": steps / 10}}))
        return codes

    return act


def progress(step: int) -> dict[str, Any]:
    return {
        "step": step, "total_steps": 8, "epoch": 1, "epochs": 1, "steps_per_epoch": 8,
        "loss": 1.0, "metrics": {}, "examples_per_second": 1.0, "evaluated": 0,
        "time": time.time() + 1.5,  # as if the tasks had needed so long
    }  # fmt: skip


def fails(codes: dict[str, int]) -> Callable[[RunDir], dict[str, int]]:
    return lambda rundir: codes


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., tuple[Outcome, RunDir]]:
    def run(
        launcher: Launcher, cluster: Cluster = WORKERS, *overrides: str
    ) -> tuple[Outcome, RunDir]:
        config = composed("tracking=none", f"output_dir={tmp_path}/outputs", *overrides)
        folder = Path(config.resume or tmp_path / "outputs" / "day" / "run")
        planned = Plan(cluster, 8, None, None, OneReplica())
        made = Job(JobSpec(config, planned, launcher, folder, {"arguments": []}))
        return made.run(), RunDir(folder)

    return run


WELL = {"chief-0": 0, "worker-0": 0}
STOPPED = {"chief-0": 75, "worker-0": 75}


def said(rundir: RunDir) -> str | None:
    """Return why a job failed, in words."""
    return sentence(result(rundir)["failure"], rundir.path)


def result(rundir: RunDir) -> dict[str, Any]:
    found = read_json(rundir.result)
    assert found is not None
    return found


def test_of_a_long_run_few_events_stay_in_memory(start: Any, monkeypatch: Any) -> None:
    jobs: list[Job] = []
    init = Job.__init__
    monkeypatch.setattr(
        Job, "__init__", lambda self, *a, **k: [init(self, *a, **k), jobs.append(self)][0]
    )
    outcome, _ = start(Told(trains({"chief-0": 1, "worker-0": 0}), trains(WELL), max_restarts=1))
    assert outcome.objective == 0.8
    [job] = jobs
    assert [event["event"] for event in job._events] == ["start", "start", "end"]


# --- how it ends


def test_a_job_that_ends_well(start: Any) -> None:
    launcher = Told(trains(WELL))
    outcome, rundir = start(launcher)
    told = dataclasses.replace(outcome, seconds=None)
    assert told == Outcome(
        errors.OK, 0.8, False, "FINISHED", folder=rundir.path, objective_name="val_accuracy",
        objective_mode="max",
        metrics={"val_accuracy": 0.8},
    )  # fmt: skip
    found = result(rundir)
    assert (found["status"], found["step"], found["failure"]) == ("FINISHED", 8, None)
    assert (found["restarts"], found["replaced_workers"]) == (0, 0)
    assert 0 < found["start_seconds"] < 2
    assert launcher.asked == ["start", "kill", "kill", 0]


def test_steps_before_the_start_has_returned(start: Any) -> None:
    """As with launcher=inline, where nothing is forked and nothing waited for."""

    def inline(rundir: RunDir) -> dict[str, int]:
        codes = trains(WELL)(rundir)
        write_json(rundir.progress, {**progress(8), "time": time.time() - 1})
        return codes

    _, rundir = start(Told(inline))
    assert result(rundir)["start_seconds"] is None


@pytest.mark.parametrize(
    ("cluster", "codes", "code", "status"),
    [
        (WORKERS, {"chief-0": 0, "worker-0": -6}, errors.OK, "FINISHED"),
        (WORKERS, {"chief-0": 75, "worker-0": 75}, errors.INTERRUPTED, "KILLED"),
        (WORKERS, {"chief-0": 75, "worker-0": -6}, errors.INTERRUPTED, "KILLED"),
        (WORKERS, {"chief-0": 1, "worker-0": 0}, errors.FAILED, "FAILED"),
        (WORKERS, {"chief-0": -9, "worker-0": -9}, errors.FAILED, "FAILED"),
        (WORKERS, {"chief-0": errors.PORT_TAKEN, "worker-0": 1}, errors.FAILED, "FAILED"),
        (WORKERS, {"chief-0": 3, "worker-0": 75}, errors.FAILED, "FAILED"),
        (SERVERS, {"chief-0": 0, "worker-0": 1, "ps-0": -9}, errors.OK, "FINISHED"),
        (SERVERS, {"chief-0": 75, "ps-0": -9}, errors.INTERRUPTED, "KILLED"),
        (SERVERS, {"ps-0": -9}, errors.FAILED, "FAILED"),
        (SERVERS, {"ps-0": 0}, errors.FAILED, "FAILED"),
    ],
)
def test_exit_codes(
    cluster: Cluster, codes: dict[str, int], code: int, status: str, start: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "PORT_TRIES", 0)
    launcher = Told(trains(codes))
    outcome, rundir = start(launcher, cluster)
    assert (outcome.exit_code, outcome.interrupted) == (code, False)
    found = result(rundir)
    assert (found["status"], found["exit_code"]) == (status, code)
    assert (found["failure"] is None) == (code != errors.FAILED)
    assert launcher.asked[-1] == code


def test_a_refusal_leaves_nothing(start: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(rundir: RunDir) -> dict[str, int]:
        lines(rundir, ("error", 0, {"kind": "usage", "message": "objective=x: is not there"}))
        return {"chief-0": errors.USAGE, "worker-0": errors.USAGE}

    launcher = Told(refuse, max_restarts=3)
    outcome, rundir = start(launcher)
    assert outcome == Outcome(
        errors.USAGE, failure=Failure("refused", reason="objective=x: is not there")
    )
    assert "error: objective=x: is not there" in capsys.readouterr().err
    assert not rundir.path.parent.exists()
    assert launcher.asked == ["start", "kill", "kill", errors.USAGE]


def test_a_refusal_of_a_resumed_run_leaves_the_run(start: Any, tmp_path: Path) -> None:
    _, rundir = start(Told(trains({"chief-0": -9})))
    before = everything(rundir)
    launcher = Told(fails({"chief-0": errors.USAGE}))
    outcome, _ = start(launcher, WORKERS, f"resume={rundir.path}", "trainer.epochs=99")
    assert outcome == Outcome(errors.USAGE, failure=Failure("refused", reason="it left no log"))
    assert checkpoint.steps(rundir.checkpoints) == [4, 8]
    assert everything(rundir) == before


def everything(rundir: RunDir) -> dict[str, bytes]:
    return {
        str(path.relative_to(rundir.path)): path.read_bytes()
        for path in sorted(rundir.path.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize("codes", [{"chief-0": 1}, {"chief-0": -9}, STOPPED, {}])
@pytest.mark.parametrize("earlier", [WELL, STOPPED, {"chief-0": -9}])
def test_a_resume_that_trains_nothing_changes_nothing(
    codes: dict[str, int], earlier: dict[str, int], start: Any
) -> None:
    """Not even of a job that is started again, and whatever is in the journal by then."""
    _, rundir = start(Told(trains(earlier)))

    def fail(rundir: RunDir) -> dict[str, int]:
        if not codes:
            raise TrainingError("no ports")
        lines(rundir, ("notice", 0, {"message": "passed over"}), ("error", 0, {"message": "bang"}))
        write_json(rundir.progress, progress(3))
        return codes

    before = everything(rundir)
    launcher = Told(fail, fail, max_restarts=1)
    outcome, _ = start(launcher, WORKERS, f"resume={rundir.path}", "trainer.epochs=99")
    assert outcome.exit_code == (75 if codes.get("chief-0") == 75 else errors.FAILED)
    assert everything(rundir) == before


def test_a_resume_that_trains_after_a_restart_counts(start: Any) -> None:
    _, rundir = start(Told(trains(STOPPED)))
    launcher = Told(fails({"chief-0": -9}), trains(WELL, first=9, steps=9), max_restarts=1)
    start(launcher, WORKERS, f"resume={rundir.path}")
    assert result(rundir)["status"] == "FINISHED"
    kinds = [event["event"] for event in read(rundir.journal) if event["event"] != "metrics"]
    assert kinds.count("start") == 2 and kinds[-2:] == ["start", "end"]


def test_any_error_of_ours_is_in_the_result(start: Any) -> None:
    def bug(rundir: RunDir) -> dict[str, int]:
        raise RuntimeError("no such thing")

    outcome, rundir = start(Told(bug))
    assert outcome.exit_code == errors.FAILED
    assert "RuntimeError: no such thing" in said(rundir)


def test_a_launcher_that_does_not_say_what_it_placed(start: Any) -> None:
    class Silent(Told):
        def start(self, rundir: RunDir, cluster: Cluster) -> Any:
            super().start(rundir, cluster)

    launcher = Silent(fails({}))
    outcome, rundir = start(launcher)
    assert outcome.exit_code == errors.FAILED and "kill" in launcher.asked
    assert "start of Silent returned None, not the cluster" in said(rundir)


@pytest.mark.parametrize("name", ["progress.json", "journal.jsonl", "chief-0.log"])
def test_files_that_cannot_be_read_for_a_while_end_no_run(
    name: str, start: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a network's disk that does not answer; it says so once, and the last look has two."""
    failed = []

    def guarded(original: Any, begun: Callable[[Any], bool]) -> Any:
        def opened(path: Any, *more: Any, **named: Any) -> Any:
            if str(path).endswith(name) and begun(more) and len(failed) < 2:
                failed.append(path)
                raise OSError(116, os.strerror(116), str(path))
            return original(path, *more, **named)

        return opened

    def trained(rundir: RunDir) -> dict[str, int]:
        codes: dict[str, int] = trains(WELL)(rundir)
        rundir.log("chief-0").touch()
        monkeypatch.setattr(os, "open", guarded(os.open, lambda more: more[0] & 3 == os.O_RDONLY))
        monkeypatch.setattr(Path, "open", guarded(Path.open, lambda more: more == ("rb",)))
        return codes

    outcome, rundir = start(Told(trained))
    assert len(failed) == 2
    assert (outcome.exit_code, outcome.status) == (errors.OK, "FINISHED")
    assert (result(rundir)["step"], outcome.objective) == (8, 0.8)
    said = capsys.readouterr().err.count(f"{name} cannot be read now: Stale file handle")
    assert said == (0 if name == "progress.json" else 1), "without a report nothing is amiss"


def test_a_journal_that_cannot_be_read_at_the_end_costs_what_is_in_it(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.open

    def trained(rundir: RunDir) -> dict[str, int]:
        codes: dict[str, int] = trains(WELL)(rundir)

        def opened(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if str(path).endswith("journal.jsonl") and flags & 3 == os.O_RDONLY:
                raise OSError(5, os.strerror(5), str(path))
            return original(path, flags, *more, **named)

        monkeypatch.setattr(os, "open", opened)
        return codes

    outcome, rundir = start(Told(trained))
    assert (outcome.exit_code, outcome.status) == (errors.OK, "FINISHED")
    found = result(rundir)
    assert (found["step"], found["epoch_examples"]) == (8, [])


def test_a_damaged_file_in_the_middle_does_not_discard_the_run(start: Any) -> None:
    def refuse() -> None:
        raise DamagedFile("x", "is damaged")

    real = Told.poll
    looks = []

    def poll(self: Told, timeout: float) -> list[tuple[str, str]]:
        looks.append(timeout)
        if len(looks) == 2:
            refuse()
        return [] if len(looks) == 1 else real(self, timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Told, "poll", poll)
        outcome, rundir = start(Told(trains({})))
    assert outcome.exit_code == errors.FAILED
    assert "x is damaged" in said(rundir)
    assert checkpoint.steps(rundir.checkpoints) == [4, 8]


def test_a_run_that_is_resumed_is_not_finished(start: Any) -> None:
    """Should its controller be killed: ``resume=auto`` goes by the file."""
    _, rundir = start(Told(trains(WELL)))
    assert result(rundir)["status"] == "FINISHED"

    there = []

    def begin(rundir: RunDir) -> dict[str, int]:
        there.append(rundir.result.exists())  # no task trains yet
        lines(rundir, ("start", 8, {}))
        return STOPPED

    launcher = Told(begin)
    launcher.farewell = lambda code: None  # type: ignore[method-assign]
    real = Job._finish

    def finish(job: Job, *given: Any) -> Outcome:
        there.append(rundir.result.exists())
        return real(job, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "_finish", finish)
        start(launcher, WORKERS, f"resume={rundir.path}")
    assert there == [True, False]
    assert result(rundir)["status"] == "KILLED"


def test_what_was_trained_is_not_thrown_away(start: Any) -> None:
    """A person's code may end its process with sys.exit(2), as argparse does."""
    outcome, rundir = start(Told(trains({"chief-0": errors.USAGE}), max_restarts=1))
    assert outcome.exit_code == errors.FAILED
    assert result(rundir)["status"] == "FAILED"
    assert checkpoint.steps(rundir.checkpoints) == [4, 8]


# --- requests to stop


@pytest.mark.parametrize(
    ("codes", "steps", "code", "error"),
    [
        ({"chief-0": 75, "worker-0": 75}, 8, errors.INTERRUPTED, None),
        ({"chief-0": -9, "worker-0": -9}, 8, errors.INTERRUPTED, None),
        (
            {"chief-0": -9, "worker-0": -9},
            3,
            errors.FAILED,
            "stopped before a checkpoint was saved",
        ),
        ({"chief-0": 0, "worker-0": 0}, 8, errors.OK, None),
    ],
)
def test_a_request_to_stop(
    codes: dict[str, int], steps: int, code: int, error: str | None, start: Any
) -> None:
    launcher = Told(trains(codes, steps), max_restarts=5)
    launcher.at_first_look = lambda: os.kill(os.getpid(), signal.SIGTERM)
    outcome, rundir = start(launcher)
    assert (outcome.exit_code, outcome.interrupted) == (code, True)
    found = result(rundir)
    assert found["status"] == ("FINISHED" if code == errors.OK else "KILLED")
    assert (said(rundir), found["restarts"]) == (error, 0)
    assert launcher.asked.count("start") == 1


def test_a_request_before_the_start(start: Any) -> None:
    def interrupted(rundir: RunDir) -> dict[str, int]:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal ends the start")

    before = signal.getsignal(signal.SIGINT)
    launcher = Told(interrupted)
    outcome, rundir = start(launcher)
    assert (outcome.exit_code, outcome.interrupted) == (errors.FAILED, True)
    assert result(rundir)["status"] == "KILLED"
    assert launcher.asked == ["start", "kill", errors.FAILED]
    assert signal.getsignal(signal.SIGINT) is before


# --- starts


def test_a_restart(start: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Points after the last checkpoint are made again, and are in the journal once."""

    def again(rundir: RunDir) -> dict[str, int]:
        assert not rundir.progress.exists(), "what is shown there is of the start before"
        assert [e["step"] for e in read(rundir.journal) if e["event"] == "metrics"] == [1, 2, 3, 4]
        return trains(WELL, first=5)(rundir)

    launcher = Told(trains({"worker-0": -9}, steps=6), again, max_restarts=2)
    outcome, rundir = start(launcher)
    assert outcome.exit_code == errors.OK
    assert (result(rundir)["restarts"], result(rundir)["step"]) == (1, 8)
    events = read(rundir.journal)
    assert [e["step"] for e in events if e["event"] == "metrics"] == list(range(1, 9))
    [restart] = [e for e in events if e["event"] == "restart"]
    said = "restart 1 of 2 from step 4: worker-0: ended by SIGKILL (log: "
    assert restart["message"].startswith(said)
    assert restart["step"] == 4
    assert said in capsys.readouterr().err
    assert launcher.places == 2, "each start has ports of its own"
    assert launcher.asked == ["start", "kill", "start", "kill", "kill", 0]


def test_a_restart_from_the_beginning(start: Any) -> None:
    launcher = Told(trains({"worker-0": -9}, steps=3), trains(WELL), max_restarts=1)
    _, rundir = start(launcher)
    events = read(rundir.journal)
    assert [e["step"] for e in events if e["event"] == "metrics"] == list(range(1, 9))
    [restart] = [e for e in events if e["event"] == "restart"]
    assert restart["message"].startswith("restart 1 of 1 from step 0: ")


def test_an_error_before_a_restart_is_not_the_job_s(start: Any) -> None:
    def bang(rundir: RunDir) -> dict[str, int]:
        codes = trains({"chief-0": 1}, steps=4)(rundir)
        lines(rundir, ("error", 4, {"kind": "training", "message": "ValueError: bang"}))
        return codes

    launcher = Told(bang, trains({"chief-0": -9}, first=5), max_restarts=1)
    outcome, rundir = start(launcher)
    assert outcome.exit_code == errors.FAILED
    assert said(rundir).startswith("chief-0: ended by SIGKILL")
    [restart] = [e for e in read(rundir.journal) if e["event"] == "restart"]
    assert "chief-0: ValueError: bang" in restart["message"]


@pytest.mark.parametrize("most", [0, 2])
def test_restarts_come_to_an_end(most: int, start: Any) -> None:
    launcher = Told(*[fails({"worker-0": 3})] * 3, max_restarts=most)
    outcome, rundir = start(launcher)
    assert outcome.exit_code == errors.FAILED
    assert result(rundir)["restarts"] == most
    assert said(rundir).startswith("worker-0: it left no log")
    assert launcher.asked.count("start") == most + 1


@pytest.mark.parametrize("most", [0, 1])
def test_a_port_that_is_taken_is_no_restart(most: int, start: Any) -> None:
    taken = fails({"worker-0": errors.PORT_TAKEN})
    launcher = Told(*[taken] * PORT_TRIES, trains(WELL), max_restarts=most)
    outcome, rundir = start(launcher)
    assert outcome.exit_code == errors.OK
    assert result(rundir)["restarts"] == 0
    assert launcher.places == PORT_TRIES + 1


def test_ports_that_are_always_taken(start: Any) -> None:
    taken = fails({"worker-0": errors.PORT_TAKEN})
    launcher = Told(*[taken] * 9, max_restarts=9)
    outcome, rundir = start(launcher)
    assert outcome.exit_code == errors.FAILED
    assert said(rundir).startswith("worker-0: its port was taken by another program")
    assert launcher.asked.count("start") == PORT_TRIES + 1


def test_hosts_that_do_not_come(start: Any) -> None:
    def alone(rundir: RunDir) -> dict[str, int]:
        raise TrainingError("worker-0 did not come")

    launcher = Told(alone, max_restarts=2)
    outcome, rundir = start(launcher)
    assert outcome.exit_code == errors.FAILED
    assert said(rundir).startswith("chief-0: worker-0 did not come (log: ")
    assert launcher.asked == ["start", "kill", errors.FAILED]


def test_hosts_with_another_configuration(start: Any, tmp_path: Path) -> None:
    def other(rundir: RunDir) -> dict[str, int]:
        raise UsageError(
            "seed", "worker-0 has this, and the chief has 2", 1, accepted="the same", typed="seed=2"
        )

    launcher = Told(other)
    with pytest.raises(UsageError, match="worker-0 has this"):
        start(launcher)
    assert launcher.asked == ["start", "kill"]
    assert not (tmp_path / "outputs").exists()


# --- what the commands of a cluster tell each other


class Curious(Told):
    """Remembers what it is given to compare, and refuses."""

    facts: dict[str, str] = {}

    def __init__(self, **settings: Any):
        super().__init__()

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        Curious.facts = facts
        raise UsageError(
            "launcher", "has seen enough", "curious", accepted="another", typed="launcher=local"
        )


def test_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that makes the training, and nothing that is of a host or secret."""
    monkeypatch.setenv("DTRAIN_TRUST", "tests")
    config = composed(
        f"output_dir={tmp_path}/outputs", "launcher=local",
        "launcher._target_=tests.test_job.Curious",
        "tracking.uri=https://me:secret@mlflow.example", "name=mine", "seed=17",
        "model.dropout=0.5",
    )  # fmt: skip
    with pytest.raises(UsageError, match="has seen enough"):
        start_job(config, tmp_path / "outputs" / "run", {})
    facts = Curious.facts
    assert facts["seed"] == "17"
    assert facts["model.dropout"] == "0.5"
    assert {"strategy.name", "trainer.batch_size", "trainer.epochs", "objective"} <= facts.keys()
    assert {"dataset._target_", "optimizer.learning_rate", "hardware.precision"} <= facts.keys()
    groups = {key.partition(".")[0] for key in facts}
    local = set(schema.having("record", "command"))
    assert groups == set(tree.written(config)) - local
    assert "secret" not in repr(facts)
    assert not (tmp_path / "outputs").exists()
