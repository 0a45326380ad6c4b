"""Times the first steps of a new user: ``python experiments/first_steps.py``.

There are three paths: from a clone to the first page that compares runs; from a class in a notebook
to a run on two replicas; from a file as TensorFlow's tutorials have it to a run of two workers, by
the commands of ``docs/coming-from.md``. Each step runs once, in new folders and with an empty home
folder, so that neither pip nor Python finds anything of an earlier time. Seconds of installing
depend on the network; reading and typing are not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from dtrain.config import schema
from dtrain.host.terminal import aligned

ROOT = schema.folder("conf").parent
TUTORIAL = ROOT / "docs" / "coming-from.md"
CELLS = (
    "import keras, numpy as np, dtrain",
    """class Net(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.hidden = keras.layers.Dense(32, activation="relu")
        self.out = keras.layers.Dense(classes, activation="softmax")

    def call(self, x):
        return self.out(self.hidden(x))


def build(input_shape, classes):
    return Net(classes)
""",
    """x = np.random.default_rng(0).normal(size=(1024, 8)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
run = dtrain.train(model=build, data=(x, y), strategy="mirrored", devices=2, epochs=3)
assert run.status == "FINISHED"
""",
)


def notebook() -> str:
    """Return a notebook with a class of one's own, and its training."""
    cells = [
        {"cell_type": "code", "execution_count": None, "id": f"cell-{i}", "metadata": {},
         "outputs": [], "source": source}
        for i, source in enumerate(CELLS)
    ]  # fmt: skip
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


def tutorial() -> str:
    """Return what the page says to type."""
    [script] = re.findall(
        r"^```bash\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.M | re.S
    )
    return str(script)


def paths(source: str, folder: Path) -> dict[str, dict[str, str]]:
    """Return the steps of each path: what is done, and how it is typed."""
    python = f"{folder}/dtrain/.venv/bin/python"
    (folder / "mine.ipynb").write_text(notebook())
    return {
        "from a clone to a page that compares": {
            "clone": f"git clone --quiet {source} dtrain",
            "install": "make --silent --directory dtrain install",
            "first training": f"cd dtrain && {python} -m dtrain strategy=mirrored trainer.epochs=2",
            "first sweep": f"cd dtrain && {python} -m dtrain -m strategy=one_device,mirrored "
            "trainer.epochs=2 && ls outputs/multirun/*/*/comparison.html",
        },
        "from a class in a notebook to two replicas": {
            "install Jupyter": f"cd dtrain && {python} -m pip install --quiet -c constraints.txt "
            "-e .[notebook]",
            "run all cells": f"{folder}/dtrain/.venv/bin/jupyter execute mine.ipynb",
        },
        "from a tutorial's file to two workers": {
            "write it, and train": "mkdir tutorial && cd tutorial && "
            f"export PATH={folder}/dtrain/.venv/bin:$PATH && {tutorial()}",
        },
    }  # fmt: skip


def main() -> None:
    """Walk the paths, and print what each step took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default=str(ROOT), help="repository to clone")
    source = parser.parse_args().source
    with tempfile.TemporaryDirectory(prefix="first-steps-") as name:
        folder = Path(name)
        kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_"))}
        environment = {**kept, "PATH": os.environ["PATH"], "HOME": name, "LANG": "C.UTF-8"}
        rows = [["path", "step", "s", "s so far"]]
        for path, steps in paths(source, folder).items():
            whole = 0.0
            for step, script in steps.items():
                began = time.monotonic()
                done = subprocess.run(
                    ["bash", "-euc", script], cwd=folder, env=environment, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                )  # fmt: skip
                if done.returncode:
                    raise SystemExit(f"{path}: {step}:\n{done.stdout}")
                took = time.monotonic() - began
                whole += took
                rows.append([path, step, f"{took:.0f}", f"{whole:.0f}"])
                print(*rows[-1], sep="  ", flush=True)
        print(*aligned(rows, (2, 3)), sep="\n")


if __name__ == "__main__":
    main()
