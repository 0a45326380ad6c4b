"""From the configuration to a compiled, built model inside a strategy's scope."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from dtrain.config import callables, targets
from dtrain.config.schema import Config
from dtrain.data import nest
from dtrain.data.sources import Splits
from dtrain.errors import DtrainError, UsageError, nearest
from dtrain.task import keras_internals
from dtrain.task.backends.base import Backend
from dtrain.task.backends.runtime import framework_errors, runtime
from dtrain.task.backends.step_logs import has_own
from dtrain.task.data import reading
from dtrain.task.model import (
    class_labels,
    default_loss,
    finetune,
    first_call,
    optimizers,
    probabilities,
    scores,
    stateful,
)


def model(
    config: Config,
    splits: Splits,
    strategy: Backend,
    total_steps: int,
    steps_per_epoch: int,
    trains: bool = True,
    more: Callable[[Config, Any], list[keras.metrics.Metric]] = lambda config, predicted: [],
    notice: Callable[[str | None], None] = lambda message: None,
) -> keras.Model:
    """Build and compile the model inside the strategy's scopes.

    A model that its own function has compiled stays as it is; ``optimizer``, ``trainer.loss`` and
    ``trainer.metrics`` then do not apply.

    Args:
        config: the whole configuration.
        splits: gives the shape of an example and the number of classes.
        strategy: decides how variables are created.
        total_steps: of the run, for learning-rate schedules.
        steps_per_epoch: likewise.
        trains: whether it is to be trained; without, its optimizers get no slots.
        more: makes metrics beside those of the configuration, of that, with its loss and metrics
            settled, and of what the model has predicted.
        notice: reports what the user should know.

    Returns:
        The model with all variables made: weights, optimizer slots, metrics.

    Raises:
        UsageError: model and data do not fit, or a target is wrong.
    """
    keras.utils.set_random_seed(config.seed)
    # Eager, on the CPU: shapes and types for everything that is built.
    example = _arrays(reading.first(splits.train, 1))
    x, y, weight = keras.utils.unpack_x_y_sample_weight(example)
    shapes = _shapes(splits, config)
    counts: list[int | None] = []

    def classes() -> int | None:  # for a model that takes it alone: all targets are read for it
        counts.append(splits.count_classes())
        return counts[-1]

    config = default_loss.settled(config, splits)
    # ORDER: everything that creates variables runs here, once, outside the replicas: inside a
    # replica TensorFlow refuses new variables, or makes them once a replica.
    with strategy.scope():
        try:
            with runtime().building():
                built = targets.instantiate(
                    config.model, "model", input_shape=shapes, classes=classes,
                    outputs=default_loss.outputs(config, splits, y),
                    encoding=lambda: default_loss.encoding(config, splits),
                )  # fmt: skip
        except Exception as error:
            if counts == [None] and not isinstance(error, DtrainError):
                error.add_note(_without_classes(y))
            raise
        if not isinstance(built, keras.Model):
            raise UsageError(
                "model._target_", config.model._target_, f"returned {type(built).__name__}",
                "a function or class that makes a keras.Model",
                "the model behind `return` in the function" if built is None else "model=cnn",
            )  # fmt: skip
        if trains:
            refuse_methods(built, "fit", "make_train_function")
        if splits.validation is not None:
            refuse_methods(built, "evaluate", "make_test_function")
        rows = stateful.fixed_rows(built, config)
        stateful.check(built, rows, config, splits, strategy)
        if rows is not None:
            example = tuple(nest.mapped(lambda leaf, n=rows: np.repeat(leaf, n, axis=0), example))
            x, y, weight = keras.utils.unpack_x_y_sample_weight(example)
        predicted = failed = None
        if _has_call(built):  # a class with a train_step of its own may do without
            try:
                with callables.blame("model", config.model, config.model._target_):
                    predicted = first_call.predicted(built, x)
            except Exception as error:
                if not has_own(built, "train_step"):
                    raise
                failed = error  # its step need not call it, or with something else
        else:
            built.built = True  # as a call would say: its weights are counted, and saved at the end
    _check_plain(built, strategy)
    runtime().rematerialize(built, config.hardware.remat)
    with strategy.scope():
        finetune.enable_lora(built, config.finetune.lora)
    finetune.prepare(built, config.finetune)
    if not built.compiled:  # else it has a loss of its own
        class_labels.check(built, predicted, config, splits)
        if failed is None:
            _check_losses(predicted, config)
    with strategy.optimizer_scope():
        chosen = None
        if not built.compiled:
            node = dict(config.optimizer)
            chosen = optimizer(node, total_steps, steps_per_epoch)
    with strategy.scope():
        if chosen is not None:
            trainer = config.trainer
            built.compile(
                optimizer=chosen,
                loss=_loss(trainer.loss),
                loss_weights=trainer.loss_weights,
                metrics=_with(
                    _metrics(trainer.metrics, "trainer.metrics", trainer.loss),
                    more(config, predicted),
                ),
                jit_compile=False,  # ours to do: steps.py compiles the whole step
            )
        if predicted is not None:
            if trains:
                notice(probabilities.notice(built, predicted, chosen is not None))
            _build_metrics(built, x, y, predicted, weight, chosen is not None)
        if failed is not None:
            part = max(1, config.trainer.batch_size // strategy.parts)
            example = reading.first(splits.train, reading.available(splits.train, part))
            try:
                first_call.by_step(built, example)
            except Exception:
                raise failed from None
    _check_optimizer(built, strategy)
    strategy.place(built)  # ORDER: before its slots, which lie where their variable does
    if trains:
        with strategy.optimizer_scope():
            optimizers.build(built, strategy, example)
        finetune.scale_rates(built, config.finetune.learning_rates)
    return built


def refuse_methods(built: keras.Model, *methods: str) -> None:
    """Refuse methods of the model's own that Keras' fit, evaluate or predict are or call.

    dtrain calls none of them: its own loop runs the model's steps.

    Raises:
        UsageError: naming one.
    """
    for name in methods:
        if has_own(built, name):
            raise UsageError(
                "model", f"{type(built).__name__}.{name}",
                "is a method of its own that would never be called: dtrain has a loop of its own, "
                "which calls the model's steps",
                "train_step, test_step, predict_step, compute_loss, compute_metrics, "
                "get_metrics_result, and callbacks",
                f"what {name} does, in a {_STEP_OF[name]} of the class",
            )  # fmt: skip


#: Which step has the place of a method.
_STEP_OF = {
    "fit": "train_step", "make_train_function": "train_step",
    "evaluate": "test_step", "make_test_function": "test_step",
    "predict": "predict_step", "make_predict_function": "predict_step",
}  # fmt: skip


def _without_classes(y: Any) -> str:
    found = "no targets" if y is None else f"targets that are no class labels ({nest.outline(y)})"
    return (
        f"classes is None, as the dataset has {found}; a model of classes takes whole numbers "
        "[n], as y.argmax(-1) has them of one-hot rows; another needs no argument classes"
    )


def _arrays(example: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(nest.mapped(np.asarray, example))


def _shapes(splits: Splits, config: Config) -> Any:
    """Return the shape of an input without its first axis; of several, their structure of shapes.

    None stands in the place of a length that differs by batch.

    Raises:
        UsageError: a model of dtrain's own takes one input, and the dataset has several.
    """
    target, x = config.model["_target_"], reading.specs(splits.train, 1)[0]
    if nest.is_nest(x) and target.startswith("dtrain.models."):
        raise UsageError(
            "model._target_", target, f"takes one input, and the dataset has {nest.outline(x)}",
            "a dataset with one input, or a model of your own", "dataset.inputs=COLUMN",
        )  # fmt: skip
    return nest.mapped(lambda leaf: tuple(leaf.shape[1:]), x)


def _check_plain(built: keras.Model, strategy: Backend) -> None:
    """Refuse variables that Keras has in no list, where only those in its lists are trained."""
    plain = keras_internals.plain_variables(built)
    if plain and not strategy.abilities.plain_variables:
        of_keras = isinstance(plain[0][1], keras.Variable)
        kind = "keras.Variable of no layer" if of_keras else "tf.Variable"
        raise UsageError(
            "model", plain[0][0], f"is a {kind}, which this strategy has no place for",
            "self.add_weight(..., trainable=False), or another strategy", "strategy=mirrored",
        )  # fmt: skip


def _has_call(built: keras.Model) -> bool:
    return has_own(built, "call") or not has_own(built, "train_step")


def _check_optimizer(built: keras.Model, strategy: Backend) -> None:
    """Refuse a model that its own function has compiled with ``optimizer=None``, where one is used.

    A ``train_step`` of its own may do without.
    """
    if built.optimizer is None and not (
        has_own(built, "train_step") and strategy.abilities.several_optimizers
    ):
        raise UsageError(
            "model", type(built).__name__, "was compiled without an optimizer",
            "a model with one, or with a train_step of its own on default, one_device, mirrored, "
            "central_storage or multiworker", "optimizer=adam with a model that is not compiled",
        )  # fmt: skip


def optimizer(
    node: dict[str, Any] | None, total_steps: int, steps_per_epoch: int
) -> keras.optimizers.Optimizer:
    """Build the optimizer of the ``optimizer`` group, with its learning-rate schedule.

    ``schedule`` is a node whose target takes ``learning_rate``, ``total_steps`` and
    ``steps_per_epoch`` (:mod:`dtrain.schedules`), or None for a constant rate. One of Keras' begins
    with that rate, and lasts as long as the run, unless the node says otherwise.

    Raises:
        UsageError: there is no node, its schedule lacks a rate, or Keras does not take its values.
    """
    if not node or "_target_" not in node:  # with ~optimizer its schedule is still there
        raise UsageError(
            "optimizer", None, "there is none to compile the model with",
            "an optimizer, or a model that its own function compiles", "optimizer=adam",
        )  # fmt: skip
    node = dict(node)
    schedule = node.pop("schedule", None)
    rate = node.get("learning_rate")
    if rate is None:
        node.pop("learning_rate", None)
    if schedule is not None:
        names = ("learning_rate", "total_steps")
        if rate is None and schedule["_target_"].startswith("dtrain."):
            raise UsageError(
                "optimizer.learning_rate", None, "the schedule needs the highest rate",
                "a number above 0", "optimizer.learning_rate=0.001",
            )  # fmt: skip
        if schedule["_target_"].startswith("keras."):
            names = ("initial_learning_rate", "decay_steps")
        derived = dict(zip(names, (rate, total_steps), strict=True))
        node["learning_rate"] = targets.instantiate(
            schedule, "optimizer.schedule", steps_per_epoch=steps_per_epoch,
            **{name: value for name, value in derived.items() if value is not None},
        )  # fmt: skip
    made: keras.optimizers.Optimizer = targets.instantiate(node, "optimizer")
    return made


def _named(value: Any, key: str) -> Any:
    """Return a loss or metric: a name that Keras knows, or a node with a target."""
    if isinstance(value, dict) and "_target_" not in value:
        raise UsageError(key, value, "has no _target_", "a name, or a node with _target_",
                         f"'{key}={{_target_:keras.losses.Huber}}'")  # fmt: skip
    return targets.instantiate(value, key) if isinstance(value, dict) else value


def _metrics(value: Any, key: str, loss: Any) -> Any:
    """Return metrics: a list of them, or lists by the names of outputs.

    Args:
        value: of the configuration.
        key: of the value.
        loss: ``trainer.loss``, or that of the output.
    """
    if key == "trainer.metrics" and (isinstance(value, str) or "_target_" in value):
        value = [value]
    if isinstance(value, dict) and "_target_" not in value:
        losses = loss if isinstance(loss, dict) else {}
        return {
            name: _metrics(each, f"{key}.{name}", losses.get(name, loss))
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [_metrics(each, f"{key}[{index}]", loss) for index, each in enumerate(value)]
    if isinstance(value, str):
        return scores.named(value, loss)
    if not _is_function(value, key) or not _lacks_two(value, key):
        return scores.with_classes(_named(value, key))
    made = _named({**value, "_partial_": True}, key)
    # Keras calls the metric as its function is called.
    return functools.update_wrapper(made, made.func) if made.keywords else made.func


def _lacks_two(node: dict[str, Any], key: str) -> bool:
    """Whether a function is to be called with (y_true, y_pred); else it makes a metric."""
    signature = inspect.signature(targets.locate(node["_target_"], f"{key}._target_"))
    needed = [
        name
        for name, each in signature.parameters.items()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and each.default is each.empty
    ]
    return len(needed) >= 2 and not node.keys() & set(needed[:2])


def _with(metrics: Any, more: list[keras.metrics.Metric]) -> Any:
    """Return metrics and some more, which are left out where there are several outputs."""
    return [*metrics, *more] if isinstance(metrics, list) else metrics


def _loss(value: Any) -> Any:
    if isinstance(value, dict) and "_target_" not in value:  # of each output
        return {name: None if each is None else _loss(each) for name, each in value.items()}
    if isinstance(value, list):
        return [None if each is None else _loss(each) for each in value]
    value = _named(
        {**value, "_partial_": True} if _is_function(value, "trainer.loss") else value,
        "trainer.loss",
    )
    if isinstance(value, str):
        try:
            return keras.losses.get(value) and value
        except ValueError:
            raise UsageError(
                "trainer.loss", value, "is no loss that Keras knows",
                "a name of keras.losses, or a node with _target_",
                "trainer.loss=sparse_categorical_crossentropy",
            ) from None  # fmt: skip
    if isinstance(value, functools.partial) and not (value.args or value.keywords):
        return value.func  # Keras can save its name with the model
    return value


def _is_function(node: Any, key: str) -> bool:
    """Whether a node names a plain function and no class."""
    return (
        isinstance(node, dict)
        and "_target_" in node
        and not isinstance(targets.locate(node["_target_"], f"{key}._target_"), type)
    )


def _build_metrics(
    built: keras.Model, x: Any, y: Any, predicted: Any, weight: Any, configured: bool
) -> None:
    try:
        # The metrics of a loss are known only once it was computed, hence the order.
        mode = {"training": False}  # which keras.io's older examples do not take
        if not {"training", "kwargs"} & inspect.signature(built.compute_loss).parameters.keys():
            mode = {}
        built.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight, **mode)
        built.compute_metrics(x=x, y=y, y_pred=predicted, sample_weight=weight)
        if not has_own(built, "train_step", "compute_loss"):
            _try_loss(built, y, predicted)
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
            near = nearest(unknown[1], [*dir(keras.metrics), "accuracy"]) or "NAME"
            raise _refused(
                configured, "metrics", unknown[1], "is no metric that Keras knows",
                "names of keras.metrics, or nodes with _target_", {"metrics": [near]},
            ) from None  # fmt: skip
        if getattr(getattr(y, "dtype", None), "kind", "") in ("O", "S", "U"):
            raise UsageError(
                "dataset", "labels", f"are {nest.outline(y)}", "whole numbers, from 0 on",
                "numpy.unique(y, return_inverse=True)[1] in the dataset",
            ) from None  # fmt: skip
        if not has_own(built, "train_step"):
            usual: dict[str, Any] = {
                "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"],
            }  # fmt: skip
            if _loss_name(built.loss) == class_labels.LOSS:  # what does not fit is a metric
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


def _refused(
    configured: bool, name: str, value: Any, problem: str, accepted: str, usual: dict[str, Any],
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
        words = {f"trainer.{key}": each for key, each in usual.items()}
        typed = (
            f"{key}={each}" if isinstance(each, str) else f"'{key}=[{', '.join(each)}]'"
            for key, each in words.items()
        )
        return UsageError(f"trainer.{name}", value, problem, accepted, " ".join(typed) + more)
    written = ", ".join(f"{key}={each!r}" for key, each in usual.items())
    hint = f"{written}{more} in the compile of the model's function"
    return UsageError("model", f"compile({name}={value})", problem, accepted, hint)


def _try_loss(built: keras.Model, y: Any, predicted: Any) -> None:
    """Compute a loss of Keras' for several examples: of a single one more shapes go together."""
    loss: Any = built.loss
    if not isinstance(loss, str) and not keras_internals.is_of_keras(loss):
        return
    if nest.is_nest(y) or nest.is_nest(predicted) or y is None or not np.ndim(y):
        return
    sizes = {*np.shape(y)[1:], *predicted.shape[1:]}
    rows = next(rows for rows in itertools.count(2) if rows not in sizes)
    y, predicted = (keras.ops.repeat(each[:1], rows, axis=0) for each in (y, predicted))
    built.compute_loss(y=y, y_pred=predicted)  # as it is compiled, which brings ranks together


def _loss_name(loss: Any) -> Any:
    if isinstance(loss, str | list | dict):
        return loss
    return getattr(loss, "__name__", type(loss).__name__)


def _check_losses(predicted: Any, config: Config) -> None:
    losses, outputs = config.trainer.loss, len(keras.tree.flatten(predicted))
    if isinstance(losses, list) and len(losses) != outputs:
        raise UsageError(
            "trainer.loss", losses, f"the model has {outputs} outputs and not {len(losses)}",
            "a loss for each output", "trainer.loss=sparse_categorical_crossentropy",
        )  # fmt: skip
