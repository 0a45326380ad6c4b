"""``python -m dtrain tune``: what is tried, what is chosen, what ``hardware=tuned`` is."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dtrain.config.settle import settle
from dtrain.controller import tuned
from dtrain.controller.commands import tune
from dtrain.controller.plan import plan
from dtrain.controller.resources.devices import Machine
from dtrain.controller.tuning import coordinates, table
from dtrain.controller.tuning.search import BATCH, THREADS, Coordinate, Found, Search, differing
from dtrain.controller.tuning.settings import named
from dtrain.controller.tuning.trials import Trials
from dtrain.errors import DamagedFile
from dtrain.host import processors
from dtrain.run import journal
from tests.conftest import QUICK, Commands
from tests.integration.test_failures import until
from tests.test_schema import composed

#: An MLP, which is trained in a second.
SMALL = tuple(each for each in QUICK if not each.startswith(("tracking", "trainer.log")))


@pytest.fixture(autouse=True)
def _nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_CACHE", str(tmp_path / "cache"))


class Measured:
    """Answers as trials would, and remembers what was tried.

    Args:
        speeds: examples a second, by the setting as it is typed; 100 where there is none.
        losses: of settings whose losses are not those of the others.
    """

    def __init__(
        self, speeds: dict[str, float | None], losses: dict[str, list[float]] | None = None
    ):
        self._speeds, self._losses = speeds, losses or {}
        self.tried: list[str] = []

    def __call__(self, setting: Any) -> Found:
        name = named(setting)
        self.tried.append(name)
        speed = self._speeds.get(name, 100.0)
        if speed is None:
            return Found(problem="cannot be compiled")
        return Found(speed, self._losses.get(name, [2.0, 1.0]), memory=1000)


def searched(
    measure: Measured, *settings: Sequence[dict[str, Any]], tolerance: float = 1e-5
) -> Search:
    search = Search(measure, tolerance)
    search.begin()
    search.walk([Coordinate(each) for each in settings])
    return search


def test_each_coordinate_is_tried_with_the_best_so_far() -> None:
    measure = Measured({"a=1": 150, "a=1 b=1": 130, "a=1 c=1": 200, "a=1 c=2": 170})
    search = searched(measure, [{"a": 1}, {"a": 2}], [{"b": 1}], [{"c": 1}, {"c": 2}])
    assert measure.tried == [
        "plain", "a=1", "plain", "a=1", "a=2", "a=1 b=1", "a=1 c=1", "a=1", "a=1 c=1", "a=1 c=2",
    ]  # fmt: skip
    assert named(search.best.setting) == "a=1 c=1"
    assert [row.ratio for row in search.rows[:5]] == [1.0, 1.5, 1.0, 1.5, 1.0]
    assert [row.again for row in search.rows[:5]] == [False, False, True, True, False]


def test_other_numbers_are_chosen_only_where_they_are_accepted() -> None:
    losses = {"a=1": [2.0, 1.001]}
    search = searched(Measured({"a=1": 300}, losses), [{"a": 1}])
    assert not search.best.setting
    assert search.rows[1].difference == pytest.approx(1e-3)
    assert table.cells(search.rows[1])[2:] == ("3.00", "1.0e-03 in 2 steps", "other numbers")
    accepted = searched(Measured({"a=1": 300}, losses), [{"a": 1}], tolerance=0.01)
    assert accepted.best.setting == {"a": 1}
    assert table.cells(accepted.best, chosen=True)[4] == "kept, other numbers"


def test_what_fails_is_a_row_with_its_reason() -> None:
    search = searched(Measured({"jit=true": None, "a=1": 120}), [{"jit": True}], [{"a": 1}])
    assert search.best.setting == {"a": 1}
    assert table.cells(search.rows[1]) == ("jit=true", "-", "-", "-", "cannot be compiled")


def test_what_is_within_the_noise_is_not_chosen() -> None:
    assert not searched(Measured({"a=1": 102}), [{"a": 1}]).best.setting


def test_a_gain_has_to_be_seen_twice() -> None:
    speeds = iter([100.0, 200.0, 150.0, 140.0, 160.0, 150.0, 155.0])
    search = Search(lambda setting: Found(next(speeds), [1.0]))
    search.begin()
    search.walk([Coordinate([{"a": 1}])])
    assert not search.best.setting and len(search.rows) == 4
    search.walk([Coordinate([{"b": 1}])])  # faster than 150, of the second time
    assert search.best.setting == {"b": 1} and search.best.found.speed == 155.0


def test_some_settings_are_tried_without_a_part_of_the_best() -> None:
    """XLA is slow with one thread, which is the fastest without it."""
    measure = Measured({"threads=1": 150, "threads=1 jit=true": 120, "jit=true": 200})
    search = Search(measure)
    search.begin()
    search.walk([Coordinate([{"threads": 1}]), Coordinate([{"jit": True}], apart=["threads"])])
    assert named(search.best.setting) == "jit=true"
    assert measure.tried[4:6] == ["threads=1 jit=true", "jit=true"]


def test_two_that_are_fast_together_are_found_while_there_is_time() -> None:
    speeds = {"a=1": 90.0, "b=1": 90.0, "a=1 b=1": 300.0, "c=1": 120.0, "c=2": None}
    found = [Coordinate([{"a": 1}]), Coordinate([{"b": 1}]), Coordinate([{"c": 1}, {"c": 2}])]

    def combined(trials: int) -> tuple[Search, list[str]]:
        measure = Measured(dict(speeds), {"c=1 d=1": [2.0, 9.0]})
        search = Search(measure)
        search.begin()
        search.walk([*found, Coordinate([{"d": 1}])])
        before = len(measure.tried)
        search.combine(
            [*found, Coordinate([{"d": 1}])], lambda: len(measure.tried) >= before + trials
        )
        return search, measure.tried[before:]

    search, tried = combined(100)
    # The best was c=1: what differs from it by one key first. c=2 fails, d=1 has other numbers.
    assert tried == ["b=1 c=1", "a=1 c=1", "a=1 b=1 c=1", "a=1 b=1"]
    search.compare_last()
    assert search.best.setting == {"a": 1, "b": 1}
    assert combined(1)[1] == ["b=1 c=1"] and combined(0)[1] == []


def lasting(*speeds: float | None) -> Search:
    """Return a search over a and b whose first measurements are 100, and the last are given."""
    measured = iter([100.0, 101.0, 102.0, *speeds])

    def measure(setting: Any) -> Found:
        return Found(next(measured), [1.0])

    search = Search(measure)
    search.begin()
    search.walk([Coordinate([{"a": 1}, {"b": 1}])])
    search.compare_last()
    assert next(measured, None) is None
    return search


def test_the_fastest_are_measured_beside_each_other_in_the_end() -> None:
    # b, a and plain, then the other way about: single measurements of others do not count.
    search = lasting(90, 140, 130, 131, 141, 91)
    assert search.best.setting == {"a": 1} and search.best.found.speed == 141
    assert [dict(row.setting) for row in search.rows[3:]] == [
        {"b": 1}, {"a": 1}, {}, {}, {"a": 1}, {"b": 1},
    ]  # fmt: skip
    assert all(row.again for row in search.rows[3:])


def test_the_plain_setting_stays_where_the_others_are_not_clearly_faster() -> None:
    assert lasting(102, 101, 100, 100, 101, 102).best.setting == {}


def test_a_setting_that_fails_in_the_end_is_not_chosen() -> None:
    assert lasting(200, 150, 100, 100, 150, None).best.setting == {"a": 1}
    assert lasting(None, None, None, None, None, None).best.setting == {}


def test_what_is_much_slower_is_not_measured_again() -> None:
    measure = Measured({"a=1": 80, "b=1": 200})
    search = searched(measure, [{"a": 1}, {"b": 1}])
    before = len(measure.tried)
    search.compare_last()
    assert search.best.setting == {"b": 1} and len(measure.tried) == before


def test_without_losses_nothing_is_known_to_be_the_same() -> None:
    search = searched(Measured({"a=1": 300}, {"a=1": []}), [{"a": 1}])
    assert not search.best.setting
    assert table.cells(search.rows[1])[3:] == ("-", "losses are not known")


def test_differences_of_losses() -> None:
    assert differing([1.0, 0.5], [1.0, 0.25]) == (0.25, 2)
    assert differing([100.0, 1.0, 3.0], [101.0, 1.0]) == (pytest.approx(0.01), 2)  # of slow steps
    assert differing([], [1.0]) == (None, 0)
    nan = float("nan")
    assert differing([1.0, 2.0, 3.0], [1.0, nan, 3.0]) == (float("inf"), 3)


def test_batches_are_doubled_while_that_is_faster_and_there_is_memory() -> None:
    speeds = {f"{BATCH}=128": 150.0, f"{BATCH}=256": 300.0, f"{BATCH}=512": 301.0}
    measure = Measured(dict(speeds))
    search = searched(measure)
    search.batches(64, lambda needed: True)
    assert measure.tried[1:] == list(speeds) and not search.best.setting
    assert table.cells(search.rows[-1])[4] == "another training: shown alone"
    search = searched(Measured(dict(speeds)))
    search.batches(64, lambda needed: needed < 1000)
    assert search.rows[-1].found.problem == "needs more memory than is free"
    assert len(search.rows) == 2


@functools.cache
def known(*overrides: str) -> Any:
    """Return a configuration that no test changes: composing one takes time."""
    return composed(*overrides)


def tried(*overrides: str, on: Machine = Machine(0, 8), plain: Found = Found()) -> list[str]:  # noqa: B008
    """Return what would be tried from the plain setting."""
    config = known(*overrides)
    found = coordinates.of(config, plan(config, None, on), on, plain)
    return [named(s) for each in found if each.fits({}) for s in each.settings]


def test_what_there_is_to_tune() -> None:
    short = [each.replace("hardware.", "") for each in tried(on=Machine(0, 4))]
    assert short == [
        "intra_op_threads=1", "intra_op_threads=2", "onednn=false", "jit_compile=true",
        "precision=mixed_bfloat16",
    ]  # fmt: skip
    of_jax = [each for each in short if "onednn" not in each and "jit" not in each]
    assert tried("backend=jax", on=Machine(0, 4)) == [f"hardware.{each}" for each in of_jax]
    mirrored = tried("strategy=mirrored", on=Machine(0, 4))
    assert mirrored[:2] == [
        "hardware.devices=1 hardware.intra_op_threads=4",
        "hardware.devices=4 hardware.intra_op_threads=1",
    ]
    assert not any("jit_compile" in each for each in mirrored)  # devices meet inside the step
    gpu = tried(on=Machine(1, 8))
    assert gpu == ["hardware.jit_compile=true", "hardware.precision=mixed_bfloat16"]
    assert "dataset.workers=2" in tried(plain=Found(waited=0.2))
    assert not any("workers" in each for each in tried(plain=Found(waited=0.01)))


def test_replicas_share_the_batch_evenly() -> None:
    config, on = copy.copy(known("strategy=mirrored")), Machine(0, 4)
    tuned.put(config, {BATCH: 6})
    found = coordinates.of(config, plan(config, None, on), on, Found())
    names = [named(setting) for each in found for setting in each.settings]
    assert [each for each in names if "devices" in each] == [
        "hardware.devices=1 hardware.intra_op_threads=4"
    ]


def test_a_setting_is_kept_for_its_model_alone() -> None:
    def changed(**values: Any) -> Any:
        config = copy.copy(known())
        tuned.put(config, {key.replace("__", "."): value for key, value in values.items()})
        return config

    path = tuned.write(known(), {THREADS: 2, "hardware.onednn": False, BATCH: 128})
    assert tuned.read(path) == {
        "hardware.devices": None, "hardware.intra_op_threads": 2, "hardware.onednn": False,
        "hardware.precision": "float32", "hardware.jit_compile": False, "dataset.workers": 0,
    }  # fmt: skip
    assert path == tuned.path_of(changed(trainer__epochs=2, hardware__devices=2))
    others = [changed(trainer__batch_size=32), changed(dataset__split_seed=1)]
    others += [known("strategy=mirrored"), known("model=mlp")]
    assert len({path, *map(tuned.path_of, others)}) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hardware.intra_op_threads": "2"}, "values.hardware.intra_op_threads '2' is not a num"),
        ({"hardware.intra_op_threads": 0}, "values.hardware.intra_op_threads 0 is not from 1 to"),
        ({"hardware.precision": "float8"}, "values.hardware.precision 'float8' is none of"),
        ({"hardware.kind": "gpu"}, "values.hardware.kind is not known here"),
    ],
)
def test_a_file_is_read_strictly(change: dict[str, Any], message: str) -> None:
    path = tuned.write(known(), {})
    found = json.loads(path.read_text())
    found["values"] |= change
    path.write_text(json.dumps(found))
    with pytest.raises(DamagedFile, match=re.escape(message)):
        tuned.read(path)
    path.write_text("[1]")
    with pytest.raises(DamagedFile):
        tuned.read(path)


def test_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processors.processor()
    monkeypatch.setattr(processors, "_CPU", Path("absent"))
    monkeypatch.setattr(processors, "_GPUS", Path("gpus"))
    assert tuned.subject(known())["machine"]["processor"] and processors.gpus() == []
    Path("gpus/0").mkdir(parents=True)
    Path("gpus/0/information").write_text("Model: \t NVIDIA H100\nIRQ: 1\n")
    assert processors.gpus() == ["NVIDIA H100"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resume=x"], "is of a run, and tune keeps none"),
        (["hardware=tuned"], "is what tune measures"),
        (["hydra.mode=MULTIRUN", "seed=1,2"], "tune has one configuration"),
        (["launcher=inline"], "starts tasks elsewhere, and tune measures this machine"),
        (["trainer.batch_size=63", "strategy=mirrored"], "2 replicas cannot share it evenly"),
    ],
)
def test_what_is_refused(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tune.main([*words, "dry_run=true"]) == 2
    assert message in capfd.readouterr().err


def test_what_would_be_tried(capfd: pytest.CaptureFixture[str]) -> None:
    assert tune.main(["model=mlp", "dry_run=true"]) == 0
    found = capfd.readouterr().out
    assert found.startswith("trials:\n  plain\n") and "  hardware.onednn=false\n" in found
    with pytest.raises(SystemExit):
        tune.main(["--seconds", "0"])
    with pytest.raises(SystemExit):
        tune.main(["--tolerance", "nan"])


def settled(*overrides: str) -> Any:
    """Return a configuration as the command has it."""
    from tests.test_schema import node

    return settle(node(*overrides, "tracking=none"))


def test_trials_are_runs_that_leave_their_losses_and_speed(tmp_path: Path) -> None:
    config = settled(*SMALL)
    trials = Trials(config, tmp_path, 5, 0.1, 60.0)
    plain = trials.measure({})
    assert plain.problem is None and plain.speed and len(plain.losses) == 5
    assert plain.memory > 50_000_000 and 0 <= plain.waited <= 1
    problem = trials.measure({BATCH: 256}).problem
    assert problem == "trainer.batch_size=256: the dataset has 128 training examples"
    assert config.trainer.batch_size == 32, "the configuration of the command is not changed"


def test_a_trial_that_fails_says_why(tmp_path: Path, user_code: Any) -> None:
    user_code("def broken(input_shape, classes):\n    raise RuntimeError('no such layer')\n")
    words = (each for each in SMALL if not each.startswith("model"))
    config = settled(*words, "model=custom", "model._target_=mine.broken")
    problem = Trials(config, tmp_path, 5, 0.1, 60.0).measure({}).problem
    assert problem is not None and "no such layer" in problem


def test_a_trial_has_a_limit(tmp_path: Path) -> None:
    config = settled(*SMALL)
    found = Trials(config, tmp_path, 5, 60.0, 0.5).measure({})
    assert found.problem == "is not done within 0.5 s"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "dtrain", "tune", "--seconds", "0.1", *words]


@pytest.mark.faults
def test_a_model_is_tuned(tmp_path: Path, dtrain: Commands) -> None:
    done = subprocess.run(command(*SMALL), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert " plain " in done.stdout and "hardware.onednn=false" in done.stdout
    assert "other numbers" in done.stdout  # of bfloat16
    assert "kept: " in done.stdout and not list(tmp_path.glob("outputs*"))
    run = dtrain(*QUICK, "hardware=tuned")
    assert run.code == 0, run.output


@pytest.mark.faults
def test_a_stop_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    with subprocess.Popen(
        [*command(*SMALL), "--seconds", "60"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(folder)}, start_new_session=True,
    ) as process:  # fmt: skip

        def begun() -> bool:
            paths = folder.glob("dtrain-tune-*/1/journal.jsonl")
            return any(journal.read(path) for path in paths)

        until(begun, lambda: "no trial has begun")
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        errors = process.stderr.read()

    def gone() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    try:  # those of Python's multiprocessing end by themselves when their command has
        until(gone, lambda: "a process was left", 20)  # a trial would go on for 60
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0 and "stopped" in errors, errors
    assert not list(folder.glob("dtrain-tune-*")) and not tuned.path_of(composed(*SMALL)).exists()
