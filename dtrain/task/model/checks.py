"""Whether a model, its loss and its data go together: labels, states, probabilities."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from dtrain.config.tree import Config
from dtrain.data import nest
from dtrain.data.mixture import Mixture
from dtrain.data.sources import Arrays, Splits
from dtrain.data.streams import FIRST, Stream, examples_in
from dtrain.errors import UsageError, refuse
from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Nest
from dtrain.task.backends.base import Backend
from dtrain.task.backends.runtime import framework_errors
from dtrain.task.backends.step_logs import has_own
from dtrain.task.model.walk import inputs

#: The loss that takes classes, and its class.
LABELS_LOSS, _CLASS = "sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"
#: Labels of which it is looked whether they are whole numbers.
_LOOKED_AT = 100_000
#: Examples of which all labels are looked at.
_MOST = 10_000_000


def check_loss(built: keras.Model, configured: bool) -> str | None:
    """Refuse a loss of variables that nothing would train; say which of a loss are trained.

    Args:
        built: compiled.
        configured: by ``trainer.loss``, and not by the model's own function.

    Raises:
        UsageError: naming a variable.
    """
    trained = {id(each) for v in built.trainable_variables for each in (v, v.value)}
    own_step = has_own(built, "train_step", "compute_loss")
    of_losses = map(keras_internals.trainable_inside, keras.tree.flatten(built.loss))
    for path, variable in () if own_step else itertools.chain(*of_losses):
        if id(variable) not in trained:
            refuse("trainer.loss" if configured else "model",
                   "can be trained, and the optimizer is given those of the model", path,
                   accepted="trainable=False, requires_grad=False, or a torch.nn.Module as the "
                   "loss", hint="the variable in a layer of the model")  # fmt: skip
    of_loss = [v.name for v in built.trainable_variables if v.name.startswith("trainer.loss")]
    return f"the loss is trained with the model: {', '.join(of_loss)}" if of_loss else None


def check_labels(built: keras.Model, predicted: Nest, config: Config, splits: Splits) -> None:
    """Refuse targets that are none of the classes that a model and its loss know.

    Args:
        built: not compiled: its loss is ``trainer.loss``.
        predicted: what it returned for an example.
        config, splits: of the run.

    Raises:
        UsageError: there are more classes than outputs, a label is no class, or targets are no
            whole numbers.
    """
    loss = config.trainer.loss
    node = loss if isinstance(loss, dict) else {"_target_": loss}
    if str(node.get("_target_")).rpartition(".")[2] not in (LABELS_LOSS, _CLASS):
        return
    width = last_size(predicted)
    # A step of its own may have a loss of its own.
    if not (has_own(built, "train_step") or has_own(built, "compute_loss")):
        if isinstance(splits.train, Arrays):
            _check_whole(splits.train.info.labels())
        for split in (splits.train, splits.validation):
            _check_range(_labels(split), width, node.get("ignore_class"))
    classes = splits.count_classes() if width is not None and loss == LABELS_LOSS else None
    if classes is not None and width is not None and classes > width:
        target, typed = config.model["_target_"], None
        if target.startswith("dtrain.models.") or "classes" in config.model:
            typed = f"model.classes={classes}"
        elif width == 1 and classes == 2:  # one sigmoid
            typed = "trainer.loss=binary_crossentropy"
        refuse("model", f"has fewer than the classes of the labels, 0 to {classes - 1}",
               f"{width} outputs", accepted=f"a model with {classes} outputs or more", typed=typed,
               hint=f"{classes} in the last layer, or classes, an argument of "
               f"{target}")  # fmt: skip


def check_targets(built: keras.Model, config: Config, splits: Splits) -> None:
    """Refuse to train classes of which all examples have one.

    Args:
        built: not compiled: its loss is ``trainer.loss``.
        config, splits: of the run.

    Raises:
        UsageError: naming it.
    """
    loss, classes = config.trainer.loss, splits.classes
    name = str(loss.get("_target_") if isinstance(loss, dict) else loss).rpartition(".")[2]
    is_declared = isinstance(classes, int) and classes > 1  # by who has made the dataset
    if "crossentropy" not in name.lower().replace("_", "") or is_declared:
        return
    # A step of its own may have another use of them, and of a stream they are not all known.
    if isinstance(splits.train, Stream) or has_own(built, "train_step", "compute_loss"):
        return
    labels = _labels(splits.train)
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind not in "biuf":
        return
    if len(labels) > 1 and (labels == labels[0]).all():
        value = next(iter(splits.train.info.class_names()), f"{labels[0]:g}")
        refuse("dataset", f"all {len(labels):,} examples have it, so there is nothing to learn",
               f"target {value}", accepted="examples of two classes or more",
               hint="a dataset that has them")  # fmt: skip


def _labels(source: Any) -> np.ndarray | None:
    """Return the labels of a source, or of the first examples of a stream; None: not known."""
    if isinstance(source, Stream):
        first = source.first(FIRST)
        return np.asarray(first[1]) if len(first) > 1 and not nest.is_nest(first[1]) else None
    if source is None or isinstance(source, Mixture) or len(source) > _MOST:
        return None
    return source.info.labels()


def _check_range(values: np.ndarray | None, width: int | None, ignored: int | None) -> None:
    """Refuse labels below 0, and those from 1 to as many as there are outputs."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iuf":
        return
    values = values if ignored is None else values[values != ignored]
    if not values.size:
        return
    low, high = int(values.min()), int(values.max())
    if low < 0 or (low > 0 and high == width):
        raise label_error(f"labels are {low} to {high}", width)


def label_error(problem: str, width: int | None) -> UsageError:
    """Return the refusal of labels that are no classes."""
    accepted = "0, 1, ..." if width is None else f"0 to {width - 1}, of {width} outputs"
    return UsageError(
        "dataset", f"{problem}; classes count from 0", "labels", accepted=accepted,
        hint="y - 1 in the dataset, or, where -1 is no label, "
        "'trainer.loss={_target_:keras.losses.SparseCategoricalCrossentropy,ignore_class:-1}'",
    )  # fmt: skip


@contextlib.contextmanager
def naming_bad_labels() -> Iterator[None]:
    """Name a label that a step has found to be no class, in the place of the framework's trace."""
    try:
        yield
    except framework_errors() as error:
        match = re.search(r"label value of (-?\d+) which is outside .* \[0, (\d+)\)", str(error))
        if match is None:
            raise
        raise label_error(f"there is a label {match[1]}", int(match[2])) from None


def last_size(predicted: Nest) -> int | None:
    """Return how many outputs an array has; None of what is none, and of a scalar."""
    shape = tuple(getattr(predicted, "shape", ()))
    return shape[-1] if shape else None


def _check_whole(labels: np.ndarray | None) -> None:
    """Refuse fractions, which Keras cuts off without a word: all targets below 1 are class 0."""
    if not isinstance(labels, np.ndarray) or labels.dtype.kind != "f":
        return
    first = labels[:_LOOKED_AT]
    fractions = first[first % 1 != 0]
    if fractions.size:
        refuse("trainer.loss", "is of classes (0, 1, ...), and targets are numbers such as "
               f"{fractions[0]:.4g}", LABELS_LOSS, accepted="a loss of numbers, and metrics of "
               "numbers", typed="trainer.loss=mse 'trainer.metrics=[mae]'")  # fmt: skip


def stateful_layers(built: keras.Model) -> list[keras.Layer]:
    """Return the layers whose state is carried from batch to batch, row by row."""
    return [each for each in keras_internals.layers(built) if getattr(each, "stateful", False)]


def fixed_rows(built: keras.Model, config: Config) -> int | None:
    """Return how many examples each batch of a model must have; None where any number will do.

    A model of stateful layers that does not say has batches of ``trainer.batch_size``.
    """
    sizes = [tensor.shape[0] for tensor in inputs(built) if tensor.shape]
    declared = next((rows for rows in sizes if rows is not None), None)
    return (
        int(config.trainer.batch_size) if declared is None and stateful_layers(built) else declared
    )


def check_stateful(
    built: keras.Model, rows: int | None, config: Config, splits: Splits, strategy: Backend
) -> None:
    """Refuse a state that is carried from batch to batch where it cannot be that of Keras' fit.

    Raises:
        UsageError: it would be in parts, or batches have other sizes than it.
    """
    if not (layers := stateful_layers(built)):
        return
    name, batch = layers[0].name, config.trainer.batch_size
    held = examples_in(splits.validation) or 0
    if strategy.replicas > 1 or not strategy.abilities.sequential:
        refuse("model", "is stateful: its state is that of the rows of the last batch, of which "
               "each replica or worker would have others", name, accepted="stateful=False, or a "
               "strategy of one replica", typed="strategy=one_device")  # fmt: skip
    if batch != rows:
        refuse("trainer.batch_size", f"{name} is stateful, and the model takes {rows} examples",
               batch, accepted="as many as the model's inputs have",
               typed=f"trainer.batch_size={rows}")  # fmt: skip
    if held % batch:
        typed = "dataset.validation_examples=0" if "validation_examples" in config.dataset else None
        refuse("dataset", f"are no multiple of {batch}, and {name} is stateful",
               f"{held:,} validation examples", accepted="a multiple, or stateful=False",
               typed=typed, hint=f"a split with {held - held % batch:,} of them")  # fmt: skip


#: Losses of probabilities, by their names in small letters without underscores.
_PROBABILITY_LOSSES = {
    name.lower(): name
    for name in (
        "BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy",
        "CategoricalFocalCrossentropy", "SparseCategoricalCrossentropy",
    )
}  # fmt: skip
#: Rounding, in 16 bits too.
_TOLERANCE = 0.02


def probabilities_notice(built: keras.Model, predicted: Nest, configured: bool) -> str | None:
    """Return what is to be said of the outputs for an example; None where all is well.

    Args:
        built: compiled.
        predicted: what it returned for an example.
        configured: whether its loss is ``trainer.loss``, and not its own function's.
    """
    losses, outputs = keras.tree.flatten(built.loss), keras.tree.flatten(predicted)
    if has_own(built, "train_step", "compute_loss") or len(losses) != len(outputs):
        return None
    for loss, output in zip(losses, outputs, strict=True):
        name = _of_probabilities(loss)
        problem = None if name is None else _problem(name, keras.ops.convert_to_numpy(output))
        if problem is None and name is not None and len(outputs) == 1:
            problem = _of_the_last_layer(built)
        if problem is not None:
            hint = f"keras.losses.{name}(from_logits=True)"
            if configured:
                hint = f"'trainer.loss={{_target_:keras.losses.{name},from_logits:true}}'"
            act = "sigmoid" if name and name.startswith("Binary") else "softmax"
            return (
                f"the loss {name} takes outputs for probabilities, and {problem}; type {hint} "
                f'where they are logits, or end the model with activation="{act}"'
            )
    return None


def accumulation_notice(built: keras.Model, predicted: Nest) -> str | None:
    """Return what is to be said where gradients accumulate of losses that ignore targets.

    Args:
        built: compiled.
        predicted: what it returned for an example.
    """
    updating = keras_internals.updating(built.optimizer)
    count = getattr(updating, "gradient_accumulation_steps", None)
    outputs = [*keras.tree.flatten(predicted), *(getattr(built, "outputs", None) or ())]
    ignores = any(
        getattr(each, "ignore_class", None) is not None for each in keras.tree.flatten(built.loss)
    )
    if not count or not (
        ignores or any(keras_internals.mask(each) is not None for each in outputs)
    ):
        return None
    return (
        f"optimizer.gradient_accumulation_steps={count} averages the gradients of {count} batches, "
        "as in Keras' fit, and each batch's loss is a mean over its own targets that are not "
        "masked or ignored: where their number differs, this is not the gradient of one large batch"
    )


def _of_probabilities(loss: Foreign) -> str | None:
    """Return the name of the loss that ``loss`` is, if it takes probabilities."""
    if isinstance(loss, keras.losses.Loss):
        name, options = type(loss).__name__, loss.get_config()
    else:
        function = getattr(loss, "func", loss)
        name = loss if isinstance(loss, str) else getattr(function, "__name__", "")
        options = getattr(loss, "keywords", {})
        if not isinstance(loss, str) and not keras_internals.is_of_keras(function):
            return None
    return (
        None
        if options.get("from_logits")
        else _PROBABILITY_LOSSES.get(name.replace("_", "").lower())
    )


def _problem(name: str, output: np.ndarray) -> str | None:
    """Return what of an example's outputs is no probability."""
    if output.dtype.kind != "f" or not output.size or not np.isfinite(output).all():
        return None
    value = output.astype(np.float64)
    worst = value.flat[np.abs(value - 0.5).argmax()]
    if abs(worst - 0.5) > 0.5 + _TOLERANCE:
        return f"the model gives {worst:.4g} for an example"
    total = value.sum(-1).flat[0] if value.ndim > 1 and value.shape[-1] > 1 else 1
    if name.startswith("Binary") or abs(total - 1) <= _TOLERANCE:
        return None
    return f"those of an example add up to {total:.4g}"


def _of_the_last_layer(built: keras.Model) -> str | None:
    """Return whether the layer of the only output is linear: an example may be within 0 and 1."""
    last = built.layers[-1] if built.layers and keras_internals.is_of_keras(built) else None
    if last is None or getattr(last, "activation", None) is not keras.activations.linear:
        return None
    return f"layer {last.name} has no activation"
