"""The files of each format, written by Keras, and what runs them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.errors import TrainingError
from dtrain.export.model import Named, named
from dtrain.export.sample import Run
from dtrain.files import writing
from dtrain.run.exports import SIGNATURE
from dtrain.task import keras_internals
from dtrain.task.backends import module

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
        program: Run = module("exported").Program(str(path.parent), {})
        return program
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
