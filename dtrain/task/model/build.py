"""From the configuration to a compiled, built model inside a strategy's scope."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np

from dtrain.config import targets
from dtrain.config.targets import AUTO
from dtrain.config.tree import Config
from dtrain.data import nest
from dtrain.data.encoding import Encoding
from dtrain.data.sources import Splits
from dtrain.errors import DtrainError, UsageError, refuse
from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Nest, Options
from dtrain.task.backends.base import Backend
from dtrain.task.backends.runtime import runtime
from dtrain.task.backends.step_logs import has_own
from dtrain.task.data import reading
from dtrain.task.model import checks, finetune, losses, optimizers, train_state
from dtrain.task.model.probabilities import note_logits


def model(
    config: Config, splits: Splits, strategy: Backend, total_steps: int, steps_per_epoch: int,
    trains: bool = True,
    more: Callable[[Config, Nest], list[keras.metrics.Metric]] = lambda config, predicted: [],
    notice: Callable[[str | None], None] = lambda message: None,
) -> keras.Model:  # fmt: skip
    """Build and compile the model inside the strategy's scopes.

    A model that its own function has compiled stays as it is; ``optimizer``, ``trainer.loss`` and
    ``trainer.metrics`` then do not apply.

    Args:
        config: the whole configuration.
        splits: gives the shape of an example and the number of classes.
        strategy: decides how variables are created.
        total_steps: of the run, for learning-rate schedules.
        steps_per_epoch: of the run, for learning-rate schedules by epoch.
        trains: whether it is to be trained; without, its optimizers get no slots.
        more: makes metrics beside those of the configuration, of that, with its loss and metrics
            settled, and of what the model has predicted.
        notice: reports what the user should know.

    Returns:
        The model with all variables made: weights, optimizer slots, metrics.

    Raises:
        UsageError: model and data do not fit, or a target is wrong.
    """
    strategy.gradient_reduction = config.trainer.gradient_reduction
    with runtime().alone():
        keras.utils.set_random_seed(config.seed)
    # Eager, on the CPU: shapes and types for everything that is built.
    example = runtime().computed(reading.first(splits.train, 1))
    x, y, weight = keras.utils.unpack_x_y_sample_weight(example)
    shapes = _shapes(splits, config)
    counts: list[int | None] = []

    def classes() -> int | None:  # for a model that takes it alone: all targets are read for it
        counts.append(splits.count_classes())
        return counts[-1]

    encodings: list[Encoding | None] = []

    def encoding() -> Encoding | None:  # whose model takes it, prepares the matrix itself
        encodings.append(losses.encoding(config, splits))
        return encodings[-1]

    plain, is_auto = runtime().PLAIN, config.trainer.loss == AUTO
    config, prepared = losses.settled(config, splits), None

    def create(shapes: Nest) -> Foreign:
        with runtime().building():
            return targets.instantiate(
                config.model, "model", input_shape=shapes, classes=classes,
                outputs=losses.outputs(config, splits, y), encoding=encoding,
            )  # fmt: skip

    # ORDER: everything that creates variables runs here, once, outside the replicas: inside a
    # replica TensorFlow refuses new variables, or makes them once a replica.
    with strategy.scope():
        try:
            built = create(shapes)
            if plain is not None and not encodings:
                prepared = plain.prepared(built, losses.encoding(config, splits))
            if prepared is not None and (prepared.width,) != shapes:
                # A function does not say what it returns before it is called.
                with runtime().alone():
                    keras.utils.set_random_seed(config.seed)
                built = create((prepared.width,))
        except Exception as error:
            if y is None and isinstance(error, UsageError) and error.key == "model.classes":
                raise UsageError("dataset.target", "no target is named, and this model predicts "
                                 "one", "null", accepted="a column, or what the dataset calls it",
                                 hint="dataset.target=COLUMN") from None  # fmt: skip
            if counts == [None] and not isinstance(error, DtrainError):
                error.add_note(_without_classes(y))
            raise
        if plain is not None:
            built = plain.as_model(built, config.hardware.precision, x, prepared)
        if not isinstance(built, keras.Model):
            hint = "the model behind `return` in the function" if built is None else "model=cnn"
            if any(kind.__module__ == "torch.nn.modules.module" for kind in type(built).__mro__):
                hint = "backend=torch"
            refuse("model._target_", f"returned {type(built).__name__}", config.model._target_,
                   accepted="a function or class that makes a keras.Model", hint=hint)  # fmt: skip
        if trains:
            refuse_methods(built, "fit", "make_train_function")
        if splits.validation is not None:
            refuse_methods(built, "evaluate", "make_test_function")
        rows = checks.fixed_rows(built, config)
        checks.check_stateful(built, rows, config, splits, strategy)
        if rows is not None:
            example = tuple(nest.mapped(lambda leaf, n=rows: np.repeat(leaf, n, axis=0), example))
            x, y, weight = keras.utils.unpack_x_y_sample_weight(example)
        predicted = failed = None
        # A class with a train_step of its own may do without a call.
        if has_own(built, "call") or not has_own(built, "train_step"):
            try:
                with targets.blame("model", config.model, config.model._target_):
                    predicted = _predicted(built, x)
            except Exception as error:
                if prepared is not None:
                    error.add_note(f"the module gets float32 [b, {prepared.width}] of the table: "
                                   f"input_shape is ({prepared.width},)")  # fmt: skip
                if not has_own(built, "train_step"):
                    raise
                failed = error  # its step need not call it, or with something else
        else:
            built.built = True  # as a call would say: its weights are counted, and saved at the end
    _check_plain(built, strategy)
    finetune.rematerialize(built, config.hardware.remat)
    with strategy.scope():
        finetune.enable_lora(built, config.finetune.lora)
    finetune.prepare(built, config.finetune)
    if is_auto and plain is not None and plain.returns_logits(built):
        losses.take_logits(config)
    if not built.compiled:  # else it has a loss of its own
        checks.check_labels(built, predicted, config, splits)
        if trains:
            checks.check_targets(built, config, splits)
        if failed is None:
            losses.check_losses(built, y, predicted, config)
    with strategy.optimizer_scope():
        chosen = None
        if not built.compiled:
            node = dict(config.optimizer)
            chosen = optimizer(node, total_steps, steps_per_epoch)
    with strategy.scope():
        if chosen is not None:
            trainer = config.trainer
            loss = losses.loss_of(trainer.loss)
            metrics = losses.metrics_of(
                trainer.metrics, "trainer.metrics", loss, (y, predicted),
                getattr(built, "output_names", None) or (), notice if trains else (lambda _: None),
            )  # fmt: skip
            if isinstance(metrics, list):  # of one output
                metrics = [*metrics, *more(config, predicted)]
            built.compile(
                optimizer=chosen,
                loss=loss,
                loss_weights=trainer.loss_weights,
                metrics=metrics,
                jit_compile=False,  # ours to do: steps.py compiles the whole step
            )
        if trains and (message := checks.check_loss(built, chosen is not None)):
            notice(message)
        if predicted is not None:
            if trains:
                notice(checks.probabilities_notice(built, predicted, chosen is not None))
                notice(checks.accumulation_notice(built, predicted))
            losses.build_metrics(built, x, y, predicted, weight, chosen is not None)
            note_logits(built, y, predicted)
        if failed is not None:
            part = max(1, config.trainer.batch_size // strategy.parts)
            example = runtime().computed(reading.first(splits.train, part))
            try:
                strategy.trace_step(built, example, creates=True)
                built.built = True  # as a call would say
                built.reset_metrics()
                _reset(built)
            except Exception:
                raise failed from None
    _check_optimizer(built, strategy)
    strategy.place(built)  # ORDER: before its slots, which lie where their variable does
    if trains:
        with strategy.optimizer_scope():
            optimizers.build(built, strategy, example, config)
        finetune.scale_rates(built, config.finetune.learning_rates)
        for each in train_state.objects(built):
            each.begin()
    return built


def refuse_methods(built: keras.Model, *methods: str) -> None:
    """Refuse methods of the model's own that Keras' fit, evaluate or predict are or call.

    dtrain calls none of them: its own loop runs the model's steps.

    Raises:
        UsageError: naming one.
    """
    for name in methods:
        if has_own(built, name):
            refuse("model", "would never be called: dtrain's own loop calls the model's steps",
                   f"{type(built).__name__}.{name}", accepted="train_step, test_step, "
                   "predict_step, compute_loss, compute_metrics, get_metrics_result, and callbacks",
                   hint=f"what {name} does, in a {_STEP_OF[name]} of the class")  # fmt: skip


#: Which step has the place of a method.
_STEP_OF = {
    "fit": "train_step", "make_train_function": "train_step",
    "evaluate": "test_step", "make_test_function": "test_step",
    "predict": "predict_step", "make_predict_function": "predict_step",
}  # fmt: skip


def _without_classes(y: Nest) -> str:
    targets = "no targets" if y is None else f"targets that are no class labels ({nest.outline(y)})"
    return (
        f"classes is None, as the dataset has {targets}; a model of classes takes whole numbers "
        "[n], as y.argmax(-1) has them of one-hot rows; another needs no argument classes"
    )


def _shapes(splits: Splits, config: Config) -> Nest:
    """Return the shape of an input without its first axis; of several, their structure of shapes.

    None stands in the place of a length that differs by batch.

    Raises:
        UsageError: a model of dtrain's own takes one input, and the dataset has several.
    """
    target, x = config.model["_target_"], reading.specs(splits.train, 1)[0]
    if nest.is_nest(x) and target.startswith("dtrain.models."):
        refuse("model._target_", f"takes one input, and the dataset has {nest.outline(x)}", target,
               accepted="a dataset with one input, or a model of your own",
               hint="dataset.inputs=COLUMN")  # fmt: skip
    return nest.mapped(lambda leaf: tuple(leaf.shape[1:]), x)


def _check_plain(built: keras.Model, strategy: Backend) -> None:
    """Refuse variables that Keras has in no list, where only those in its lists are trained."""
    plain = keras_internals.plain_variables(built)
    if plain and not strategy.abilities.plain_variables:
        of_keras = isinstance(plain[0][1], keras.Variable)
        kind = "keras.Variable of no layer" if of_keras else "tf.Variable"
        refuse("model", f"is a {kind}, which this strategy has no place for", plain[0][0],
               accepted="self.add_weight(..., trainable=False), or another strategy",
               typed="strategy=mirrored")  # fmt: skip


def _check_optimizer(built: keras.Model, strategy: Backend) -> None:
    """Refuse a model that its own function has compiled with ``optimizer=None``, where one is used.

    A ``train_step`` of its own may do without.
    """
    if built.optimizer is None and not (
        has_own(built, "train_step") and strategy.abilities.several_optimizers
    ):
        refuse("model", "was compiled without an optimizer", type(built).__name__,
               accepted="a model with one, or with a train_step and a strategy for several",
               hint="optimizer=adam with a model that is not compiled")  # fmt: skip


def optimizer(
    node: Options | None, total_steps: int, steps_per_epoch: int
) -> keras.optimizers.Optimizer:
    """Build the optimizer of the ``optimizer`` group, with its learning-rate schedule.

    ``schedule`` is a node whose target takes ``learning_rate``, ``total_steps`` and
    ``steps_per_epoch`` (:mod:`dtrain.schedules`), or None for a constant rate. One of Keras' begins
    with that rate, and lasts as long as the run, unless the node says otherwise.

    Raises:
        UsageError: there is no node, its schedule lacks a rate, or Keras does not take its values.
    """
    if not node or "_target_" not in node:  # with ~optimizer its schedule is still there
        refuse("optimizer", "there is none to compile the model with", None,
               accepted="an optimizer, or a model that its own function compiles",
               typed="optimizer=adam")  # fmt: skip
    node = dict(node)
    schedule = node.pop("schedule", None)
    plain = runtime().PLAIN
    own = plain and plain.optimizer(dict(node), schedule, total_steps, steps_per_epoch)
    if own is not None:
        return own
    rate = node.get("learning_rate")
    if rate is None:
        node.pop("learning_rate", None)
    if schedule is not None:
        names = ("learning_rate", "total_steps")
        if rate is None and schedule["_target_"].startswith("dtrain."):
            refuse("optimizer.learning_rate", "the schedule needs the highest rate", None,
                   accepted="a number above 0", typed="optimizer.learning_rate=0.001")  # fmt: skip
        if schedule["_target_"].startswith("keras."):
            names = ("initial_learning_rate", "decay_steps")
        derived = dict(zip(names, (rate, total_steps), strict=True))
        node["learning_rate"] = targets.instantiate(
            schedule, "optimizer.schedule", steps_per_epoch=steps_per_epoch,
            **{name: value for name, value in derived.items() if value is not None},
        )  # fmt: skip
    return targets.instantiate(node, "optimizer")


def _predicted(built: keras.Model, x: Nest) -> Nest:
    """Call a model, which makes the variables that it has not made, and leave its state alone.

    Keras' fit makes no such call: what is drawn, counted and kept by hand begins with the first
    step. What layers of a user's own keep has no value from before where this call makes it.
    """
    others = keras_internals.plain_variables(built) + keras_internals.generator_states(built)
    kept = [variable for _, variable in others]
    kept += [v for v in built.non_trainable_variables if not keras.backend.is_float_dtype(v.dtype)]
    kept += keras_internals.of_own_classes(built) if built.built else []
    before = [(variable, keras.ops.copy(variable)) for variable in kept]
    try:
        outputs = runtime().outputs(built, x)
    except ValueError as error:
        wanted, shape = getattr(built, "input_shape", None), getattr(x, "shape", None)
        if not isinstance(wanted, tuple) or shape is None or _is_of(shape, wanted):
            raise
        # Keras' own message has the whole example in it.
        raise UsageError("model", f"takes inputs of shape {wanted}, and the dataset has "
                         f"{(None, *shape[1:])}", built.name, accepted="a model for the inputs of "
                         "the dataset", hint="keras.Input(input_shape), which the model's function "
                         "is given") from error  # fmt: skip
    for variable, value in before:
        variable.assign(value)
    _reset(built)
    return outputs


def _reset(built: keras.Model) -> None:
    """Let stateful layers begin again."""
    for layer in checks.stateful_layers(built):
        if hasattr(layer, "reset_state"):
            layer.reset_state()


def _is_of(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Whether a shape is what a model declares, which has None for any size."""
    return len(shape) == len(wanted) and all(
        size is None or size == length for length, size in zip(shape[1:], wanted[1:], strict=True)
    )
