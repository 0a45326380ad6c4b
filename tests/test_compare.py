"""Runs side by side: from folders that tests write, and from a real tracking store."""

from __future__ import annotations

import csv
import html.parser
import io
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from omegaconf import OmegaConf

from dtrain import compare
from dtrain.cli.commands.compare import main
from dtrain.compare import load as runs
from dtrain.compare import plots
from dtrain.compare.comparison import Comparison, columns, curves_csv, runs_csv, text
from dtrain.compare.load import Run, of_folders, public
from dtrain.config.objective import mode_of
from dtrain.errors import UsageError
from dtrain.files.reading import csv_rows
from dtrain.run.cluster import Cluster, Task
from dtrain.run.failure import Failure
from dtrain.run.folder import RunDir, read_json, write_json
from dtrain.run.journal import Journal
from dtrain.tracking.base import TrackedRun
from dtrain.tracking.mlflow.store import import_mlflow
from dtrain.tracking.mlflow.tracker import MLflow
from tests import browser
from tests.test_schema import composed

REPO = Path(__file__).parent.parent
CONFIG = {
    "name": "x",
    "seed": 0,
    "objective": "val_accuracy",
    "objective_mode": "max",
    "strategy": {"_target_": "dtrain.S", "name": "one_device"},
    "optimizer": {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01, "schedule": None},
    "trainer": {"batch_size": 64},
    "hardware": {"devices": None},
}


def leave(
    folder: Path,
    loss: dict[int, float] | None = None,
    accuracy: float | None = 0.5,
    replicas: int = 1,
    speed: float | None = 100.0,
    config: dict[str, Any] | None = None,
    result: bool = True,
) -> Path:
    """Write a run folder; ``config`` has dotted keys."""
    rundir = RunDir(folder)
    folder.mkdir(parents=True)
    whole = OmegaConf.create(CONFIG)
    for key, value in (config or {}).items():
        OmegaConf.update(whole, key, value, merge=False, force_add=True)
    OmegaConf.save(whole, rundir.config)
    write_json(rundir.cluster, {"replicas": replicas})
    journal = Journal(rundir.journal)
    journal.write("start", step=0)
    for step, value in ({1: 2.0, 2: 1.0} if loss is None else loss).items():
        journal.write("metrics", step=step, metrics={"loss": value, "examples_per_second": 7.0})
    journal.close()
    if result:
        last = list(({2: 1.0} if loss is None else loss).values() or [math.nan])[-1]
        write_json(rundir.result, {
            "status": "FINISHED", "objective": accuracy, "replicas": replicas, "seconds": 2.0,
            "metrics": {"loss": last, "val_loss": last, "val_accuracy": accuracy},
            "examples_per_second": speed, "failure": None,
        })  # fmt: skip
    return folder


def job(number: int, status: str = "FINISHED", error: str | None = None, **differs: str) -> Any:
    return {
        "number": number, "folder": str(number), "differs": differs, "status": status,
        "objective": None, "seconds": None,
        "failure": None if error is None else Failure("failed", reason=error).record(),
    }  # fmt: skip


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Four jobs: the baseline, one that differs by 1e-6, one that failed, one that never began."""
    folder = tmp_path / "s"
    names = ("one_device", "mirrored", "ps", "multiworker")
    leave(folder / "0", accuracy=0.9)
    leave(
        folder / "1", {1: 2.000002, 2: 1.0, 3: 0.5}, 0.95, 2, 150.0,
        {"strategy.name": "mirrored", "trainer.epochs": 9},
    )  # fmt: skip
    leave(folder / "2", {1: 2.0}, config={"strategy.name": "ps"}, result=False)
    states = ("FINISHED", "FINISHED", "FAILED", "WAITING")
    errors = (None, None, "worker-0: killed\nsee its log", None)
    jobs = [job(n, states[n], errors[n], strategy=names[n]) for n in range(4)]
    write_json(folder / "sweep.json", {"name": "all", "status": "FAILED", "jobs": jobs})
    return folder


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def compared(*folders: Path, **named: Any) -> Comparison:
    return compare.compare(*of_folders(folders), **named)


def table(found: Comparison) -> dict[str, dict[str, str]]:
    """Return the cells by run and head."""
    parts = columns(found)
    cells = zip(*(column.cells() for column in parts), strict=True)
    heads = [column.head for column in parts]
    return {row[0]: dict(zip(heads, row, strict=True)) for row in cells}


def test_a_sweep(sweep: Path) -> None:
    lines = compare.write_all(compared(sweep, baseline="strategy=one_device"), sweep)
    assert lines[0].split() == [
        "run", "strategy", "status", "replicas", "examples/s", "efficiency", "loss", "val_loss",
        "val_accuracy", "difference", "seconds", "marks",
    ]  # fmt: skip
    assert [line.split() for line in lines[1:5]] == [
        ["0", "one_device", "FINISHED", "1", "100", "1.00", "1.000", "1.000", "0.9000", "-",
         "2.0", "baseline"],
        ["1", "mirrored", "FINISHED", "2", "150", "0.75", "0.5000", "0.5000", "0.9500", "1.0e-06",
         "2.0", "best"],
        ["2", "ps", "FAILED", "1", "-", "-", "2.000", "-", "-", "0", "-", "-"],
        ["3", "multiworker", "WAITING", "-", "-", "-", "-", "-", "-", "-", "-", "-"],
    ]  # fmt: skip
    assert lines[6:] == [
        "best: 1, val_accuracy 0.95 (max)",
        "difference: the largest, relative, of loss at a common step from that of 0",
        "efficiency: examples/s of a replica, over those of the run with the fewest replicas",
        "no difference of 3: loss at no step of the baseline's",
        "2: worker-0: killed see its log",
    ]
    assert compare.write(sweep, "strategy=one_device") == lines[:-1], "a sweep says what failed"


def test_a_narrow_terminal(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = compare.write(sweep, "strategy=one_device")
    assert max(map(len, lines[:5])) <= 80
    assert lines[6].startswith("not shown, for want of room: replicas, examples/s, seconds")


def test_its_csv(sweep: Path) -> None:
    compare.write(sweep, "0")
    found = rows((sweep / "comparison.csv").read_text())
    assert [row["run"] for row in found] == ["0", "1", "2", "3"]
    assert found[1] == {
        "run": "1", "strategy": "mirrored", "status": "FINISHED", "replicas": "2",
        "examples_per_second": "150.0", "efficiency": "0.75", "objective": "0.95",
        "difference": found[1]["difference"], "seconds": "2.0", "marks": "best", "problem": "",
        "source": str(sweep / "1"), "loss": "0.5", "val_accuracy": "0.95", "val_loss": "0.5",
    }  # fmt: skip
    assert float(found[1]["difference"]) == pytest.approx(1e-6, rel=1e-6)
    assert found[2]["problem"] == "worker-0: killed\nsee its log"
    curves = rows((sweep / "curves.csv").read_text())
    loss = [r for r in curves if (r["run"], r["metric"]) == ("1", "loss")]
    assert [r["step"] for r in loss] == ["1", "2", "3"]
    assert [float(r["value"]) for r in loss] == [2.000002, 1.0, 0.5]
    assert not [path for path in sweep.iterdir() if path.name.startswith(".")]


def test_names_of_others_are_no_formulas(tmp_path: Path) -> None:
    name = "=cmd|'x'!A0\x1b[2J"
    folders = [leave(tmp_path / each, config={"model.x": name}) for each in (name, "+1+2", "b")]
    journal = Journal(RunDir(folders[0]).journal)
    journal.write("metrics", step=1, metrics={name: -1.0})
    journal.close()
    found = compared(*folders)
    for made in (runs_csv(found), curves_csv(found)):
        cells = [cell for row in csv.reader(io.StringIO(made)) for cell in row]
        assert "\x1b" not in made and "-1.0" in cells
        assert not [cell for cell in cells if cell[:1] in "=+@" and cell]
        (tmp_path / "all.csv").write_text(made)
        assert {"+1+2"} < {row["run"] for row in csv_rows(tmp_path / "all.csv")}


class Page(html.parser.HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.cells: list[str] = []
        self.heads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [str(v) for k, v in attrs if k.endswith(("src", "href")) and v]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in ("td", "i") and data.strip():
            self.cells.append(data)
        if self.tags and self.tags[-1] == "h2" and data.strip():
            self.heads.append(data)


def test_its_page_needs_nothing_else(sweep: Path) -> None:
    compare.write(sweep, "0")
    written = (sweep / "comparison.html").read_text()
    page = Page(written)
    assert "default-src 'none'" in written
    assert not {"link", "img", "iframe"} & set(page.tags)
    assert all(address.startswith("#") for address in page.addresses), "within the page"
    assert not re.search(r"@import|url\((?!#)", written)
    assert page.cells[:3] == ["0", "one_device", "FINISHED"]
    assert page.heads == [
        "Curves", "Objective by parameter", "Speed by replicas",
        "Difference of loss from the baseline",
    ]  # fmt: skip
    assert page.tags.count("svg") == 5, "loss, by strategy, throughput, efficiency, difference"
    assert "No val_loss: no run has recorded it." in written
    assert "Sweep all" in written and "FAILED: 2 of 4 finished" in written
    again = compare.write(sweep, "0")
    assert (sweep / "comparison.html").read_text() == written and again


@pytest.mark.skipif(browser.executable() is None, reason=f"none of {browser.NAMES} is installed")
def test_its_page_in_a_browser(sweep: Path) -> None:
    compare.write(sweep, "0")
    asked, said = [], []
    with browser.browser() as page:
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((sweep / "comparison.html").as_uri())
        cells = page.locator("tbody td:first-child")
        assert cells.all_inner_texts() == ["0", "1", "2", "3"]
        head = page.get_by_role("columnheader", name="loss", exact=True)
        head.click()
        assert cells.all_inner_texts() == ["1", "0", "2", "3"], "what has none comes last"
        head.click()
        assert cells.all_inner_texts() == ["2", "0", "1", "3"]
        cells.nth(1).hover()
        shown = (
            "[...document.querySelectorAll('g[class^=run-]')].map(e => getComputedStyle(e).opacity)"
        )
        assert sorted(set(page.evaluate(shown))) == ["0.12", "1"]
        assert page.locator("g.run-0.on").count() == page.locator("g.run-0").count() > 0
        assert page.locator("g.run-1.on").count() == 0
    assert asked == [(sweep / "comparison.html").as_uri()]
    assert not said


def test_names_are_text(tmp_path: Path) -> None:
    evil = "<script>alert('$x$\\frac')</script>&"
    for number, value in enumerate((evil, "漢字" * 30)):
        leave(tmp_path / "s" / str(number), config={"model": {"name": value}})
    jobs = [job(0, model=evil), job(1, error=evil, model="漢字" * 30)]
    write_json(tmp_path / "s" / "sweep.json", {"name": evil, "status": "FAILED", "jobs": jobs})
    compare.write(tmp_path / "s", "0")
    page = (tmp_path / "s" / "comparison.html").read_text()
    assert Page(page).tags.count("script") == 1, "our own"
    assert "alert(" not in page.replace("&lt;script&gt;alert(", "")


def test_what_differs_without_a_sweep(tmp_path: Path) -> None:
    adam = {"name": "a", "output_dir": "p", "tracking.uri": "u", "sweep.resume": "s"}
    leave(tmp_path / "1", config=adam)
    leave(tmp_path / "2", config={"optimizer.learning_rate": 0.1, "name": "b", "output_dir": "q"})
    sgd = {"_target_": "keras.optimizers.SGD", "learning_rate": 0.5, "momentum": 0.9}
    leave(tmp_path / "10", config={"optimizer": sgd, "strategy.name": "mirrored"})
    schedule = {"_target_": "dtrain.schedules.warmup", "learning_rate": 0.5}
    leave(tmp_path / "11", config={"optimizer.schedule": schedule, "hardware.devices": 2})
    found = compared(tmp_path)
    assert [run.name for run in found.runs] == ["1", "2", "10", "11"], "as one counts"
    assert found.keys == [
        "strategy", "optimizer", "optimizer.schedule", "optimizer.learning_rate", "hardware.devices"
    ]  # fmt: skip
    assert [[run.value(key) for key in found.keys] for run in found.runs] == [
        ["one_device", "Adam", "null", "0.01", "null"],
        ["one_device", "Adam", "null", "0.1", "null"],
        ["mirrored", "SGD", None, "0.5", "null"],
        ["one_device", "Adam", "warmup", "0.01", "2"],
    ]
    assert found.runs[3].value("optimizer/schedule") == "warmup", "as a sweep's words name it"
    again = compared(tmp_path, baseline="optimizer.learning_rate=1e-1")
    assert again.baselines == [again.runs[1].name], "numbers are compared as numbers"


def test_where_runs_are_found(tmp_path: Path, sweep: Path) -> None:
    other = leave(tmp_path / "2026-11-21" / "10-00-00_x")
    leave(tmp_path / "mlartifacts" / "a" / "artifacts")
    (tmp_path / "link").symlink_to(other)
    names = ["2026-11-21/10-00-00_x", "s/0", "s/1", "s/2", "s/3"]
    assert [run.name for run in compared(tmp_path).runs] == names
    assert [run.name for run in compared(tmp_path, sweep, sweep / "1").runs] == names, "each once"
    assert [run.name for run in compared(sweep / "1").runs] == ["1"]
    assert compared(tmp_path).keys == ["strategy"]
    assert compared(tmp_path).sweep is None
    assert compared(tmp_path).runs[4].value("strategy") == "multiworker"
    for word in ("s/0", str(sweep / "0")):
        assert compared(tmp_path, baseline=word).baselines == ["s/0"]


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    leave(tmp_path / "0", {1: 2.0, 2: 0.0, 3: math.nan}, math.nan)
    leave(tmp_path / "1", {1: math.inf, 2: 0.0, 3: math.nan}, None, speed=None)
    leave(tmp_path / "2", {1: 2.0, 2: 1e-3}, math.inf)
    lines = compare.write(tmp_path, "0")
    assert "no best run: none has ended with a number for val_accuracy" in lines
    found = compared(tmp_path, baseline="0")
    assert found.differences["1"] == {1: math.inf, 2: 0.0, 3: 0.0}
    assert found.differences["2"] == {1: 0.0, 2: math.inf}
    assert [row["val_accuracy"] for row in table(found).values()] == ["nan", "-", "inf"]
    page = (tmp_path / "comparison.html").read_text()
    assert "Left out: no parameter differs." in page


def test_damaged_and_unfinished_runs_are_shown(tmp_path: Path) -> None:
    leave(tmp_path / "0")
    (leave(tmp_path / "1") / "config.yaml").write_text("a: [")
    leave(tmp_path / "3", result=False)
    leave(tmp_path / "4", {})
    found = table(compared(tmp_path))
    states = ["FINISHED", "DAMAGED", "UNFINISHED", "FINISHED"]
    assert [row["status"] for row in found.values()] == states
    assert found["3"]["loss"] == "1.000", "its last point"
    lines = compare.write_all(compared(tmp_path), tmp_path)
    assert any(line.startswith("1: cannot be read: ") for line in lines)


def test_what_the_sweep_says_of_a_job(tmp_path: Path) -> None:
    for name in ("0", "1", "2", "3"):
        leave(tmp_path / name, accuracy=None, result=name in "03")
    jobs = [job(n, state, seed=str(n)) for n, state in enumerate(("KILLED", "RUNNING", "KILLED"))]
    jobs[2].update(pruned=True, objective=0.25, seconds=7.0)
    jobs.append(job(3, "FINISHED"))  # which says nothing of the seed
    write_json(tmp_path / "sweep.json", {"name": "s", "status": "RUNNING", "jobs": jobs})
    found = table(compared(tmp_path))
    assert [row["status"] for row in found.values()] == [
        "FINISHED", "RUNNING", "PRUNED", "FINISHED"
    ]  # fmt: skip
    assert (found["2"]["val_accuracy"], found["2"]["seconds"]) == ("0.2500", "7.0")
    assert [row["seed"] for row in found.values()] == ["0", "1", "2", "0"]


def test_no_run_has_begun(tmp_path: Path) -> None:
    jobs = [job(n, "WAITING", seed=str(n)) for n in range(2)]
    told = {"name": "s", "status": "KILLED", "jobs": jobs, "baseline": "0"}
    write_json(tmp_path / "sweep.json", told)
    lines = compare.write(tmp_path)
    assert [line.split() for line in lines[:3]] == [
        ["run", "seed", "status"], ["0", "0", "WAITING"], ["1", "1", "WAITING"]
    ]  # fmt: skip
    assert any(
        line.startswith("no difference from a baseline: baseline=0: no other run has")
        for line in lines
    )


def test_the_best_is_by_the_mode(tmp_path: Path) -> None:
    for name, value in (("0", 0.3), ("1", 0.2), ("2", 0.1)):
        leave(tmp_path / name, accuracy=value, config={"objective_mode": "min"}, result=name != "2")
    found = compared(tmp_path)
    assert found.best is not None and found.best.name == "1", "the third has no result"
    leave(tmp_path / "3", config={"objective_mode": "max"})
    mixed = compared(tmp_path)
    assert mixed.best is None
    assert "no best run: not all have the same objective and objective_mode" in mixed.notes


SCALES = {
    "strong": ([(1, 64), (2, 64), (4, 64)], [1.0, 0.75, 0.5]),
    "weak": ([(1, 64), (2, 128), (4, 256)], [1.0, 0.75, 0.5]),
    "two batch sizes": ([(1, 64), (2, 64), (4, 32)], [1.0, 0.75, None]),
    "the fastest of the fewest": ([(2, 64), (4, 64), (2, 64)], [0.5, 0.375, 1.0]),
    "one number of replicas": ([(2, 64), (2, 64), (2, 64)], [None, None, None]),
    "other batches": ([(1, 64), (2, 32)], [None, None]),
}


@pytest.mark.parametrize("case", SCALES)
def test_scaling_efficiency(case: str, tmp_path: Path) -> None:
    runs, expected = SCALES[case]
    for number, (replicas, batch) in enumerate(runs):
        leave(
            tmp_path / str(number), replicas=replicas, speed=100.0 + 50 * number,
            config={"trainer.batch_size": batch, "hardware.devices": replicas},
        )  # fmt: skip
    found = compared(tmp_path)
    values = [found.efficiency.get(run.name) for run in found.runs]
    assert values == [None if e is None else pytest.approx(e) for e in expected]
    noted = any("no scaling efficiency" in note for note in found.notes)
    assert noted == (case == "other batches")


def test_speed_of_other_experiments_is_not_compared(tmp_path: Path) -> None:
    leave(tmp_path / "0", config={"trainer.epochs": 1})
    leave(tmp_path / "1", replicas=2, config={"trainer.epochs": 2, "strategy.name": "mirrored"})
    assert not compared(tmp_path).efficiency


def test_another_metric(sweep: Path) -> None:
    found = compared(sweep, metric="examples_per_second", baseline="1")
    assert found.differences["0"] == {1: 0.0, 2: 0.0}
    [first, *_] = table(found).values()
    assert first["examples_per_second"] == "7.000"
    assert (first["val_accuracy"], first["difference"]) == ("0.9000", "0")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere"], "error: PATH=nowhere: is not there; accepted: a folder with runs in it, or "
         "the id of a run in MLflow; type: python -m dtrain compare outputs"),
        (["s", ""], "error: RUN=: is empty; accepted: a run, a sweep"),
        (["."], "error: PATH=.: holds no run folder; "),
        (["file"], "error: PATH=file: is no folder; "),
        (["s", "baseline=7"], "error: baseline=7: no runs match; accepted: 0, 1, 2, 3; or "
         "KEY=VALUE of one alone; type: baseline=0"),
        (["s", "baseline=seed=0"], "error: baseline=seed=0: 3 runs match; accepted: 0, "
         "1, 2; or KEY=VALUE of one alone; type: baseline=0"),
        (["s/0", "s/2b", "baseline=0"], "error: baseline=0: no other run has loss at a step "
         "of 0; hint: trainer.log_every_steps=N, the same for"),
        (["s", "metric=los"], "error: metric=los: no run has it; accepted: "
         "examples_per_second, loss; hint: metric=loss"),
        (["f" * 32, "tracking.uri=sqlite:///no.db"],
         "error: tracking.uri=sqlite:///no.db: is not there; "),
    ],
)  # fmt: skip
def test_usage_errors(
    arguments: list[str], expected: str, sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(sweep / "2b", {7: 1.0})
    if arguments == ["."]:
        os.chdir(RunDir.create(sweep.parent / "empty").path)
    Path("file").touch()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(expected)
    assert captured.err.count("\n") == 1
    assert not list(sweep.glob("*.html")) and not list(sweep.parent.glob("*.db"))


def test_a_place_that_cannot_be_written(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").touch()
    assert main(["s", "to=taken"]) == 1
    assert capsys.readouterr().err == "error: taken: File exists\n"


def test_a_store_that_does_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert main(["f" * 32, "tracking.uri=http://me:hidden@127.0.0.1:9"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: http://me:***@127.0.0.1:9 does not answer: ")
    assert "hidden" not in error and error.count("\n") == 1


@pytest.mark.parametrize("uri", ["foo://x", "file:///tmp", "http://", "http://h:99999", "/tmp"])
def test_an_address_of_no_store(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["f" * 32, f"tracking.uri={uri}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: tracking.uri={uri}: ") and error.count("\n") == 1


def test_what_nobody_should_read(tmp_path: Path) -> None:
    assert public({"a": {"api_key": 1, "Token": "x", "tokens": 3, "uri": "http://u:p@h/x"}}) == {
        "a.tokens": "3", "a.uri": "http://u:***@h/x"
    }  # fmt: skip
    for name in ("0", "1"):
        config = {"dataset.password": f"hidden{name}", "model.path": "${oc.env:X}"}
        leave(tmp_path / name, config={**config, "model.uri": f"http://u:hidden@h/{name}"})
    lines = compare.write(tmp_path)
    for path in tmp_path.glob("*.*"):
        assert "hidden" not in path.read_text()
    assert "hidden" not in "".join(lines)


def test_a_hundred_runs(tmp_path: Path) -> None:
    jobs = []
    for number in range(100):
        rate = 10 ** (-4 + 3 * number / 99)
        curve = {step: 1 / (1 + rate * step) for step in range(1, 501)}
        leave(tmp_path / str(number), curve, 1 - rate, config={"optimizer.learning_rate": rate})
        jobs.append(job(number, **{"optimizer.learning_rate": str(rate)}))
    write_json(tmp_path / "sweep.json", {"name": "s", "status": "FINISHED", "jobs": jobs})
    compare.write(tmp_path, "50")
    page = (tmp_path / "comparison.html").read_text()
    lines = re.findall(r'class="run-(\d+)"', page)
    assert {lines.count(str(number)) for number in range(100)} == {3, 4}
    assert lines.count("50") == 3, "all but the difference from itself"
    assert len(set(plots.colours(100))) == 100
    assert len(page) < 5_000_000, "curves are thinned out"
    assert len(rows((tmp_path / "curves.csv").read_text())) == 100 * 500 * 2


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        (["0.0001", "0.001", "0.1"], {"0.001", "0.01", "0.1"}),  # over two decades
        (["0.001", "0.01"], {"0.002", "0.004", "0.006", "0.008", "0.010"}),
        (["0", "100"], {"0", "20", "40", "60", "80", "100"}),
        (["true", "false"], {"true", "false"}),
        (["1", "null"], {"1", "null"}),
        (["nan", "1"], {"nan", "1"}),
    ],
)
def test_axes_of_parameters(values: list[str], ticks: set[str], tmp_path: Path) -> None:
    runs = [Run(str(n), "", objective=0.5, differs={"k": v}) for n, v in enumerate(values)]
    found = Comparison(runs, ["k"], "loss", objective="o", mode="max")
    before = dict(matplotlib.rcParams)
    [_, section, *_] = plots.sections(found)
    assert dict(matplotlib.rcParams) == before
    [svg] = section.plots
    assert ticks <= set(re.findall(r">([^<>]+)</text>", svg))
    assert "currentColor" in svg and "#010203" not in svg


def test_peaks_of_the_difference_stay(tmp_path: Path) -> None:
    leave(tmp_path / "0", dict.fromkeys(range(1, 2001), 1.0))
    leave(tmp_path / "1", {step: 3.0 if step == 777 else 1.0 + 1e-9 for step in range(1, 2001)})
    found = compared(tmp_path, baseline="0")
    steps, values = plots._largest(found.differences["1"])
    assert (len(steps) <= 400, max(values), steps[-1]) == (True, 2.0, 2000)


def test_as_a_command(sweep: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    code = (
        "import sys; from dtrain import compare; assert 'matplotlib' not in sys.modules\n"
        "import runpy; sys.argv.insert(1, 'compare')\n"
        "try: runpy.run_module('dtrain', run_name='__main__', alter_sys=True)\n"
        "finally: print({'tensorflow', 'keras', 'mlflow', 'hydra', 'matplotlib.pyplot'}"
        " & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, "s", "to=here/there"],
        capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("page: here/there/comparison.html\nset()\n")
    names = ["comparison.csv", "comparison.html", "curves.csv"]
    assert sorted(path.name for path in Path("here/there").iterdir()) == names
    assert not list(sweep.glob("*.html"))


def ship(folder: Path, config: Any, parent: str | None = None) -> str:
    """Record a run folder in the embedded store; return its id there."""
    rundir = RunDir(folder)
    cluster = Cluster((Task("chief", 0, 1),), "cpu", 1, {})
    tracker = MLflow(config)
    tracker.open(TrackedRun(config, rundir, cluster), 1000.0)
    name = "val_accuracy" if config.objective == "auto" else config.objective
    chosen = {"objective": name, "objective_mode": mode_of(config.objective_mode, name)}
    start = {"event": "start", "time": 1000.0, "step": 0, "replicas": 2, "parameters": 5}
    tracker.write([{**start, **chosen}])
    points = {1: 2.0, 2: 1.5} if parent is None else {1: 2.0, 2: 1.0}
    for step, value in points.items():
        event = {
            "event": "metrics",
            "time": 1000.0 + step,
            "step": step,
            "metrics": {"loss": value},
        }
        tracker.write([event])
    tracker.close("FINISHED", 1010.0)
    past = read_json(rundir.tracking)
    assert past is not None
    if parent is not None:
        client = import_mlflow().tracking.MlflowClient(past["uri"])
        client.set_tag(past["run_id"], "mlflow.parentRunId", parent)
        client.set_tag(past["run_id"], "job", folder.name)
    return str(past["run_id"])


@pytest.mark.usefixtures("store")
def test_runs_in_mlflow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parent = ship(RunDir.create(tmp_path / "p").path, composed("name=parent"))
    words = ("strategy=one_device", "name=a"), ("strategy=mirrored", "name=a")
    ids = []
    for number, each in enumerate(words):
        folder = leave(tmp_path / "runs" / str(number), accuracy=0.5 + number / 4)
        ids.append(ship(folder, composed(*each), parent))
    assert main([parent, f"baseline={ids[0]}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["run", "strategy", "status", "replicas", "examples/s", "loss", "val_loss", "val_accuracy",
         "difference", "seconds", "marks"],
        ["a", ids[0][:8], "one_device", "FINISHED", "2", "100", "1.000", "1.000", "0.5000", "-",
         "2.0", "baseline"],
        ["a", ids[1][:8], "mirrored", "FINISHED", "2", "100", "1.000", "1.000", "0.7500", "0",
         "2.0", "best"],
    ]  # fmt: skip
    # By ids of their own, with the parent's as a run among others, and with a folder.
    assert main([*ids, str(leave(tmp_path / "f", {1: 2.2, 2: 1.0})), "baseline=f"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("f ") and " 9.1e-02 " in lines[2]
    assert Path("comparison.html").is_file()
    assert main(["f" * 32]) == 2
    assert capsys.readouterr().err == (
        f"error: RUN={'f' * 32}: is not in sqlite:///{tmp_path}/outputs/mlflow.db; "
        "hint: tracking.uri=STORE of it\n"
    )
    # One that has no result yet, of which MLflow knows less.
    lone = ship(RunDir.create(tmp_path / "l").path, composed("objective=loss", "name=lone"))
    assert main([lone]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "status", "replicas", "loss", "seconds", "marks"]
    assert row.split() == ["lone", "FINISHED", "2", "1.500", "10.0", "best"]


@pytest.mark.parametrize("name", ["comparison.html", "comparison.csv", "curves.csv"])
@pytest.mark.parametrize("kind", ["a file", "a link", "a pipe"])
def test_what_is_not_from_a_comparison_stays(sweep: Path, name: str, kind: str) -> None:
    path, other = sweep / name, sweep.parent / "other"
    other.write_text("step,mine\n")
    if kind == "a file":
        path.write_text("run,step,metric,value\nmine,1,2,3\n")
    else:
        path.symlink_to(other) if kind == "a link" else os.mkfifo(path)
    found = {p.name: p.lstat().st_mtime_ns for p in sweep.iterdir()}
    assert main([str(sweep)]) == 2
    assert {p.name: p.lstat().st_mtime_ns for p in sweep.iterdir()} == found, "nothing was written"
    assert other.read_text() == "step,mine\n"
    with pytest.raises(UsageError, match=f"{name} is not from an earlier comparison.*to"):
        compare.write(sweep)
    assert main([str(sweep), "to=elsewhere"]) == 0


def test_an_earlier_comparison_is_replaced(sweep: Path) -> None:
    compare.write(sweep)
    first = {path.name: path.read_bytes() for path in sweep.glob("*.*")}
    compare.write(sweep)
    assert {path.name: path.read_bytes() for path in sweep.glob("*.*")} == first
    leave(sweep / "3")
    compare.write(sweep)
    assert (sweep / "curves.csv").read_bytes() != first["curves.csv"]


def test_damaged_runs_have_a_line_each(tmp_path: Path) -> None:
    """Whatever is in a folder, the others are compared."""
    for name in ("good", "config", "journal", "result", "cluster", "link", "pipe", "lines"):
        leave(tmp_path / "runs" / name)
    (tmp_path / "runs" / "config" / "config.yaml").write_text("a: &a [1]\nb: *a\n")
    (tmp_path / "runs" / "result" / "result.json").write_text("[" * 100_000)
    (tmp_path / "runs" / "cluster" / "cluster.json").write_text('{"replicas": "2"}')
    for name, make in (("link", lambda p: p.symlink_to("/etc/passwd")), ("pipe", os.mkfifo)):
        path = tmp_path / "runs" / name / "journal.jsonl"
        path.unlink()
        make(path)
    with (tmp_path / "runs" / "lines" / "journal.jsonl").open("ab") as file:
        file.write(b"\0" * 100 + b"\n")
    sweep = tmp_path / "runs" / "sweep"
    leave(sweep / "0")
    write_json(sweep / "sweep.json", {"jobs": [job(0)]})
    (tmp_path / "runs" / "evil\x1b[31m").mkdir()
    leave(tmp_path / "runs" / "evil\x1b[31m" / "run")
    found = compared(tmp_path / "runs")
    said = {run.name: (run.status, run.problem) for run in found.runs}
    for name, words in {
        "config": "config.yaml has an alias", "result": "is not valid JSON",
        "cluster": "replicas '2' is not a number", "link": "is a symbolic link",
        "pipe": "is a named pipe", "sweep/sweep.json": "sweep.json: name is not there",
    }.items():  # fmt: skip
        status, problem = said.pop(name)
        assert status == "DAMAGED" and problem is not None and words in problem, name
    assert said.pop("lines") == (
        "FINISHED", "journal.jsonl: passed over 1 damaged line, the first is line 4",
    )  # fmt: skip
    assert said == dict.fromkeys(
        ("good", "journal", "sweep/0", "evil\\x1b[31m/run"), ("FINISHED", None)
    )
    assert "\x1b" not in "\n".join(text(found))


def test_bounds_of_what_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        leave(tmp_path / str(number), {step: 1.0 for step in range(9)})
    for name, value, message in (
        ("EVENTS", 5, "what follows the first 5 events is left out"),
        ("METRICS", 1, "more than 1 metrics are left out"),
    ):
        with monkeypatch.context() as limits:
            limits.setattr(runs, name, value)
            assert {r.problem for r in compared(tmp_path).runs} == {f"journal.jsonl: {message}"}
    monkeypatch.setattr(runs, "KEYS", 3)
    assert {run.status for run in compared(tmp_path).runs} == {"DAMAGED"}
    monkeypatch.setattr(runs, "RUNS", 3)
    with pytest.raises(UsageError, match="makes more than 3 runs"):
        compared(tmp_path)


def test_numbers_that_cannot_be_drawn(tmp_path: Path) -> None:
    for number, value in enumerate((1e308, -1e308, 5e-324, math.nan, math.inf)):
        leave(tmp_path / str(number), {1: value, 2**53: -value}, value, 2**53, speed=5e-324)
    compare.write(tmp_path)
