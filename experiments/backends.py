"""One experiment on every backend: ``python experiments/backends.py``, a minute a model when quiet.

The same configuration, from the same initial weights, in the same order of the examples, on
TensorFlow, JAX and PyTorch, one run after the other on this machine. The runs are in one MLflow
experiment, and a page, ``backends.png``, has the loss of each step, how far the losses are apart,
and the examples of a second. Seconds are those of one run each: ``steps.py`` and its siblings
measure steps in pairs.

The models have smooth activations, and no dropout: a ReLU within rounding of 0 changes sides, and
backends draw other masks, so losses would part by chance.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

BACKENDS = ("tensorflow", "jax", "torch")
HERE = Path(__file__).resolve().parent


def mlp(input_shape: Any, classes: int) -> Any:
    """Two hidden layers."""
    import keras
    from keras import layers

    sizes = [layers.Dense(128, "tanh"), layers.Dense(64, "tanh")]
    return keras.Sequential(
        [keras.Input(input_shape), layers.Flatten(), *sizes, layers.Dense(classes, "softmax")]
    )


def cnn(input_shape: Any, classes: int) -> Any:
    """Two convolutions, with the statistics of batches."""
    import keras
    from keras import layers

    return keras.Sequential([
        keras.Input(input_shape), layers.Conv2D(16, 3, activation="gelu"),
        layers.BatchNormalization(), layers.Conv2D(32, 3, activation="gelu"),
        layers.GlobalAveragePooling2D(), layers.Dense(classes, "softmax"),
    ])  # fmt: skip


MODELS = {"mlp": mlp, "cnn": cnn}


def save(name: str, file: str) -> None:
    """Save a model as it is made, in this process."""
    import keras

    keras.utils.set_random_seed(0)
    MODELS[name]((8, 8, 1), 10).save(file)


def trained(name: str, backend: str, epochs: int, folder: Path) -> dict[str, Any]:
    """Train, and return what the run has recorded: losses of its steps, and its speed."""
    run = folder / f"{name}_{backend}"
    shutil.rmtree(run, ignore_errors=True)  # of this script, before
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(
        [sys.executable, "-m", "dtrain", f"backend={backend}", "strategy=one_device",
         "model=custom", f"model._target_=backends.{name}", f"init.weights={folder}/{name}.keras",
         f"trainer.epochs={epochs}", "trainer.log_every_steps=1", f"name={name}_{backend}",
         f"hydra.run.dir={run}"],
        check=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "DTRAIN_TRUST": "backends"},
    )  # fmt: skip
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    points = [e["metrics"] for e in events if e["event"] == "metrics" and e["kind"] == "interval"]
    speed = json.loads((run / "result.json").read_text())["examples_per_second"]
    return {"losses": [point["loss"] for point in points], "speed": speed}


def page(results: dict[str, dict[str, dict[str, Any]]], file: Path) -> None:
    """Draw the losses, their differences and the speed, a row for each model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(len(results), 3, figsize=(14, 4 * len(results)), squeeze=False)
    for (name, by_backend), [losses, apart, speed] in zip(results.items(), rows, strict=True):
        first = by_backend[BACKENDS[0]]["losses"]
        for number, (backend, result) in enumerate(by_backend.items()):
            losses.plot(result["losses"], label=backend, linewidth=5 - 2 * number)
            if number:
                pairs = zip(result["losses"], first, strict=True)
                far = [max(abs(a - b), 1e-9) for a, b in pairs]
                apart.semilogy(far, label=f"{backend} - {BACKENDS[0]}")
            speed.bar(backend, result["speed"])
        losses.set(title=f"{name}: loss", xlabel="step")
        apart.set(title="losses apart by", xlabel="step")
        speed.set(title="examples a second")
        for axes in (losses, apart):
            axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("outputs/backends"))
    parser.add_argument("--save", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.save:
        save(*arguments.save)
        return
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name in arguments.models:
        file = f"{folder}/{name}.keras"
        subprocess.run([sys.executable, __file__, "--save", name, file], check=True)
        results[name] = {
            backend: trained(name, backend, arguments.epochs, folder) for backend in BACKENDS
        }
    page(results, folder / "backends.png")
    for name, by_backend in results.items():
        first = by_backend[BACKENDS[0]]
        for backend, result in by_backend.items():
            far = max(abs(a - b) for a, b in zip(result["losses"], first["losses"], strict=True))
            print(f"{name} {backend}: {result['speed']:,.0f} examples/s, apart by {far:.1e}")
    print(f"page: {folder / 'backends.png'}")


if __name__ == "__main__":
    main()
