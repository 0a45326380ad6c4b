"""``python -m dtrain data``: what it prints of each kind of dataset, and how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import psutil
import pytest
from PIL import Image

from dtrain import datasets, errors
from dtrain.data.mixture import Mixture, Subset
from dtrain.data.sources import Arrays
from dtrain.terminal import progress as activity
from dtrain.terminal.pictures import sheet
from tests.conftest import QUICK
from tests.integration.test_failures import until
from tests.sampled import sampled


class Shown:
    """What one command printed."""

    def __init__(self, code: int, output: str, error: str):
        self.code, self.output, self.error = code, output, error

    def part(self, title: str) -> list[str]:
        """Return the lines below a title, without their indentation."""
        [found] = [p for p in self.output.rstrip().split("\n\n") if p.startswith(title)]
        return [line[2:] for line in found.splitlines()[1:]]

    def table(self, title: str) -> list[list[str]]:
        return [re.split(r" {2,}", line.strip()) for line in self.part(title)]

    @property
    def facts(self) -> dict[str, str]:
        return {name: value for name, value in self.table("data: ")}


@pytest.fixture
def show(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def command(*arguments: str) -> Shown:
        from dtrain.__main__ import main

        monkeypatch.setattr(sys, "argv", ["dtrain", "data", *arguments])
        # A line says what takes more than some seconds, as all does on a machine under load.
        monkeypatch.setattr(activity, "_LONG", math.inf)
        capfd.readouterr()
        try:
            code = main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Shown(code, *capfd.readouterr())

    return command


def test_digits(show: Any, tmp_path: Path) -> None:
    found = show()
    assert (found.code, found.error) == (0, ""), found.error
    assert found.output.startswith("data: dtrain.datasets.digits\n")
    facts = found.facts
    assert facts.pop("digests").startswith("train ")
    assert facts == {
        "training": "1,438 examples",
        "validation": "359 examples",
        "order of training": "all examples are shuffled, in every pass",
        "batch": "64 examples",
        "epoch": "22 steps",
        "a validation": "359 examples in 6 batches of 64",
        "classes": "10",
    }
    assert found.table("structure")[1:] == [
        ["input", "float32", "8 x 8 x 1", "an image; 0 to 1"],
        ["target", "int64", "-", "0 to 9"],
    ]
    splits = datasets.digits()
    counts = [np.bincount(part.y) for part in (splits.train, splits.validation)]
    rows = found.table("classes")
    assert rows[0] == ["class", "training", "share", "validation", "share"]
    assert [[int(n) for n in row[::2][:1] + row[1::2]] for row in rows[1:]] == [
        [number, *both] for number, both in enumerate(zip(*counts, strict=True))
    ]
    examples = found.part("the first training examples")
    assert examples[0] == "example 0" and examples[3] == "example 1" and len(examples) == 9
    assert [int(line.split()[1]) for line in examples[2::3]] == splits.train.y[:3].tolist()
    first = ", ".join(f"{value:.4g}" for value in splits.train.x[0].reshape(-1)[:12])
    assert examples[1].split("  ")[-1].strip() == f"{first}, ... (64 in all)"
    speed = r"[\d,]+ examples/s, [\d.,]+ MB/s"
    shuffled, in_order = found.part("reading, in batches of 64")
    assert re.fullmatch(f"{speed} shuffled", shuffled)
    assert re.fullmatch(f"{speed} in order", in_order)
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_images(show: Any, tmp_path: Path) -> None:
    found = show("speed=false", "examples=0", "images=plain.png")
    assert found.code == 0, found.error
    assert found.output.endswith("\n\nimages: plain.png (64 of training)\n")
    assert "the first training" not in found.output and "reading" not in found.output
    drawn = matplotlib.image.imread("plain.png")[..., :3]
    height, width = 8 * (96 + 18 + 8), 8 * (96 + 8) + 8  # 8 rows of 8, each 12 times as large
    assert drawn.shape == (height, width, 3)
    first = drawn[6:96:12, 8 + 6 : 8 + 96 : 12, 0]
    among = datasets.digits().train.x[..., 0]
    assert np.abs(among - first).max(axis=(1, 2)).min() < 0.01, "it is one of the digits"
    assert drawn[98:112, 8:104].min() < 0.5, "there is a caption"

    augment = "dataset.augment={_target_:dtrain.augment.shift_flip,pixels:1}"
    found = show("speed=false", "examples=1", "images=both.png", augment)
    assert found.code == 0, found.error
    assert found.facts["augmentation"] == "dtrain.augment.shift_flip"
    before, after = found.part("the first training examples")[1:3]
    assert after.split()[0] == "augmented" and before.split()[1:] != after.split()[1:]
    both = matplotlib.image.imread("both.png")[..., :3]
    assert both.shape == (height + 18, 2 * width, 3)
    assert np.array_equal(both[18 : 18 + 96, :width], drawn[:96]), "the same, before"
    assert not np.array_equal(both[18:, width:], both[18:, :width])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.png", "plain.png"]


def test_a_table(show: Any, tmp_path: Path) -> None:
    rows = [f"{i},{i / 8},{'abc'[i % 3]}" for i in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["n,share,kind", *rows]))
    csv = ("dataset=csv", "dataset.path=rows.csv", "dataset.validation_split=0")
    found = show(*csv, "trainer.batch_size=8", "objective=loss", "speed=false", "examples=2")
    assert found.code == 0, found.error
    assert found.facts["training"] == "40 examples" and found.facts["validation"] == "none"
    assert found.facts["files"] == f"1, {Path('rows.csv').stat().st_size} bytes: rows.csv"
    assert found.table("structure")[1:] == [
        ["input", "float32", "2", "0 to 7"],
        ["target", "int64", "-", "0 to 1"],
    ] or found.table("structure")[1] == ["input", "float32", "2", "0 to 7"]
    assert [row[:2] for row in found.table("classes")[1:]] == [
        ["0 a", "14"],
        ["1 b", "13"],
        ["2 c", "13"],
    ]
    assert found.part("the first training examples")[3:] == [
        "rows.csv, line 3",
        "  input   1, 0.125",
        "  target  1 b",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        ("dataset=csv",),
        ("dataset=csv", "model=mlp", "dataset.path=rows.csv", "dataset.target=knd"),
        ("dataset=csv", "model=mlp", "dataset.path=rows.csv", "trainer.batch_size=64"),
        ("datset=csv",),
        ("dataset=mixture", "dataset.members={a:{_target_:dtrain.datasets.text,tokens:bites}}"),
        ("trainer.epochs=1,2",),
        ("dataset=custom", "dataset._target_=os.getcwd"),
        ("strategy=mirrored", "hardware.devices=2", "trainer.batch_size=7"),
    ],
)
def test_what_is_wrong_is_said_as_by_a_training(
    show: Any, dtrain: Any, tmp_path: Path, wrong: tuple[str, ...]
) -> None:
    (tmp_path / "rows.csv").write_text("n,kind\n1,a\n2,b\n3,a\n4,b\n5,a\n")
    refused, trained = show(*wrong), dtrain("tracking=none", *wrong)
    assert (refused.code, refused.output) == (2, ""), refused.output
    assert refused.error == trained.output and refused.error.startswith("error: ")


TEXTS = """
import numpy as np


def load():
    print("loading the notes")
    notes = np.array([f"note {i} \\x1b[31m" + "long " * (i * 9) for i in range(8)])
    blobs = np.array([bytes([255, i]) for i in range(8)], object)
    x = {"note": notes, "blob": blobs, "age": np.arange(8) / 4}
    y = {"a": np.arange(8) % 2, "b": np.full((8, 2), np.nan)}
    return x, y, np.ones(8)
"""


def test_texts_and_several_inputs(show: Any, user_code: Any) -> None:
    user_code(TEXTS)
    custom = ("dataset=custom", "dataset._target_=mine.load", "speed=false")
    found = show(*custom, "examples=2", "trainer.batch_size=8")
    assert (found.code, found.error) == (0, "loading the notes\n"), found.error
    assert found.facts["training"] == "8 examples"
    assert found.table("structure")[1:] == [
        ["input", "age", "float32", "-", "0 to 1.75"],
        ["input", "blob", "text", "-", "2 bytes"],
        ["input", "note", "text", "-", "12 to 327 bytes"],
        ["target", "a", "int64", "-", "0 to 1"],
        ["target", "b", "float32", "2", "16 NaN or infinite"],
        ["weight", "float32", "-", "1"],
    ]
    assert "classes" not in found.output, "there are two targets"
    long = "note 1 \\x1b[31m" + "long " * 9
    assert found.part("the first training examples") == [
        "example 0",
        "  input age   0",
        "  input blob  2 bytes: ff 00",
        '  input note  "note 0 \\x1b[31m"',
        "  target a    0",
        "  target b    nan, nan",
        "  weight      1",
        "example 1",
        "  input age   0.25",
        "  input blob  2 bytes: ff 01",
        f'  input note  "{long}"',
        "  target a    1",
        "  target b    nan, nan",
        "  weight      1",
    ]
    found = show(*custom, "images=none.png")
    assert found.code == 2 and "images=none.png: no input of this dataset is an image" in (
        found.error
    )
    assert not Path("none.png").exists()


def test_a_stream(show: Any, user_code: Any) -> None:
    user_code(
        "import numpy as np\n\ndef load():\n    def examples():\n        for i in range(100):\n"
        "            yield np.full((6, 6, 3), i, 'uint8'), i % 2\n    return examples\n"
    )
    custom = ("dataset=custom", "dataset._target_=mine.load", "trainer.batch_size=32")
    found = show(*custom)
    assert found.code == 0 and found.facts["epoch"] == "3 steps", "so few are looked at anyway"
    found = show(*custom, "trainer.steps_per_epoch=3", "images=sheet.png")
    assert found.code == 0, found.error
    assert found.facts["training"] == "a stream of unknown length"
    assert found.facts["order of training"] == "its own: it is a stream"
    assert found.facts["epoch"] == "3 steps"
    assert found.table("structure")[1] == ["input", "uint8", "6 x 6 x 3", "an image; 0 to 31"]
    assert "the data is a stream" in found.part("notices")[0]
    [speed] = found.part("reading")
    assert speed.endswith(" MB/s in order")
    drawn = matplotlib.image.imread("sheet.png")
    at = [drawn[40, 8 + i * (96 + 8) + 40, 0] for i in range(8)]
    assert np.round(np.array(at) * 255).tolist() == list(range(8)), "in its own order"


def test_an_image_folder(show: Any, tmp_path: Path) -> None:
    for name, count in (("cat", 12), ("odd $dog$", 4)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for index in range(count):
            image = Image.new("RGB", (20, 10), (index, 200, 0))
            image.save(tmp_path / "pets" / name / f"{index}.png")
    folder = (
        "dataset=image_folder", "dataset.path=pets", "dataset.size=[10,20]",
        "dataset.validation_split=0.25", "trainer.batch_size=4", "speed=false",
    )  # fmt: skip
    found = show(*folder, "examples=1", "images=pets.png")
    assert found.code == 0, found.error
    rows = found.table("classes")[1:]
    assert [row[0] for row in rows] == ["0 cat", "1 odd $dog$"]
    assert [int(row[1]) + int(row[3]) for row in rows] == [12, 4]
    where, _, target = found.part("the first training examples")
    assert re.fullmatch(r"pets/cat/\d+\.png", where) and target.split()[1:] == ["0", "cat"]
    drawn = matplotlib.image.imread("pets.png")
    assert drawn.shape[:2] == (3 * (50 + 18 + 8), 4 * (100 + 8) + 8), "12 of 20 x 10, 5 times"
    found = show(*folder, "dataset.balance=true", "examples=0")
    assert found.facts["order of training"] == ("each class is drawn as often as any other")
    assert [row[0] for row in found.table("classes")[1:]] == ["0 cat", "1 odd $dog$"]


MEMBERS = "{a:{_target_:dtrain.datasets.digits},b:{_target_:dtrain.datasets.digits,split_seed:1}}"
SHARDS = """
import numpy as np
from dtrain.data.nest import Ragged
from dtrain.datasets import Info, Source


class Shards(Source):
    def __len__(self):
        return 60

    def __getitem__(self, indices):
        tokens = Ragged.of([np.arange(3 + i % 4) for i in indices])
        return {"tokens": tokens}, (indices % 3)[:, None]

    @property
    def info(self):
        return Info(
            blocks=lambda: np.array([10, 20, 30]),
            place=lambda index: f"shard-{index // 10}, record {index % 10}",
        )


def load():
    return Shards()
"""


def test_orders(show: Any, user_code: Any) -> None:
    quiet = ("speed=false", "examples=0")
    found = show(
        "dataset=mixture", f"dataset.members={MEMBERS}", "dataset.weights={a:3,b:1}", *quiet
    )
    assert found.facts["order of training"] == (
        "a mixture: a 75 % (of 1,438 examples), b 25 % (of 1,438 examples)"
    )
    assert sum(int(row[1]) for row in found.table("classes")[1:]) == 2 * 1438
    found = show("dataset.shuffle=none")
    assert found.facts["order of training"] == "none: that of the dataset, in every pass"
    [speed] = found.part("reading")
    assert speed.endswith("in order")
    user_code(SHARDS)
    shards = ("dataset=custom", "dataset._target_=mine.load", "trainer.batch_size=20")
    found = show(*shards, "dataset.pad={tokens:{length:5}}", "dataset.window=2", "speed=false")
    assert found.facts["order of training"] == (
        "3 blocks of 10 to 30 examples are shuffled, and examples inside a window of 2"
    )
    assert found.table("structure")[1] == ["input", "tokens", "int64", "5", "0 to 4"]
    assert found.part("the first training examples")[0] == "shard-0, record 0"


def test_rows_of_different_lengths(show: Any, user_code: Any) -> None:
    """They are described before the command ends as a training would."""
    user_code(SHARDS)
    shards = (
        "dataset=custom",
        "dataset._target_=mine.load",
        "trainer.batch_size=20",
        "speed=false",
    )
    found = show(*shards)
    assert found.code == 2
    assert found.table("structure")[1:] == [
        ["input", "tokens", "int64", "?", "3 to 6 long, 4.5 on average; 0 to 5"],
        ["target", "int64", "1", "0 to 2"],
    ]
    assert found.error.startswith("error: dataset.pad=null: the input tokens has rows of different")
    assert found.error.endswith("type: dataset.pad={tokens:{length:6}}\n")
    found = show(*shards, "+dataset.pad={tokens:{buckets:[4,8]}}")
    assert found.code == 0, found.error
    assert found.table("structure")[1] == ["input", "tokens", "int64", "?", "0 to 5"]


FAILING = """
import os, signal
import numpy as np


class Rows:
    def __len__(self):
        return 200

    def __getitem__(self, index):
        if index == 150:
            raise ValueError("row 150 is broken")
        return np.zeros(3), index % 2


def fails():
    return {}["gone"]


def breaks():
    return Rows()


def stream():
    def examples():
        yield np.zeros(3), 1
        raise RuntimeError("the disk is gone")
    return examples


def dies():
    os._exit(3)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def empty():
    return np.zeros((0, 3)), np.zeros(0)


def change(x, seed):
    return x + undefined


def inputs():
    return np.zeros((64, 3)), np.zeros(64)
"""
LOST = "the process that reads the data"


@pytest.mark.parametrize(
    ("function", "words", "code", "message", "frames"),
    [
        ("fails", (), 1, "KeyError: 'gone'", 1),
        ("breaks", (), 1, "ValueError: row 150 is broken", 1),
        ("stream", ("trainer.steps_per_epoch=1",), 1, "RuntimeError: the disk is gone", 1),
        ("dies", (), 1, f"{LOST} died, with exit code 3", 0),
        ("is_killed", (), 1, f"{LOST} was ended by SIGKILL, perhaps for want of memory", 0),
        ("empty", (), 2, "dataset=0 examples: there is nothing to train on", 0),
        (
            "inputs", ("dataset.augment={_target_:mine.change}",), 1,
            "NameError: name 'undefined' is not defined (", 0,
        ),
    ],
)  # fmt: skip
def test_what_fails(
    show: Any, user_code: Any, tmp_path: Path, function: str, words: Any, code: int, message: str,
    frames: int,
) -> None:  # fmt: skip
    """A user reads what failed, and where in the own code."""
    user_code(FAILING)
    found = show("dataset=custom", f"dataset._target_=mine.{function}", *words)
    assert found.code == code, found.error
    last = found.error.splitlines()[-1]
    assert last.startswith(f"error: {message}")
    assert last.endswith("(") is False and ("mine.py, line" in last) == message.endswith("(")
    assert found.error.count("  File ") == frames
    assert found.error.count(str(tmp_path / "mine.py")) >= frames
    assert "site-packages" not in found.error


def test_the_data_of_a_run(show: Any, dtrain: Any) -> None:
    run = dtrain(*QUICK, "trainer.epochs=1", "dataset.examples=96")
    assert run.code == 0, run.output
    before = {p: p.stat().st_mtime_ns for p in run.rundir.path.rglob("*")}
    found = show(f"resume={run.rundir.path}", "speed=false", "examples=0")
    assert (found.code, found.facts["training"]) == (0, "96 examples"), found.error
    assert {p: p.stat().st_mtime_ns for p in run.rundir.path.rglob("*")} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("images=sheet.jpg",), "images=sheet.jpg: is no name of a PNG file"),
        (("images=gone/sheet.png",), "images=gone/sheet.png: there is no folder gone"),
        (("images=folder.png",), "images=folder.png: is a folder"),
        (("hydra.mode=MULTIRUN",), "hydra.mode=MULTIRUN: data has one configuration"),
        (("--config-dir", "gone"), "is no folder"),
        (("resume=gone",), "resume=gone: there is no such folder"),
        *(
            (tuple(words.split()), "; accepted: ")
            for words in ("examples=-1", "examples=9999", "-m a=1,2", "--image a.png")
        ),
    ],
)
def test_wrong_options(show: Any, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    (tmp_path / "folder.png").mkdir()
    found = show(*words)
    assert (found.code, found.output) == (2, "")
    assert found.error.startswith("error: ") and message in found.error


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


@pytest.mark.parametrize("number", sampled([signal.SIGINT, signal.SIGTERM], signal.SIGINT))
def test_a_stop(user_code: Any, tmp_path: Path, number: signal.Signals) -> None:
    user_code("import time\n\ndef load():\n    print('begun')\n    time.sleep(600)\n")
    root = Path(__file__).parent.parent
    words = ("data", "dataset=custom", "dataset._target_=mine.load")
    process = subprocess.Popen(
        [sys.executable, "-m", "dtrain", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"},
    )  # fmt: skip
    assert process.stderr is not None
    seen = iter(process.stderr.readline, "")
    assert any(line == "begun\n" for line in seen)
    started = psutil.Process(process.pid).children(recursive=True)
    assert len(started) > 1
    process.send_signal(number)
    output, error = process.communicate(timeout=30)
    assert process.returncode == errors.FAILED
    assert output == "" and error.splitlines()[-1] == "stopped" and "Traceback" not in error
    until(lambda: not any(map(lives, started)), lambda: started)


@pytest.mark.task
def test_many_classes() -> None:
    from dtrain.inspection import facts

    counts = [50 - i for i in range(30)]
    training = np.repeat(np.arange(30), counts)
    both = {"training": training, "validation": np.array([2, 2, 29, 40])}
    lines = facts.class_table(both, 60, ["zero", "one"])
    rows = [re.split(r" {2,}", line.strip()) for line in lines]
    few = facts.class_table({"training": np.array([0, *[1] * 9999])}, 2, ())
    assert few[1].split()[1:3] == ["1", "0.010"]
    assert len(rows) == 1 + 20 + 1 + 1
    assert rows[1] == ["0 zero", "50", "4.7 %", "0", "0.0 %"] and rows[3][3:] == ["2", "50.0 %"]
    assert rows[11][:2] == ["11 others", f"{sum(counts[10:21]):,}"]
    assert rows[-3][:2] == ["29", "21"] and rows[-2] == ["40", "0", "0.0 %", "1", "25.0 %"]
    assert lines[-1] == "29 more without examples"
    assert len(facts.class_table({"training": training[training < 20]}, 20, ())) == 21


@pytest.mark.task
def test_classes_of_parts() -> None:
    from dtrain.inspection import facts

    source = Arrays(np.zeros((6, 2)), np.array([0, 1, 2, 0, 1, 2])[:, None])
    parts = [Subset(source, np.array(rows)) for rows in ([0, 3], [1, 4, 5])]
    assert facts.known_classes(Mixture(parts, [1, 1])).tolist() == [0, 0, 1, 1, 2]
    for y in (None, np.zeros(6, "f4"), np.zeros((6, 2), int), np.array(list("abcdef"))):
        other = Arrays(np.zeros((6, 2)), y)
        assert facts.known_classes(other) is None
        assert facts.known_classes(Mixture([*parts, other], [1, 1, 1])) is None


def test_captions_that_a_font_has_not() -> None:
    images = np.zeros((3, 5, 7, 1), np.uint8)
    drawn = Image.open(io.BytesIO(sheet(images, ["犬", "$x^2$", "very long " * 20])))
    assert drawn.size == (2 * (14 * 7 + 8) + 8, 2 * (14 * 5 + 18 + 8))
    assert drawn.convert("L").getextrema() == (0, 255)


def test_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(activity, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    for live, shown in (
        (True, "\rreading ...\x1b[K\rreading ... 1 s\x1b[K\rreading ... 4 s\x1b[K\r\x1b[K"),
        (False, "reading ...\n"),
    ):
        terminal = io.StringIO()
        monkeypatch.setattr(terminal, "isatty", lambda live=live: live)
        monkeypatch.setattr(sys, "stderr", terminal)
        line = activity.Activity()
        line.continues()
        now[0] = 10.0
        line.begin("reading")
        for seconds in (11.0, 14.0):
            now[0] = seconds
            line.continues()
        line.end()
        line.end()
        assert terminal.getvalue() == shown, json.dumps(terminal.getvalue())


NOISY = """
import keras

def build(input_shape, classes):
    layers = [keras.layers.Dense(8), keras.layers.Dropout(0.5, name="drop")]
    inner = keras.Sequential(layers, name="inner")
    return keras.Sequential([keras.Input(input_shape), inner, keras.layers.Dense(classes)])
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_layers_of_the_model(backend: str, show: Any, user_code: Any) -> None:
    user_code(NOISY)
    words = [word for word in QUICK if not word.startswith(("model", "launcher"))]
    model = ("model=custom", "model._target_=mine.build", f"backend={backend}")
    found = show("layers=true", "speed=false", *words, *model)
    assert found.code == 0, found.error
    rows = found.table("layers of the model")
    assert ["inner", "Sequential", "float32 [32, 8]", "float32 [32, 8]", "72", "72"] in rows
    assert ["drop", "Dropout", "float32 [32, 8]", "float32 [32, 8]", "0", "0"] in rows
    assert rows[-1][-2:] == ["108", "108"]
