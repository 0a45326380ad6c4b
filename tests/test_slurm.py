"""``launcher=slurm`` without a SLURM: the script, what stands in a folder, what is chosen where."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from dtrain import errors
from dtrain.controller import handed_over
from dtrain.controller.commands import jobs
from dtrain.controller.launchers import Env, Local
from dtrain.controller.launchers import slurm as launchers
from dtrain.controller.launchers.slurm import Slurm, Steps, batch, client, script
from dtrain.controller.launchers.slurm import launcher as launcher_module
from dtrain.controller.launchers.slurm.script import Asked
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir

SETTINGS: dict[str, Any] = {
    "grace_seconds": 60.0, "start_timeout": None, "stall_timeout": None, "max_restarts": 0,
    "peer_timeout": 45.0, "network": None, "chief": None, "partition": None, "time": None,
    "account": None, "nodes": None, "gpus_per_node": None, "cpus_per_task": None, "memory": None,
    "setup": [], "extra": None, "follow": True, "max_requeues": 5, "allocation": None,
}  # fmt: skip
ASKED = Asked("gpu", "4:00:00", None, 2, 3, 4, 8, "16G", (), {"qos": "high", "exclusive": True}, 60)
STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


def chosen(monkeypatch, environment: dict[str, str], **settings: Any) -> Any:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return launchers.choose(**{**SETTINGS, **settings})


def test_what_it_is_depends_on_the_place(monkeypatch) -> None:
    assert type(chosen(monkeypatch, {})) is Slurm
    # What only looks at a run that SLURM had does it here.
    assert type(chosen(monkeypatch, {}).here()) is Local
    assert type(chosen(monkeypatch, {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"})) is Steps
    # The shell of salloc, where a cluster makes it a step of its own kind.
    assert type(chosen(monkeypatch, {"SLURM_STEP_ID": str(0xFFFF_FFFA)})) is Steps
    assert type(chosen(monkeypatch, STEP)) is Local
    assert type(chosen(monkeypatch, {"SLURM_STEP_NUM_TASKS": "2"})) is Env


def test_the_options_of_sbatch() -> None:
    found = script.options(ASKED, "dtrain-a b", Path("/x/slurm.log"), "0-3%2")
    assert {
        "--job-name=dtrain-a_b", "--partition=gpu", "--time=4:00:00", "--nodes=2", "--ntasks=3",
        "--ntasks-per-node=2", "--gpus-per-node=4", "--cpus-per-task=8", "--mem=16G",
        "--output=/x/slurm.log", "--open-mode=append", "--requeue", "--signal=B:USR2@90",
        "--qos=high", "--exclusive", "--array=0-3%2", f"--chdir={Path.cwd()}",
    } == set(found)  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"partition": "x"}, "type: launcher.partition=x"),
        ({"output": "x"}, "dtrain gives this option itself"),
        ({"comment": "it's"}, "cannot have"),
    ],
)
def test_options_that_cannot_be(extra: dict[str, str], problem: str, tmp_path: Path) -> None:
    asked = Asked(None, None, None, 1, 1, None, None, None, (), extra, 60)
    with pytest.raises(UsageError, match=problem):
        script.text(script.options(asked, "x", tmp_path), [], "/x", ["true"])


def test_the_script_is_one_of_bash(tmp_path: Path) -> None:
    folder = tmp_path / "with a blank $HOME"
    log = Path(script.path(folder / "slurm.log"))
    command = script.step(ASKED, sys.executable, "-c", "print('a')", "resume=$run")
    text = script.text(
        script.options(ASKED, "x", log), ["export A=1"], script.quoted(folder), command
    )
    path = tmp_path / "slurm.sh"
    # In the place of what starts the step: what it would be given.
    path.write_text(text.replace(f"exec {sys.executable} -m dtrain jobs run", "printf '%s\\n'"))
    said = subprocess.run(["bash", path], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [
        str(folder), "--", "srun", "--nodes=2", "--ntasks=3", "--kill-on-bad-exit=1",
        "--cpus-per-task=8", sys.executable, "-c", "print('a')", f"resume={folder}",
    ]  # fmt: skip
    assert f"#SBATCH --output='{folder}/slurm.log'" in text


def test_paths_for_slurm() -> None:
    assert script.path(Path("/a/100%/b")) == "/a/100%%/b"
    with pytest.raises(UsageError, match="output_dir"):
        script.path(Path("/it's"))


def planned(tasks: int) -> Cluster:
    return Cluster(tuple(Task("worker", i, 1) for i in range(tasks)), "cpu", tasks, {})


def test_a_job_has_no_more_nodes_than_processes(monkeypatch) -> None:
    launcher = chosen(monkeypatch, {}, nodes=3)
    with pytest.raises(UsageError, match="or null for a node each"):
        launcher.check(planned(2), {})
    assert launcher.wanted(launcher.check(planned(4), {})).nodes == 3
    apart = tuple(Task("worker", i, 1, device=i % 2) for i in range(4))  # two on each host
    wanted = chosen(monkeypatch, {}).wanted(Cluster(apart, "cpu", 4, {}))
    assert (wanted.nodes, wanted.tasks) == (2, 4)
    with pytest.raises(UsageError, match="max_requeues"):
        chosen(monkeypatch, {}, max_restarts=1).check(planned(1), {})


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", 5400), ("1:30", 90), ("1:30:00", 5400), ("2-12", 216000), ("1-0:30", 88200),
        ("0-0:0:5", 5), ("INFINITE", None),
    ],
)  # fmt: skip
def test_times_of_sbatch(time: str, seconds: int | None) -> None:
    assert script.seconds(time) == seconds


def test_a_time_in_which_nothing_is_trained(monkeypatch) -> None:
    with pytest.raises(UsageError, match="SLURM warns 90 s before its end"):
        chosen(monkeypatch, {}, time="2:00").check(planned(1), {})
    launcher = chosen(monkeypatch, {}, time="3")
    assert launcher.check(planned(1), {}) == planned(1)


ALLOCATION = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    "SLURM_GPUS_ON_NODE": "4", "SLURM_MEM_PER_NODE": "16000",
}  # fmt: skip


def test_what_a_step_asks_for(monkeypatch, tmp_path: Path) -> None:
    launcher = chosen(monkeypatch, ALLOCATION)
    assert (launcher.room.gpus, launcher.room.cores) == (8, 16)
    launcher.cores = 4
    words = launcher.command(RunDir(tmp_path), planned(1))
    assert words[:9] == [
        "srun", "--exact", "--nodes=1", "--ntasks=1", "--kill-on-bad-exit=1", "--cpus-per-task=4",
        "--gres=none", "--mem=8000M", sys.executable,
    ]  # fmt: skip
    gpus = Cluster((Task("chief", 0, 2),), "gpu", 2, {})
    assert "--gres=gpu:2" in launcher.command(RunDir(tmp_path), gpus)
    with pytest.raises(UsageError, match="this allocation has 2"):
        launcher.check(planned(3), {})


def test_starts_without_progress_are_counted(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    latest = tmp_path / "checkpoints" / "latest"
    latest.parent.mkdir()
    assert [batch.begin(tmp_path, 0.0) for _ in range(3)] == [0, 1, 2]
    latest.write_text("4")
    assert [batch.begin(tmp_path, 0.0) for _ in range(2)] == [0, 1]
    monkeypatch.setenv("SLURM_JOB_ID", "8")  # submitted anew
    assert batch.begin(tmp_path, 0.0) == 0


@pytest.mark.parametrize(
    ("code", "result", "expected"),
    [
        (75, None, True), (None, None, True), (1, None, False), (2, None, False),
        (1, {"lost": True}, True), (1, {"lost": False}, False),
    ],
)  # fmt: skip
def test_which_runs_continue(
    code: int | None, result: Any, expected: bool, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    batch.begin(tmp_path, 0.0)
    if result is not None:
        whole = {"status": "FAILED", "started": 1.0, **result}
        (tmp_path / "result.json").write_text(json.dumps(whole))
    assert batch.continues(tmp_path, code) == expected
    batch.begin(tmp_path, 0.0)  # a start that leaves no result: the one there is an earlier one's
    assert batch.continues(tmp_path, code) == (expected and result is None)


def test_the_first_task_leaves_its_exit_code(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv(batch.RUN, str(tmp_path))
    with batch.in_step() as codes:
        assert batch.RUN not in os.environ  # it is for this command alone
        codes.append(errors.FAILED)
    assert batch.left(tmp_path) == errors.FAILED
    with batch.in_step() as codes:
        codes.append(errors.OK)
    assert batch.left(tmp_path) == errors.FAILED


def test_a_start_that_is_not_the_last_one_ends(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from dtrain.controller.launchers.slurm import batch
batch._LOOK = 0.1
with batch.in_step():
    print("there", flush=True)
    time.sleep(60)
"""
    environment = {**os.environ, batch.RUN: str(tmp_path), "SLURM_JOB_ID": "7",
                   "PYTHONPATH": os.pathsep.join(sys.path)}  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    (tmp_path / batch.START).write_text(json.dumps({"job": "7", "restart": 1}))
    _, said = process.communicate(timeout=30)
    assert process.returncode == -9
    assert "the job was started once more elsewhere" in said


def test_jobs_of_other_programs_are_none_of_ours(tmp_path: Path) -> None:
    def found(name: str, job: str = "7") -> client.Found:
        return client.Found(job, "RUNNING", "n1", "None", str(tmp_path / name))

    assert not jobs.is_own(found("slurm.sh"))
    (tmp_path / "sweep.json").write_text("{}")
    assert jobs.is_own(found("slurm.sh")) and not jobs.is_own(found("other.sh"))
    assert jobs.folder(found("slurm.sh", "7_3")) == tmp_path / "3"
    assert jobs.folder(found("slurm.sh")) == tmp_path


def test_without_slurm_it_is_one_sentence(dtrain, quick, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    run = dtrain(*quick, "launcher=slurm")
    assert run.code == errors.USAGE
    assert "there is no sbatch on this machine" in run.output
    assert not (tmp_path / "outputs").exists()
    jobs_code = jobs.main([])
    assert jobs_code == errors.FAILED


@pytest.fixture
def command(monkeypatch, tmp_path: Path) -> Any:
    """Put a shell script in the place of a command of SLURM's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(client, "watch", client.Watch())
    for constant in ("_LOOK", "_NO_RESULT"):
        monkeypatch.setattr(handed_over, constant, 0.0)

    def write(name: str, line: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)

    write("sbatch", "echo 77")
    write("squeue", "true")
    return write


@pytest.mark.parametrize("note", [{"job": "70"}, {"job": "78", "past": 1.0}])
def test_the_result_of_an_earlier_start_is_not_that_of_a_new_job(
    note: dict[str, Any], dtrain, quick, command
) -> None:
    first = dtrain(*quick, "launcher=slurm", "launcher.follow=false")
    folder = first.rundir.path
    old = {"status": "FAILED", "exit_code": 1, "error": "an error of long ago", "started": 1.0}
    old |= {"metrics": {}, "step": 1, "examples_per_second": 1.0, "objective": 1.0}
    (folder / "result.json").write_text(json.dumps(old))
    (folder / batch.START).write_text(json.dumps(note))
    (folder / batch.EXIT).write_text("1")
    command("sbatch", f"echo No module named dtrain > '{folder}/slurm.log'; echo 78")
    command("squeue", 'case "$*" in *--jobs*) echo "78|FAILED|n1|NonZeroExitCode|x";; esac')
    again = dtrain(f"resume={folder}")
    assert again.code == errors.FAILED
    assert "No module named dtrain" in again.output
    assert "an error of long ago" not in again.output


@pytest.mark.parametrize("words", [(), ("-m", "launcher.allocation=1")])
def test_a_queue_that_cannot_be_read_is_said_and_not_waited_for_for_ever(
    words: tuple[str, ...], dtrain, quick, command, monkeypatch
) -> None:
    command("squeue", "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1")
    monkeypatch.setattr(launcher_module, "_SILENCE", 0.0)
    run = dtrain(*quick, "launcher=slurm", *words)
    assert run.code == errors.INTERRUPTED
    assert "SLURM does not answer (Unable to contact slurm controller)" in run.output
    assert "this command ends, and job 77 goes on" in run.output
    [later] = re.findall(r"follow (?:it|them) with: python -m dtrain (\S+?);", run.output)
    again = dtrain(later)
    assert again.code == errors.USAGE
    assert "SLURM does not answer: Unable to contact slurm controller" in again.output


def test_a_check_is_no_run_and_is_done_here(dtrain, quick, command) -> None:
    command("sbatch", "exit 1")
    run = dtrain(*quick, "launcher=slurm", "debug=one_batch")
    assert run.code == errors.OK, run.output
    assert "SLURM is given runs alone: this command works here; srun in front" in run.output
    assert "debug=one_batch: passed" in run.output


def test_a_sweep_that_is_refused_leaves_no_job_and_no_folder(
    dtrain, quick, command, monkeypatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    command("scancel", 'echo "cancelled: $*" >> calls')
    # The second array is refused, and the bucket before the first.
    command("sbatch", "echo submitted >> calls; test $(grep -c submitted calls) = 1 && echo 77")
    words = ("-m", *quick, "launcher=slurm", "launcher.cpus_per_task=1,2")
    away = dtrain(*words, "output_dir=s3://bucket/x")
    assert away.code == errors.USAGE, away.output
    assert "cannot be written" in away.output and not Path("calls").exists()
    refused = dtrain(*words)
    assert refused.code == errors.USAGE, refused.output
    assert Path("calls").read_text().split("\n")[:3] == ["submitted", "submitted", "cancelled: 77"]
    assert not [path for path in Path("outputs").rglob("*") if path.is_file()]
    small = dtrain(*words, "launcher.allocation=1", "strategy=multiworker")
    assert small.code == errors.USAGE
    assert "a job of the sweep takes 2 nodes" in small.output


#: Does at once what a step would do, and notes what it was asked for.
SRUN = """
echo "$*" >> asked
for word; do run="${word#resume=}"; done
echo 0 > "$run/slurm.exit"
echo '{"status": "FINISHED", "exit_code": 0, "started": 2.0, "error": null, "metrics": {},
       "step": 1, "examples_per_second": 1.0, "objective": 1.0}' > "$run/result.json"
"""


def test_a_job_of_a_sweep_may_have_the_gpus_of_all_nodes(
    dtrain, quick, command, monkeypatch
) -> None:
    # SLURM gives a command the GPUs of its own node alone.
    for name, value in {**ALLOCATION, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}.items():
        monkeypatch.setenv(name, value)
    command("srun", SRUN)
    words = ("-m", *quick, "launcher=slurm", "strategy=multiworker", "hardware.kind=gpu")
    run = dtrain(*words, "hardware.hosts=2", "hardware.devices=4", "seed=0")
    assert run.code == errors.OK, run.output
    [asked] = Path("asked").read_text().splitlines()
    assert "--nodes=2" in asked and "--gres=gpu:4" in asked
    refused = dtrain(*words, "hardware.hosts=4", "hardware.devices=4", "launcher.nodes=2")
    assert refused.code == errors.USAGE
    assert "take 8 GPUs of a node, and each node of this allocation has 4" in refused.output
    assert "type: hardware.devices=2" in refused.output


def test_a_sweep_is_planned_for_the_nodes_and_not_for_this_machine(dtrain, quick, command) -> None:
    words = ("-m", *quick, "launcher=slurm", "hardware=gpu", "launcher.gpus_per_node=2")
    run = dtrain(*words, "strategy=mirrored", "seed=0,1", "dry_run=true")
    assert run.code == errors.OK, run.output
    assert run.output.count("2 GPU") == 2


def test_that_the_queue_answers_again_is_said_once(command, monkeypatch) -> None:
    monkeypatch.setattr(client, "_PAUSE", 0.0)
    client.watch.add(["77"])
    sentences = []
    for line in ("exit 1", "exit 1", "echo '77|RUNNING|n1|None|x'", "true"):
        command("squeue", line)
        client.watch.state("77")
        sentences.append(client.watch.news())
    assert sentences[0] is not None and "exit code 1" in sentences[0]
    assert sentences[1:] == [None, "SLURM answers again", None]


@pytest.mark.parametrize(("job", "code"), [("77", errors.OK), ("70", errors.FAILED)])
def test_a_job_that_slurm_has_forgotten_is_known_by_its_folder(
    job: str, code: int, command, monkeypatch, tmp_path: Path
) -> None:
    launcher = launchers.choose(**SETTINGS)
    launcher.job = "77"
    launcher.start(RunDir(tmp_path), planned(1))
    (tmp_path / batch.START).write_text(json.dumps({"job": job}))
    (tmp_path / batch.EXIT).write_text("0\n")
    monkeypatch.setattr(launcher_module, "_FORGOTTEN", 0.0)
    assert launcher.poll(0.0) == [("worker-0", "ended")]
    assert launcher.exit_codes() == {"worker-0": code}, "the code of an earlier job is not its own"


def test_a_job_that_the_queue_lacks_now_and_then_runs_on(
    command, monkeypatch, tmp_path: Path
) -> None:
    now = 1000.0
    monkeypatch.setattr(launcher_module, "time", types.SimpleNamespace(monotonic=lambda: now))
    launcher = launchers.choose(**SETTINGS)
    launcher.job = "77"
    launcher.start(RunDir(tmp_path), planned(1))
    launcher._ticks.set()  # it waits for nothing
    running = client.Found("77", "RUNNING", "n1", "None", "x")
    for state in [None, running] * 3:
        monkeypatch.setattr(client.watch, "state", lambda job, state=state: state)
        now += launcher_module._FORGOTTEN - 1
        assert launcher.poll(20.0) == []


def test_a_job_that_ends_while_it_is_looked_at(dtrain, quick, command, tmp_path: Path) -> None:
    folder = dtrain(*quick, "launcher=slurm", "launcher.follow=false").rundir.path
    asked = tmp_path / "asked"
    row = f"77|RUNNING|n1|None|{folder / client.SCRIPT}"
    command("squeue", f"[ -e '{asked}' ] || echo '{row}'; touch '{asked}'")
    again = dtrain(f"resume={folder}", "launcher.follow=false")
    assert again.code == errors.OK, again.output


def test_the_script_is_printed(dtrain, quick) -> None:
    run = dtrain(*quick, "launcher=slurm", "launcher.setup=['module load cuda']", "dry_run=true")
    assert run.code == errors.OK
    assert "\nmodule load cuda\n" in run.output
    assert "srun --nodes=1 --ntasks=1 --kill-on-bad-exit=1" in run.output


def test_shell_of_a_foreign_run_folder_is_refused(dtrain, quick, monkeypatch, tmp_path) -> None:
    # A batch script would run it.
    run = dtrain(*quick, "launcher=slurm", "launcher.setup=['touch x']", "dry_run=true")
    assert run.code == errors.OK
    folder = tmp_path / "foreign"
    first = dtrain(*quick, "trainer.epochs=1", f"hydra.run.dir={folder}")
    assert first.code == errors.OK
    command = json.loads((folder / "command.json").read_text())
    command["overrides"] += ["launcher=slurm", "launcher.setup=['touch x']"]
    (folder / "command.json").write_text(json.dumps(command))
    refused = dtrain(f"resume={folder}", "trainer.epochs=2")
    assert refused.code == errors.USAGE
    assert "launcher.setup" in refused.output
    assert "the run folder gives it" in refused.output


def test_the_first_task_knows_whether_the_script_lives(monkeypatch, tmp_path: Path) -> None:
    assert not batch._is_without_script(tmp_path)  # there was none
    holder = batch._lock(tmp_path)
    assert holder is not None
    assert not batch._is_without_script(tmp_path)
    os.close(holder)
    assert batch._is_without_script(tmp_path)
