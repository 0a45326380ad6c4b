"""A model with names for its inputs and outputs, and the files of each format of it.

The model goes from a dict of tensors to a dict of tensors; Keras writes it, and what runs a format
is loaded from its files.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain import models
from dtrain.config.tree import Config
from dtrain.data import nest
from dtrain.data.nest import Leaf, Nest
from dtrain.data.sources import Source, Splits
from dtrain.data.streams import Stream
from dtrain.data.tabular.source import TableSource
from dtrain.errors import TrainingError
from dtrain.export.main import onnx_run
from dtrain.export.names import TableInputs, leaf_names
from dtrain.export.sample import Run
from dtrain.files import writing
from dtrain.run.exports import SIGNATURE, Signature, Tensor
from dtrain.task import keras_internals
from dtrain.task.backends import module
from dtrain.task.data import reading
from dtrain.task.model.checks import fixed_rows
from dtrain.task.model.probabilities import probabilities
from dtrain.task.model.walk import inputs


class Named(keras.Model):
    """A model with names, which ``export`` takes over.

    Args:
        model: built.
        structure: a nest like the model's inputs, with their names.
        specs: of the inputs, in the order of the nest's leaves.
        outputs: names of the leaves of what the model returns.
        change: makes probabilities of the outputs that are logits.
        table: whose columns are the inputs; None where the inputs are the examples.
    """

    def __init__(
        self, model: keras.Model, structure: Nest, specs: Sequence[Any], outputs: Sequence[str],
        change: Callable[[Nest], Nest], table: TableInputs | None = None,
    ):  # fmt: skip
        super().__init__()
        self.model = model
        self.table = table
        # Keras would replace nests that are attributes by its own.
        self.names = lambda: (structure, list(specs), list(outputs), change)

    def call(self, inputs: Nest, training: bool = False) -> Nest:
        """Return the outputs by name."""
        structure, specs, outputs, change = self.names()
        leaves = [inputs[spec.name] for spec in specs]
        results = nest.leaves(change(self.model(nest.packed(structure, leaves), training=False)))
        return dict(zip(outputs, (leaf for leaf in results if leaf is not None), strict=True))

    @property
    def specs(self) -> dict[str, tf.TensorSpec]:
        """The inputs by name."""
        return {spec.name: spec for spec in self.names()[1]}

    @property
    def rows(self) -> int | None:
        """How many examples a batch has; None where any number will do."""
        return next(iter(self.specs.values())).shape[0]

    def run(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a batch, by name, in types that NumPy has."""
        outputs = self({name: tf.constant(value) for name, value in batch.items()})
        return {
            name: np.asarray(
                (tf.cast(value, tf.float32) if value.dtype == tf.bfloat16
                 else tf.convert_to_tensor(value)).numpy()
            )
            for name, value in outputs.items()
        }  # fmt: skip

    def signature(self, source: Source | Stream) -> Signature:
        """Return what goes in and what comes out.

        Args:
            source: of the training's examples, whose columns may make an input.
        """
        _, specs, outputs, _ = self.names()
        traced = tf.function(self, autograph=False).get_concrete_function(self.specs)
        tensors: list[Any] = [{**_tensor(s.name, s), **_columns(source, s.name)} for s in specs]
        return {
            "inputs": tensors if self.table is None else self.table.tensors(),
            "outputs": [_tensor(n, traced.structured_outputs[n]) for n in outputs],
        }  # fmt: skip

    def first(self, source: Any, count: int) -> dict[str, np.ndarray]:
        """Return the inputs of the first ``count`` examples of a source, by name."""
        if self.table is not None:
            return self.table.first(source, count)
        leaves = nest.leaves(reading.first(source, count)[0])
        return {
            spec.name: np.asarray(tf.cast(leaf, spec.dtype).numpy())
            for leaf, spec in zip(leaves, self.names()[1], strict=True)
        }


def _tensor(name: str, spec: Any) -> Tensor:
    return {"name": name, "dtype": spec.dtype.name, "shape": spec.shape.as_list()}


def _columns(source: Any, name: str) -> Leaf:
    """Return the ``columns`` of an input that is made of several of a table."""
    names = source.inputs.names if isinstance(source, TableSource) else None
    names = names.get(name) if isinstance(names, Mapping) else names
    return {} if names is None or isinstance(names, str) else {"columns": list(names)}


def named(model: keras.Model, splits: Splits, config: Config) -> Named:
    """Give names to the inputs and outputs of a model.

    An input is called as the data calls it, else as the model does; one without a name is
    ``inputs``, and of several ``input_0``, ``input_1``. Outputs in a dict are called by its keys,
    others as the user has called their layers; one without a name is ``outputs``.

    Args:
        model: of :func:`dtrain.export.main.built`.
        splits: of its data.
        config: of the run.
    """
    encoding = None if splits.encoding is None else splits.encoding()
    if encoding is not None:
        return _of_columns(model, splits, TableInputs(encoding))
    rows = fixed_rows(model, config)
    places = list(nest.named(reading.specs(splits.train, rows)[0]))
    declared = _declared(model, places)
    likes = [spec if d is None else d for d, (_, spec) in zip(declared, places, strict=True)]
    names = leaf_names("input", [(at[0], d) for at, d in zip(places, declared, strict=True)])
    specs = [
        tf.TensorSpec([rows, *like.shape[1:]], tf.as_dtype(like.dtype), name)
        for like, name in zip(likes, names, strict=True)
    ]
    x = reading.first(splits.train, rows or 1)[0]
    leaves = [tf.cast(leaf, spec.dtype) for leaf, spec in zip(nest.leaves(x), specs, strict=True)]
    returned = nest.named(model(nest.packed(x, leaves), training=False))
    outputs = [place for place, leaf in returned if leaf is not None]
    own = list(getattr(model, "output_names", ()) or ())
    own = own if len(own) == len(outputs) else [""] * len(outputs)
    layers = {layer.name: layer for layer in model.layers}
    chosen = [(place, layers.get(name)) for place, name in zip(outputs, own, strict=True)]
    change = functools.partial(probabilities, model)
    made = Named(model, nest.packed(x, names), specs, leaf_names("output", chosen), change)
    made(dict(zip(names, leaves, strict=True)))  # builds it
    return made


def _of_columns(model: keras.Model, splits: Splits, table: TableInputs) -> Named:
    """Return a model whose inputs are the columns of a table: what encodes them is part of it."""
    specs = [tf.TensorSpec(each["shape"], each["dtype"], each["name"]) for each in table.tensors()]
    outputs = leaf_names("output", [("", model.layers[-1])])
    whole = models.with_columns(model, table.encoding)
    change = functools.partial(probabilities, model)
    made = Named(whole, table.names, specs, outputs, change, table)
    made({name: tf.constant(value) for name, value in made.first(splits.train, 1).items()})
    return made


def _declared(model: keras.Model, places: Sequence[tuple[str, Leaf]]) -> list[Any]:
    """Return what the model says of each of its inputs, None where it says nothing.

    That is the type that Keras casts examples to, and lengths that are left open.
    """
    tensors = inputs(model)
    by_name = {tensor.name: tensor for tensor in tensors}
    if len(tensors) != len(places):
        return [None] * len(places)
    if by_name.keys() == {place for place, _ in places}:
        tensors = [by_name[place] for place, _ in places]
    return [
        tensor if len(tensor.shape) == len(spec.shape) else None
        for tensor, (_, spec) in zip(tensors, places, strict=True)
    ]


__all__ = ["ONNX_THROUGH_SAVEDMODEL", "load", "named", "write"]
#: A SavedModel is what is converted to ONNX.
ONNX_THROUGH_SAVEDMODEL = True
#: LiteRT's formats, with the types that its converter may take for weights; None: those of the
#: model, and where there are none int8 ("dynamic range quantization").
#: https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/post_training_quantization
_WEIGHTS: dict[str, list[tf.DType] | None] = {
    "litert": None,
    "litert_float16": [tf.float16],
    "litert_int8": [],
}


def write(named: Named, name: str, path: Path, saved: Path) -> None:
    """Write a format.

    Args:
        named: the model.
        name: of the format.
        path: of what makes it complete, the last of its files.
        saved: where a SavedModel of it is, for formats that are made of that.

    Raises:
        TrainingError: it has no operation for something.
    """
    export: dict[str, Any] = {"input_signature": [named.specs], "verbose": False}
    if name == "savedmodel":
        named.export(str(path.parent), "tf_saved_model", **export)
    elif name == "keras":
        named.model.save(path)
    elif name == "weights":
        named.model.save_weights(path)
    elif name == "onnx":
        _onnx(saved, path)
    else:
        # Its built-in operations alone: ai-edge-litert has no others.
        target: dict[str, Any] = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}
        if (types := _WEIGHTS[name]) is not None:
            target["supported_types"] = types
            export["optimizations"] = [tf.lite.Optimize.DEFAULT]
        try:
            named.export(str(path), "litert", target_spec=target, **export)
        except Exception as error:  # of the converter, which names a Python class of its own
            raise TrainingError(_litert_problem(str(error))) from error


def _litert_problem(text: str) -> str:
    """Return what a message of LiteRT's converter comes to, which has a line for each call."""
    missing = sorted({a or b for a, b in re.findall(r"\btf\.(\w+)\b(?=\()|Flex(\w+)", text)})
    problem = re.search(r"error: (?:loc\(.*\): )?('tf\..*)", text)
    other = f"LiteRT's converter: {' '.join((problem[1] if problem else text).split())[:300]}"
    return f"LiteRT has no operation for {', '.join(missing)}" if missing else other


def _onnx(saved: Path, path: Path) -> None:
    """Convert a SavedModel: Keras' own export to ONNX loses the tables of StringLookup.

    Raises:
        TrainingError: ONNX has no operation for something.
    """
    import onnx
    from tf2onnx import optimizer, tf_loader, tfonnx

    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # what counts is said below
    graph_def, inputs, outputs, tables, names = tf_loader.from_saved_model(
        str(saved), None, None, "serve", [SIGNATURE],
        return_initialized_tables=True, return_tensors_to_rename=True,
    )  # fmt: skip
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        converted = tfonnx.process_tf_graph(
            graph, input_names=inputs, output_names=outputs, tensors_to_rename=names,
            initialized_tables=tables, custom_op_handlers={"Erfc": (_erfc, [])},
            continue_on_error=True,
        )  # fmt: skip
    model = optimizer.optimize_graph(converted).make_model("dtrain")
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        text = re.sub("No Op registered for", "ONNX has no operation for", str(error))
        raise TrainingError(" ".join(text.split())[:300]) from None
    writing.write_bytes(path, model.SerializeToString())


def _erfc(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Write 1 - erf(x) for the erfc(x) in TensorFlow's GELU, which tf2onnx does not convert."""
    [x], outputs = list(node.input), list(node.output)
    dtype, shape = context.get_dtype(outputs[0]), context.get_shape(outputs[0])
    context.remove_node(node.name)
    erf = context.make_node("Erf", [x]).output[0]
    kind = {1: np.float32, 10: np.float16, 11: np.float64}[dtype]
    one = context.make_const(f"{name}/one", np.asarray(1, kind)).output[0]
    context.make_node("Sub", [one, erf], name=name, outputs=outputs, dtypes=[dtype], shapes=[shape])


def load(name: str, path: Path, named: Callable[[], Named]) -> Run:
    """Load a format into its runtime, as a function of arrays.

    Args:
        name: of the format.
        path: of :func:`write`.
        named: builds the model anew, for the formats that Keras runs.
    """
    if name == "savedmodel":  # as it is served, without the code that made the model
        return module("exported").Program(str(path.parent), {})
    if name == "onnx":
        return onnx_run(path)
    if name in _WEIGHTS:
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_path=str(path))
        runner = interpreter.get_signature_runner(SIGNATURE)
        return lambda batch: dict(runner(**batch))
    made = named()
    if name == "weights":
        made.model.load_weights(path)
    else:
        layers = keras_internals.layers(made.model)
        own = {type(each).__name__: type(each) for each in layers}
        # It has just been written here: the code in a Lambda layer is the user's.
        model = keras.saving.load_model(path, own, compile=False, safe_mode=False)
        made = Named(model, *made.names())
    return made.run
