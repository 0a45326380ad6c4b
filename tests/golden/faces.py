"""What commands and calls print, as text: a table of scenes, each some lines in one folder.

A line is a command of dtrain. ``! LINE`` is for the shell; ``>>> LINE`` is Python, as in its own
prompt; ``mlflow`` makes the embedded store, or shows what it has.
"""

from __future__ import annotations

import code
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.golden import kept, running

FOLDER = Path(__file__).parent / "faces"
TABLES = Path(__file__).parent / "scenes.txt"
#: What words of the table stand for: a training of a second, and parts of it.
WORDS = {
    "QUICK": "SHORT MLP DATA",
    "SHORT": "tracking=none record_code=false report=false trainer.batch_size=32 trainer.epochs=2"
    " launcher.stall_timeout=120",
    "MLP": "model=mlp model.units=[16]",
    "DATA": "dataset=synthetic dataset.shape=[8] dataset.classes=4 dataset.examples=128"
    " dataset.validation_examples=50",
}
#: Scenes of the suite's sample.
SAMPLE = ("help", "wrong_words", "wrong_commands", "plans", "run", "python_refused")
#: What differs between two runs of the same, and what stands for it.
PLACEHOLDERS: tuple[tuple[str, str], ...] = (
    (r"\x1b\[[0-9;?]*[a-zA-Z]", ""),
    (r"\b20\d\d-\d\d-\d\d[/_ T]\d\d[-:]\d\d[-:]\d\d(?:[.,]\d+)?(?:-\d\b|-\d+(?=_))?", "DATE/TIME"),
    (r"\b(DATE/TIME_\w+)-\d\b", r"\1"),  # of a run that began in the same second
    (r"\b20\d\d-\d\d-\d\d\b", "DATE"),
    (r"^epoch \d+/\d+  step .*\n", ""),
    (r"^[a-z][\w ]+ \.\.\.\n", ""),
    (r"^starting: importing \w+ takes .*\n", ""),
    (r"^(?:job \d+: )?tracking: back again\n", ""),
    (r"\b\d\d-\d\d-\d\d(?=_)", "TIME"),
    (r"(given_|dtrain_model_|data_|\d_)[0-9a-f]{8,32}\b", r"\1HASH"),
    (r"golden-\w{8}", "golden-X"),
    (r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b", "HASH"),
    (r"-\d{4}-\d{6}\b", "-DATE-TIME"),
    (r"\b\d+ at a time", "N at a time"),
    (r"\b[\d,.]+ examples/s", "N examples/s"),
    (r"^\S* ?\d+% of the time passed between .*\n", ""),
    (r"\b[\d,.]+ (KB|kB|MB|GB|ms)\b", r"N \1"),
    (r"\b\d+:\d\d:\d\d\b", "H:MM:SS"),
    (r"^.*  (?:\?|H:MM:SS) left\n", ""),
    (r"^.*; running: .*\n", ""),
    (r"\b\d+(?:\.\d+)? s\b", "N s"),
    (r"(DATE/TIME) +[\d,]+ ", r"\1  BYTES "),
    (r"(interval_seconds) .*", r"\1  N"),
    (r" +\d+\.\d\d  ok", "  N  ok"),
    (r"^(  tags host): .*", r"\1: HOST"),
    (r"\| \**\d+\.\d+\** \|  \|", "| N |  |"),
    (r"^(  tags (?:dtrain|hydra-core|jax|keras|mlflow|python|tensorflow|torch)): .*",
     r"\1: VERSION"),
    (r"^(.* (?:FINISHED|FAILED) +\d+) +[\d,]+ (.*?) +[\d.]+  (-|[a-z][a-z ]*)$", r"\1  N \2 N  \3"),
    (r"\b0x[0-9a-f]+", "0xADDRESS"),
    (r"(127\.0\.0\.1|localhost):\d+", r"\1:PORT"),
    (r"\b(pid|process) \d+", r"\1 N"),
    (r"(FAILED: step) \d+(?=.*\n.* ended by SIG)", r"\1 N"),
    # Whether a checkpoint was written before the signal.
    (r"(^FAILED: (?:.*\n)+?)resume with: python -m dtrain resume=.*\n\Z", r"\1"),
    (r"(restart \d of \d from step) \d+", r"\1 N"),
    (r"tfevents\.\d+\.[^\s/]+", "tfevents.NAME"),
    (r"\b(dtrain|tensorflow|jax|torch|keras|Python|TensorFlow|JAX|PyTorch|Keras|MLflow|Hydra|NumPy)"
     r" \d+\.\d[\w.+]*", r"\1 VERSION"),
    (r"^(  (?:machine|cores|memory|GPUs|open files|programs|addresses|open ports now|ports of tasks"
     r"|firewall|proxy|output_dir) ) +.*", r"\1 ..."),
)  # fmt: skip


def scenes() -> dict[str, list[str]]:
    """Return by name the lines of each scene."""
    made: dict[str, list[str]] = {}
    for line in TABLES.read_text().splitlines():
        if line.startswith("== "):
            made[line[3:].strip()] = []
        elif line.strip() and not line.startswith("#"):
            made[[*made][-1]].append(line)
    return made


def plain(text: str) -> str:
    """Return a text with placeholders."""
    here = Path.cwd()
    root = Path(__file__).parents[2]
    places = {str(here): "FOLDER", str(here.parent): "TMP", sys.executable: "PYTHON",
              str(root): "CHECKOUT"}  # fmt: skip
    for path, name in places.items():
        text = text.replace(path, name)
    for pattern, name in PLACEHOLDERS:
        text = re.sub(pattern, name, text, flags=re.M)
    # Jobs of a sweep begin and end in threads of their own; a stop is heard beside the journal.
    blocks = re.compile(r"(?:^(?:job \d+|epoch +\d+|\S+ was asked to stop).*\n)+", re.M)
    text = blocks.sub(lambda block: "".join(sorted(block[0].splitlines(True))), text)
    return re.sub(r"[ \t]+$", "", text, flags=re.M)


def tree(folder: Path) -> str:
    """Return the names of all files below a folder, those of a folder in one line."""
    lines = []
    for path, _, files in os.walk(folder):
        if files and "__pycache__" not in path:
            names = sorted({plain(each) for each in files})
            lines.append(f"{plain(os.path.relpath(path, folder))}/  {'  '.join(names)}")
    return "\n".join(sorted(lines))  # of folders whose names are drawn the order is another


def played(name: str) -> str:
    """Run a scene in the current folder, and return its transcript."""
    lines, parts = scenes()[name], []
    console = _console()
    for line in lines:
        shown = line if line.startswith((">>> ", "! ", "mlflow")) else f"$ dtrain {line}"
        end = ""
        if line.startswith("! "):
            done = subprocess.run(line[2:], shell=True, capture_output=True, text=True)
            output = done.stdout + done.stderr
        elif line.startswith(">>> "):
            output = running.captured(lambda line=line: console(line[4:]))[1]
        elif line.startswith("mlflow"):
            output = _store()
        else:
            words = line
            for word, meaning in WORDS.items():
                words = words.replace(word, meaning)
            number, output = running.line(words)
            end = f"[exit {number}]\n"
        output = plain(output)
        parts.append(
            f"{shown}\n{output}{'' if not output or output.endswith(chr(10)) else chr(10)}{end}"
        )
    return "\n".join([*parts, f"files:\n{tree(Path.cwd())}\n"])


def _console() -> Callable[[str], int]:
    """Return what runs a line of Python as its prompt does; of an error it prints the sentence."""
    space: dict[str, object] = {"__name__": "__golden__"}
    prompt = code.InteractiveInterpreter(space)

    def show() -> None:
        kind, error, _ = sys.exc_info()
        print(f"{kind.__name__ if kind else ''}: {error}")

    prompt.showtraceback = show  # type: ignore[method-assign]
    prompt.runsource("import numpy as np, dtrain", symbol="exec")

    def run(line: str) -> int:
        prompt.runsource(line)
        return 0

    return run


def _store() -> str:
    """Return tags, parameters and metrics of all runs; of the later ones, other parameters."""
    from mlflow import MlflowClient

    Path("outputs").mkdir(exist_ok=True)
    client = MlflowClient(f"sqlite:///{Path('outputs/mlflow.db').absolute()}")
    lines: list[str] = []
    first: dict[str, str] = {}
    for experiment in sorted(client.search_experiments(), key=lambda each: each.name):
        for run in client.search_runs([experiment.experiment_id], order_by=["start_time"]):
            lines.append(f"{experiment.name}: {run.info.run_name} {run.info.status}")
            tags, params = run.data.tags, run.data.params
            lines += [f"  tags {name}: {tags[name]}" for name in sorted(tags)]
            other = sorted(name for name in params if first.get(name) != params[name])
            lines += [f"  params {name}: {params[name]}" for name in other]
            first = first or params
            for name in sorted(run.data.metrics):
                points = client.get_metric_history(run.info.run_id, name)
                timed = kept.TIMES.fullmatch(name)
                values = "N" if timed else " ".join(f"{p.step}={p.value:.4g}" for p in points)
                lines.append(f"  metric {name}: {values}")
            files = sorted(each.path for each in client.list_artifacts(run.info.run_id))
            lines.append(f"  artifacts: {' '.join(files)}")
    for model in client.search_registered_models():
        lines.append(f"registered model {model.name}: {dict(model.aliases)}")
    return "\n".join(lines)
