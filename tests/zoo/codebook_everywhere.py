"""A VQ-VAE whose codebook is kept of sums over all replicas."""

from __future__ import annotations

from tests.zoo import codebook

DATA = "lines"
REFUSED = {"ps": "adds up over the replicas itself"}


def model(input_shape, classes):
    return codebook.model(input_shape, classes, codebook.Everywhere)
