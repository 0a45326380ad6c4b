"""Data that cannot be read: one sentence that names file, row and column, and nothing is lost."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import warm
from tests.conftest import Run
from tests.integration.test_formats import write_records

BASE = (
    "tracking=none", "model=mlp", "model.units=[4]", "model.classes=3", "trainer.batch_size=4",
    "trainer.epochs=2", "trainer.log_every_steps=1", "objective=loss", "objective_mode=min",
    "launcher.stall_timeout=120", "strategy=one_device",
)  # fmt: skip
ROWS = 24
FEATURES = "dataset.features={x:{dtype:float32,shape:[3]},y:{dtype:int64,shape:[]}}"


def rows(count: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(3 * count, dtype=np.float32).reshape(count, 3) / (3 * count or 1)
    return x, np.arange(count) % 3


def parquet(path: str, count: int = ROWS) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    x, y = rows(count)
    pq.write_table(pa.table({"a": x[:, 0], "b": x[:, 1], "y": y}), path, row_group_size=8)


def tfrecord(path: str, label: int = 0) -> None:
    x, y = rows()
    y[17] = label or y[17]
    arguments = {"path": str(Path(path).absolute()), "x": x, "y": y}
    warm.call(write_records, 1, arguments)


def tar(path: str) -> None:
    x, y = rows()
    with tarfile.open(path, "w") as file:
        for row, label in zip(x, y, strict=True):
            held = io.BytesIO()
            np.save(held, row)
            name = f"{int(row[0] * 100):05}"
            for extension, data in (("npy", held.getvalue()), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{name}.{extension}")
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))


def cut(path: str, share: float) -> None:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: int(len(data) * share)])


def flip(path: str, share: float) -> None:
    data = bytearray(Path(path).read_bytes())
    data[int(len(data) * share)] ^= 0xFF
    Path(path).write_bytes(data)


def images(folder: str, bad: bool) -> None:
    from PIL import Image

    for label in ("cat", "dog"):
        (Path(folder) / label).mkdir(parents=True)
        for number in range(12):
            picture = Image.fromarray(np.full((8, 8, 3), 20 * number, np.uint8))
            picture.save(Path(folder) / label / f"{number:02}.jpg")
    if bad:
        (Path(folder) / "dog" / "07.jpg").write_bytes(b"\xff\xd8 none")


def case_truncated_parquet() -> list[str]:
    parquet("a.parquet")
    cut("a.parquet", 0.5)
    return ["dataset=parquet", "dataset.path=a.parquet", "dataset.target=y"]


def case_checksum() -> list[str]:
    tfrecord("a.tfrecord")
    flip("a.tfrecord", 0.55)
    return ["dataset=tfrecord", "dataset.path=a.tfrecord", "dataset.target=y", FEATURES]


def case_tar() -> list[str]:
    tar("a.tar")
    cut("a.tar", 0.5)
    return ["dataset=huggingface", "dataset.path=a.tar", "dataset.inputs=npy", "dataset.target=cls"]


def case_image() -> list[str]:
    images("pictures", bad=True)
    return ["dataset=image_folder", "dataset.path=pictures", "dataset.size=[8,8]"]


def case_label() -> list[str]:
    tfrecord("a.tfrecord", label=7)
    return ["dataset=tfrecord", "dataset.path=a.tfrecord", FEATURES, "dataset.inputs=x",
            "dataset.target=y", "dataset.classes=3", "dataset.validation_split=0"]  # fmt: skip


def case_one_row() -> list[str]:
    parquet("a.parquet", count=1)
    return ["dataset=parquet", "dataset.path=a.parquet", "dataset.target=y",
            "dataset.validation_split=0"]  # fmt: skip


def case_empty_split() -> list[str]:
    parquet("a.parquet")
    parquet("held.parquet", count=0)
    return ["dataset=parquet", "dataset.path=a.parquet", "dataset.target=y",
            "dataset.validation=held.parquet"]  # fmt: skip


#: What each message names.
CASES: dict[str, tuple[Callable[[], list[str]], tuple[str, ...]]] = {
    "truncated parquet": (case_truncated_parquet, ("a.parquet",)),
    "checksum": (case_checksum, ("a.tfrecord", "record 1", "byte ")),
    "tar ends early": (case_tar, ("a.tar",)),
    "one row": (case_one_row, ("trainer.batch_size=4", "1 training example")),
    "empty split": (case_empty_split, ("held.parquet",)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_known_before_training(name: str, dtrain) -> None:
    case, named = CASES[name]
    run: Run = dtrain(*BASE, *case())
    text = run.output + run.log
    assert run.code == 2, text
    last = [line for line in text.splitlines() if "error: " in line][-1]
    for word in named:
        assert word in last, last
    assert "Traceback" not in text
    assert not list(Path("outputs").glob("*/*/config.yaml")), "nothing is left behind"


def test_a_batch_that_data_of_the_users_own_cannot_fill(dtrain, user_code) -> None:
    """What is to be typed holds for the replicas too, though the task alone knows the examples."""
    user_code("import numpy as np\n\ndef load():\n    return np.zeros((3, 2)), np.arange(3)\n")
    words = ("strategy=mirrored", "dataset=custom", "dataset._target_=mine.load")
    run = dtrain(*BASE, *words)
    assert run.code == 2, run.output
    assert "has 3 training examples; accepted: up to 2; type: trainer.batch_size=2" in run.output


LATER = {
    "image": (case_image, ("07.jpg",)),
    "label": (case_label, ("a label 7; classes count from 0", "accepted: 0 to 2, of 3 outputs")),
}


@pytest.mark.parametrize("name", LATER)
def test_what_is_met_in_training(name: str, dtrain) -> None:
    case, named = LATER[name]
    run: Run = dtrain(*BASE, *case())
    assert run.code in (1, 2), run.output
    last = [line for line in run.output.splitlines() if "error: " in line][-1]
    for word in named:
        assert word in last, last
    assert "Traceback" not in run.output


def test_a_file_that_vanishes_keeps_the_checkpoint(dtrain, user_code) -> None:
    """Of a file that is open reading goes on, as Linux lets it; each image is opened anew."""
    user_code(
        "import keras, pathlib\n"
        "class Vanish(keras.callbacks.Callback):\n"
        "    def on_epoch_end(self, epoch, logs=None):\n"
        "        pathlib.Path('pictures/dog/07.jpg').unlink(missing_ok=True)\n"
    )
    images("pictures", bad=False)
    run = dtrain(
        *BASE, "dataset=image_folder", "dataset.path=pictures", "dataset.size=[8,8]",
        "dataset.validation_split=0", "trainer.epochs=50", "checkpoint.every_steps=2",
        "trainer.callbacks=[{_target_:mine.Vanish}]",
    )  # fmt: skip
    assert run.code == 1, run.output + run.log
    last = [line for line in run.output.splitlines() if "error: " in line][-1]
    assert "07.jpg" in last and "Traceback" not in run.output
    assert run.rundir is not None and list(run.rundir.checkpoints.glob("*/manifest.json"))


def test_what_cannot_be_read_is_left_out(dtrain) -> None:
    images("pictures", bad=True)
    run = dtrain(
        *BASE, "dataset=image_folder", "dataset.path=pictures", "dataset.size=[8,8]",
        "dataset.validation_split=0", "dataset.on_error=skip",
    )  # fmt: skip
    assert run.code == 0, run.output + run.log
    assert "1 of 24 examples cannot be read" in run.output and "07.jpg" in run.output
    assert run.result["train_examples"] == 23
    run = dtrain(
        *BASE, "dataset=image_folder", "dataset.path=pictures", "dataset.size=[8,8]",
        "dataset.validation_split=0", "dataset.on_error=skip", "dataset.cache=memory",
    )  # fmt: skip
    assert run.code == 2 and "dataset.on_error=skip: images that are all decoded" in run.output
