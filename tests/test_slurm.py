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
from dtrain.config import tree
from dtrain.errors import UsageError
from dtrain.job import slurm_job
from dtrain.job.run import JobSpec
from dtrain.job.slurm_job import SlurmJob
from dtrain.launchers import Env, Local
from dtrain.launchers import slurm as launchers
from dtrain.launchers.slurm import Slurm, batch, client
from dtrain.run.cluster import Cluster, Task
from dtrain.run.failure import Failure
from dtrain.sweep import slurm as sweep

SETTINGS: dict[str, Any] = {
    "grace_seconds": 60.0, "start_timeout": None, "stall_timeout": None, "max_restarts": 0,
    "peer_timeout": 45.0, "network": None, "chief": None, "partition": None, "time": None,
    "account": None, "nodes": None, "gpus_per_node": None, "cpus_per_task": None, "memory": None,
    "setup": [], "extra": None, "follow": True, "max_requeues": 5,
}  # fmt: skip
ASKED = {
    "partition": "gpu", "time": "4:00:00", "nodes": 2, "gpus_per_node": 4, "cpus_per_task": 8,
    "memory": "16G", "extra": {"qos": "high", "exclusive": True},
}  # fmt: skip
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
    assert type(chosen(monkeypatch, STEP)) is Local
    assert type(chosen(monkeypatch, {"SLURM_STEP_NUM_TASKS": "2"})) is Env


# The second is the shell of salloc, where a cluster makes it a step of its own kind.
@pytest.mark.parametrize("more", [{}, {"SLURM_STEP_ID": str(0xFFFF_FFFA)}], ids=["batch", "salloc"])
def test_in_an_allocation_it_is_srun_that_starts_tasks(more: dict[str, str], monkeypatch) -> None:
    launcher = chosen(monkeypatch, {"SLURM_JOB_ID": "7", **more})
    with pytest.raises(UsageError, match=r"hint: srun --nodes=3 --ntasks=3 python -m dtrain"):
        launcher.check(planned(3), {})
    assert type(launcher.here()) is Local  # what is no run


def directives(text: str) -> set[str]:
    return {line.removeprefix("#SBATCH ") for line in text.splitlines() if "#SBATCH" in line}


def test_the_options_of_sbatch(monkeypatch) -> None:
    launcher = chosen(monkeypatch, {}, **ASKED)
    assert directives(launcher.array(Path("/x"), planned(3), "a b", [0, 2], 2)) == {
        "--job-name=dtrain-a_b", "--partition=gpu", "--time=4:00:00", "--nodes=2", "--ntasks=3",
        "--ntasks-per-node=2", "--gpus-per-node=4", "--cpus-per-task=8", "--mem=16G",
        "--output=/x/%a/slurm.log", "--open-mode=append", "--requeue", "--signal=B:USR2@90",
        "--qos=high", "--exclusive", "--array=0,2%2", f"--chdir={Path.cwd()}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "problem"),
    [({"comment": "it's"}, "cannot have"), ({"partition": "x"}, "dtrain gives this option itself")],
)
def test_options_that_cannot_be(extra: dict[str, str], problem: str, monkeypatch) -> None:
    with pytest.raises(UsageError, match=problem):
        chosen(monkeypatch, {}, extra=extra).text(Path("/x"), planned(1), "x")


def test_the_script_is_one_of_bash(monkeypatch, tmp_path: Path) -> None:
    folder = tmp_path / "with a blank $HOME 100%"
    launcher = chosen(monkeypatch, {}, **ASKED, setup=["export A=1"])
    text = launcher.text(folder, planned(3), "x")
    path = tmp_path / "slurm.sh"
    # In the place of what starts the step: what it would be given.
    path.write_text(text.replace(f"exec {sys.executable} -m {batch.__name__}", "printf '%s\\n'"))
    said = subprocess.run(["bash", path], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [
        str(folder), "--", "srun", "--nodes=2", "--ntasks=3", "--cpus-per-task=8",
        "--kill-on-bad-exit=1", sys.executable, "-m", "dtrain", f"resume={folder}",
    ]  # fmt: skip
    assert f"#SBATCH --output='{folder}%/slurm.log'" in text
    with pytest.raises(UsageError, match="output_dir"):
        launcher.text(Path("/it's"), planned(3), "x")


def planned(tasks: int) -> Cluster:
    return Cluster(tuple(Task("worker", i, 1) for i in range(tasks)), "cpu", tasks, {})


def test_a_job_has_no_more_nodes_than_processes(monkeypatch) -> None:
    launcher = chosen(monkeypatch, {}, nodes=3)
    with pytest.raises(UsageError, match=r"up to 2, or null; type: launcher\.nodes=null"):
        launcher.check(planned(2), {})
    assert launcher.request(launcher.check(planned(4), {}))["nodes"] == 3
    apart = tuple(Task("worker", i, 1, device=i % 2) for i in range(4))  # two on each host
    request = chosen(monkeypatch, {}).request(Cluster(apart, "cpu", 4, {}))
    assert (request["nodes"], request["ntasks"]) == (2, 4)
    with pytest.raises(UsageError, match="max_requeues"):
        chosen(monkeypatch, {}, max_restarts=1).check(planned(1), {})


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
        (1, {"failure": Failure("died").record()}, True),
        (1, {"failure": Failure("failed").record()}, False),
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
from dtrain.launchers.slurm import batch
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


def test_without_slurm_it_is_one_sentence(dtrain, quick, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    run = dtrain(*quick, "launcher=slurm")
    assert run.code == errors.USAGE
    assert "there is no sbatch on this machine" in run.output
    assert not (tmp_path / "outputs").exists()


@pytest.fixture
def command(monkeypatch, tmp_path: Path) -> Any:
    """Put a shell script in the place of a command of SLURM's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(client, "watch", client.JobQueue())
    for constant in ("_LOOK", "_NO_RESULT"):
        monkeypatch.setattr(slurm_job, constant, 0.0)

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
    old = {
        "status": "FAILED",
        "exit_code": 1,
        "failure": Failure("failed", reason="an error of long ago").record(),
        "started": 1.0,
    }
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


def test_a_queue_that_cannot_be_read(dtrain, quick, command) -> None:
    command("squeue", "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1")
    run = dtrain(*quick, "launcher=slurm", "launcher.follow=false")
    assert run.code == errors.OK
    [later] = re.findall(r"follow it with: python -m dtrain (\S+?);", run.output)
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


def test_a_sweep_that_is_killed_as_it_submits_is_followed_later(dtrain, quick, command) -> None:
    # Each job of SLURM is asked for when the record of the sweep is there.
    command("sbatch", "cp outputs/multirun/*/*/sweep.json killed.json; echo 77")
    words = ("-m", *quick, "launcher=slurm", "launcher.follow=false", "seed=1,2")
    assert dtrain(*words).code == errors.OK
    [record] = Path().glob("outputs/multirun/*/*/sweep.json")
    os.replace("killed.json", record)
    rows = [f"77_{n}|RUNNING|n1|None|{record.parent.absolute() / client.SCRIPT}" for n in (0, 1)]
    command("squeue", f"printf '%s\\n' '{rows[0]}' '{rows[1]}'")
    command("sbatch", "exit 1")
    again = dtrain(f"sweep.resume={record.parent}", "launcher.follow=false")
    assert again.code == errors.OK, again.output
    assert "SLURM job 77 is submitted" in again.output


def test_a_sweep_is_planned_for_the_nodes_and_not_for_this_machine(dtrain, quick, command) -> None:
    words = ("-m", *quick, "launcher=slurm", "hardware=gpu", "launcher.gpus_per_node=2")
    run = dtrain(*words, "strategy=mirrored", "seed=0,1", "dry_run=true")
    assert run.code == errors.OK, run.output
    assert run.output.count("2 GPU") == 2


@pytest.mark.parametrize("launcher", ["local", "auto", "inline", "slurm"])
def test_a_sweep_of_several_tasks_is_refused_whatever_the_launcher(
    launcher: str, dtrain, quick, monkeypatch
) -> None:
    words = ("-m", *quick, f"launcher={launcher}", "seed=0,1")
    for name, value in {**STEP, "SLURM_STEP_NUM_TASKS": "2"}.items():
        monkeypatch.setenv(name, value)
    run = dtrain(*words)
    assert run.code == errors.USAGE, run.output
    assert "-m: SLURM step 7.0 has 2 tasks, and each would do the whole sweep" in run.output
    assert "hint: srun -n1 ... -m launcher=local sweep.parallel=2" in run.output
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    "more",
    [
        {"SLURM_NNODES": "4", "SLURM_NTASKS": "4"},  # srun -n1 in a larger allocation
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PTY_PORT": "1"},  # srun --pty bash
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": str(0xFFFF_FFFA)},  # salloc
    ],
)
def test_a_sweep_of_one_command_is_none_of_several(more: dict[str, str], monkeypatch) -> None:
    for name, value in {**STEP, **more}.items():
        monkeypatch.setenv(name, value)
    sweep.check_alone()


def test_that_the_queue_answers_again_is_said_once(command, monkeypatch) -> None:
    monkeypatch.setattr(client, "_PAUSE", 0.0)
    client.watch.add("77")
    sentences = []
    for line in ("exit 1", "exit 1", "echo '77|RUNNING|n1|None|x'", "true"):
        command("squeue", line)
        client.watch.state("77")
        sentences.append(client.watch.news())
    assert sentences[0] is not None and "exit code 1" in sentences[0]
    assert sentences[1:] == [None, "SLURM answers again", None]


@pytest.fixture
def submitted(dtrain, quick, command) -> SlurmJob:
    """A job that an earlier command has submitted."""
    run = dtrain(*quick, "launcher=slurm", "launcher.follow=false").rundir
    config = tree.read(run.config)
    config.resume = str(run.path)
    command("squeue", f"echo '77|RUNNING|n1|None|{run.path / client.SCRIPT}'")
    launcher = launchers.choose(**SETTINGS)
    assert isinstance(launcher, Slurm)
    overrides = {"overrides": json.loads(run.command.read_text())["overrides"]}
    plan: Any = types.SimpleNamespace(cluster=planned(1))
    view: Any = types.SimpleNamespace(detail=print, message=print)
    job = SlurmJob(JobSpec(config, plan, launcher, run.path, overrides))
    assert job.is_running and job.number == "77"
    job._view = view
    return job


@pytest.mark.parametrize(("job", "code"), [("77", errors.OK), ("70", errors.FAILED)])
def test_a_job_that_slurm_has_forgotten_is_known_by_its_folder(
    job: str, code: int, submitted: SlurmJob, command, monkeypatch
) -> None:
    command("squeue", "true")
    (submitted.folder / batch.START).write_text(json.dumps({"job": job}))
    (submitted.folder / batch.EXIT).write_text("0\n")
    monkeypatch.setattr(slurm_job, "_FORGOTTEN", 0.0)
    assert submitted._exit_code() == code, "the code of an earlier job is not its own"


def test_a_job_that_the_queue_lacks_now_and_then_runs_on(submitted: SlurmJob, monkeypatch) -> None:
    now = 1000.0
    monkeypatch.setattr(slurm_job, "time", types.SimpleNamespace(monotonic=lambda: now))
    running = client.QueuedJob("77", "RUNNING", "n1", "None", "x")
    for state in [None, running] * 3:
        monkeypatch.setattr(client.watch, "state", lambda job, state=state: state)
        now += slurm_job._FORGOTTEN - 1
        assert submitted._exit_code() is None


def test_a_pipe_in_the_place_of_a_log_does_not_end_a_follower(dtrain, quick, command) -> None:
    command("sbatch", "mkfifo $(echo outputs/*/*/logs)/chief-0.log; echo 77")
    command("squeue", "echo '77|FAILED|n1|NonZeroExitCode|x'")
    run = dtrain(*quick, "launcher=slurm")
    assert run.code == errors.FAILED
    assert "chief-0.log is a named pipe" in run.output
    assert "error: SLURM job 77: failed; it printed last:\nit left no log" in run.output


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
    assert "the run folder names it" in refused.output
