"""What is said of a job when it is over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dtrain.compare.comparison import text
from dtrain.run.cluster import Cluster, Task
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, write_json
from dtrain.run.journal import Journal
from dtrain.run.outcome import explained, last_lines, result, said
from tests.test_schema import composed

CLUSTER = Cluster((Task("chief", 0, 1), Task("worker", 0, 1)), "cpu", 2, {})
START = {
    "event": "start", "step": 0, "parameters": 42, "train_examples": 130,
    "objective": "val_accuracy", "objective_mode": "max",
}  # fmt: skip
END = {
    "event": "end", "status": "FINISHED", "step": 8, "examples": 256, "evaluated_examples": 50,
    "examples_per_second": 1234.5, "metrics": {"loss": 0.5, "val_accuracy": 0.75},
    "best_objective": 0.8, "best_step": 4,
}  # fmt: skip


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    rundir = RunDir.create(tmp_path / "run")
    rundir.logs.mkdir()
    return rundir


def made(rundir: RunDir, events: list[dict[str, Any]], *words: str, **facts: Any) -> dict[str, Any]:
    known = {"status": "FINISHED", "exit_code": 0, "failure": None, "restarts": 0,
             "replaced_workers": 0, "started": time.time() - 10, "start_seconds": 1.5}  # fmt: skip
    return result(composed(*words), CLUSTER, rundir, events, **{**known, **facts})


# --- in words


def test_the_last_error_counts() -> None:
    events = [
        START, {"event": "error", "message": "one"}, {"event": "error", "message": "two"},
        {"event": "end", "status": "FAILED"},
    ]  # fmt: skip
    assert said(events) == "two"
    assert said([START, END]) is None
    assert said([]) is None


def test_tasks_have_the_names_of_the_plan(rundir: RunDir) -> None:
    log = rundir.log("worker-1")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("unhealthy: /job:worker/replica:0/task:0 and /job:ps/task:3/device:CPU:0\n")
    assert last_lines(log) == "unhealthy: worker-0 and ps-3/device:CPU:0"


def test_last_words(rundir: RunDir) -> None:
    log = rundir.log("worker-0")
    assert last_lines(log) == "it left no log"
    log.write_text("")
    assert last_lines(log) == ""
    log.write_bytes(b"\n".join(b"line %d \xff" % number for number in range(9)) + b"\n")
    assert last_lines(log) == "\n".join(f"line {number} \ufffd" for number in range(4, 9))
    fatal = "F1126 07:18:07.5 19 client.h:80] it is over\n@ 0x7f xla::Log()\nFatal Python error\n"
    log.write_text(f"{fatal}\nExtension modules: numpy (total: 1)\n")
    assert last_lines(log) == "it is over"
    log.write_text(
        "F1126 07:56:05.5 19 parse_flags.cc:234] Unknown flag in XLA_FLAGS: --xla_no=8\n"
    )
    assert last_lines(log) == "Unknown flag in XLA_FLAGS: --xla_no=8"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (Failure("failed", "chief-0"), "chief-0: RuntimeError: bang"),
        (Failure("failed", "worker-0"), "worker-0: Traceback\nMemoryError"),
        (
            Failure("failed", "chief-0", silent=("worker-0",)),
            "chief-0: RuntimeError: bang; nothing came lately from worker-0",
        ),
        (Failure("died", "chief-0", "ended by SIGKILL"), "chief-0: ended by SIGKILL"),
        (Failure("died", "worker-0", "ended by SIGKILL"), "worker-0: ended by SIGKILL"),
    ],
)
def test_each_task_is_quoted_with_its_own_words(
    failure: Failure, said: str, rundir: RunDir
) -> None:
    """The chief's error may be that it misses the others."""
    events = [START, {"event": "error", "message": "RuntimeError: bang"}]
    rundir.log("worker-0").write_text("Traceback\nMemoryError\n")
    whole = f"{said} (log: run/logs/{failure.task}.log)"
    assert told(failure, rundir, events) == whole


def told(failure: Failure, rundir: RunDir, events: list[dict[str, Any]]) -> str:
    return explained(failure, CLUSTER, rundir, events).sentence(rundir.path)


def test_a_chief_that_wrote_no_error(rundir: RunDir) -> None:
    rundir.log("chief-0").write_text("")
    assert told(Failure("failed", "chief-0"), rundir, [START]).startswith("chief-0: it left no")
    rundir.log("chief-0").write_text("core dumped\n")
    assert told(Failure("failed", "chief-0"), rundir, [START]) == (
        "chief-0: core dumped (log: run/logs/chief-0.log)"
    )


# --- in numbers


def test_a_job_that_ended_well(rundir: RunDir) -> None:
    write_json(rundir.progress, {"step": 7})  # the journal knows better
    found = made(rundir, [START, END], restarts=1, replaced_workers=2)
    assert found["metrics"] == END["metrics"]
    assert found["examples_per_second"] == 1234.5
    assert {name: found[name] for name in ("status", "exit_code", "failure")} == {
        "status": "FINISHED", "exit_code": 0, "failure": None,
    }  # fmt: skip
    assert (found["objective"], found["objective_name"]) == (0.75, "val_accuracy")
    assert (found["best_objective"], found["best_step"]) == (0.8, 4)
    assert (found["step"], found["examples"], found["evaluated_examples"]) == (8, 256, 50)
    assert (found["replicas"], found["tasks"], found["parameters"]) == (2, 2, 42)
    assert (found["train_examples"], found["epoch_examples"]) == (130, [])  # it has no journal here
    assert (found["restarts"], found["replaced_workers"]) == (1, 2)
    assert found["start_seconds"] == 1.5
    assert 10 <= found["seconds"] < 20
    assert not {"worker_steps", "staleness", "dropped_gradients"} & found.keys()


def test_the_last_start_and_end_count(rundir: RunDir) -> None:
    """A resumed run has a start for each of its lives."""
    events = [START, {**END, "step": 4}, {**START, "parameters": 43}, END]
    found = made(rundir, events)
    assert (found["parameters"], found["step"]) == (43, 8)


def test_the_ledger_is_of_all_starts(rundir: RunDir) -> None:
    """What happened before this start is in the journal alone."""
    journal = Journal(rundir.journal)
    for step, examples, loss in ((4, 128, 0.5), (8, 120, float("nan"))):
        # Metrics of the user's own may have these names.
        own = {"loss": loss, "epoch_examples": 1.0, "examples": 1.0}
        journal.write("metrics", step=step, epoch=1, kind="interval", metrics=own)
        seen = {"epoch_examples": float(examples), "examples": 128.0 + examples * (step > 4)}
        journal.write("metrics", step=step, epoch=1, kind="epoch", metrics=seen)
    journal.write("notice", message="nothing to count")
    journal.close()
    found = made(rundir, [START, END])
    assert (found["epoch_examples"], found["examples"]) == ([128, 120], 256)
    assert found["train_examples"] == 130
    assert all(isinstance(count, int) for count in found["epoch_examples"])
    killed = made(rundir, [START], status="FAILED", exit_code=1)
    assert (killed["epoch_examples"], killed["examples"]) == ([128, 120], 248)
    assert made(rundir, [])["train_examples"] is None


@pytest.mark.parametrize("fork", [None, "/runs/a/checkpoints/8"])
def test_where_it_was_forked(fork: str | None, rundir: RunDir) -> None:
    assert made(rundir, [START, END], f"fork={fork or 'null'}")["forked_from"] == fork


def test_accounts_of_some_strategies(rundir: RunDir) -> None:
    accounts = {"worker_steps": {"worker-0": 8}, "staleness": {"0": 8}, "dropped_gradients": 3}
    found = made(rundir, [START, {**END, **accounts}])
    assert {name: found[name] for name in accounts} == accounts


def test_a_job_that_was_killed(rundir: RunDir) -> None:
    """There is no end in the journal: what was last shown to the user is known."""
    write_json(rundir.progress, {"step": 5})
    found = made(rundir, [START], status="FAILED", exit_code=1, failure={"task": "chief-0"})
    assert (found["status"], found["exit_code"], found["failure"]) == (
        "FAILED",
        1,
        {"task": "chief-0"},
    )
    assert (found["step"], found["examples"], found["metrics"]) == (5, 0, {})
    assert (found["objective"], found["best_step"], found["examples_per_second"]) == (None,) * 3


def test_a_job_that_never_began(rundir: RunDir) -> None:
    found = made(rundir, [], status="FAILED", exit_code=1, start_seconds=None)
    assert (found["step"], found["parameters"], found["start_seconds"]) == (0, None, None)


def test_a_resumed_job_that_took_no_step(rundir: RunDir) -> None:
    for step in (4, 12):
        (rundir.checkpoints / str(step)).mkdir(parents=True)
    assert made(rundir, [], status="KILLED", exit_code=75)["step"] == 12


def test_a_run_is_judged_by_its_best_checkpoint(tmp_path: Path) -> None:
    """The last epoch is worse, or has no checkpoint: it is of NaN weights."""
    from dtrain.compare.comparison import compare
    from dtrain.compare.load import of_folders
    from dtrain.run.outcome import Outcome

    ends = {
        "steady": {"val_accuracy": 0.7, "best": 0.7}, "peaked": {"val_accuracy": 0.2, "best": 0.9},
        "broken": {"val_accuracy": 0.95, "best": None},
    }  # fmt: skip
    objectives = {}
    for name, values in ends.items():
        folder = RunDir.create(tmp_path / name)
        end = {**END, "metrics": {"val_accuracy": values["val_accuracy"]}}
        ended = made(folder, [START, {**end, "best_objective": values["best"]}])
        write_json(folder.result, ended)
        write_json(folder.cluster, {"replicas": 1})
        folder.config.write_text("objective: val_accuracy\nobjective_mode: max\n")
        objectives[name] = Outcome.of(ended).objective
    assert objectives == {"steady": 0.7, "peaked": 0.9, "broken": None}
    compared = compare(*of_folders([tmp_path]))
    assert compared.best is not None and compared.best.name == "peaked"
    assert "0.9000" in "\n".join(text(compared)) and "0.9500" not in "\n".join(text(compared))
