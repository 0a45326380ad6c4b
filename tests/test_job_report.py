"""What the user reads after a run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dtrain.config.tree import to_yaml
from dtrain.job.plan import Plan
from dtrain.job.report import drawing, print_end, print_plan
from dtrain.run import checkpoint
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir, short
from dtrain.task.strategies.plans import OneReplica
from dtrain.terminal.progress import Display
from dtrain.tracking.chosen import make_tracker
from tests.test_schema import composed


def printed(
    tmp_path: Path, shipped: bool, *overrides: str, saved: bool = True, **result: Any
) -> str:
    file = io.StringIO()
    rundir = RunDir(tmp_path / "outputs" / "a run")
    rundir.tensorboard.mkdir(parents=True)
    whole = {"status": "FINISHED", "exit_code": 0, "step": 7, "examples_per_second": 1234.5,
             "failure": None, "metrics": {"loss": 0.25}, **result}  # fmt: skip
    display = Display(Console(file=file, soft_wrap=True, highlight=False))
    lacking = [] if shipped else ["MLflow"]
    config = composed(*overrides)
    rundir.config.write_text(to_yaml(config))
    if saved:
        checkpoint.save(rundir.checkpoints, 7, {}, {})
    print_end(display, config, make_tracker(config), rundir, whole, lacking)
    return file.getvalue()


def test_a_finished_run_says_how_to_see_it(tmp_path: Path) -> None:
    text = printed(tmp_path, True, f"output_dir={tmp_path}/my runs")
    assert "FINISHED: step 7, 1,234 examples/s  loss 0.25" in text
    assert "tensorboard --logdir 'outputs/a run'" in text
    assert "compare: python -m dtrain ui output_dir='my runs'\n" in text
    assert "compare: python -m dtrain ui\n" in printed(tmp_path / "b", True, "output_dir=outputs")
    given = "tracking.uri=sqlite:////a/b.db"
    assert "mlflow ui --backend-store-uri sqlite:////a/b.db\n" in printed(
        tmp_path / "c", True, given
    )
    assert text.endswith("train on: python -m dtrain resume='outputs/a run' trainer.epochs=50\n")
    assert "resume=" not in printed(tmp_path / "d", True, saved=False)


STOPPED = "stopped early at epoch 4 of 6: val_loss has not improved for 2 epochs"
BEST = {"epoch": 2, "epochs": 6, "step": 14, "objective": 0.41234}


@pytest.mark.parametrize(
    ("overrides", "result", "why", "command"),
    [
        (
            ["trainer.early_stopping=2"],
            {"ended": STOPPED, "step": 28, "total_steps": 42},
            f"{STOPPED}; best val_loss 0.4123 at epoch 2 (checkpoint best)",
            "fork='outputs/a run' trainer.early_stopping=null",
        ),
        (
            ["trainer.callbacks=[{_target_:keras.callbacks.EarlyStopping}]", "trainer.epochs=4"],
            {"ended": STOPPED, "step": 28, "total_steps": 28, "best_step": None},
            f"{STOPPED}; best val_loss 0.4123 at epoch 2",
            "fork='outputs/a run' 'trainer.callbacks=[]' trainer.epochs=8",
        ),
        (
            ["trainer.max_time=1h"],
            {"ended": "trainer.max_time=1h was over"},
            "trainer.max_time=1h was over; best val_loss 0.4123 at epoch 2 of 6 (checkpoint best)",
            "resume='outputs/a run'",
        ),
        (
            ["trainer.epochs=8"],
            {"best_epoch": {**BEST, "epoch": 4, "epochs": 8, "epochs_before": 2}},
            "best val_loss 0.4123 at epoch 2 of 6 (checkpoint best)",  # a fork's own
            "resume='outputs/a run' trainer.epochs=16",
        ),
    ],
)
def test_why_a_run_ended_and_what_trains_on(
    overrides: list[str], result: dict[str, Any], why: str, command: str, tmp_path: Path
) -> None:
    known = {"objective_name": "val_loss", "best_epoch": BEST, "best_step": 14, **result}
    lines = printed(tmp_path, True, *overrides, "tracking=none", **known).splitlines()
    assert lines[1] == why
    assert lines[-1] == f"train on: python -m dtrain {command}"
    assert len(lines) == 6, "three of them say what to type"


FAILED = {"status": "FAILED", "exit_code": 1,
          "failure": {"kind": "failed", "task": "chief-0", "reason": "bang"}}  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "shipped", "result", "part"),
    [
        (["tracking.uri=http://127.0.0.1:5"], True, {}, "compare: http://127.0.0.1:5"),
        (["tracking=none"], True, {}, "to ship it to MLflow later: python -m dtrain sync"),
        ([], False, {}, "MLflow has not got everything; type: python -m dtrain sync"),
        (
            [],
            True,
            {
                "status": "FAILED",
                "exit_code": 1,
                "failure": {"kind": "failed", "task": "chief-0", "reason": "bang"},
            },
            "chief-0: bang",
        ),
        ([], True, {"status": "KILLED", "exit_code": 75}, "resume with: python -m dtrain resume="),
    ],
)
def test_other_ends(
    overrides: list[str], shipped: bool, result: dict[str, Any], part: str, tmp_path: Path
) -> None:
    assert part in printed(tmp_path, shipped, *overrides, **result)


def test_a_sync_that_would_be_refused_is_not_named(tmp_path: Path) -> None:
    words = ("tracking=none", f"output_dir={tmp_path}/others")
    assert "sync" not in printed(tmp_path, True, *words)


def test_short_paths(tmp_path: Path) -> None:
    assert short(tmp_path / "a" / "b") == "a/b"
    assert short(Path("/elsewhere/b")) == "/elsewhere/b"


def test_a_drawing_of_one_task() -> None:
    assert drawing(Cluster((Task("chief", 0, 2),), "gpu", 2, {})) == [
        "   task     does                devices       address",
        "└─ chief-0  trains and records  GPU:0, GPU:1  this machine",
    ]


def test_a_drawing_of_workers() -> None:
    """An environment may know no chief: the first worker leads."""
    tasks = (Task("worker", 0, 1), Task("worker", 1, 1))
    placed = Cluster(tasks, "cpu", 2, {}).at(["a.example:2222", "127.0.0.1:20000"])
    assert drawing(placed) == [
        "   task      does                devices  address",
        "├─ worker-0  trains and records  CPU:0    a.example:2222",
        "└─ worker-1  trains              CPU:0    127.0.0.1:20000",
    ]


def test_a_drawing_of_parameter_servers() -> None:
    tasks = (
        Task("chief", 0, 0),
        Task("worker", 0, 1, serves=True, replaceable=True),
        Task("ps", 0, 0, serves=True),
    )
    assert drawing(Cluster(tasks, "gpu", 1, {})) == [
        "   task      does                devices  address",
        "├─ chief-0   coordinates         CPU:0    this machine",
        "├─ worker-0  computes gradients  GPU:0    this machine",
        "└─ ps-0      keeps variables     CPU:0    this machine",
    ]


def test_the_plan_tells_how_large_an_update_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = Plan(Cluster((Task("chief", 0, 1),), "cpu", 1, {}), 8, 1000, None, OneReplica())
    print_plan(composed("optimizer.gradient_accumulation_steps=4"), planned, tmp_path / "run")
    assert "  updates              every 4 steps, of 256 examples\n" in capsys.readouterr().out
    print_plan(composed(), planned, tmp_path / "run")
    assert "  updates  " not in capsys.readouterr().out


def test_the_plan_shows_the_drawing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster((Task("chief", 0, 1), Task("worker", 0, 1)), "cpu", 2, {})
    print_plan(
        composed("dry_run=true"), Plan(cluster, 8, 1000, None, OneReplica()), tmp_path / "run"
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines[-4:-1]] == [line.strip() for line in drawing(cluster)]
    assert "  train examples       1,000" in lines
    assert "  validation examples  known once the task has loaded the dataset" in lines
    assert "  run folder           run" in lines
    assert lines[-1] == "dry_run=true: nothing was started"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("hardware.hosts=2",), True),
        ((), False),  # the default of multiworker, which stands for no hosts of the user's
        (("hardware.hosts=2", "launcher=slurm"), False),
    ],
)
def test_hosts_that_are_this_machine_are_said(words: Any, said: bool, dtrain, quick) -> None:
    run = dtrain(*quick, "strategy=multiworker", *words, "dry_run=true")
    assert run.code == 0, run.output
    line = "hardware.hosts=2: all 2 processes are on this machine; to start them on others: "
    assert (line in run.output) == said
    assert ("a node of SLURM" in run.output) == ("launcher=slurm" in words)
