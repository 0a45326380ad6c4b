"""From words to jobs: what differs and is refused, what each job has, how they are shown."""

from __future__ import annotations

import dataclasses
import io
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from rich.console import Console

from dtrain.config import tree
from dtrain.errors import UsageError
from dtrain.run import checkpoint
from dtrain.run.cluster import Cluster, Task
from dtrain.run.devices import Machine
from dtrain.run.folder import RunDir, write_json, write_text
from dtrain.sweep import compose as module
from dtrain.sweep import table as pictures
from dtrain.sweep.compose import (
    Composer,
    Draft,
    Slot,
    Slots,
    at_once,
    common_name,
    gpu_names,
    gpus,
    keep_to,
)
from dtrain.sweep.table import Row, Table
from tests.quick import grid, master
from tests.sampled import sampled, thinned


@pytest.fixture(autouse=True)
def _trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "tests")


def composed(*jobs: str, words: tuple[str, ...] = ()) -> tuple[Composer, list[Draft]]:
    asked = grid(*jobs, words=words)
    composer = Composer(master(*words), asked)
    return composer, [composer.compose(n, job) for n, job in enumerate(asked)]


def refused(parts: list[str], call: Any, *arguments: Any) -> Exception:
    with pytest.raises(UsageError) as caught:
        call(*arguments)
    for part in parts:
        assert part in str(caught.value)
    return caught.value


def test_what_differs() -> None:
    _, drafts = composed(
        "strategy=mirrored optimizer/schedule=cosine seed=1 model.dropout=0.1",
        "strategy=one_device optimizer/schedule=constant seed=1 model.dropout=0.2",
    )
    assert [d.differs for d in drafts] == [
        {"strategy": "mirrored", "optimizer/schedule": "cosine", "model.dropout": "0.1"},
        {"strategy": "one_device", "optimizer/schedule": "constant", "model.dropout": "0.2"},
    ]
    assert [d.config.strategy.name for d in drafts] == ["mirrored", "one_device"]
    assert [d.config.name for d in drafts] == ["cnn_mirrored", "cnn_one_device"]
    assert common_name([d.config.name for d in drafts]) == "cnn"
    assert drafts[0].hash != drafts[1].hash


def test_names_with_nothing_in_common() -> None:
    assert common_name(["cnn_ps", "mlp_ps"]) == "sweep"
    assert common_name(["cnn_one_device", "cnn_one_for_all"]) == "cnn_one"
    assert common_name(["cnn_default"]) == "cnn_default"
    assert common_name(["a", "a_b"]) == "a"


def test_jobs_that_nobody_knows_before() -> None:
    """Of a search: what its own words fix does not differ."""
    words = ("strategy=mirrored",)
    composer = Composer(master(*words, "seed=1,2"), [])
    [job] = grid("strategy=mirrored seed=3 optimizer.learning_rate=0.02", words=words)
    draft = composer.compose(0, job)
    assert draft.differs == {"seed": "3", "optimizer.learning_rate": "0.02"}


def test_a_job_does_not_know_its_sweep() -> None:
    composer, [draft] = composed("seed=1", words=("sweep.parallel=2",))
    assert "sweep" not in tree.written(draft.config)
    told = composer.command(draft)
    assert not [word for word in told["overrides"] if word.startswith("sweep")]
    assert told["sweep"] == {"number": 0, "differs": {}}
    _, [other] = composed("seed=1", words=("sweep.parallel=4", "tracking.experiment=x"))
    assert other.hash == draft.hash


@pytest.mark.parametrize(
    "word",
    sampled(
        ["trainer.epochs=9", "seed=7", "strategy=mirrored", "hardware.devices=2", "model=mlp"],
        "seed=7",
    ),
)  # fmt: skip
def test_what_makes_a_job_another_one(word: str) -> None:
    _, [one, other] = composed("objective=val_loss", f"objective=val_loss {word}")
    assert one.hash != other.hash


def test_a_word_that_does_not_compose() -> None:
    with pytest.raises(HydraException) as caught:
        composed("seed=1 model=cnn", "seed=2 model=mpl")
    assert caught.value.__notes__ == ["in job 1: seed=2 model=mpl"]


def test_a_key_that_nothing_reads() -> None:
    error = refused(["foo=3", "there is no such key"], composed, "seed=1", "seed=2 +foo=3")
    assert error.__notes__ == ["in job 1: seed=2 foo=3"]


@pytest.mark.parametrize(
    ("jobs", "parts"),
    thinned([
        (("objective=val_loss", "objective=loss"), ["objective=loss", "val_loss in another job"]),
        (("output_dir=a", "output_dir=b"), ["output_dir=", "is one for the whole sweep"]),
        (("sweep.parallel=1", "sweep.parallel=2"), ["sweep.parallel=1", "is one for the whole"]),
        (("seed=1 resume=x", "seed=2 resume=x"), ["resume=x", "is for a single run"]),
        (("seed=1 resume=auto", "seed=2 resume=auto"), ["resume=auto", "sweep.resume=DIR"]),
    ], 3),
)  # fmt: skip
def test_what_is_one_for_all(jobs: tuple[str, ...], parts: list[str]) -> None:
    refused([*parts, "accepted: "], composed, *jobs)


def test_a_job_is_checked_as_if_it_were_alone() -> None:
    composer, drafts = composed("trainer.batch_size=64", "trainer.batch_size=63",
                                words=("strategy=mirrored",))  # fmt: skip
    composer.check(drafts[0], None)
    assert [task.devices for task in drafts[0].plan().cluster.tasks] == [2]
    assert drafts[0].plan().train_examples == 1438
    assert drafts[0].gpus == 0
    error = refused(["trainer.batch_size=63", "2 replicas"], composer.check, drafts[1], None)
    assert error.__notes__ == ["in job 1: trainer.batch_size=63"]


@pytest.mark.parametrize("kind", ["inline", "env"])
def test_launchers_that_run_one_job(kind: str) -> None:
    composer = Composer(master(f"launcher={kind}"), [])
    draft = composer.compose(0, [f"launcher={kind}"])
    refused([f"launcher={kind.title()}: cannot run one", "type: launcher=local"],
            composer.check, draft, None)  # fmt: skip


def test_data_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def sizes(config: Any) -> Any:
        looks.append(config.dataset.validation_split)
        return real(config)

    real = module.sizes
    monkeypatch.setattr(module, "sizes", sizes)
    composer, drafts = composed(
        "seed=1 dataset.validation_split=0.2", "seed=2 dataset.validation_split=0.2",
        "seed=1 dataset.validation_split=0.5", "seed=2 dataset.validation_split=0.5",
    )  # fmt: skip
    for draft in drafts:
        composer.check(draft, None)
    assert looks == [0.2, 0.5]
    assert [draft.plan().train_examples for draft in drafts] == [1438, 1438, 899, 899]


@pytest.mark.faults
def test_the_server_is_started_once_for_each_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.quick import Quick

    prepared = []
    monkeypatch.setattr(Quick, "prepare", lambda self, c: prepared.append(c.environment))
    composer, drafts = composed(
        "seed=1 hardware.onednn=true", "seed=1 hardware.onednn=false",
        "seed=2 hardware.onednn=true", "seed=2 hardware.onednn=false",
    )  # fmt: skip
    for draft in drafts:
        composer.check(draft, None)
    assert [each["TF_ENABLE_ONEDNN_OPTS"] for each in prepared] == ["1", "0"]


def test_a_fork_begins_all_jobs_at_one_checkpoint(tmp_path: Path) -> None:
    import numpy as np

    origin = RunDir.create(tmp_path / "origin")
    write_text(origin.config, tree.to_yaml(composed("seed=1")[1][0].config))
    write_json(origin.command, {"format": 2, "overrides": [], "config_dir": None})
    checkpoint.save(origin.checkpoints, 4, {"a": np.zeros(1)}, {})
    words = (f"fork={origin.path}",)
    asked = grid("seed=1", "seed=2", words=words)
    composer = Composer(master(*words, "seed=1,2"), asked)
    first = composer.compose(0, asked[0])
    checkpoint.save(origin.checkpoints, 8, {"a": np.zeros(1)}, {})  # it trains on meanwhile
    second = composer.compose(1, asked[1])
    pinned = str(origin.checkpoints / "4")
    assert (first.config.fork, second.config.fork) == (pinned, pinned)
    assert f"fork={pinned}" in composer.whole()["overrides"]


def test_the_words_of_a_sweep() -> None:
    command = master(
        "seed=1,2", "sweep.parallel=2", "sweep.resume=x", "dry_run=false",
        "hydra.sweeper.params={seed: '1,2'}", "dataset.split_seed=${seed}",
    )  # fmt: skip
    words = Composer(command, grid("seed=1", "seed=2")).whole()
    assert words["config_dir"] is None
    kept = [word for word in words["overrides"] if not re.match("launcher|tracking|trainer", word)]
    assert kept == ["hydra.sweeper.params={seed: '1,2'}", "seed=1,2", "sweep.parallel=2",
                    "dataset.split_seed=${seed}"]  # fmt: skip


def cluster(*tasks: Task, kind: str = "cpu") -> Cluster:
    return Cluster(tasks, kind, 1, {})


@pytest.mark.parametrize(
    ("wanted", "needs", "machine", "parallel"),
    [
        (None, [0] * 6, Machine(0, 2), 2),
        (None, [0] * 6, Machine(0, 64), 6),
        (1, [0] * 6, Machine(0, 64), 1),
        (4, [0] * 6, Machine(0, 64), 4),
        (9, [0] * 6, Machine(0, 2), 2),  # cores are not shared
        (None, [1] * 6, Machine(4, 64), 4),
        (None, [2] * 6, Machine(4, 64), 2),
        (None, [4, 1, 1, 1], Machine(4, 64), 3),
        (None, [0, 0, 4, 4], Machine(4, 64), 3),
        (None, [1, 1], Machine(2, 1), 1),
        (None, [], Machine(0, 4), 1),
    ],
)
def test_how_many_at_once(
    wanted: int | None, needs: list[int], machine: Machine, parallel: int
) -> None:
    assert at_once(wanted, needs, machine) == parallel


def test_no_two_jobs_share_anything() -> None:
    """Of many jobs that come and go at random."""
    machine, generator = Machine(6, 16), random.Random(0)
    names = [f"GPU-{index}" for index in range(6)]
    slots, held = Slots(machine, names, 5), []
    assert slots.share == 3
    refused = 0
    for _ in range(2000):
        if held and generator.random() < 0.5:
            slots.give(held.pop(generator.randrange(len(held))))
            continue
        need = generator.choice([0, 0, 1, 2, 4])
        slot = slots.take(need)
        free = 6 - sum(len(each.gpus) for each in held)
        assert (slot is None) == (len(held) == 5 or need > free)
        if slot is None:
            refused += 1
            continue
        held.append(slot)
        assert len(slot.gpus) == need
        cores = [core for each in held for core in each.cores]
        taken = [name for each in held for name in each.gpus]
        assert len(set(cores)) == len(cores) == 3 * len(held)
        assert set(cores) <= set(range(16))
        assert len(set(taken)) == len(taken)
        assert slots.free == (len(held) < 5)
    assert refused > 100


def test_gpus_of_a_job() -> None:
    two = (Task("chief", 0, 2), Task("worker", 0, 2))
    assert gpus(cluster(*two)) == 0
    assert gpus(cluster(*two, kind="gpu")) == 4
    assert gpus(cluster(Task("chief", 0, 0), Task("worker", 0, 1), kind="gpu")) == 1


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["0", "1"]), ("3,5", ["3", "5"]), ("GPU-a,GPU-b,-1", ["GPU-a", "GPU-b"]), ("", [])],
)
def test_names_of_gpus(
    visible: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_names(Machine(len(names), 4)) == names


def test_a_job_keeps_to_its_slot() -> None:
    slot, machine = Slot((4, 5), ()), Machine(0, 8)
    [alone] = keep_to(cluster(Task("chief", 0, 1)), slot, machine).tasks
    assert (alone.cores, alone.threads) == ((4, 5), 2)
    planned = [Task("chief", 0, 1, threads=1, cores=(0,)), Task("worker", 0, 1, cores=(1,))]
    chief, worker = keep_to(cluster(*planned), slot, machine).tasks
    assert (chief.cores, chief.threads) == ((4,), 1)
    assert (worker.cores, worker.threads) == ((5,), 1)
    # More tasks than cores: they share what the job has.
    crowd = [Task("worker", index, 1, threads=1) for index in range(3)]
    assert {task.cores for task in keep_to(cluster(*crowd), slot, machine).tasks} == {(4, 5)}


def test_a_job_that_has_the_machine_is_as_one_alone() -> None:
    planned = cluster(Task("chief", 0, 1))
    assert keep_to(planned, Slot((0, 1), ()), Machine(0, 2)) == planned
    given = dataclasses.replace(planned, tasks=(Task("chief", 0, 1, threads=7),))
    assert keep_to(given, Slot((1,), ()), Machine(0, 2)).chief.threads == 7


def report(step: int) -> dict[str, Any]:
    return {"step": step, "total_steps": 40, "epoch": (step - 1) // 10 + 1, "epochs": 4,
            "time": 100.0 + step}  # fmt: skip


def shown(terminal: bool, height: int = 30) -> tuple[Table, io.StringIO]:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=100, height=height, soft_wrap=True,
        highlight=False,
    )  # fmt: skip
    return Table("val_accuracy", 20, console), file


def test_time_left() -> None:
    row = Row(3, {})
    assert (row.left, row.epoch) == ("", "")
    row.state = "running"
    row.update(report(1))
    assert (row.left, row.epoch) == ("? left", "1/4")
    row.update(report(11))
    assert (row.left, row.epoch) == ("0:00:29 left", "2/4")
    row.update(None)
    assert row.left == ""
    row.seconds = 61.2
    assert row.left == "0:01:01"


def test_texts_are_shown_as_they_are() -> None:
    table, file = shown(terminal=True)
    table.add(0, {"metrics[0]": "a:ok:[red]"})
    table.message("mine.py:ok: [bold]")
    table._shown_at = 0.0
    table.refresh()
    table.close()
    for text in ("metrics[0]", "a:ok:[red]", "mine.py:ok: [bold]"):
        assert text in file.getvalue()


def test_lines_in_a_log_file(monkeypatch: pytest.MonkeyPatch) -> None:
    table, file = shown(terminal=False)
    first, second = table.add(0, {"strategy": "mirrored"}), table.add(1, {})
    table.began(first)
    table.refresh()  # it is not time
    first.objective = 0.97123
    table.ended(first, "FINISHED", 12.0, None)
    table.began(second)
    second.update(report(11))
    monkeypatch.setattr(pictures, "LINE_SECONDS", 0.0)
    table.refresh()
    table.ended(second, "FAILED", 3.0, "chief-0: bang")
    table.close()
    assert file.getvalue().splitlines() == [
        "job 0 (strategy=mirrored): begins",
        "job 0 (strategy=mirrored): FINISHED  val_accuracy 0.9712  0:00:12  (1 of 20 done)",
        "job 1: begins",
        "1 of 20 done; running: job 1 epoch 2/4 ? left",
        "job 1: FAILED: chief-0: bang",
    ]


def test_a_terminal_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "PICTURE_SECONDS", 0.0)
    table, file = shown(terminal=True)
    rows = [table.add(n, {"strategy": s}) for n, s in enumerate(["mirrored", "ps"])]
    table.began(rows[0])
    rows[0].update(report(11))
    rows[0].objective = 0.5
    table.refresh()
    drawn = file.getvalue()
    for part in ("strategy", "mirrored", "running", "2/4", "0.5", "? left", "waiting", "0 of 20"):
        assert part in drawn
    assert "begins" not in drawn
    table.ended(rows[1], "FAILED", 1.0, "bang")
    assert "job 1 (strategy=ps): FAILED: bang" in file.getvalue()  # above the table
    table.close()
    assert "\x1b[2K" in file.getvalue()  # the picture is erased, not repeated


def test_a_small_terminal_shows_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "PICTURE_SECONDS", 0.0)
    table, file = shown(terminal=True, height=9)
    rows = [table.add(n, {"seed": f"s{n}"}) for n in range(20)]
    for row in rows[:10]:
        row.state = "FINISHED"
    rows[4].state = "FAILED"
    table.began(rows[12])
    table.refresh()
    drawn = file.getvalue()
    assert "s12" in drawn and "s4" in drawn and "s10" in drawn
    assert "s5" not in drawn
    assert "10 of 20 done, 16 more" in drawn
    table.close()
