"""What a step draws is a function of the seed, the step and the replica: so a resumed run repeats.

Layers of Keras' without a seed, and modules of PyTorch's, draw from its global generator, and code
of the user's perhaps from those of Python and NumPy: they are seeded before each step. Layers with
a seed have a state of two numbers, which every replica keeps the same, and which checkpoints have:
the draw is by their sum. So replicas draw by states that differ by a hash; by the number of the
replica one would draw what another draws at its next step.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import keras
import torch

from dtrain.task.backends import host
from dtrain.task.backends.torch.keras_internals import change

#: Part of the path of a variable in which Keras keeps the state of a seed.
STATE = "seed_generator_state"


def hashed(*numbers: int) -> int:
    """Return 31 bits that are a function of some whole numbers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


@contextlib.contextmanager
def _seeded(number: int) -> Iterator[None]:
    """Seed the global generators of this process, and those of its devices."""
    with host.seeded(number):
        # Not torch.manual_seed, which keeps each call, and where it came from, for GPUs to come.
        torch.default_generator.manual_seed(number)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(number)
        yield


class Draws:
    """The generators of a model.

    Args:
        model: built.
        seed: of the experiment.
        rank: of the replica.
    """

    def __init__(self, model: keras.Model, seed: int, rank: int):
        self._seed, self._rank = seed, rank
        self.states = [v for v in model.non_trainable_variables if STATE in v.path]
        self.words = [variable.value[:1] for variable in self.states]

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Let a training step draw inside what this replica draws in it."""
        # In place: the states are parameters of the layers, too.
        offset = hashed(self._seed, self._rank) if self._rank and self.words else 0
        if offset:
            change("add_", self.words, offset)
        try:
            with _seeded(hashed(self._seed, number, self._rank)):
                yield
        finally:
            if offset:
                change("add_", self.words, -offset)

    def state(self) -> tuple[object, ...]:
        """Return what tells whether anything was drawn since."""
        cuda = torch.cuda.get_rng_state().tolist() if torch.cuda.is_available() else []
        own = [variable.value.tolist() for variable in self.states]
        return own, torch.get_rng_state().tolist(), cuda, str(host.state())

    @contextlib.contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """Let an evaluation draw inside by the number of its batch, whichever replica has it."""
        before = [variable.value.clone() for variable in self.states]
        change("add_", self.words, hashed(number))
        try:
            with _seeded(hashed(self._seed, number)):
                yield
        finally:
            change("copy_", [variable.value for variable in self.states], before)
