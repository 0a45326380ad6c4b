"""A sweep from its words to its exit code, with tasks that are real and quick processes."""

from __future__ import annotations

import errno
import io
import queue
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dtrain import errors
from dtrain.errors import UsageError
from dtrain.job import checks
from dtrain.run.devices import Machine
from dtrain.run.folder import RunDir, read_json
from dtrain.run.outcome import Outcome
from dtrain.sweep import command as module
from dtrain.sweep import state
from dtrain.sweep.runner import JobView
from dtrain.sweep.search import Source
from dtrain.sweep.table import Row, Table
from tests.quick import grid, master


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tests")
    have(monkeypatch, Machine(0, 2))


def have(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    for place in (checks, module):
        monkeypatch.setattr(place, "machine", lambda: machine)


def swept(*jobs: str, words: tuple[str, ...] = (), source: Source | None = None) -> int:
    """Run a sweep of jobs, or of a source."""
    return module.run(master(*words), source or Source(grid(*jobs, words=words)))


def folder() -> Path:
    [found] = Path().glob("outputs/multirun/*/*/sweep.json")
    return found.parent


def told() -> dict[str, Any]:
    return read_json(folder() / "sweep.json") or {}


def lasts(**last: str) -> str:
    """Return the word that says what the task of a seed does in the end."""
    return "+launcher.last={" + ",".join(f"{seed}: '{does}'" for seed, does in last.items()) + "}"


def statuses() -> list[str]:
    return [job["status"] for job in told()["jobs"]]


def test_a_sweep_that_ends_well(capfd: pytest.CaptureFixture[str]) -> None:
    assert swept("seed=10", "seed=30", "seed=20", words=("sweep.baseline='seed=10'",)) == errors.OK
    found = told()
    assert (found["status"], found["name"], found["best"]) == ("FINISHED", "cnn_default", 1)
    assert (found["objective"], found["objective_mode"]) == ("val_accuracy", "max")
    assert found["baseline"] == "seed=10"
    assert found["started"] < found["ended"]
    first = found["jobs"][0]
    assert first["differs"] == {"seed": "10"}
    assert first["objective"] == 0.103
    assert (first["status"], first["exit_code"], first["failure"]) == ("FINISHED", 0, None)
    assert 0 < first["seconds"] < 60
    for number in range(3):
        rundir = RunDir(folder() / str(number))
        assert (read_json(rundir.result) or {})["status"] == "FINISHED"
        command = read_json(rundir.command) or {}
        assert command["sweep"] == {"number": number, "differs": found["jobs"][number]["differs"]}
        assert "sweep:" not in rundir.config.read_text()
    output = capfd.readouterr().err
    for part in ("3 jobs, 2 at a time", "best: 1, val_accuracy 0.303 (max)",
                 "FINISHED: 3 of 3 jobs done", f"sweep folder: {folder()}"):  # fmt: skip
        assert part in output


def test_jobs_run_beside_each_other_on_cores_of_their_own() -> None:
    """Each of the first two waits for the other."""
    words = (lasts(s1="wait:began-2", s2="wait:began-1"),)
    assert swept("seed=1", "seed=2", words=words) == errors.OK
    tasks = [(read_json(folder() / n / "cluster.json") or {})["tasks"][0] for n in "01"]
    assert sorted(task["cores"] for task in tasks) == [[0], [1]]
    assert [task["threads"] for task in tasks] == [1, 1]


def test_jobs_elsewhere_have_what_is_there_and_not_what_is_here() -> None:
    words = ("launcher._target_=tests.quick.Far", "hardware.kind=gpu")
    assert swept("seed=1", "seed=2", words=words) == errors.OK
    cluster = read_json(folder() / "0" / "cluster.json") or {}
    assert (cluster["device_kind"], cluster["tasks"][0]["cores"]) == ("gpu", [])


@pytest.mark.faults
def test_one_at_a_time_has_the_machine() -> None:
    assert swept("seed=1", "seed=2", words=("sweep.parallel=1",)) == errors.OK
    [task] = (read_json(folder() / "0" / "cluster.json") or {})["tasks"]
    assert (task["cores"], task["threads"]) == ([], None)


@pytest.mark.faults
def test_gpus_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two GPUs a job of two has both, and waits until they are free."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    have(monkeypatch, Machine(2, 8))
    words = ("hardware=gpu", lasts(s1="wait:began-2", s2="wait:began-1"))
    jobs = ["seed=1 strategy=one_device", "seed=2 strategy=one_device", "seed=3 strategy=mirrored"]
    assert swept(*jobs, words=words) == errors.OK
    seen = [(folder() / str(n) / "logs" / "chief-0.log").read_text() for n in range(3)]
    assert sorted(seen[:2]) == ["gpus ('GPU-a',)\n", "gpus ('GPU-b',)\n"]
    assert set(re.findall("GPU-.", seen[2])) == {"GPU-a", "GPU-b"}
    found = [RunDir(folder() / str(n)) for n in range(3)]
    begun = (read_json(found[2].result) or {})["started"]
    for other in found[:2]:
        result = read_json(other.result) or {}
        assert begun >= result["started"] + result["seconds"] - 1


@pytest.mark.faults
def test_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    have(monkeypatch, Machine(1, 8))
    words = ("hardware=gpu", "strategy=mirrored")
    with pytest.raises(UsageError, match="this machine has 1 GPU") as caught:
        swept("hardware.devices=1", "hardware.devices=2", words=words)
    assert caught.value.__notes__ == ["in job 1: hardware.devices=2"]
    assert not list(tmp_path.iterdir())


def test_a_failure_does_not_stop_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    words = (lasts(s2="crash", s3="die"),)
    assert swept("seed=1", "seed=2", "seed=3", "seed=4", words=words) == errors.FAILED
    assert statuses() == ["FINISHED", "FAILED", "FAILED", "FINISHED"]
    crashed, died = told()["jobs"][1:3]
    assert crashed["failure"]["reason"] == "bang"
    assert (crashed["failure"]["log"], crashed["exit_code"]) == ("logs/chief-0.log", 1)
    assert (died["failure"]["kind"], died["failure"]["task"]) == ("died", "chief-0")
    output = capfd.readouterr().err
    assert f"job 1 failed: chief-0: bang (log: {folder()}/1/logs/chief-0.log)" in output
    assert f"job 2 failed: chief-0: ended by SIGKILL (log: {folder()}/2/logs" in output
    assert "FAILED: 2 of 4 jobs done" in output
    assert f"resume with: python -m dtrain sweep.resume={folder()}" in output


@pytest.mark.faults
def test_fail_fast() -> None:
    words = (lasts(s1="wait:never", s2="crash"), "sweep.fail_fast=true")
    assert swept("seed=1", "seed=2", "seed=3", words=words) == errors.FAILED
    assert statuses() == ["KILLED", "FAILED", "WAITING"]
    assert told()["status"] == "FAILED"
    assert not (folder() / "2").exists()


def test_a_job_that_its_task_refuses() -> None:
    words = (lasts(s2="refuse"),)
    assert swept("seed=1", "seed=2", words=words) == errors.FAILED
    refused = told()["jobs"][1]
    assert (refused["status"], refused["exit_code"]) == ("FAILED", 2)
    assert refused["failure"]["reason"] == "objective=x: is not there"
    assert not (folder() / "1").exists()


def test_a_sweep_of_which_all_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = (lasts(s1="refuse", s2="refuse"),)
    assert swept("seed=1", "seed=2", words=words) == errors.USAGE
    assert "\nerror: objective=x: is not there\n" in capfd.readouterr().err
    assert not (tmp_path / "outputs").exists()


def test_ctrl_c(capfd: pytest.CaptureFixture[str]) -> None:
    words = (lasts(s1="wait:never", s2="interrupt:began-1"),)
    assert swept("seed=1", "seed=2", "seed=3", words=words) == errors.INTERRUPTED
    assert statuses() == ["KILLED", "KILLED", "WAITING"]
    assert told()["status"] == "KILLED"
    assert [job["exit_code"] for job in told()["jobs"]] == [75, 75, None]
    output = capfd.readouterr().err
    assert "stopping: saving checkpoints (once more: stop at once)" in output
    assert f"resume with: python -m dtrain sweep.resume={folder()}" in output


def test_ctrl_c_while_tensorflow_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.quick import Quick

    def interrupted(self: Any, cluster: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Quick, "ready", interrupted, raising=False)
    assert swept("seed=1", "seed=2") == errors.INTERRUPTED
    assert statuses() == ["WAITING", "WAITING"]
    assert told()["status"] == "KILLED"


@pytest.mark.faults
def test_a_bug_of_ours_is_one_job_s(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from tests.quick import Quick

    def start(self: Any, rundir: RunDir, cluster: Any) -> Any:
        if rundir.path.name == "0":
            raise RuntimeError("no such thing")
        return real(self, rundir, cluster)

    real = Quick.start
    monkeypatch.setattr(Quick, "start", start)
    assert swept("seed=1", "seed=2") == errors.FAILED
    assert statuses() == ["FAILED", "FINISHED"]
    assert "RuntimeError: no such thing" in told()["jobs"][0]["failure"]["reason"]
    assert (read_json(folder() / "0" / "result.json") or {})["status"] == "FAILED"
    assert "Traceback" in capfd.readouterr().err


def test_dry_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("dry_run=true", "trainer.batch_size=32")
    jobs = ["strategy=one_device", "strategy=mirrored", "strategy=multiworker"]
    assert swept(*jobs, words=words) == errors.OK
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "sweep: 3 jobs, 3 to be run, 2 at a time"
    assert lines[2] == "0 one_device new 1 1 CPU 1 32 of 32 44"
    assert lines[3] == "1 mirrored new 1 2 CPU 2 16 of 32 44"
    assert lines[4] == "2 multiworker new 2 1 CPU + 1 CPU 2 16 of 32 44"
    assert not list(tmp_path.iterdir())


@pytest.mark.faults
def test_a_baseline_that_no_job_has() -> None:
    with pytest.raises(UsageError, match=r"accepted: seed=1, seed=2; hint: sweep.baseline=seed=2"):
        swept("seed=1", "seed=2", words=("sweep.baseline='sed=2'",))


def test_none_at_a_time() -> None:
    with pytest.raises(UsageError, match=r"sweep.parallel=0: must be at least 1"):
        swept("seed=1", "seed=2", words=("sweep.parallel=0",))


@pytest.mark.faults
def test_a_record_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk: the jobs are what matters."""

    def full(path: Path, value: Any, lasting: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state, "write_json", full)
    assert swept("seed=1", words=("hydra.sweep.dir=here",)) == errors.OK
    assert "here/sweep.json: No space left on device" in capfd.readouterr().err
    assert (read_json(Path("here/0/result.json")) or {})["status"] == "FINISHED"


@pytest.mark.faults
def test_a_comparison_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The jobs are done all the same."""

    def full(*_: object) -> list[str]:
        raise OSError(errno.ENOSPC, "No space left on device", "curves.csv")

    monkeypatch.setattr("dtrain.compare.write", full)
    assert swept("seed=1", "seed=2") == errors.OK
    said = "no comparison was written: curves.csv: No space left on device"
    assert said in capfd.readouterr().err
    assert statuses() == ["FINISHED", "FINISHED"]


def test_two_sweeps_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    same = Path("outputs/multirun/day/same").absolute()
    monkeypatch.setattr("dtrain.sweep.compose.place", lambda *_: same)
    for _ in range(2):
        assert swept("seed=1") == errors.OK
    assert len(list(Path().glob("outputs/multirun/day/*/sweep.json"))) == 2


def test_what_a_job_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    news: Any = queue.SimpleQueue()
    table = Table(None, 4, Console(file=io.StringIO()))
    monkeypatch.setattr(table, "message", printed.append)
    row = Row(3, {})
    watch = JobView(row, table, news)
    watch.detail("see it: tensorboard")
    watch.message("worker-0 ended: it is started again")
    watch.event({"event": "notice", "message": "passed over a checkpoint"})
    other = JobView(Row(4, {}), table, news)
    other.event({"event": "notice", "message": "passed over a checkpoint"})
    watch.event({"event": "checkpoint", "step": 4})
    watch.event({"event": "metrics", "step": 4, "metrics": {"loss": 1.0}})
    watch.update({"epoch": 2, "epochs": 4})
    watch.close()
    watch.close()
    assert printed == [
        "job 3: worker-0 ended: it is started again", "job 3: passed over a checkpoint",
    ]  # fmt: skip
    assert row.epoch == "2/4"
    assert [news.get_nowait()[1] for _ in range(2)] == ["metrics", "free"]
    assert news.empty()


# --- sources that decide on the way


class Scripted(Source):
    """Asks for jobs as a script says, which gets what was reported so far."""

    def __init__(
        self,
        script: Callable[[dict[int, Outcome]], str | None],
        prune: Callable[[int, int], bool] = lambda *_: False,
        words: tuple[str, ...] = (),
    ):
        super().__init__(())
        self.total = 10
        self.reports: dict[int, Outcome] = {}
        self.values: list[tuple[int, int, float]] = []
        self._script = script
        self._prune = prune
        self._words = words

    def next(self) -> list[str] | None:
        asked = self._script(self.reports)
        return None if asked is None else grid(asked, words=self._words)[0]

    def aim(self, mode: str) -> None:
        assert mode == "max" and not self.values

    def judge(self, number: int, step: int, value: float) -> bool:
        self.values.append((number, step, value))
        return self._prune(number, step)

    def report(self, number: int, outcome: Outcome) -> None:
        self.reports[number] = outcome


def listed(*jobs: str) -> Callable[[dict[int, Outcome]], str | None]:
    rest = list(jobs)
    return lambda reports: rest.pop(0) if rest else None


@pytest.mark.faults
def test_a_search_hears_values_and_ends() -> None:
    source = Scripted(listed("seed=10", "seed=20"))
    assert swept(source=source) == errors.OK
    assert sorted(source.values) == [
        (0, 1, 0.101), (0, 2, 0.102), (0, 3, 0.103), (1, 1, 0.201), (1, 2, 0.202), (1, 3, 0.203),
    ]  # fmt: skip
    assert {n: o.objective for n, o in source.reports.items()} == {0: 0.103, 1: 0.203}
    assert [job["differs"]["seed"] for job in told()["jobs"]] == ["10", "20"]
    assert told()["best"] == 1


def test_a_search_goes_on_from_what_it_heard() -> None:
    """The third job follows from the first, and begins while the second runs."""
    first = ["seed=1", "seed=2"]
    later = ["seed=3"]

    def script(reports: dict[int, Outcome]) -> str | None:
        if first:
            return first.pop(0)
        return later.pop() if later and 0 in reports else None

    words = (lasts(s2="wait:began-3"),)
    assert swept(words=words, source=Scripted(script, words=words)) == errors.OK
    assert statuses() == ["FINISHED"] * 3


def test_a_search_that_has_nothing_to_ask_for() -> None:
    assert swept(source=Scripted(listed())) == errors.OK
    assert told()["jobs"] == []


def test_a_job_is_given_up() -> None:
    words = (lasts(s1="wait:never"),)
    source = Scripted(
        listed("seed=1", "seed=2"), lambda number, step: (number, step) == (0, 2), words
    )
    assert swept(words=words, source=source) == errors.OK
    assert source.reports[0].pruned and not source.reports[1].pruned
    assert statuses() == ["KILLED", "FINISHED"]
    assert told()["jobs"][0]["pruned"] is True
    result = read_json(folder() / "0" / "result.json") or {}
    assert (result["status"], result["pruned"], result["exit_code"]) == ("KILLED", True, 75)
    assert "pruned" not in (read_json(folder() / "1" / "result.json") or {})
    assert told()["best"] == 1


@pytest.mark.faults
def test_a_search_asks_for_a_job_that_cannot_be() -> None:
    source = Scripted(listed("seed=1", "trainer.batch_size=100000", "model=none", "seed=2"))
    assert swept(source=source) == errors.FAILED
    assert {n: o.exit_code for n, o in source.reports.items()} == {0: 0, 1: 2, 2: 2, 3: 0}
    assert statuses() == ["FINISHED", "FAILED", "FAILED", "FINISHED"]
    assert "training examples" in told()["jobs"][1]["failure"]["reason"]
