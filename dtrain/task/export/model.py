"""A model with names for its inputs and outputs, and as one function of tensors."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from dtrain.config.schema import Config
from dtrain.data import nest
from dtrain.data.sources import Splits
from dtrain.data.tables import TableSource
from dtrain.errors import UsageError
from dtrain.run.exports import Signature, Tensor
from dtrain.task import build, dataset, keras_internals, reading, stateful
from dtrain.task.step_logs import has_own
from dtrain.task.step_schedule import make_schedule
from dtrain.task.strategies import Default

#: Names that Keras gives to inputs that have none.
_UNNAMED = re.compile(r"(input_layer|keras_tensor|input)(_\d+)?")


@dataclasses.dataclass(frozen=True)
class Exportable:
    """A model that can be exported.

    Attributes:
        model: built.
        structure: a nest like the model's inputs, with their names.
        inputs: what goes in, in the order of the nest's leaves.
        outputs: the names of what comes out, in the order of its leaves.
    """

    model: keras.Model
    structure: Any
    inputs: tuple[tf.TensorSpec, ...]
    outputs: tuple[str, ...]

    def called(self, leaves: Sequence[Any]) -> dict[str, tf.Tensor]:
        """Return the outputs by name.

        Args:
            leaves: a tensor ``[b, ...]`` for each of ``inputs``.
        """
        return called(self.model, self.structure, leaves, self.outputs)

    def function(self) -> Any:
        """Return ``called`` as a function of TensorFlow's, traced once for any batch."""

        def serve(*leaves: tf.Tensor) -> dict[str, tf.Tensor]:
            return self.called(leaves)

        made = tf.function(serve, input_signature=self.inputs, autograph=False)
        made.get_concrete_function()
        return made

    def classes(self) -> dict[str, str]:
        """Return the classes of layers that are not Keras' own, with their modules.

        What was defined inside of a function is not among them: no other process can find it.
        """
        kinds = {type(layer) for layer in keras_internals.layers(self.model)}
        return {
            kind.__name__: kind.__module__
            for kind in kinds
            if kind.__module__.partition(".")[0] != "keras" and kind.__name__ == kind.__qualname__
        }

    def signature(self, function: Any, source: Any) -> Signature:
        """Return what goes in and what comes out.

        Args:
            function: of :meth:`function`.
            source: of the training's examples.
        """
        traced: Mapping[str, Any] = function.get_concrete_function().structured_outputs
        return {
            "inputs": [
                {**_tensor(str(spec.name), spec), **_columns(source, str(spec.name))}
                for spec in self.inputs
            ],
            "outputs": [_tensor(name, traced[name]) for name in self.outputs],
        }


def called(
    model: keras.Model, structure: Any, leaves: Sequence[Any], outputs: Sequence[str]
) -> dict[str, tf.Tensor]:
    """Return the outputs of a model by name.

    Args:
        model: takes a nest like ``structure``.
        structure: of the inputs.
        leaves: of the inputs, tensors ``[b, ...]``.
        outputs: names of the leaves of what it returns.
    """
    found = nest.leaves(model(nest.packed(structure, list(leaves)), training=False))
    return dict(zip(outputs, (leaf for leaf in found if leaf is not None), strict=True))


def built(config: Config) -> tuple[keras.Model, Splits]:
    """Build the model of a run, and open its data; the model is as new.

    Raises:
        UsageError: it cannot be exported.
    """
    splits = dataset.load(config).splits
    schedule = make_schedule(config, *dataset.lengths(splits))
    model = build.model(
        config, splits, Default([]), schedule.total_steps, schedule.steps_per_epoch, trains=False
    )
    kind = type(model).__name__
    if has_own(model, "train_step") and not has_own(model, "call") and not _inputs(model):
        raise UsageError(
            "model", kind, "has no call: it cannot be run on examples",
            "a model with a call", "the part of it that is to be served, as a model of its own",
        )  # fmt: skip
    if layers := stateful.layers(model):
        raise UsageError(
            "model", layers[0].name, "carries its state from batch to batch, which a request to "
            "an exported model must not", "layers with stateful=False", "stateful=False",
        )  # fmt: skip
    model.compiled = False  # what is saved is there to be run, with no optimizer, loss or metrics
    return model, splits


def exportable(model: keras.Model, splits: Splits, config: Config) -> Exportable:
    """Give names to the inputs and outputs of a model.

    An input is called as the data calls it, else as the model does; one without a name is
    ``inputs``, and of several ``input_0``, ``input_1``. Outputs in a dict are called by its keys,
    others as the user has called their layers; one without a name is ``outputs``.

    Args:
        model: of :func:`built`.
        splits: of its data.
        config: of the run.
    """
    rows = stateful.fixed_rows(model, config)
    places = list(nest.named(reading.specs(splits.train, rows)[0]))
    declared = _declared(model, [place for place, _ in places], [spec for _, spec in places])
    names = _unique(
        [
            _named(place) or _given(like, None) or _numbered("input", index, len(places))
            for index, ((place, _), like) in enumerate(zip(places, declared, strict=True))
        ]
    )
    inputs = tuple(
        _spec(spec if like is None else like, rows, name)
        for (_, spec), like, name in zip(places, declared, names, strict=True)
    )
    x = reading.first(splits.train, rows or 1)[0]
    structure = nest.packed(x, list(names))
    leaves = [tf.cast(leaf, spec.dtype) for leaf, spec in zip(nest.leaves(x), inputs, strict=True)]
    result = list(nest.named(model(nest.packed(x, leaves), training=False)))
    outputs = [place for place, leaf in result if leaf is not None]
    own = list(getattr(model, "output_names", ()) or ())
    layers = {layer.name: layer for layer in model.layers}
    chosen = [
        _named(place)
        or (_given(layers.get(own[i]), own[i]) if len(own) == len(outputs) else None)
        or _numbered("output", i, len(outputs))
        for i, place in enumerate(outputs)
    ]
    return Exportable(model, structure, inputs, tuple(_unique(chosen)))


def _spec(like: Any, rows: int | None, name: str) -> tf.TensorSpec:
    return tf.TensorSpec([rows, *like.shape[1:]], tf.as_dtype(like.dtype), name)


def _tensor(name: str, spec: Any) -> Tensor:
    return {"name": name, "dtype": spec.dtype.name, "shape": spec.shape.as_list()}


def _columns(source: Any, name: str) -> Any:
    """Return the ``columns`` of an input that is made of several of a table."""
    names = source.inputs.names if isinstance(source, TableSource) else None
    names = names.get(name) if isinstance(names, Mapping) else names
    return {} if names is None or isinstance(names, str) else {"columns": list(names)}


def _inputs(model: keras.Model) -> list[Any]:
    try:
        return list(model.inputs or ())  # of a Sequential that is not built it raises
    except (AttributeError, ValueError):
        return []


def _declared(model: keras.Model, places: list[str], specs: list[Any]) -> list[Any]:
    """Return what the model says of each of its inputs, None where it says nothing.

    That is the type that Keras casts examples to, and lengths that are left open.
    """
    found = _inputs(model)
    by_name = {tensor.name: tensor for tensor in found}
    if len(found) != len(places):
        return [None] * len(places)
    if sorted(by_name) == sorted(places):
        found = [by_name[place] for place in places]
    return [
        tensor if len(tensor.shape) == len(spec.shape) else None
        for tensor, spec in zip(found, specs, strict=True)
    ]


def _named(place: str) -> str | None:
    """Return the name in a place of a nest; None where there is but a number."""
    return None if re.fullmatch(r"(\d+\.?)*", place) else re.sub(r"\W", "_", place)


def _given(what: Any, name: str | None) -> str | None:
    """Return the name of an input or a layer, if the user has given it."""
    if what is None:
        return None
    name = str(what.name) if name is None else name
    kind = re.sub(r"([a-z])([A-Z])", r"\1_\2", re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2",
                  type(what).__name__)).lower()  # fmt: skip
    if _UNNAMED.fullmatch(name) or re.fullmatch(rf"{kind}(_\d+)?", name):
        return None
    return re.sub(r"\W", "_", name)


def _numbered(role: str, index: int, count: int) -> str:
    return f"{role}s" if count == 1 else f"{role}_{index}"


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names, of equal ones the later with a number."""
    found: list[str] = []
    for name in names:
        other, count = name, 1
        while other in found:
            count += 1
            other = f"{name}_{count}"
        found.append(other)
    return found
