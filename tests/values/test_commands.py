"""Values that nobody means, through the command line: exit 2, one sentence, nothing left."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dtrain.config import check, schema
from dtrain.controller.launchers import Local
from dtrain.errors import UsageError
from dtrain.host import commands
from tests.sampled import thinned
from tests.test_schema import node

DIGITS = "'\"\uff11\uff12\"'"  # which Python takes for 12
SYNTHETIC = ("dataset=synthetic",)
MANY = "9" * 30
#: Words of a command; the sentence names the key of the last. Of each key: ``test_every_key``.
CASES: list[tuple[str, ...]] = [
    *[("checkpoint.every_seconds=" + bad,) for bad in ("nan", "inf", "-1", "true", "[]", "'1'")],
    *[("trainer.epochs=" + bad,) for bad in (MANY, "0", "1e3", "64.0", "null", DIGITS, "x")],
    *[("name=" + bad,) for bad in ("null", "../x", "a/b", "''", ".", "..", "~", "-x", "' a'")],
    ("name=${output_dir}/../x",),
    ("hardware.devices=1000",),
    ("hardware.intra_op_threads=100000",),
    ("hardware.kind=2",),
    ("strategy=multiworker", "trainer.batch_size=1000", "hardware.hosts=1000"),
    ("strategy=ps", "strategy.workers=1000"),
    ("strategy=ps", "strategy.servers=1000"),
    ("strategy=hybrid", "strategy.rules=[{path: '(', split: 0}]"),
    (*SYNTHETIC, "dataset.shape=28"),
    (*SYNTHETIC, "dataset.shape=[1000000,1000000]"),
    (*SYNTHETIC, "dataset.shape=[1000,1000,1000]"),
    (*SYNTHETIC, "dataset.examples=1000000000"),
    ("optimizer.learning_rate=1e-400",),
    ("trainer.loss={name: {a: 1}}",),
    ("trainer.metrics=accuracy of all",),
    ("trainer.callbacks=[EarlyStopping]",),
    ("dataset.augment=shift_flip",),
    ("tracking.profile_steps=[0,1000000]",),
    *[
        ("tracking.uri=" + bad,)
        for bad in ("foo://x", "file:///tmp/x", "/tmp/x", "http://", "http://h:99999", "sqlite://",
                    "''", "postgresql://u@h/d")
    ],
    ("dry_run=7",),
    ("sweep.parallel=0",),
    ("~hardware",),
    ("~optimizer/schedule",),
    ("hardware=null",),
    ("model=3",),
    ("model={a: 1}",),
    ("model.input_shape=${nowhere}",),
    ("model.units=${model.units}",),
    ("-m", "seed=range(1000000000)"),
    ("-m", "seed=shuffle(range(1000000000))"),
    ("-m", "modle=range(1000000000)"),
    ("-m", "trainer.epochs=1,2,3", "trainer.batch_size=range(64)", "seed=range(1000)"),
    ("-m", "seed=range(3,3)"),
    ("-m", "optimizer.learning_rate=range(0,1,1e-30)"),
    ("-m", "seed=choice()"),
    ("-m", "hydra/sweeper=random", "model.dropout=interval(0,inf)"),
    ("-m", "hydra/sweeper=random", "model.dropout=interval(nan,1)"),
    ("-m", "hydra/sweeper=random", "model.dropout=interval(1,0)"),
    ("-m", "hydra/sweeper=random", "seed=1,2", "hydra.sweeper.trials=1000000000"),
    ("-m", "hydra/sweeper=random", "seed=1,2", "hydra.sweeper.seed=-1"),
    ("-m", "seed=1,2", "sweep.parallel=0"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("a task was started")

    monkeypatch.setattr(Local, "start", start)
    monkeypatch.setattr(Local, "prepare", lambda *_: None)


def refused(dtrain: Any, *words: str) -> str:
    """Run a command and return the one sentence that it ends with."""
    before = sorted(map(str, Path().rglob("*")))
    run = dtrain(*words)
    assert run.code == 2, run.output
    [line] = [line for line in run.output.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in run.output
    assert sorted(map(str, Path().rglob("*"))) == before
    return str(line)


@pytest.mark.parametrize("words", thinned(((case,) for case in CASES), 4))
def test_what_nobody_means(words: tuple[str, ...], dtrain: Any) -> None:
    line = refused(dtrain, *words)
    assert line.startswith(f"error: {words[-1].lstrip('~').partition('=')[0]}"), line


@pytest.mark.parametrize("key", ["seed", "hardware.devices", "optimizer.beta_1", "model.l2"])
def test_a_number_of_a_group(key: str, dtrain: Any) -> None:
    """A sample of ``test_every_key.py`` through the command line."""
    assert refused(dtrain, f"{key}=-{MANY}").startswith(f"error: {key}=")


EMPTY = "is not a mapping"
#: Contents of a preset, and what the sentence says of it.
PRESETS = {
    "": EMPTY,
    "# nothing\n": EMPTY,
    "{}": "model={}",
    "- a\n- b\n": EMPTY,
    "\n3\n": EMPTY,
    "a:\n\tb: 1\n": "line 2: ",
    "a: 1\nunits: [1]\na: 2\n": "line 3: duplicate key a",
    "a: [1\n": "line 2: ",
    "a: 1\n---\nb: 2\n": "line 2: ",
    "1: 2\n": "model={1:2}",
    "? [a]\n: 1\n": "line 1: ",
    "_target_: !!python/name:os.system\n": "line 1: ",
    "a: !!binary eA==\n": "model={a:",
    "a: &a [*a]\n": "an alias (*a) inside of what it names",
    "a: *b\n": "an alias (*b)",
    "defaults: 3\na: 1\n": "defaults that are no list",
    "defaults: [[a]]\na: 1\n": "default",
    "defaults: [mine]\na: 1\n": "lead back to it (model/mine.yaml -> model/mine.yaml)",
    "defaults: [other]\na: 1\n": "lead back to it (model/mine.yaml -> model/other.yaml -> model/m",
    "a: " + "[" * 60 + "]" * 60: "model={a:[[",
    "a: " + "[" * 5000 + "]" * 5000: "",
    "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefg")):
        "stands for more than 100,000 values",
    "a: " + "x" * 2**21: "is longer than 262,144 bytes",
    "a: \udcff": "'utf-8' codec",
    "_target_: dtrain.models.mlp\nunits: 8\n": "model.units=8",
    "_target_: dtrain.models.mlp\nunits: ${nowhere}\n": "model.units=${nowhere}: cannot be",
    "_target_: dtrain.models.mlp\nl2: .nan\n": "model.l2=nan: is not a",
    "_target_: 3\n": "model._target_",
    "units: [3]\n": "is not a node with _target_",
    "defaults: [/schema/model/mlp@_here_]\ndropout: .inf\n": "model.dropout=inf: is not a",
}  # fmt: skip


@pytest.mark.parametrize("text", PRESETS, ids=lambda text: repr(text[:40]))
def test_presets_that_are_none(text: str, dtrain: Any) -> None:
    folder = Path("presets/model")
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_bytes(text.encode(errors="surrogateescape"))
    (folder / "other.yaml").write_text("defaults: [mine]\nb: 1\n")
    line = refused(dtrain, "--config-dir", "presets", "model=mine")
    assert PRESETS[text] in line


def test_a_preset_that_is_one_is_taken(dtrain: Any) -> None:
    folder = Path("presets/model")
    folder.mkdir(parents=True)
    text = "defaults: [base, _self_]\nunits: [8]\n"
    (folder / "small.yaml").write_text(text)
    (folder / "base.yaml").write_text("_target_: dtrain.models.mlp\nl2: 0.0\n")
    (folder / "broken.yaml").write_text("\t")  # which nobody chooses
    run = dtrain("--config-dir", "presets", "model=small", "dry_run=true", "tracking=none")
    assert run.code == 0, run.output


def _is_ours(word: str) -> bool:
    """Say whether a word chooses no option that only a user's project has."""
    group, _, option = word.partition("=")
    experiments = [path.stem for path in schema.folder("experiments").glob("*.yaml")]
    options = {**{name: schema.options(name) for name in schema.GROUPS}, "experiment": experiments}
    return group != "project" and option in options.get(group, [option])


def _commands() -> list[list[str]]:
    """Return the overrides of the commands that the documents show and that begin a run."""
    root = Path(schema.__file__).parents[3]
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages).replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in re.findall(r"^(?:\$ )?(?:\S*/)?python -m dtrain (.*)$", text, re.M):
        words = shlex.split(line, comments=True)
        other = ("resume=", "fork=", "sweep.resume=", "hydra.", "-")
        trains = words[:1] and words[0] not in commands.names() and "HOST:PORT" not in line
        ours = trains and all(map(_is_ours, words))
        if ours and not any(word.startswith(other) for word in words):
            found[line] = words
    return list(found.values())


@pytest.mark.parametrize("words", _commands(), ids=" ".join)
def test_commands_of_the_documents_are_taken(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "k" * 20)
    of_mlflow = "MLFLOW_TRACKING_URI,MLFLOW_EXPERIMENT_NAME"
    monkeypatch.setenv("DTRAIN_ENV", f"MY_KEY,MY_PASSWORD,{of_mlflow}")
    monkeypatch.setenv("MY_PASSWORD", "p" * 20)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    config = node(*words)
    try:
        check.check(config)
    except UsageError as error:
        assert "batch_size=63" in str(error)
