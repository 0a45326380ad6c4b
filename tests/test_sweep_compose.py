"""From words to jobs: what is one for all, what differs, what is refused and of which job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException

from dtrain.config import load
from dtrain.controller.sweep import compose as module
from dtrain.controller.sweep.compose import Composer, Draft, common_name
from dtrain.errors import UsageError
from dtrain.run import checkpoint
from dtrain.run.folder import RunDir, write_json, write_text
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
    assert "sweep" not in load.written(draft.config)
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
    error = refused(["foo=3", "nothing reads this key"], composed, "seed=1", "seed=2 +foo=3")
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
    refused([f"controller.launchers.{kind.title()}", "type: launcher=local"],
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
    write_text(origin.config, load.to_yaml(composed("seed=1")[1][0].config))
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
