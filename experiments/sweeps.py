"""Measures for ``docs/measurements.md``: ``make bench``, or ``python experiments/sweeps.py``.

Eight short jobs: the digits CNN, 3 epochs, on 1, 2, 3 and 4 replicas with two seeds each, two at a
time. The wall time of one ``python -m dtrain -m`` against

1. eight separate Keras scripts, two at a time, each a process of its own (this file, ``--script``):
   without dtrain the only way to give every job its own devices;
2. the same function under Hydra's joblib launcher (``pip install hydra-joblib-launcher``; left out
   where it is not installed), whose two interpreters import TensorFlow once each and go from job to
   job. TensorFlow's devices cannot change in them, and of two ``MirroredStrategy`` of other sizes
   in one process the second fails: there each of the eight jobs has two replicas, and a seed.

And the time from the fork of a job's tasks to its first step, from the second job on.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPLICAS, SEEDS = (1, 2, 3, 4), (0, 1)
BATCH, EPOCHS = 60, 3  # 60 goes evenly into all of them
AT_ONCE = 2


def train(replicas: int, seed: int, devices: int) -> None:
    """Train by Keras' ``fit`` in this process."""
    import keras
    import numpy as np
    import tensorflow as tf

    from dtrain.datasets import digits
    from dtrain.models import cnn

    cpu = tf.config.list_physical_devices("CPU")[0]
    if not tf.config.get_logical_device_configuration(cpu):
        configuration = [tf.config.LogicalDeviceConfiguration() for _ in range(devices)]
        tf.config.set_logical_device_configuration(cpu, configuration)
    keras.utils.set_random_seed(seed)
    splits = digits()
    with tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)]).scope():
        model = cnn((8, 8, 1), 10)
        model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = np.asarray(splits.train.x), np.asarray(splits.train.y)
    held = np.asarray(splits.validation.x), np.asarray(splits.validation.y)
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, validation_data=held, verbose=0)


def scripts() -> float:
    """Return the seconds of eight processes, two at a time."""

    def one(job: tuple[int, int]) -> None:
        call(__file__, "--script", *map(str, job))

    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, itertools.product(REPLICAS, SEEDS)))
    return time.perf_counter() - began


def joblib(folder: Path) -> float:
    """Return the seconds of Hydra's joblib launcher."""
    began = time.perf_counter()
    call(
        __file__, "--multirun", "hydra/launcher=joblib", f"hydra.launcher.n_jobs={AT_ONCE}",
        f"hydra.sweep.dir={folder}/joblib", "+replicas=2",
        f"+seed={listed(tuple(range(len(REPLICAS) * len(SEEDS))))}",
    )  # fmt: skip
    return time.perf_counter() - began


def dtrain(folder: Path) -> tuple[float, list[float]]:
    """Return the seconds of one sweep, and those to the first step of each job but the first."""
    began = time.perf_counter()
    call(
        "-m", "dtrain", "-m", "strategy=mirrored", f"hardware.devices={listed(REPLICAS)}",
        f"seed={listed(SEEDS)}", f"trainer.batch_size={BATCH}", f"trainer.epochs={EPOCHS}",
        f"sweep.parallel={AT_ONCE}", "tracking=none", f"output_dir={folder}",
    )  # fmt: skip
    seconds = time.perf_counter() - began
    results = [json.loads(path.read_text()) for path in folder.glob("multirun/*/*/*/result.json")]
    results.sort(key=lambda result: result["started"])
    return seconds, [result["start_seconds"] for result in results[1:]]


def listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def call(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


def hydra_application() -> None:
    import hydra
    from omegaconf import DictConfig

    @hydra.main(config_path=None, version_base="1.3")
    def main(config: DictConfig) -> None:
        train(config.replicas, config.seed, config.replicas)

    main()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    rounds = parser.parse_args().rounds
    ratios: dict[str, list[float]] = {"scripts": [], "joblib": []}
    starts: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            ours, started = dtrain(Path(folder))
            starts += started
            print(f"dtrain -m: {ours:.1f} s; from fork to first step {started}", flush=True)
            found = {"scripts": scripts()}
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                importlib.metadata.version("hydra-joblib-launcher")
                found["joblib"] = joblib(Path(folder))
        for name, seconds in found.items():
            ratios[name].append(ours / seconds)
            print(f"{name}: {seconds:.1f} s, of which dtrain -m takes {ours / seconds:.2f}")
    for name, each in ratios.items():
        if each:
            print(
                f"over {name}: {statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"
            )
    print(f"from fork to first step: {statistics.median(starts):.2f} s, at most {max(starts):.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--script"]:
        train(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[2]))
    elif "--multirun" in sys.argv:
        hydra_application()
    else:
        main()
