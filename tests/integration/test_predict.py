"""Predictions by any number of workers, killed and resumed: the bytes of an undisturbed command."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain import errors
from dtrain.run import predictions
from tests import warm
from tests.conftest import QUICK
from tests.hostile.test_full_disk import disk
from tests.integration.test_failures import processes

#: Below two batches a piece, and prime.
ROWS = 397
WORDS = ("piece_rows=40", "batch=16")
#: A module of the user's.
USER = """
def scaled(outputs, factor=1.0):
    return outputs * factor


def broken():
    # Rows of which one cannot be read.
    import numpy as np

    from dtrain.data.sources import Source, Splits
    from dtrain.errors import DataError

    class Own(Source):
        def __len__(self):
            return 397

        def __getitem__(self, indices):
            if 300 in indices:
                raise DataError("row 300", "is broken")
            return (np.ones([len(indices), 8], np.float32),)

    return Splits(Own())
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run that was trained, and a module of the user's."""
    from dtrain.cli.app import main

    path = tmp_path_factory.mktemp("predict")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr(sys, "argv", ["dtrain", *QUICK, "hydra.run.dir=run", "trainer.epochs=1",
                                    f"dataset.validation_examples={ROWS}"])  # fmt: skip
        patch.setenv("XDG_STATE_HOME", str(path / "state"))
        patch.setenv("DTRAIN_CACHE", str(path / "cache"))
        assert main() == errors.OK
    (path / "mine.py").write_text(USER)
    yield path


@pytest.fixture
def predict(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run the command in this process; return its exit code and output."""
    from dtrain.cli.commands.predict import main

    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("DTRAIN_TRUST", "mine")

    def command(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dtrain"])
        capfd.readouterr()
        code = main(["run", *words])
        return code, "".join(capfd.readouterr())

    return command


def content(folder: Path) -> str:
    """Return a digest of all files, in the order of the rows."""
    files = predictions.Store(folder, predictions.read(folder)).files()
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()


def is_done(folder: Path) -> bool:
    try:
        return bool(content(folder))
    except (OSError, errors.DtrainError):
        return False


def table(folder: Path) -> dict[str, np.ndarray]:
    import pyarrow.parquet

    found = pyarrow.parquet.read_table(folder / "pieces")
    return {name: np.array(found[name].to_pylist()) for name in found.column_names}


def keras_predicts(home: Path) -> np.ndarray:
    """Return what Keras' predict gives for the validation with the model that the run saved."""
    return np.asarray(warm.call(_keras, 1, {"home": home}))


def _keras(home: Path) -> Any:
    import keras

    from dtrain.config import tree
    from dtrain.task.data import dataset

    source = dataset.load(tree.read(home / "run/config.yaml")).splits.validation
    x = np.asarray(source[np.arange(ROWS)][0])
    model = keras.saving.load_model(home / "run/model.keras")
    return model.predict(x, batch_size=32, verbose=0)


def test_workers_strategies_and_commands_give_the_same_bytes(home: Path, predict: Any) -> None:
    code, output = predict("to=one", *WORDS)
    assert code == errors.OK, output
    assert "10 of 10 pieces, 397 rows" in output
    expected = content(home / "one")
    found = table(home / "one")
    assert found["index"].tolist() == list(range(ROWS))
    np.testing.assert_allclose(found["prediction"], keras_predicts(home), rtol=0, atol=1e-6)
    code, output = predict("to=three", "workers=3", "strategy=mirrored", *WORDS)
    assert (code, content(home / "three")) == (errors.OK, expected), output
    result = json.loads(max((home / "run/predictions/jobs").glob("*/result.json")).read_text())
    assert result["rows"] == ROWS and result["status"] == "FINISHED" and result["tasks"] == 3
    # What is done is not done again; a folder of other predictions is not touched.
    code, output = predict("to=one", *WORDS)
    assert code == errors.OK and "predicted already" in output
    code, output = predict("to=one", "batch=32", "piece_rows=40")
    assert code == errors.USAGE and "batch is 16, and here it is 32" in output
    assert content(home / "one") == expected
    # No run is left behind that another command takes for one.
    assert not list((home / "run/predictions/jobs").glob("*/checkpoints/*"))


def test_the_folder_is_found_again_and_functions_make_columns(home: Path, predict: Any) -> None:
    words = ("function=argmax", "include=[labels,inputs]", "format=npy",
             "split=train", "checkpoint=latest", "strategy=one_device")  # fmt: skip
    code, output = predict(*(word.removeprefix("predict.") for word in words))
    assert code == errors.OK, output
    [folder] = (home / "run/predictions").glob("[0-9]*")
    table = np.load(folder / "predictions.npy")
    assert set(table.dtype.names) == {"index", "input", "label", "prediction"}
    assert table["prediction"].dtype == np.int64
    code, output = predict(*words)
    assert code == errors.OK and "predicted already" in output


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("strategy=multiworker",), "type: strategy=one_device"),
        (("checkpoint=7777",), "the run has no such checkpoint"),
        (("checkpoint=all",), "means several checkpoints"),
        (("weights=ema",), "has no averages of its weights"),
        (("format=xml",), "accepted: parquet, npy, jsonl, csv"),
        (("action.format=csv",), "type: format=csv"),
        (("workers=0",), "workers"),
        (("workers=5000",), "more processes than this machine"),
        (("shard=2/2",), "K/N, with K from 0 to N-1"),
        (("include=[colours]",), "include"),
        (("function=os.system",), "function"),
        (("function={_target_:os.system}",), "os"),
        (("trainer.epochs=3", "resume=auto"), "is of a training"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    home: Path, predict: Any, words: tuple[str, ...], shown: str
) -> None:
    before = sorted(os.listdir(home / "run"))
    code, output = predict("to=refused", *words)
    assert code == errors.USAGE and shown in output, output
    assert not (home / "refused").exists() and sorted(os.listdir(home / "run")) == before


@pytest.mark.faults
def test_other_data_needs_no_labels_and_few_rows(home: Path, predict: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    np.save(home / "new.npy", rows)
    np.save(home / "wrong.npy", rows[:, :7])
    words = ("dataset=npy", "dataset.validation_split=0", "strategy=one_device",
             "format=jsonl", *WORDS)  # fmt: skip
    code, output = predict("dataset.path=new.npy", "to=few", "include=[inputs]", *words)
    assert code == errors.OK, output
    [file] = (home / "few/pieces").iterdir()
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["index"] for each in found] == list(range(5))
    assert np.array([each["input"] for each in found], np.float32).tobytes() == rows.tobytes()
    assert all(len(each["prediction"]) == 4 for each in found)
    code, output = predict("dataset.path=wrong.npy", "to=wrong", *words)
    assert code == errors.USAGE and "has float32 [7] as x instead of float32 [8]" in output
    code, output = predict("dataset.path=new.npy", "include=[labels]", "to=no", *words)
    assert code == errors.USAGE and "the data has none" in output


def test_a_row_that_cannot_be_read_ends_it_in_a_sentence(home: Path, predict: Any) -> None:
    code, output = predict("to=broken", "dataset=custom", "dataset._target_=mine.broken", *WORDS)
    assert code == errors.FAILED and "row 300: is broken" in output, output
    assert "Traceback" not in output
    assert list((home / "broken/pieces").iterdir())  # what is done stays


@pytest.mark.faults
def test_a_full_disk_is_a_sentence_and_the_command_goes_on(
    home: Path, predict: Any, tmp_path: Path
) -> None:
    words = ("piece_rows=8", "batch=8", "strategy=one_device")
    assert predict("to=roomy", *words)[0] == errors.OK
    with disk(tmp_path / "disk", 200) as small:
        code, output = predict(f"to={small}/there", *words)
        assert code == errors.FAILED and "No space left on device" in output, output
        assert "Traceback" not in output
        done = len(list((small / "there/pieces").glob("part-*")))
        assert 0 < done < 50
        more = ["mount", "-o", "remount,size=8000k", str(small)]
        subprocess.run(more, check=True, capture_output=True)
        assert predict(f"to={small}/there", *words)[0] == errors.OK
        assert content(small / "there") == content(home / "roomy")


class Command:
    """A command in processes of its own."""

    def __init__(self, home: Path, *words: str):
        self._home = home
        self.before = set((home / "run/predictions/jobs").glob("*"))
        environment = {**os.environ, "XDG_STATE_HOME": str(home / "state"), "DTRAIN_TRUST": "mine",
                       "PYTHONPATH": os.pathsep.join(sys.path)}  # fmt: skip
        with (home / "out.txt").open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dtrain", "predict", "run", *words],
                cwd=home, stdout=out, stderr=out, env=environment, start_new_session=True,
            )  # fmt: skip

    def tasks(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder in set((self._home / "run/predictions/jobs").glob("*")) - self.before:
            found |= processes(folder)
        return found

    def end(self) -> int:
        """Wait until it and all of its tasks are gone."""
        code = self.process.wait(120)
        while self.tasks():
            time.sleep(0.05)
        return code


def disturb(command: Command, random: random.Random, kind: str) -> None:
    """Do harm to a command at a random moment of its work."""
    while command.process.poll() is None and not command.tasks():
        time.sleep(0.02)
    threading.Event().wait(random.uniform(0.0, 2.5))
    tasks = command.tasks()
    with contextlib.suppress(ProcessLookupError):
        if kind == "command":
            command.process.kill()
        elif kind == "stop":
            command.process.send_signal(random.choice([signal.SIGINT, signal.SIGTERM]))
        elif kind == "all":
            for pid in [command.process.pid, *tasks.values()]:
                os.kill(pid, signal.SIGKILL)
        elif tasks:
            name = random.choice(sorted(tasks)) if kind == "task" else "chief-0"
            os.kill(tasks.get(name, command.process.pid), signal.SIGKILL)


KILLS = 20
KINDS = ("command", "stop", "all", "task", "chief")
FUNCTION = "function={_target_:mine.scaled,factor:0.5}"


@pytest.mark.faults
@pytest.mark.parametrize("strategy", ["one_device", "mirrored", "hybrid"])
def test_killed_it_goes_on_to_the_same_bytes(home: Path, strategy: str) -> None:
    words = (f"strategy={strategy}", FUNCTION, "split=validation",
             "dataset.validation_examples=20011", "piece_rows=50",
             "batch=16")  # fmt: skip
    whole, folder = home / f"whole_{strategy}", home / f"killed_{strategy}"
    assert Command(home, f"to={whole}", *words).end() == errors.OK
    chosen, hurt = random.Random(KILLS), 0
    for number in range(KILLS):
        kind = KINDS[number % len(KINDS)]
        workers = (1, 3, 2)[number % 3]
        command = Command(home, f"to={folder}", f"workers={workers}", *words)
        disturb(command, chosen, kind)
        code = command.end()
        hurt += code != errors.OK
        allowed = {"command": (-9, 0), "stop": (75, 0, -2, -15), "all": (-9, 0)}
        assert code in allowed.get(kind, (0, 1)), (kind, (home / "out.txt").read_text())
        if is_done(folder):  # it was too fast: begin again
            assert content(folder) == content(whole)
            folder = folder.with_name(f"{folder.name}_{number}")
    assert hurt >= KILLS // 3
    assert Command(home, f"to={folder}", "workers=2", *words).end() == errors.OK
    assert content(folder) == content(whole)
    assert sorted(os.listdir(folder)) == ["pieces", "predictions.json"]


@pytest.mark.faults
def test_two_commands_at_once_share_the_work(home: Path) -> None:
    words = ("dataset.validation_examples=5003", "piece_rows=20", "batch=16",
             "strategy=one_device")  # fmt: skip
    assert Command(home, "to=alone", *words).end() == errors.OK
    commands = [Command(home, "to=both", f"shard={k}/2", *words) for k in range(2)]
    assert [each.end() for each in commands] == [errors.OK] * 2
    assert content(home / "both") == content(home / "alone")
    rows = [
        json.loads(path.read_text())["own_rows"]
        for path in sorted((home / "run/predictions/jobs").glob("*/result.json"))[-2:]
    ]
    assert sum(rows) >= 5003  # a piece may be done by both
