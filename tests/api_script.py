"""A script as users have them: classes of its own, a run that is interrupted, resumed, compared."""

import glob
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import dtrain

UNITS = 16


class Scaled:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return x * self.by


def build(input_shape, classes):
    import keras

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled(0.5)
            self.hidden = keras.layers.Dense(UNITS, activation="relu")
            self.out = keras.layers.Dense(classes, activation="softmax")

        def call(self, x):
            return self.out(self.hidden(self.scaled(x)))

    return Net()


def interrupt(label):
    """Press Ctrl-C once there is a checkpoint."""
    while True:
        time.sleep(0.1)
        for path in glob.glob(f"outputs/2*/*_{label}/journal.jsonl"):
            if '"event": "checkpoint"' in Path(path).read_text():
                os.kill(os.getpid(), signal.SIGINT)
                return


if __name__ == "__main__":
    [strategy] = sys.argv[1:]
    y = np.random.default_rng(0).integers(0, 4, size=512)
    x = np.eye(4, dtype="float32")[y]
    several = {"mirrored": {"devices": 2}, "multiworker": {"hosts": 2}, "ps": {"workers": 2}}
    given = {"model": build, "data": (x, y), "strategy": strategy, **several[strategy]}
    given |= {"batch_size": 32, "tracking": "none"}
    threading.Thread(target=interrupt, args=("stopped",), daemon=True).start()
    stopped = dtrain.train(**given, epochs=100_000, name="stopped")
    assert stopped.status == "KILLED", stopped
    epoch = stopped.history[-1]["epoch"] + 2
    resumed = stopped.resume(epochs=epoch)
    assert resumed.status == "FINISHED", resumed
    assert resumed.history[-1]["epoch"] == epoch
    other = dtrain.train(**given, epochs=2)
    rows = dtrain.compare([resumed, other]).table()
    assert len(rows) == 2, rows
    assert dtrain.evaluate(resumed)["loss"] < 1.5
    assert "tensorflow" not in sys.modules
    several = [resumed.model(which) for which in ("best", "latest", "latest")]  # in one process
    predicted = [np.asarray(model(x[:2])) for model in several]
    assert (predicted[1] == predicted[2]).all()
