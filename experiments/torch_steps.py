"""The step alone on PyTorch: ``python experiments/torch_steps.py``, minutes when quiet.

Sides train the same model on the same examples, batch 64, in one process on one core, eager:

- ``raw``: a loop that a user would write by hand, and nothing measured but the loss, which is read
  at the end. Batches are rows of tensors. Of a model of Keras' by Keras' Adam, of a plain module
  (``plain mlp``, ``plain cnn``) by ``torch.optim.AdamW``.
- ``dtrain``: the steps of ``backend=torch strategy=one_device``, with loss and accuracy.
- ``dtrain -accuracy``: the same without the metric.
- ``fit``: Keras' ``fit`` of arrays on PyTorch, with loss and accuracy; of models of Keras'.
- ``lightning``: Lightning's ``Trainer``, with loss, where it is installed; of plain modules.

With ``--processes 2`` both sides are two processes of one thread each: dtrain's ``mirrored``, and
``DistributedDataParallel`` in the loop by hand, of plain modules; the clock is that of the wall.

They run in turn, and each round begins with another of them. A ratio is the median of the ratios
round by round, with the least and the greatest; above 1 dtrain is faster. Seconds are those of the
processor (``--clock cpu``), as in ``steps.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from jax_steps import fit
from steps import BATCH, MODELS, Side, against, config_of, extremes, timed

#: Plain modules, by the model of Keras' whose data they have.
PLAIN = {"plain mlp": "mlp", "plain cnn": "cnn"}
RATE = 0.001


def perceptron(classes: int) -> Any:
    """A module of two layers."""
    from torch import nn

    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, classes))


def convolutions(classes: int) -> Any:
    """A module of two convolutions."""
    from torch import nn

    return nn.Sequential(
        nn.Flatten(), nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 32, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1600, classes),
    )  # fmt: skip


MODULES = {"plain mlp": perceptron, "plain cnn": convolutions}


def dtrain(name: str, accuracy: bool = True, processes: int = 1) -> tuple[Side, Any, Any]:
    """Return dtrain's side, an untrained model like its own, and the source of examples."""
    import keras
    from omegaconf import OmegaConf

    from dtrain.task import strategies
    from dtrain.task.data import dataset
    from dtrain.task.data.inputs import Inputs
    from dtrain.task.model import build

    config = config_of(PLAIN.get(name, name), "" if accuracy else "accuracy")
    if name in PLAIN:
        module = f"torch_steps.{MODULES[name].__name__}"
        config.model = OmegaConf.create({"_target_": module})
        config.optimizer = {"_target_": "torch.optim.AdamW", "learning_rate": RATE}
        config.trainer.loss = "torch.nn.CrossEntropyLoss"
    kind = os.environ["KERAS_TORCH_DEVICE"]
    strategy = (strategies.OneDevice if processes == 1 else strategies.Mirrored)([f"{kind}:0"])
    data = dataset.load(config)
    model = build.model(config, data.splits, strategy, 10_000, 100)
    inputs = Inputs(data.splits.train, None, BATCH, 0, order=data.order)
    steps = strategy.steps(model, inputs, jit_compile=False)

    def train(count: int) -> None:
        while count:
            now = min(count, steps.max_steps)
            steps.results(steps.train(now))
            count -= now

    other = copy.deepcopy(model.module) if name in PLAIN else keras.models.clone_model(model)
    return train, other, data.splits.train


def tensors(source: Any) -> list[Any]:
    """Return all examples as tensors, targets as PyTorch's losses take them."""
    import keras
    import numpy as np

    arrays = (np.array(part) for part in source[np.arange(len(source))])
    x, y = (keras.ops.convert_to_tensor(array) for array in arrays)
    return [x, y.long()]


def raw(model: Any, source: Any, share: tuple[int, int] = (0, 1)) -> Side:
    """Return a loop by hand.

    Args:
        model: of Keras' or a module, perhaps in ``DistributedDataParallel``.
        source: of the examples.
        share: which of how many parts of each batch is trained on.
    """
    import keras
    import numpy as np
    import torch

    x, y = tensors(source)
    random, size = np.random.default_rng(0), BATCH // share[1]
    if isinstance(model, keras.Model):
        weights, adam = model.trainable_variables, keras.optimizers.Adam(RATE)
        adam.build(weights)
        crossentropy = keras.losses.SparseCategoricalCrossentropy()

        def step(x: Any, y: Any) -> Any:
            loss = crossentropy(y, model(x, training=True))
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                adam.apply([weight.value.grad for weight in weights], weights)
            return loss.detach()
    else:
        optimizer = torch.optim.AdamW(model.parameters(), RATE)
        loss_of = torch.nn.CrossEntropyLoss()

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

    def train(count: int) -> None:
        model.train()
        losses = []
        for _ in range(count):
            rows = random.integers(0, len(x), BATCH)[share[0] * size : (share[0] + 1) * size]
            rows = torch.from_numpy(rows)
            losses.append(step(x[rows], y[rows]))
        torch.stack(losses).tolist()

    return train


def lightning(module: Any, source: Any) -> Side:
    """Return Lightning's ``Trainer``, which reads batches as the loop by hand does."""
    import lightning
    import numpy as np
    import torch

    x, y = tensors(source)
    random = np.random.default_rng(0)

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            while True:
                rows = torch.from_numpy(random.integers(0, len(x), BATCH))
                yield x[rows], y[rows]

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.loss = module, torch.nn.CrossEntropyLoss()

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            return self.loss(self.module(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), RATE)

    model, loader = Module(), torch.utils.data.DataLoader(Batches(), batch_size=None)

    def train(count: int) -> None:
        trainer = lightning.Trainer(
            accelerator="auto", max_steps=count, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, loader)

    return train


def measured(
    name: str, pairs: int, seconds: float, only: list[str], clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Return the seconds of a step of each side, round by round."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    own, model, source = dtrain(name)
    sides = {"dtrain": own, "raw": raw(model, source)}
    if "dtrain -accuracy" in only:
        sides["dtrain -accuracy"] = dtrain(name, accuracy=False)[0]
    if "fit" in only and name in MODELS:
        arrays = [np.asarray(part) for part in source[np.arange(len(source))]]
        sides["fit"] = fit(keras.models.clone_model(model), arrays)
    if "lightning" in only and name in PLAIN and importlib.util.find_spec("lightning"):
        sides["lightning"] = lightning(copy.deepcopy(model), source)
    sides = {side: train for side, train in sides.items() if side in only}
    return timed(sides, pairs, seconds, clock, 20)


def process(rank: int, size: int, port: int, name: str, arguments: Any, pipe: Any) -> None:
    """Take both sides' part in rounds of several processes, which the first one measures."""
    import torch

    from dtrain.run.cluster import Cluster, Task
    from dtrain.task.backends.torch import hardware

    torch.set_num_threads(1)
    roles = [("chief", 0), *(("worker", index) for index in range(size - 1))]
    tasks = tuple(Task(role, index, 1, device=at) for at, (role, index) in enumerate(roles))
    cluster = Cluster(tasks, "cpu", size, {}).at([f"127.0.0.1:{port}"] * size)
    hardware.join(cluster, cluster.tasks[rank], 600)
    own, module, source = dtrain(name, accuracy=False, processes=size)
    other = raw(torch.nn.parallel.DistributedDataParallel(module), source, (rank, size))
    sides, count, times = {"dtrain": own, "ddp": other}, arguments.steps, {"dtrain": [], "ddp": []}
    for number in range(arguments.pairs + 1):  # the first is not measured
        for side in [*sides][:: 1 if number % 2 else -1]:
            torch.distributed.barrier()
            begin = time.perf_counter()
            sides[side](count)
            torch.distributed.barrier()
            times[side].append((time.perf_counter() - begin) / count)
    if rank == 0:
        pipe.send({side: values[1:] for side, values in times.items()})
    os._exit(0)


def several(name: str, arguments: Any) -> dict[str, list[float]]:
    """Return the seconds of a step of each side, in several processes, round by round."""
    import multiprocessing

    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    size = arguments.processes
    started = [
        context.Process(target=process, args=(rank, size, port, name, arguments, theirs))
        for rank in range(size)
    ]
    for each in started:
        each.start()
    times: dict[str, list[float]] = ours.recv()
    for each in started:
        each.join()
    return times


def main() -> None:
    names = [*itertools.chain(MODELS, PLAIN)]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7, help="rounds of all sides (default: 7)")
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--sides", nargs="+", default=["dtrain", "raw", "dtrain -accuracy", "fit", "lightning"]
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of a side in a round")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="cpu")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100, help="of a round of several processes")
    arguments = parser.parse_args()
    environment = {
        "KERAS_BACKEND": "torch",
        "KERAS_TORCH_DEVICE": arguments.device,
        "DTRAIN_TRUST": "torch_steps",
    }
    os.environ.update(environment)
    if arguments.processes == 1 and arguments.device == "cpu":
        # ORDER: before PyTorch is imported, whose threads are as many as the cores.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    for name in arguments.models:
        if arguments.processes > 1:
            times = several(name, arguments) if name in PLAIN else {}
        else:
            times = measured(name, arguments.pairs, arguments.seconds, arguments.sides, clock)
        if times:
            print(f"| {name} | {' | '.join(against(times, extremes))} |", flush=True)


if __name__ == "__main__":
    main()
