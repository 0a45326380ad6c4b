"""Runs the examples, and writes their pages of that: ``python -m tests.gallery [NAME ...]``.

A page is ``docs/gallery/NAME.md``. What stands above its mark is written by hand; below it are the
code, the experiment, the commands and what they printed, all of one run, and the curve beside it.
The runs are made in a folder of their own, with ``tracking=none``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dtrain.config import schema
from dtrain.run import journal

ROOT = schema.folder("conf").parent
EXAMPLES = ROOT / "examples"
PAGES = ROOT / "docs" / "gallery"
MARK = "<!-- What follows is written by `python -m tests.gallery`. -->\n"
#: The commands of a page are typed at the top of the checkout, where `examples` needs no trust.
ENVIRONMENT = {"DTRAIN_TRUST": "examples", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
LINES = 40  # of Python in an example
STEPS = 40  # in which the losses of two strategies are held to CLOSE, as those of the zoo are
CLOSE = 1e-5
BYTES = 40_000  # of a curve


@dataclasses.dataclass(frozen=True)
class Example:
    """What is run, and what it has to reach.

    Attributes:
        metric: that is judged, as in ``result.json``.
        bound: it has to be as good as this.
        is_least: whether more is better.
        more: overrides of the run.
        before: overrides of a run before it.
        after: commands after it; the first one decides the metric, if it is a training.
        other: overrides of another strategy, whose losses are compared.
        alike: whether they are the same; of steps that do not wait the metric is compared.
        steps: in which the losses are held to CLOSE: under Adam roundings grow faster where
            gradients are close to 0. By SGD those of `segmentation` agree to 1e-7 for 20 steps.
    """

    metric: str
    bound: float
    is_least: bool = True
    more: str = ""
    before: str = ""
    after: tuple[str, ...] = ()
    other: str = ""
    alike: bool = True
    steps: int = STEPS

    def reached(self, value: float) -> bool:
        return value >= self.bound if self.is_least else value <= self.bound


RUNS = {
    "multi_worker": Example("val_accuracy", 0.93, other="strategy=one_device"),
    "parameter_server": Example(
        "val_mae", 0.2, is_least=False, other="strategy=one_device", alike=False
    ),
    "custom_training": Example("val_accuracy", 0.93, other="strategy=one_device"),
    "mesh_mlp": Example(
        "val_accuracy", 0.94,
        other="strategy=model_parallel hardware.devices=2 strategy.mesh.batch=1",
    ),
    "distributed_input": Example("val_accuracy", 0.93, other="strategy=one_device"),
    "save_and_load": Example(
        "val_accuracy", 0.94,
        more="hydra.run.dir=outputs/first",
        after=(
            "python -m dtrain resume=outputs/first trainer.epochs=20 strategy=one_device",
            "python examples/save_and_load/save_and_load.py outputs/first/model.keras",
        ),
    ),
    "transfer_learning": Example(
        "val_accuracy", 0.85, other="strategy=one_device",
        before="hydra.run.dir=outputs/before dataset.first=0 dataset.last=4 dataset.examples=null "
        "init.weights=null 'init.rules=[]' 'finetune.freeze=[]' 'finetune.learning_rates=[]' "
        "trainer.epochs=10",
    ),
    "vae": Example("val_loss", 0.37, is_least=False, other="strategy=one_device"),
    "gan": Example("val_distance", 0.1, is_least=False, other="strategy=one_device"),
    "text_classification": Example("val_accuracy", 0.98, other="strategy=one_device"),
    "structured_data": Example("val_auc", 0.97, other="strategy=multiworker"),
    "time_series": Example("val_mae", 0.2, is_least=False, other="strategy=one_device"),
    "segmentation": Example("val_disc_iou", 0.9, other="strategy=one_device", steps=3),
}  # fmt: skip


@dataclasses.dataclass
class Done:
    """A command, what it printed, and its seconds."""

    command: str
    printed: str
    seconds: float

    @property
    def shown(self) -> str:
        """Return the line that a training ends with, or the last one of another command."""
        lines = self.printed.strip().splitlines()
        return next((line for line in lines if line.startswith("FINISHED")), lines[-1])


def run(name: str, overrides: str, folder: Path) -> tuple[Done, Path]:
    """Train, and return what was printed and the run folder."""
    where = next((w for w in shlex.split(overrides) if w.startswith("hydra.run.dir=")), "")
    into = (
        where.partition("=")[2] or f"outputs/{'_'.join(re.findall('[a-z]+', 'run ' + overrides))}"
    )
    typed = f"python -m dtrain --config-dir examples +{name}=experiment {overrides}".rstrip()
    done = command(typed, folder, () if where else (f"hydra.run.dir={into}",))
    return done, folder / into


def command(typed: str, folder: Path, more: tuple[str, ...] = ()) -> Done:
    """Run a command of a page in a folder that has the examples."""
    words = [sys.executable, *shlex.split(typed)[1:]]
    if words[1:3] == ["-m", "dtrain"]:
        words += ["tracking=none", *more]
    begin = time.monotonic()
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{typed}\n{done.stdout[-4000:]}"
    return Done(typed, done.stdout, time.monotonic() - begin)


def points(folder: Path) -> dict[str, dict[int, float]]:
    """Return the points of each metric of a run, by step."""
    found: dict[str, dict[int, float]] = {}
    for event in journal.read(folder / "journal.jsonl"):
        for name, value in event["metrics"].items() if event["event"] == "metrics" else ():
            found.setdefault(name, {})[event["step"]] = value
    return found


def main_run(name: str, folder: Path) -> tuple[list[Done], Path]:
    """Run what an example's page shows, but for the other strategy; return it with the folder."""
    example = RUNS[name]
    shutil.copytree(EXAMPLES, folder / "examples", dirs_exist_ok=True)
    done = [run(name, example.before, folder)[0]] if example.before else []
    trained, into = run(name, example.more, folder)
    done += [trained, *(command(each, folder) for each in example.after)]
    return done, into


def value(name: str, into: Path) -> float:
    """Return the metric that an example is judged by."""
    result: dict[str, Any] = json.loads((into / "result.json").read_text())
    return float(result["metrics"][RUNS[name].metric])


@dataclasses.dataclass
class Apart:
    """How far the losses of two runs are apart, relative.

    Attributes:
        count: points that both have.
        first: in the first steps of the example; roundings have not grown yet.
        whole: in all steps.
        end: of the last validation.
    """

    count: int
    first: float
    whole: float
    end: float


def differences(name: str, one: Path, other: Path) -> Apart:
    """Compare the losses of two runs; at the end the one of the validation, or else the metric."""
    ours, theirs = points(one), points(other)
    losses = [name for name in ours if name.endswith("loss") and not name.startswith("val_")]
    far = {
        (step, each): abs(theirs[each][step] - loss) / abs(loss)
        for each in losses
        for step, loss in ours[each].items()
        if step in theirs[each]
    }
    last = "val_loss" if "val_loss" in ours else RUNS[name].metric
    ends = [max(of[last].items())[1] for of in (ours, theirs)]
    first = max(each for (step, _), each in far.items() if step <= RUNS[name].steps)
    return Apart(len(far), first, max(far.values()), abs(ends[1] - ends[0]) / abs(ends[0]))


def draw(name: str, into: Path) -> None:
    """Write the curve of a run: its losses, and the metric that it is judged by."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9})
    found, metric = points(into), RUNS[name].metric
    panels = [[each for each in found if each.endswith("loss")]]
    if metric not in panels[0]:
        panels.append([each for each in found if each in (metric, metric.removeprefix("val_"))])
    figure, axes = pyplot.subplots(1, len(panels), figsize=(7, 2.4), squeeze=False)
    for axis, names in zip(axes[0], panels, strict=True):
        for each in sorted(names):
            steps, numbers = zip(*sorted(found[each].items()), strict=True)
            axis.plot(steps, numbers, label=each, marker="." if each.startswith("val_") else "")
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.tight_layout()
    path = PAGES / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    tenths = re.sub(r"(\d+\.\d)\d+", r"\1", path.read_text(encoding="utf-8"))  # of a point
    path.write_text(re.sub(r" +$", "", tenths, flags=re.M), encoding="utf-8")


def source(name: str) -> str:
    """Return the part of a page that has the files of an example."""
    experiment = (EXAMPLES / name / "experiment.yaml").read_text(encoding="utf-8")
    code = (EXAMPLES / name / f"{name}.py").read_text(encoding="utf-8")
    return (
        f"\n## The experiment\n\n`examples/{name}/experiment.yaml`:\n\n```yaml\n{experiment}```\n\n"
        f"`examples/{name}/{name}.py`:\n\n```python\n{code}```\n"
    )


def block(done: Done) -> str:
    return f"```text\n$ {done.command}\n{done.shown}\n```\n"


def text(name: str, folder: Path) -> str:
    """Run an example, draw its curve, and return the generated part of its page."""
    example = RUNS[name]
    done, into = main_run(name, folder)
    reached = value(name, into)
    assert example.reached(reached), (name, reached)
    draw(name, into)
    trained = done[1 if example.before else 0]
    asked = f"{example.bound:g} or {'more' if example.is_least else 'less'}"
    parts = [
        source(name) + "\n## The run\n",
        "\n".join(block(each) for each in done),
        f"![Losses and metrics of the run by step]({name}.svg)\n",
        f"`{example.metric}` is {reached:.4g} at the end; `tests/test_gallery.py` asks for "
        f"{asked}. The training took {trained.seconds:.0f} s, the start of TensorFlow included, on "
        "two cores that had other work as well.\n",
    ]
    if example.other:
        other, second = run(name, f"{example.more} {example.other}".strip(), folder)
        parts += ["## Under another strategy\n", block(other)]
        if example.alike:
            parts.append(agreement(name, into, second))
        else:
            there = f"`{example.metric}` is {value(name, second):.4g} there"
            parts.append(f"{there}, where each step waits for the one before it.\n")
    return "\n".join(parts)


def agreement(name: str, one: Path, other: Path) -> str:
    """Return how far the losses of a run and of another strategy agree."""
    apart = differences(name, one, other)
    last = "val_loss" if "val_loss" in points(one) else RUNS[name].metric
    return (
        f"The losses of both runs agree to {apart.first:.1e}, relative, in the first "
        f"{RUNS[name].steps} steps, and to {apart.whole:.1e} at all {apart.count} "
        "points: roundings grow while a "
        f"network is trained. The last `{last}` agrees to {apart.end:.1e}.\n"
    )


def main() -> None:
    """Write the pages that are named, or all."""
    PAGES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or RUNS:
        page = PAGES / f"{name}.md"
        head = page.read_text(encoding="utf-8").partition(MARK)[0]
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(head + MARK + text(name, Path(folder)), encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main()
