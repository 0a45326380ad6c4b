"""From the command to the first step: ``python experiments/backend_start.py jax``, or ``torch``.

On a quiet machine. Two commands in turn, each a process of its own: ``python -m dtrain`` until its
first step is done (the journal's time of it), and a script by hand with the same model, until its
first step is (on JAX that of ``jax_steps.step_of``, compiled). Neither finds programs that the
other has compiled. A ratio is the median of the ratios pair by pair, with the least and the
greatest; above 1 dtrain takes longer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
MODELS = ("mlp", "cnn", "resnet", "transformer")
#: Shapes of a batch: images, or windows of characters.
IMAGES, TEXT = (64, 8, 8, 1), (64, 64)


def by_hand(backend: str, name: str) -> None:
    """Train one step of a model, in this process."""
    os.environ.update(KERAS_BACKEND=backend, JAX_PLATFORMS="cpu")
    import numpy as np

    from dtrain import models

    if name == "transformer":
        x = y = np.zeros(TEXT, np.int32)
        model = models.transformer(TEXT[1:], 256)
    else:
        x, y = np.zeros(IMAGES, np.float32), np.zeros(IMAGES[0], np.int32)
        model = getattr(models, name)(IMAGES[1:], 10)
    if backend == "torch":
        model.compile("adam", "sparse_categorical_crossentropy")
        print(model.train_on_batch(x, y))
        return
    import jax
    from jax_steps import step_of

    step, state = step_of(model)
    _, loss = jax.jit(step, donate_argnums=0)(state, x, y)
    print(float(loss))


def script(backend: str, name: str, folder: Path) -> float:
    """Return the seconds of the script."""
    began = time.monotonic()
    subprocess.run([sys.executable, __file__, backend, "--by-hand", name], check=True, cwd=folder,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    return time.monotonic() - began


def dtrain(backend: str, name: str, folder: Path) -> float:
    """Return the seconds of dtrain."""
    began = time.time()
    data = ["dataset=digits"]
    if name == "transformer":
        (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)
        data = ["dataset=text", "dataset.path=text.txt", f"dataset.length={TEXT[1]}"]
    subprocess.run(
        [sys.executable, "-m", "dtrain", f"backend={backend}", "strategy=one_device",
         f"model={name}", *data, f"trainer.batch_size={IMAGES[0]}", "trainer.epochs=1",
         "trainer.steps_per_epoch=1",
         "tracking=none", "hydra.run.dir=run"],
        check=True, cwd=folder, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    events = map(json.loads, (folder / "run" / "journal.jsonl").read_text().splitlines())
    [first] = [event["time"] for event in events if event["event"] == "phases"]
    return float(first) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=["jax", "torch"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--by-hand", choices=MODELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.by_hand:
        by_hand(arguments.backend, arguments.by_hand)
        return
    for name in arguments.models:
        seconds = []
        for number in range(arguments.pairs):
            sides = [dtrain, script] if number % 2 else [script, dtrain]
            with tempfile.TemporaryDirectory() as folder:
                times = {
                    side.__name__: side(arguments.backend, name, Path(folder)) for side in sides
                }
            seconds.append((times["dtrain"], times["script"]))
        ratios = [own / other for own, other in seconds]
        print(
            f"{name}: dtrain {median(a for a, _ in seconds):.1f} s, script "
            f"{median(b for _, b in seconds):.1f} s, {median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
