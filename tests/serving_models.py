"""SavedModels of TensorFlow's own, and a server of them in a thread of the suite's process."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.serving import server
from dtrain.serving.follow import Folder, Source
from dtrain.serving.model import Limits
from dtrain.serving.server import Serving, Settings
from dtrain.serving.versions import Candidate
from tests import warm


def make(folder: Path) -> None:
    """Write models of several kinds; in a process with TensorFlow."""
    import tensorflow as tf

    from dtrain.run.samples import Sample

    def save(name: str, function: Any, *specs: Any, sample: Any = None) -> None:
        module = tf.Module()
        module.serve = tf.function(function, input_signature=specs)
        made = module.serve.get_concrete_function()
        tf.saved_model.save(module, str(folder / name), {"serving_default": made})
        if sample is not None:
            Sample(sample[0], sample[1], None).save(folder / name / "sample.npz")

    spec = tf.TensorSpec

    def pair(a: Any, b: Any) -> Any:
        total = tf.reduce_sum(tf.cast(a, tf.int64), axis=1)
        return {"sum": total, "text": tf.strings.join([b, tf.strings.as_string(total)])}

    save("pair", pair, spec([None, 2], tf.int32, "a"), spec([None], tf.string, "b"))

    def centered(x: Any) -> Any:
        return {"y": x - tf.reduce_mean(x)}

    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    y = np.concatenate([x[:1] - x[:1].mean(), x[1:] - x[1:].mean()])  # in batches of 1 and 2
    save("centered", centered, spec([None, 2], name="x"), sample=({"x": x}, {"y": y}))

    def fixed(x: Any) -> Any:
        return {"y": tf.reduce_sum(x, axis=1)}

    save("fixed", fixed, spec([4, 3], name="x"))
    save("wrong", fixed, spec([None, 2], name="x"),
         sample=({"x": x}, {"y": np.ones(3, np.float32)}))  # fmt: skip

    def whole(x: Any) -> Any:
        return {"total": tf.reduce_sum(x)}

    save("whole", whole, spec([None, None], name="x"))

    def touchy(x: Any) -> Any:
        tf.debugging.assert_less(x, 100.0, "too much")
        # From 50 to 90 it never ends.
        (x,) = tf.while_loop(
            lambda y: tf.reduce_any((y >= 50) & (y < 90)), lambda y: (y + 0,), (x,)
        )
        return {"y": tf.reduce_sum(x, axis=1)}

    save("touchy", touchy, spec([None, None], name="x"))


def start(path: str, options: Any) -> Any:
    """Start the process of a version, forked from the suite's warm server."""
    from dtrain.controller.launchers.model_process import ModelProcess

    process = ModelProcess(warm.ENVIRONMENT, path, {**options, "threads": 1, "nice": False})
    return process, process.socket


class Client:
    """Asks a server, by Python's own client."""

    def __init__(self, serving: Serving, address: str, notices: list[str]):
        self.serving, self.address, self.notices = serving, address, notices

    def __call__(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, Any]:
        """Return status, value and headers of an answer."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + path, data, {"content-type": "application/json", **(headers or {})}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text, found = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                status, text, found = error.code, error.read(), error.headers
        kind = found.get("content-type", "")
        return status, json.loads(text) if kind == "application/json" else text, found


@contextlib.contextmanager
def served(
    path: Path, limits: Limits | None = None, source: Source | None = None, **settings: Any
) -> Iterator[Client]:
    """Serve a SavedModel, or the newest of a folder of them."""
    notices: list[str] = []
    key = (source or Folder(path)).newest() or ""
    first: Candidate = (source or Folder(path)).fetch(key)
    listener = server.listening("127.0.0.1", 0)
    address, ready = server.address(listener), threading.Event()
    serving = Serving(
        Settings(settings.pop("name", "m"), limits or Limits(), **settings),
        start, listener, notices.append,
    )  # fmt: skip
    failed: list[BaseException] = []

    def run() -> None:
        try:
            serving.run(first, lambda model: ready.set(), source, key)
        except BaseException as error:
            failed.append(error)
        ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(120)
    try:
        if failed:
            raise failed[0]
        yield Client(serving, address, notices)
    finally:
        if not failed:
            serving.stop()
        thread.join()
