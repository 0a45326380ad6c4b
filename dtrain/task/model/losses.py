"""What ``trainer.loss`` and ``trainer.metrics`` stand for: by the targets, by name, by target."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from dtrain.config import targets, trust
from dtrain.config.targets import AUTO, OF_AUTO, TORCH
from dtrain.config.tree import Config
from dtrain.data import nest
from dtrain.data.encoding import Encoding, Target
from dtrain.data.options import Task
from dtrain.data.sources import Arrays, Splits
from dtrain.data.target_kind import Counted
from dtrain.errors import DataError, UsageError, nearest, refuse
from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Nest, Options, Tensor
from dtrain.task.backends.runtime import framework_errors, runtime
from dtrain.task.backends.step_logs import has_own
from dtrain.task.data import reading
from dtrain.task.model.checks import LABELS_LOSS
from dtrain.task.model.named_metrics import (
    OF_ANY_OUTPUTS,
    OF_PROBABILITIES,
    LossInputs,
    inputs_of,
    keras_metric,
    named_metric,
    with_classes,
)

#: Loss and metrics of classes, and of numbers.
CLASSES = ("sparse_categorical_crossentropy", OF_AUTO[0])
NUMBERS = ("mse", OF_AUTO[1])
#: Loss and metrics of several labels, each 0 or 1.
LABELS = ("binary_crossentropy", OF_AUTO[2])
#: Losses of numbers, by their names in Keras.
_OF_NUMBERS = (
    "mse", "mean_squared_error", "mae", "mean_absolute_error", "mape", "msle", "huber", "log_cosh",
    "logcosh", "mean_absolute_percentage_error", "mean_squared_logarithmic_error",
)  # fmt: skip
#: Targets of which it is looked whether they are whole numbers: of arrays, and of what is read.
_IN_MEMORY, _READ = 100_000, 64


def settled(config: Config, splits: Splits) -> Config:
    """Return the configuration with the loss and the metrics that ``auto`` stands for.

    Args:
        config: of the run.
        splits: the data that its model is built for.
    """
    trainer = config.trainer
    loss, metrics = trainer.loss, trainer.metrics
    if loss == AUTO:
        loss = NUMBERS[0] if is_regression(config, splits) else CLASSES[0]
        loss = LABELS[0] if _are_labels(splits) else loss
    if metrics == AUTO:
        metrics = LABELS[1] if loss == LABELS[0] and _are_labels(splits) else CLASSES[1]
        if isinstance(loss, str) and loss.lower() in _OF_NUMBERS:
            metrics = NUMBERS[1] if is_regression(config, splits) else CLASSES[1]
    made = copy.copy(config)
    made.trainer = copy.copy(trainer)
    made.trainer.loss, made.trainer.metrics = loss, metrics
    return made


def take_logits(config: Config) -> None:
    """Let the loss and the metrics that ``auto`` stands for take outputs for logits.

    Args:
        config: settled.
    """
    trainer = config.trainer
    classes = {CLASSES[0]: "SparseCategoricalCrossentropy", LABELS[0]: "BinaryCrossentropy"}
    if (name := classes.get(str(trainer.loss))) is not None:
        trainer.loss = {"_target_": f"keras.losses.{name}", "from_logits": True}


def targets_notice(config: Config, splits: Splits) -> str | None:
    """Return what is to be said of targets that were taken for classes or numbers; None: nothing.

    Args:
        config: of the run, not settled.
        splits: the data that its model was built for.
    """
    parts = []
    if splits.task is Task.auto and isinstance(splits.classes, Counted):
        parts.append(splits.classes.notice)
    if config.trainer.loss == AUTO and (trainer := settled(config, splits).trainer).loss == "mse":
        parts.append(f"the targets are numbers: loss={trainer.loss}, metrics={trainer.metrics}")
    return "; ".join(filter(None, parts)) or None


def outputs(config: Config, splits: Splits, y: Nest) -> int | None:
    """Return how many numbers a model is to predict; None where the targets are no row of them.

    Args:
        config: settled.
        splits: the data.
        y: the targets of an example.
    """
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "biuf" or y.ndim > 2:
        return None
    if not _are_labels(splits) and (
        "crossentropy" in str(config.trainer.loss) or not is_regression(config, splits)
    ):
        return None
    return 1 if y.ndim == 1 else y.shape[1]


def encoding(config: Config, splits: Splits) -> Encoding | None:
    """Return how the columns of a table became the inputs; None where they are no matrix.

    Args:
        config: of the run.
        splits: its data.
    """
    if splits.encoding is None:
        return None
    made = splits.encoding()
    target = made.target
    if target is None or target.kind != "numbers" or splits.classes is None:
        return made
    if is_regression(config, splits):
        return made
    names = tuple(map(str, range(splits.count_classes() or 0)))
    return dataclasses.replace(made, target=Target(target.columns, "classes", names))


def _are_labels(splits: Splits) -> bool:
    """Whether the targets are several columns of 0 and 1."""
    if splits.encoding is None or splits.task is Task.regression:
        return False
    target = splits.encoding().target
    return target is not None and target.kind == "labels"


def is_regression(config: Config, splits: Splits) -> bool:
    """Whether the targets are one array of numbers that are no classes.

    Args:
        config: of the run whose data it is.
        splits: the data.
    """
    if splits.task is not Task.auto:
        return splits.task is Task.regression
    if config.model.get("classes") is not None:
        return False
    if isinstance(splits.classes, Counted) and splits.classes.is_regression is not None:
        return splits.classes.is_regression
    if splits.classes is not None and splits.count_classes() is not None:
        return False
    return _has_fractions(splits.train)


def is_of_numbers(loss: Foreign) -> bool:
    """Whether a loss of Keras' or PyTorch's is one of numbers."""
    function = getattr(loss, "function", loss)
    name = function if isinstance(function, str) else _loss_name(function)
    words = str(name).lower().replace("_", "")
    kinds = ("mse", "mae", "squarederror", "absoluteerror", "huber", "l1loss", "logcosh")
    return any(kind in words for kind in kinds)


def _has_fractions(source: Any) -> bool:
    """Whether there are some among the first targets, where these are one array."""
    if isinstance(source, Arrays):
        labels = source.info.labels()
        first = None if labels is None else labels[:_IN_MEMORY]
    else:
        try:
            parts = reading.first(source, _READ)
        except DataError:  # it is reported where the example is met
            return False
        first = parts[1] if len(parts) > 1 and not nest.is_nest(parts[1]) else None
    if first is None:
        return False
    first = np.asarray(first)
    return bool(first.dtype.kind == "f" and first.ndim <= 2 and (first % 1 != 0).any())


def _named(value: Any, key: str) -> Any:
    """Return a loss or metric: a name that Keras knows, or a node with a target."""
    if isinstance(value, dict) and "_target_" not in value:
        refuse(key, "has no _target_", value, accepted="a name, or a node with _target_",
               typed=f"'{key}={{_target_:keras.losses.Huber}}'")  # fmt: skip
    return targets.instantiate(value, key) if isinstance(value, dict) else value


def part_of(value: Any, key: str | int, names: Sequence[str]) -> Any:
    """Return what a value has for an output, by its name or its place; one is for all."""
    if not nest.is_nest(value):
        return value
    place = names.index(key) if key in names else key
    name = names[key] if isinstance(key, int) and key < len(names) else key
    if isinstance(value, dict):
        return value.get(name)
    return value[place] if isinstance(place, int) else None


def metrics_of(
    value: Any, key: str, loss: Foreign, example: tuple[Nest, Nest] = (None, None),
    names: Sequence[str] = (), notice: Callable[[str], None] = lambda message: None,
) -> Any:  # fmt: skip
    """Return metrics: a list of them, or lists by the names of outputs.

    Args:
        value: of the configuration.
        key: of the value.
        loss: as it is compiled, or that of the output.
        example: targets and outputs of one.
        names: of the outputs.
        notice: hears of a loss that does not say whether it takes logits.
    """
    if key == "trainer.metrics" and (isinstance(value, str) or "_target_" in value):
        value = [value]
    outputs = len(example[1]) if nest.is_nest(example[1]) else 1
    is_list = isinstance(value, list)
    several = is_list and (len(value) == outputs > 1 or any(isinstance(v, list) for v in value))
    if several or (isinstance(value, dict) and "_target_" not in value):
        pairs = enumerate(value) if is_list else value.items()
        made = {
            part: metrics_of(
                each, f"{key}[{part}]" if is_list else f"{key}.{part}",
                part_of(loss, part, names),
                (part_of(example[0], part, names), part_of(example[1], part, names)), (), notice,
            )
            for part, each in pairs
        }  # fmt: skip
        return list(made.values()) if is_list else made
    takes = _check_logits(loss, value if is_list else [value], *example, notice)
    if not is_list:
        return _metric(value, key, takes, example)
    return [_metric(each, f"{key}[{i}]", takes, example) for i, each in enumerate(value)]


def _check_logits(
    loss: Foreign, metrics: list[object], y: Nest, predicted: Nest, notice: Callable[[str], None]
) -> LossInputs:
    """Return what the loss of an output takes; report one that does not say what metrics need."""
    takes = inputs_of(loss)
    named = {m: keras_metric(m, takes, y, predicted) for m in metrics if isinstance(m, str)}
    one = tuple(getattr(predicted, "shape", ()))[1:] in ((), (1,))
    of_any = OF_ANY_OUTPUTS if one else (*OF_ANY_OUTPUTS, keras.metrics.FBetaScore)
    needing = [
        name
        for name, each in named.items()
        if isinstance(each, OF_PROBABILITIES) and not isinstance(each, of_any)
    ]
    if needing or takes.logits is not None:
        takes = inputs_of(loss, y, predicted)
    if needing and (takes.logits is None or takes.tried):
        how = "they are given the outputs as they are, as it is not known whether it takes logits"
        if takes.tried:
            how = "they are given probabilities, as it takes logits: a trial has shown it"
        notice(
            f"trainer.loss={_loss_name(loss)} does not say what it takes, and metrics such as "
            f"{', '.join(needing)} take probabilities: {how}; an attribute from_logits of the "
            "loss, True or False, says it"
        )
    return takes


def _metric(value: Any, key: str, takes: LossInputs, example: tuple[Nest, Nest]) -> Foreign:
    """Return one metric of an output."""
    if isinstance(value, str):
        return named_metric(value, takes, *example)
    if not _is_function(value, key) or not _lacks_two(value, key):
        plain, metric = runtime().PLAIN, _named(value, key)
        made = metric if plain is None else plain.metric(metric)
        own = made is metric and not keras_internals.is_of_keras(type(made))
        logits = takes.logits if hasattr(made, "separate") else False
        separate, axis = getattr(made, "separate", False), -1 if own else takes.axis
        return with_classes(made, LossInputs(logits, separate, False, axis, takes.ignored, own=own))
    made = _named({**value, "_partial_": True}, key)
    # Keras calls the metric as its function is called.
    made = functools.update_wrapper(made, made.func) if made.keywords else made.func
    if takes.ignored is None:
        return made
    name = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", made.__name__).lower()
    wrapper = keras.metrics.MeanMetricWrapper(made, name=name)
    return with_classes(wrapper, LossInputs(ignored=takes.ignored, own=True))


def _lacks_two(node: Options, key: str) -> bool:
    """Whether a function is to be called with (y_true, y_pred); else it makes a metric."""
    signature = inspect.signature(trust.locate(node["_target_"], f"{key}._target_"))
    needed = [
        name
        for name, each in signature.parameters.items()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and each.default is each.empty
    ]
    return len(needed) >= 2 and not node.keys() & set(needed[:2])


def loss_of(value: Any) -> Any:
    """Return what Keras compiles for ``trainer.loss``: one loss, or those of several outputs.

    Raises:
        UsageError: Keras knows none of that name.
    """
    if isinstance(value, dict) and "_target_" not in value:  # of each output
        return {name: None if each is None else loss_of(each) for name, each in value.items()}
    if isinstance(value, list):
        return [None if each is None else loss_of(each) for each in value]
    if isinstance(value, str) and value.startswith(TORCH):
        value = {"_target_": value}
    value = _named(
        {**value, "_partial_": True} if _is_function(value, "trainer.loss") else value,
        "trainer.loss",
    )
    if isinstance(value, str):
        try:
            return keras.losses.get(value) and value
        except ValueError:
            raise UsageError(
                "trainer.loss", "is no loss that Keras knows", value,
                accepted="a name of keras.losses, or a node with _target_",
                typed="trainer.loss=sparse_categorical_crossentropy",
            ) from None  # fmt: skip
    if isinstance(value, functools.partial) and not (value.args or value.keywords):
        value = value.func  # Keras can save its name with the model
    plain = runtime().PLAIN
    return value if plain is None else plain.loss(value)


def _is_function(node: object, key: str) -> bool:
    """Whether a node names a plain function and no class."""
    return (
        isinstance(node, dict)
        and "_target_" in node
        and not isinstance(trust.locate(node["_target_"], f"{key}._target_"), type)
    )


def build_metrics(
    built: keras.Model, x: Nest, y: Nest, predicted: Nest, weight: Tensor, configured: bool
) -> None:
    """Make the variables of a compiled model's metrics, by an example.

    Args:
        built: compiled.
        x, y, weight: of the example.
        predicted: what the model returned for it.
        configured: whether loss and metrics are of ``trainer``, and not of the model's own compile.

    Raises:
        UsageError: loss or metrics do not fit the outputs and the targets.
    """
    try:
        runtime().attempt(built, functools.partial(_compute, built, predicted), x, y, weight)
    except AttributeError:  # Keras chooses what "accuracy" means by the shape of the targets
        if y is not None:
            raise
        raise _refused(
            configured, "metrics", "...", "need targets, and the examples have none",
            "metrics that the model itself has", {"metrics": []},
        ) from None  # fmt: skip
    except framework_errors(ValueError, TypeError, KeyError, IndexError) as error:
        unknown = re.search(r"interpret metric identifier: (\w+)", str(error))
        if unknown is not None:
            near = nearest(unknown[1], [*dir(keras.metrics), "accuracy"]) or "accuracy"
            raise _refused(
                configured, "metrics", unknown[1], "is no metric that Keras knows",
                "names of keras.metrics, or nodes with _target_", {"metrics": [near]},
            ) from None  # fmt: skip
        if getattr(getattr(y, "dtype", None), "kind", "") in ("O", "S", "U"):
            raise UsageError("dataset", f"are {nest.outline(y)}", "labels",
                             accepted="whole numbers, from 0 on", hint="numpy.unique(y, "
                             "return_inverse=True)[1] in the dataset") from None  # fmt: skip
        if not has_own(built, "train_step"):
            usual: Options = {
                "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"],
            }  # fmt: skip
            if _loss_name(built.loss) == LABELS_LOSS:  # what does not fit is a metric
                del usual["loss"]
            more = ""
            if getattr(y, "shape", None) == getattr(predicted, "shape", ()):
                usual = {"loss": "categorical_crossentropy"}
                more = " of one-hot targets, mse of others"
            single = not nest.is_nest(x)
            tokens = single and x.dtype.kind in "iu" and getattr(y, "shape", None) == x.shape
            if tokens and configured:
                usual, more = {}, "model=transformer"
            reason = str(error).partition("}} ")[2].partition(" [Op:")[0] or str(error)
            raise _refused(
                configured, "loss", _loss_name(built.loss),
                f"loss and metrics do not fit the model: targets are {nest.outline(y)}, outputs "
                f"{nest.outline(nest.structured(predicted))} ({reason})",
                "a loss and metrics for this output and target, or another model", usual, more,
            ) from None  # fmt: skip
    built.reset_metrics()


def _compute(built: keras.Model, predicted: Nest, x: Nest, y: Nest, weight: Tensor) -> None:
    """Compute loss and metrics of an example, and the loss of several."""
    # The metrics of a loss are known only once it was computed, hence the order.
    mode = {"training": False}  # which keras.io's older examples do not take
    if not {"training", "kwargs"} & inspect.signature(built.compute_loss).parameters.keys():
        mode = {}
    built.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight, **mode)
    built.compute_metrics(x=x, y=y, y_pred=predicted, sample_weight=weight)
    if not has_own(built, "train_step", "compute_loss"):
        _try_loss(built, y, predicted)


def _refused(
    configured: bool, name: str, value: object, problem: str, accepted: str, usual: Options,
    more: str = "",
) -> UsageError:  # fmt: skip
    """Return the error of a loss or metrics.

    Args:
        configured: whether they are of ``trainer``, and not of the model's own ``compile``.
        name, value: ``loss`` or ``metrics``, and what it is.
        problem, accepted: as of :class:`UsageError`.
        usual: what to have for them.
        more: of the hint.
    """
    if configured:
        words = " ".join(
            f"trainer.{key}={each}" if isinstance(each, str)
            else f"'trainer.{key}=[{', '.join(each)}]'" for key, each in usual.items()
        )  # fmt: skip
        return UsageError(f"trainer.{name}", problem, value, accepted=accepted,
                          typed=None if words and more else words + more,
                          hint=words + more)  # fmt: skip
    written = ", ".join(f"{key}={each!r}" for key, each in usual.items())
    return UsageError("model", problem, f"compile({name}={value})", accepted=accepted,
                      hint=f"{written}{more} in the compile of the model's function")  # fmt: skip


def _try_loss(built: keras.Model, y: Nest, predicted: Nest) -> None:
    """Compute a loss of Keras' for several examples: of a single one more shapes go together."""
    loss: Foreign = built.loss
    if not isinstance(loss, str) and not keras_internals.is_of_keras(loss):
        return
    if nest.is_nest(y) or nest.is_nest(predicted) or y is None or not np.ndim(y):
        return
    sizes = {*np.shape(y)[1:], *predicted.shape[1:]}
    rows = next(rows for rows in itertools.count(2) if rows not in sizes)
    y, predicted = (keras.ops.repeat(each[:1], rows, axis=0) for each in (y, predicted))
    built.compute_loss(y=y, y_pred=predicted)  # as it is compiled, which brings ranks together


def _loss_name(loss: Foreign) -> object:
    if isinstance(loss, str | list | dict):
        return loss
    return getattr(loss, "__name__", type(loss).__name__)


def check_losses(built: keras.Model, y: Nest, predicted: Nest, config: Config) -> None:
    """Refuse losses and metrics of which it is not said, or not done, to which outputs they belong.

    Args:
        built: not compiled.
        y, predicted: targets and outputs of an example.
        config: of the run.
    """
    losses, outputs = config.trainer.loss, len(keras.tree.flatten(predicted))
    if isinstance(losses, list) and len(losses) != outputs:
        refuse("trainer.loss", f"the model has {outputs} outputs and not {len(losses)}", losses,
               accepted="a loss for each output",
               typed="trainer.loss=sparse_categorical_crossentropy")  # fmt: skip
    own = has_own(built, "train_step", "compute_loss")
    if outputs < 2 or own or y is None or nest.is_nest(y) or not nest.is_nest(predicted):
        return
    shape, metrics = nest.outline(nest.structured(predicted)), config.trainer.metrics
    first = min(predicted) if isinstance(predicted, dict) else 0
    if not (isinstance(losses, dict) and "_target_" not in losses):
        typed = None
        if isinstance(predicted, dict) and isinstance(losses, str):
            name = "logits" if "logits" in predicted else first
            typed = f"'trainer.loss={{{name}: {losses}}}' 'trainer.metrics={{{name}: []}}'"
        refuse("trainer.loss", f"targets are one array, and the model returns {shape}", losses,
               accepted="a loss by an output's name, one output, or a module's training_step",
               typed=typed, hint="forward returns one output, or {'logits': ...}")  # fmt: skip
    if isinstance(metrics, dict) and any(v for k, v in metrics.items() if k != first):
        empty = ", ".join(f"{name}: []" for name in metrics)
        refuse("trainer.metrics", f"targets are one array, compared with {first} alone", metrics,
               accepted="targets by the names of all outputs, or no metrics",
               typed=f"'trainer.metrics={{{empty}}}'")  # fmt: skip
