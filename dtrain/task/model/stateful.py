"""Models of which a layer carries its state from batch to batch: how many rows, and where not."""

from __future__ import annotations

import keras

from dtrain.config.schema import Config
from dtrain.data.sources import Splits
from dtrain.data.streams import examples_in
from dtrain.errors import UsageError
from dtrain.task import keras_internals
from dtrain.task.backends.base import Backend
from dtrain.task.model.walk import inputs


def layers(built: keras.Model) -> list[keras.Layer]:
    """Return the layers whose state is carried from batch to batch, row by row."""
    return [each for each in keras_internals.layers(built) if getattr(each, "stateful", False)]


def fixed_rows(built: keras.Model, config: Config) -> int | None:
    """Return how many examples each batch of a model must have; None where any number will do.

    A model of stateful layers that does not say has batches of ``trainer.batch_size``.
    """
    sizes = [tensor.shape[0] for tensor in inputs(built) if tensor.shape]
    declared = next((rows for rows in sizes if rows is not None), None)
    return int(config.trainer.batch_size) if declared is None and layers(built) else declared


def check(
    built: keras.Model, rows: int | None, config: Config, splits: Splits, strategy: Backend
) -> None:
    """Refuse a state that is carried from batch to batch where it cannot be that of Keras' fit.

    Raises:
        UsageError: it would be in parts, or batches have other sizes than it.
    """
    found = layers(built)
    if not found:
        return
    name, batch, held = (
        found[0].name,
        config.trainer.batch_size,
        examples_in(splits.validation) or 0,
    )
    if strategy.replicas > 1 or not strategy.abilities.sequential:
        raise UsageError(
            "model", name, "is stateful: its state is that of the rows of the last batch, of which "
            "each replica or worker would have others",
            "stateful=False, or a strategy of one replica", "strategy=one_device",
        )  # fmt: skip
    if batch != rows:
        raise UsageError(
            "trainer.batch_size", batch, f"{name} is stateful, and the model takes {rows} examples",
            "as many as the model's inputs have", f"trainer.batch_size={rows}",
        )  # fmt: skip
    if held % batch:
        raise UsageError(
            "dataset", f"{held:,} validation examples",
            f"{name} is stateful, and their last batch has {held % batch} examples and not "
            f"{batch}; Keras' fit fails there as well",
            f"a multiple of {batch} examples to validate on, or stateful=False",
            "dataset.validation_examples=0" if "validation_examples" in config.dataset else
            f"a split with {held - held % batch:,} validation examples",
        )  # fmt: skip
