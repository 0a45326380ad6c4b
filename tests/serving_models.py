"""SavedModels of TensorFlow's own, and a real server of exported models."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.cli.commands.serve import ExportFolder, Server, VersionSource
from dtrain.launchers.questions import ModelProcess
from dtrain.serving.options import ServeOptions
from tests import warm


def make(folder: Path) -> None:
    """Write models of several kinds; in a process with TensorFlow."""
    import tensorflow as tf

    from dtrain.run.samples import Sample

    def save(name: str, function: Any, *specs: Any, sample: Any = None, record: Any = None) -> None:
        module = tf.Module()
        module.serve = tf.function(function, input_signature=specs)
        made = module.serve.get_concrete_function()
        tf.saved_model.save(module, str(folder / name), {"serving_default": made})
        if sample is not None:
            Sample(sample[0], sample[1], None).save(folder / name / "sample.npz")
        if record is not None:
            (folder / name / "export.json").write_text(json.dumps(record))

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

    def total(x: Any) -> Any:
        return {"y": tf.reduce_sum(x, axis=1)}

    save("single", lambda x: {"y": 2 * x[:, 0]}, spec([None, 1], name="age"))
    save("fixed", total, spec([2, 3], name="x"))
    save("wrong", total, spec([None, 2], name="x"), sample=({"x": x}, {"y": np.ones(3, "f4")}))

    def weighted(x: Any) -> Any:
        score = tf.nn.sigmoid(x @ tf.constant([[1.0], [-1.0], [0.0]]))
        return {"churn": tf.concat([1 - score, score], axis=1)}

    columns = [{"name": "x", "dtype": "float32", "shape": [None, 3],
                "columns": ["age", "income", "visits"]}]  # fmt: skip
    signature = {"inputs": columns, "outputs": [{"name": "churn"}]}
    save("table", weighted, spec([None, 3], name="x"),
         record={"signature": signature, "classes": ["no", "yes"]})  # fmt: skip

    def touchy(x: Any) -> Any:
        tf.debugging.assert_less(x, 100.0, "too much")
        # From 50 to 90 it never ends.
        (x,) = tf.while_loop(
            lambda y: tf.reduce_any((y >= 50) & (y < 90)), lambda y: (y + 0,), (x,)
        )
        return {"y": tf.reduce_sum(x, axis=1)}

    save("touchy", touchy, spec([None, None], name="x"))


def make_programs(folder: Path) -> None:
    """Write versions of a program of PyTorch; outputs stored with the last are not its own."""
    import torch

    from dtrain.run.samples import Sample
    from dtrain.task.backends.torch import exported
    from dtrain.task.backends.torch.plain import PlainModel

    class Net(torch.nn.Module):
        def __init__(self, factor: float):
            super().__init__()
            self.words = torch.nn.Embedding.from_pretrained(torch.arange(5.0)[:, None])
            self.factor = factor

        def forward(self, words: torch.Tensor, add: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"z": self.factor * (self.words(words)[:, 0] + add), "y": add}

    x = {"words": np.array([1, 4], np.int32), "add": np.array([0.5, 2], np.float32)}
    tensors = {
        "inputs": [("add", "float32"), ("words", "int32")],
        "outputs": [("y", "float32"), ("z", "float32")],
    }
    signature = {
        role: [{"name": name, "dtype": dtype, "shape": [None]} for name, dtype in each]
        for role, each in tensors.items()
    }
    for version, factor in {"1": 1.0, "2": 2.0, "3": 3.0}.items():
        path = folder / version
        path.mkdir()
        model = PlainModel(Net(factor), "net")
        exported.write(model, "pt2", path / "model.pt2", x, ["add", "words"], ["y", "z"])
        z = (min(factor, 2) * (x["words"] + x["add"])).astype(np.float32)
        Sample(x, {"y": x["add"], "z": z}, None).save(path / "sample.npz")
        (path / "export.json").write_text(json.dumps({"signature": signature}))


class Client:
    """Asks a server, by Python's own client."""

    def __init__(self, address: str, server: Any = None, notices: Any = None, about: Any = None):
        self.address, self.server, self.notices, self.about = address, server, notices, about

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
    path: Path | None, own: Path, source: VersionSource | None = None, token: str | None = None,
    name: str = "m", **limits: Any,
) -> Iterator[Client]:  # fmt: skip
    """Serve an exported model, or the newest of a source, which is then followed."""
    first = source or ExportFolder(path or own)
    key = first.newest() or ""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = ServeOptions(name=name, threads=1, **limits)
        notices: list[str] = []
        server = Server(
            lambda backend: ModelProcess(warm.ENVIRONMENTS[backend], options, token, listener),
            notices.append,
        )
        thread = threading.Thread(target=server.run, args=(source, key, own))
        try:
            about = server.load(first.fetch(key))
            thread.start()
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield Client(address, server, notices, about)
        finally:
            server.close()
            if thread.ident is not None:
                thread.join()
