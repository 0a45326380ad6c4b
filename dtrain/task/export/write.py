"""The files of each format, made of a model or of the SavedModel that was made of it."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from dtrain.errors import TrainingError
from dtrain.files import writing
from dtrain.run.exports import FORMATS
from dtrain.task.export.model import Exportable
from dtrain.task.export.runtimes import SIGNATURE

#: In messages of LiteRT's converter: operations that it has no kernel for, and what is wrong.
_MISSING = re.compile(r"\btf\.(\w+)\b(?=\()|Flex(\w+)")
_PROBLEM = re.compile(r"error: (?:loc\(.*\): )?('tf\..*)")


def savedmodel(exportable: Exportable, function: Any, folder: Path) -> None:
    """Write a SavedModel, with the signatures ``serve`` and ``serving_default``.

    Args:
        exportable: has the variables and tables.
        function: of it, as traced.
        folder: that its files go to.
    """
    archive = keras.export.ExportArchive()
    archive.track(exportable.model)
    archive.add_endpoint("serve", function)
    archive.write_out(str(folder), verbose=False)


def keras_file(exportable: Exportable, function: Any, folder: Path) -> None:
    """Write a ``.keras`` file, which Keras loads without the run's configuration."""
    [name] = FORMATS["keras"].files
    exportable.model.save(folder / name)


def weights(exportable: Exportable, function: Any, folder: Path) -> None:
    """Write the weights alone, for ``model.load_weights``."""
    [name] = FORMATS["weights"].files
    exportable.model.save_weights(folder / name)


def onnx(saved: Path, folder: Path) -> None:
    """Convert a SavedModel to ONNX.

    Args:
        saved: the folder of the SavedModel.
        folder: that the file goes to.

    Raises:
        TrainingError: it has no operation for something.
    """
    import onnx as library
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
    missing = {
        node.op_type
        for node in _nodes(model.graph)
        if not library.defs.has(node.op_type, node.domain)
    }
    if missing:
        raise TrainingError(f"ONNX has no operation for {', '.join(sorted(missing))}")
    [name] = FORMATS["onnx"].files
    writing.write_bytes(folder / name, model.SerializeToString())


def _nodes(graph: Any) -> Iterator[Any]:
    """Yield the operations of a graph, and of those inside of its loops and branches."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g)


def _erfc(context: Any, node: Any, name: str, arguments: Any) -> None:
    """Put 1 - erf(x) in the place of TensorFlow's erfc(x), of GELU, which ONNX has not."""
    import numpy as np

    [x], [output] = list(node.input), list(node.output)
    dtype, shape = context.get_dtype(output), context.get_shape(output)
    kind = {1: np.float32, 10: np.float16, 11: np.float64}[context.get_dtype(x)]
    one = context.make_const(f"{name}/one", np.asarray(1, kind)).output[0]
    context.remove_node(node.name)
    erf = context.make_node("Erf", [x], name=f"{name}/erf").output[0]
    context.make_node(
        "Sub", [one, erf], name=name, outputs=[output], dtypes=[dtype], shapes=[shape]
    )


#: LiteRT's formats, with the types that its converter may take for weights; None: those of the
#: model, and where there are none int8 ("dynamic range quantization").
#: https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/post_training_quantization
QUANTISED: dict[str, list[tf.DType] | None] = {
    "litert": None,
    "litert_float16": [tf.float16],
    "litert_int8": [],
}


def litert(saved: Path, folder: Path, name: str = "litert") -> None:
    """Convert a SavedModel to LiteRT, with its built-in operations alone.

    Args:
        saved: the folder of the SavedModel.
        folder: that the file goes to.
        name: of the format.

    Raises:
        TrainingError: it has no operation for something.
    """
    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved), signature_keys=[SIGNATURE])
    if (types := QUANTISED[name]) is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = types
    try:
        data = converter.convert()
    except Exception as error:  # of the converter, which names a Python class of its own
        raise TrainingError(_litert_problem(str(error))) from error
    [file] = FORMATS[name].files
    writing.write_bytes(folder / file, data)


def _litert_problem(text: str) -> str:
    """Return what a message of the converter comes to, which has a line for each call around it."""
    if "TensorList" in text:
        return (
            "LiteRT takes batches of one size alone where a layer is recurrent "
            "(keras.Input(..., batch_size=1), or unroll=True)"
        )
    missing = sorted({a or b for a, b in _MISSING.findall(text)})
    if missing:
        return f"LiteRT has no operation for {', '.join(missing)}"
    problem = _PROBLEM.search(text)
    return f"LiteRT's converter: {' '.join((problem[1] if problem else text).split())[:300]}"


#: Made of the model.
OF_MODEL: dict[str, Callable[[Exportable, Any, Path], None]] = {
    "savedmodel": savedmodel,
    "keras": keras_file,
    "weights": weights,
}
#: Made of its SavedModel.
OF_SAVED: dict[str, Callable[[Path, Path], None]] = {
    "onnx": onnx,
    **{name: functools.partial(litert, name=name) for name in QUANTISED},
}
