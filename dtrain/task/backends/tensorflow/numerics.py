"""The first operation of a training step whose result is not finite, by TensorFlow's own checks."""

from __future__ import annotations

import contextlib
import re

import keras
import tensorflow as tf

from dtrain.task.aliases import Nest
from dtrain.task.backends.runtime import NotFinite
from dtrain.task.backends.tensorflow.replica.global_batch import step_on_one_device
from dtrain.task.model import calls
from dtrain.task.process import own_code

#: Frames of an operation's traceback, and characters of a path, in TensorFlow's message: a status
#: has some 8 KiB, and the frame of a layer's call is among the innermost.
FRAMES, PATH = 40, 400


def first_not_finite(model: keras.Model, batch: Nest) -> NotFinite | None:
    """Run the step of a model on one device: at once for the layer, as a graph for the line."""
    step = step_on_one_device(model)
    looking = calls.Finite()
    # A step of the user's own may be for graphs alone.
    with contextlib.suppress(Exception), calls.watched(looking) as watched, watched():
        step(batch)
    tf.debugging.enable_check_numerics(FRAMES, PATH)
    try:
        traced = tf.function(lambda: step(batch), autograph=False).get_concrete_function()
        traced()
    except tf.errors.InvalidArgumentError as error:
        return _parsed(str(error), traced.graph, looking.layer)
    finally:
        tf.debugging.disable_check_numerics()
    return None


def _parsed(text: str, graph: tf.Graph, layer: str) -> NotFinite | None:
    """Read TensorFlow's message; None where it is about something else."""
    operation = re.search(r'Infinity or NaN in output \d+ of \S+ op "(\w+)"', text)
    if operation is None:
        return None
    block = text[operation.start() :].partition("!!! Detected")[0]
    frames = [(file, int(line)) for file, line in re.findall(r"\+ (.+) \(L(\d+)\) ", block)]
    backward = "node gradient_tape/" in text
    if backward:  # of more use than that of the tape is the operation whose gradient it is
        for name in re.findall(r'Tensor\("([^":]+):', block):
            with contextlib.suppress(KeyError):  # of a loop's own graph
                frames += [frame[:2] for frame in graph.get_operation_by_name(name).traceback]
                break
    return NotFinite(operation[1], "" if backward else layer, backward, own_code.line(frames))
