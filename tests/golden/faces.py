"""What commands and calls print, as text: a table of scenes, each some lines in one folder.

A line is a command of dtrain. ``! LINE`` is for the shell; ``>>> LINE`` is Python, as in its own
prompt; ``mlflow`` shows what the embedded store has. ``$RUN`` is the newest run folder.
"""

from __future__ import annotations

import code
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.golden import running

FOLDER = Path(__file__).parent / "faces"
TABLES = Path(__file__).parent / "scenes.txt"
#: A training of a second, which ``QUICK`` stands for.
QUICK = (
    "tracking=none record_code=false model=mlp model.units=[16] dataset=synthetic dataset.shape=[8]"
    " dataset.examples=128 dataset.validation_examples=50 dataset.classes=4 trainer.batch_size=32"
    " trainer.epochs=2 launcher.stall_timeout=120"
)
#: Scenes of the suite's sample.
SAMPLE = ("help", "wrong_words", "wrong_commands", "plans", "run", "python_refused")
#: What differs between two runs of the same, and what stands for it.
PLACEHOLDERS: tuple[tuple[str, str], ...] = (
    (r"\x1b\[[0-9;?]*[a-zA-Z]", ""),
    (r"\b20\d\d-\d\d-\d\d[/_ T]\d\d[-:]\d\d[-:]\d\d(?:[.,]\d+)?(?:-\d+(?=_))?", "DATE/TIME"),
    (r"\b20\d\d-\d\d-\d\d\b", "DATE"),
    (r"^epoch \d+/\d+  step .*\n", ""),
    (r"^starting: importing TensorFlow takes .*\n", ""),
    (r"given_[0-9a-f]{8,32}", "given_HASH"),
    (r"golden-\w{8}", "golden-X"),
    (r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b", "HASH"),
    (r"\b[\d,.]+ examples/s", "N examples/s"),
    (r"^\S* ?\d+% of the time passed between .*\n", ""),
    (r"\b[\d,.]+ (KB|kB|MB|GB|ms)\b", r"N \1"),
    (r"\b\d+:\d\d:\d\d\b", "H:MM:SS"),
    (r"^.*  (?:\?|H:MM:SS) left\n", ""),
    (r"^.*; running: .*\n", ""),
    (r"\b\d+(?:\.\d+)? s\b", "N s"),
    (r"(DATE/TIME) +[\d,]+ ", r"\1  BYTES "),
    (r"(interval_seconds) .*", r"\1  N"),
    (r"(FINISHED +\d+) +[\d,]+ (.*) +[\d.]+  (-|best.*)$", r"\1  N \2 N  \3"),
    (r"(127\.0\.0\.1|localhost):\d+", r"\1:PORT"),
    (r"\b(pid|process) \d+", r"\1 N"),
    (r"(FAILED: step) \d+(?=.*\n.* ended by SIG)", r"\1 N"),
    (r"(restart \d of \d from step) \d+", r"\1 N"),
    (r"tfevents\.\d+\.[^\s/]+", "tfevents.NAME"),
    (r"\b(dtrain|tensorflow|keras|Python|TensorFlow|Keras|MLflow|Hydra|NumPy) \d+\.\d[\w.]*",
     r"\1 VERSION"),
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
              str(root): "CHECKOUT", socket.gethostname(): "HOST"}  # fmt: skip
    for path, name in places.items():
        text = text.replace(path, name)
    for pattern, name in PLACEHOLDERS:
        text = re.sub(pattern, name, text, flags=re.M)
    return re.sub(r"[ \t]+$", "", text, flags=re.M)


def tree(folder: Path) -> str:
    """Return the names of all files below a folder, those of a folder in one line."""
    lines = []
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if each not in ("__pycache__", "given_cache"))
        if files:
            names = sorted({plain(each) for each in files})
            lines.append(f"{plain(os.path.relpath(path, folder))}/  {'  '.join(names)}")
    return "\n".join(lines)


def newest() -> str:
    """Return the newest run folder."""
    runs = [path for path, _, names in os.walk(".") if "cluster.json" in names]
    return os.path.relpath(max(runs, key=lambda path: os.stat(f"{path}/cluster.json").st_mtime_ns))


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
        elif line == "mlflow":
            output = _store()
        else:
            words = line.replace("QUICK", QUICK)
            number, output = running.line(
                words.replace("$RUN", newest()) if "$RUN" in line else words
            )
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
    """Return parameters, tags and metrics of all runs of the embedded store."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{Path('outputs/mlflow.db').absolute()}")
    lines = []
    for experiment in sorted(client.search_experiments(), key=lambda each: each.name):
        runs = client.search_runs([experiment.experiment_id], order_by=["start_time"])
        for run in runs:
            lines.append(f"{experiment.name}: {run.info.run_name} {run.info.status}")
            for kind in ("params", "tags"):
                values = sorted(getattr(run.data, kind).items())
                lines += [f"  {kind} {name}: {value}" for name, value in values]
            for name in sorted(run.data.metrics):
                points = client.get_metric_history(run.info.run_id, name)
                timed = name.startswith("system/") or "second" in name
                values_ = "N" if timed else " ".join(f"{p.step}={p.value:.4g}" for p in points)
                lines.append(f"  metric {name}: {values_}")
            files = sorted(each.path for each in client.list_artifacts(run.info.run_id))
            lines.append(f"  artifacts: {' '.join(files)}")
    for model in client.search_registered_models():
        lines.append(f"registered model {model.name}: {dict(model.aliases)}")
    return "\n".join(lines) + "\n"
