"""Notebooks: the example, and real kernels that are interrupted, restarted, killed as they train.

``make test-notebook`` installs what it takes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import re
import select
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dtrain
from dtrain.config import schema

ROOT = schema.folder("conf").parent
EXAMPLE = ROOT / "examples" / "notebook" / "dtrain.ipynb"
MISSING = [name for name in ("nbclient", "ipykernel") if importlib.util.find_spec(name) is None]
in_kernel = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
#: Seconds without any output after which a kernel is given up.
PATIENCE = 300


def test_the_example_is_written_without_outputs() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            compile("".join(cell["source"]), cell["id"], "exec")
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


class Cell:
    """What a cell has sent to the front end.

    Attributes:
        error: the content of its exception; None without one.
        drawn: what its display has shown, one after the other; ``new`` begins an output.
        printed: what it has printed.
        shown: the text of its last value.
    """

    def __init__(self) -> None:
        self.error: dict[str, Any] | None = None
        self.drawn: list[str] = []
        self.printed = self.shown = ""

    def take(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream" and content["name"] == "stdout":
            self.printed += content["text"]
        elif kind in ("display_data", "update_display_data"):
            self.drawn += ["new"] if kind == "display_data" else []
            self.drawn.append(content["data"]["text/plain"])
        elif kind == "execute_result":
            self.shown = content["data"]["text/plain"]
        elif kind == "error":
            self.error = content

    @property
    def trains(self) -> bool:
        return any(" step " in text for text in self.drawn)


class Kernel:
    """A kernel of IPython's, with a front end that runs one cell after the other."""

    def __init__(self, folder: Path):
        from jupyter_client.manager import KernelManager

        self.mark, self.log = f"test-{uuid.uuid4()}", (folder / "kernel.log").open("ab")
        path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        environment = {**os.environ, "KERNEL_OF_TEST": self.mark, "PYTHONPATH": path}
        self.manager = KernelManager()
        self.manager.start_kernel(
            cwd=str(folder), env=environment, stdout=self.log, stderr=self.log
        )
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def run(self, code: str, then: Callable[[Cell], object] | None = None) -> Cell:
        """Run a cell, which may fail.

        Args:
            code: of it.
            then: is called at each of its outputs; False ends the cell for the caller.
        """
        asked, cell = self.client.execute(code), Cell()
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=PATIENCE)
            except queue.Empty:
                raise AssertionError(f"no output of:\n{code}\n{cell.printed}") from None
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != asked:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                return cell
            cell.take(kind, content)
            if then is not None and then(cell) is False:
                return cell

    def ok(self, code: str, then: Callable[[Cell], object] | None = None) -> Cell:
        """Run a cell that succeeds."""
        cell = self.run(code, then)
        assert cell.error is None, f"{cell.printed}\n{cell.error['evalue']}"
        return cell

    def value(self, expression: str) -> Any:
        return json.loads(self.ok(f"import json; print(json.dumps({expression}))").printed)

    def interrupt(self, at: Callable[[Cell], object]) -> Callable[[Cell], None]:
        """Interrupt the kernel once, at the first output of a cell for which something holds."""
        done: list[bool] = []

        def look(cell: Cell) -> None:
            if not done and at(cell):
                done.append(True)
                self.manager.interrupt_kernel()

        return look

    def processes(self) -> list[int]:
        """Return the processes that this kernel has begun, and itself."""
        found = []
        for each in Path("/proc").iterdir():
            try:
                if each.name.isdigit() and self.mark.encode() in (each / "environ").read_bytes():
                    found.append(int(each.name))
            except OSError:
                continue
        return found

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.log.close()


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    of_jupyter(tmp_path, monkeypatch)
    made = Kernel(tmp_path)
    yield made
    left = [descriptor(pid) for pid in made.processes()]
    made.end()
    wait(left)


def of_jupyter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Jupyter's own files apart from the user's."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        (folder / ".jupyter" / name).mkdir(parents=True)
        monkeypatch.setenv(name, str(folder / ".jupyter" / name))


def descriptor(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def wait(descriptors: list[int | None]) -> None:
    """Wait for processes to end."""
    for each in filter(None, descriptors):
        poll = select.poll()
        poll.register(each, select.POLLIN)
        ended = poll.poll(PATIENCE * 1000)
        os.close(each)
        assert ended, "a process of a kernel goes on"


DATA = """
import sys
import numpy as np
import dtrain

y = np.arange(512) % 4
x = np.eye(4, dtype="float32")[y]
given = {"data": (x, y), "batch_size": 32, "tracking": "none"}
"""
FUNCTION = """
def width():
    return 16

def build(input_shape, classes):
    import keras

    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(width()),
                             keras.layers.Dense(classes, activation="softmax")])
"""
CLASS = """
import keras
import tensorflow as tf

class Net(keras.Model):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.hidden = keras.layers.Dense(16, activation="relu")
        self.out = keras.layers.Dense(classes, activation="softmax")

    def call(self, x):
        return self.out(self.hidden(x))

    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True), weight)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss, "own": 0 * loss + 7}
"""
LONG = "run = dtrain.train(**given, model=build, strategy='mirrored', devices=2, epochs=100_000)"


@pytest.mark.faults
@in_kernel
def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    of_jupyter(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(EXAMPLE, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(
        notebook, timeout=None, iopub_timeout=PATIENCE, resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = {cell.id: cell.get("outputs", []) for cell in notebook.cells}
    text = {
        name: "".join(each.get("text", "") for each in found if each.get("name") == "stdout")
        for name, found in outputs.items()
    }
    value = {
        name: found[-1].data["text/plain"]
        for name, found in outputs.items()
        if found and found[-1].output_type == "execute_result"
    }
    assert "<dtrain.Run FINISHED" in value["train"]
    for name in ("train", "other", "resume"):
        # What stays in the file: a few lines, and one place for the progress, which is over.
        assert len(text[name].splitlines()) < 12, text[name]
        assert "\r" not in text[name]
        displays = [each for each in outputs[name] if each.output_type == "display_data"]
        # None where the run was over before there was anything to show.
        assert [each.data["text/plain"] for each in displays] in ([""], [])
    assert "optimizer.learning_rate" in value["compare"]
    predicted, true = re.findall(r"array\((\[.*?\])", value["predict"])
    assert len(json.loads(predicted)) == len(json.loads(true)) == 8
    assert re.search(r"^\d+ +\d+ +4 ", value["resume"], re.M), value["resume"]


@pytest.mark.faults
@in_kernel
@pytest.mark.parametrize(
    ("strategy", "several"), [("mirrored", "devices"), ("multiworker", "hosts"), ("ps", "workers")]
)
def test_a_class_of_a_cell_is_interrupted_resumed_and_compared(
    kernel: Kernel, strategy: str, several: str
) -> None:
    kernel.ok(DATA)
    kernel.ok(CLASS)
    kernel.ok(f"given |= dict(model=Net, strategy={strategy!r}, {several}=2)")
    cell = kernel.ok(
        "run = dtrain.train(**given, epochs=100_000); run", kernel.interrupt(lambda c: c.trains)
    )
    assert "<dtrain.Run KILLED" in cell.shown
    assert "checkpoint saved" in cell.printed
    assert "\r" not in cell.printed and len(cell.printed.splitlines()) < 30, cell.printed
    assert cell.drawn.count("new") == 1 and cell.drawn[-1] == ""
    step, epoch = kernel.value("[run.result['step'], run.history[-1]['epoch']]")
    assert step > 0
    kernel.ok(f"run = run.resume(epochs={epoch + 2})")
    assert kernel.value("[run.status, run.history[-1]['epoch']]") == ["FINISHED", epoch + 2]
    assert kernel.value("max(each['step'] for each in run.history)") > step
    assert kernel.value("run.metrics['own']") == 7
    kernel.ok("other = dtrain.train(**given, epochs=2, learning_rate=0.01, show=False)")
    rows = kernel.value("dtrain.compare([run, other]).table()")
    assert [row["status"] for row in rows] == ["FINISHED", "FINISHED"]


@pytest.mark.faults
@in_kernel
def test_errors_are_a_sentence_and_the_newest_definition_trains(
    kernel: Kernel, tmp_path: Path
) -> None:
    kernel.ok(DATA + FUNCTION)
    refused = kernel.run("dtrain.train(**given, model=build, epochs=0)")
    assert refused.error is not None and refused.error["ename"] == "UsageError"
    assert refused.error["evalue"].startswith("trainer.epochs=0: must be at least 1")
    assert len("\n".join(refused.error["traceback"]).splitlines()) < 8
    assert refused.printed == "" and not (tmp_path / "outputs").exists()

    failed = kernel.run(
        "def bad(input_shape, classes):\n    raise ValueError('my own mistake')\n"
        "dtrain.train(**given, model=bad)"
    )
    assert failed.error is not None and failed.error["ename"] == "TrainingError"
    assert "ValueError: my own mistake" in failed.error["evalue"]
    assert len("\n".join(failed.error["traceback"]).splitlines()) < 8
    assert len(failed.printed.splitlines()) < 50, failed.printed

    def parameters() -> int:
        return int(
            kernel.value(
                "dtrain.train(**given, model=build, epochs=1, show=False).result['parameters']"
            )
        )

    assert parameters() == 4 * 16 + 16 + 16 * 4 + 4
    kernel.ok("def width():\n    return 32")
    assert parameters() == 4 * 32 + 32 + 32 * 4 + 4
    assert kernel.value("[name for name in ('tensorflow', 'keras') if name in sys.modules]") == []


@pytest.mark.faults
@in_kernel
def test_a_kernel_that_is_interrupted_as_it_starts_and_twice(kernel: Kernel) -> None:
    kernel.ok(DATA + FUNCTION)
    cell = kernel.ok(LONG, kernel.interrupt(lambda c: "starting" in c.printed))
    assert not cell.trains
    assert kernel.value("run.status") == "KILLED"
    both = [
        kernel.interrupt(lambda c: c.trains),
        kernel.interrupt(lambda c: "once more" in c.printed),
    ]
    kernel.ok(LONG.replace("dtrain.train(", "run.resume(").replace("**given, model=build, ", ""),
              lambda c: [each(c) for each in both])  # fmt: skip
    assert kernel.value("run.status") == "KILLED"
    epoch = kernel.value("max([each.get('epoch', 0) for each in run.history])")
    kernel.ok(f"run = run.resume(epochs={epoch + 1})")
    assert kernel.value("run.status") == "FINISHED"


@pytest.mark.faults
@in_kernel
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_kernel_that_ends_leaves_no_process_behind(
    kernel: Kernel, how: str, tmp_path: Path
) -> None:
    kernel.ok(DATA + FUNCTION)
    kernel.run(LONG, lambda cell: not cell.trains)
    processes = kernel.processes()
    assert len(processes) > 2
    descriptors = [descriptor(pid) for pid in processes]
    if how == "kill":
        os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)  # type: ignore[union-attr]
        kernel.manager.restart_kernel(now=True)
    else:
        kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=PATIENCE)
    wait(descriptors)
    [folder] = tmp_path.glob("outputs/2*/*_build_mirrored")
    run = dtrain.Run(folder)
    assert run.status == "KILLED" and run.result["step"] > 0
    assert "checkpoint saved" in (folder / "logs" / "chief-0.log").read_text()
    # The new kernel has nothing of the notebook; the run has it.
    kernel.ok(f"import dtrain; run = dtrain.Run({str(folder)!r})")
    kernel.ok(f"run = run.resume(epochs={run.history[-1]['epoch'] + 1}, show=False)")
    assert kernel.value("run.status") == "FINISHED"
    assert len(kernel.value("run.model().get_weights()[0].tolist()")) == 4
