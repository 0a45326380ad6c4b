"""Modules, and their data, that dtrain and its peers train (tests/test_peers.py).

``python -m tests.peer_models ORDER`` saves the weights of one, trains it by Lightning, and prints
the losses of its steps.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from torch import nn

EXAMPLES, CLASSES = 100, 3


def data() -> Any:
    """Return rows of 64 numbers, each with a class."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((EXAMPLES, 64)).astype(np.float32)
    return x, draw.integers(0, CLASSES, EXAMPLES)


def perceptron() -> nn.Module:
    """Statistics of batches."""
    return nn.Sequential(
        nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, CLASSES)
    )  # fmt: skip


def convolutions() -> nn.Module:
    """Convolutions of images of one channel."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.GELU(), nn.Conv2d(4, 8, 3), nn.GELU(),
        nn.Flatten(), nn.Linear(128, CLASSES),
    )  # fmt: skip


class Recurrent(nn.Module):
    """Eight steps of eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a number for each class."""
        return self.head(self.cell(x.reshape(-1, 8, 8))[0][:, -1])


def by_lightning(name: str, kind: str, arguments: dict[str, float], rows: list[Any]) -> list[float]:
    """Train a module on batches of the data; its weights at the beginning are in a file.

    Args:
        name: of the module.
        kind: of the optimizer.
        arguments: of it.
        rows: of each batch.
    """
    import lightning
    from safetensors.torch import save_file

    torch.manual_seed(3)
    inner = globals()[name]()
    save_file(inner.state_dict(), "begun.safetensors")
    losses: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            loss = nn.functional.cross_entropy(self.inner(x), y)
            losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> Any:
            return getattr(torch.optim, kind)(self.parameters(), **arguments)

    x, y = map(torch.from_numpy, data())
    batches = [(x[own], y[own]) for own in rows]
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))
    return losses


if __name__ == "__main__":
    print(json.dumps(by_lightning(*json.loads(sys.argv[1]))))
