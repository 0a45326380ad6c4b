"""strategy=tpu without a TPU: stand-ins for it at TensorFlow's boundary, and its absence.

Also holds ``pretend``, which other tests use.
"""

from __future__ import annotations

import socket
import types
from typing import Any

import pytest

from tests.test_steps import prepare, settings

CORE = "/job:localhost/replica:0/task:0/device:TPU"
CNN = {
    "model": {"_target_": "dtrain.models.cnn", "filters": [4], "dropout": 0.3, "l2": 1e-3},
    "dataset": {
        "_target_": "dtrain.datasets.synthetic",
        "examples": 50,
        "validation_examples": 21,
        "shape": [8, 8],
        "classes": 3,
    },
}


def pretend(cores: int, engine: Any) -> list[tuple[Any, ...]]:
    """Put a TPU of ``cores`` in the place of TensorFlow's functions, in this process.

    Args:
        cores: that it has.
        engine: makes the strategy, from the resolver.

    Returns:
        What is called, as it is called.
    """
    import tensorflow as tf

    calls: list[tuple[Any, ...]] = []

    class Resolver(tf.distribute.cluster_resolver.ClusterResolver):
        def __init__(self, *given: Any):
            calls.append(("resolver", *given))

        def cluster_spec(self) -> Any:
            return tf.train.ClusterSpec({})

        def master(self, *given: Any) -> str:
            return ""

        def get_tpu_system_metadata(self) -> Any:
            devices = tuple(types.SimpleNamespace(name=f"{CORE}:{i}") for i in range(cores))
            return tf.tpu.experimental.TPUSystemMetadata(cores, 1, cores, None, devices)

    def noted(name: str, answer: Any = None) -> Any:
        def call(resolver: Any) -> Any:
            assert isinstance(resolver, Resolver)
            calls.append((name,))
            return answer(resolver) if answer else None

        return call

    listed = tf.config.list_logical_devices
    there = [tf.config.LogicalDevice(f"/device:TPU:{i}", "TPU") for i in range(cores)]
    tf.distribute.cluster_resolver.TPUClusterResolver = Resolver
    tf.config.experimental_connect_to_cluster = noted("connect")
    tf.tpu.experimental.initialize_tpu_system = noted("initialise")
    tf.config.list_logical_devices = lambda kind=None: there if kind == "TPU" else listed(kind)
    tf.distribute.TPUStrategy = noted("strategy", engine)
    return calls


def mirrored(cores: int) -> Any:
    import tensorflow as tf

    return lambda resolver: tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(cores)])


def named(cores: int) -> list[str]:
    return [f"TPU:{i}" for i in range(cores)]


@pytest.mark.task(devices=2)
def test_the_tpu_is_found_started_and_then_used() -> None:
    from dtrain.task.strategies import TPU

    calls = pretend(2, mirrored(2))
    strategy = TPU(named(2), "v5", "europe-west4-b", "mine")
    found = ("resolver", "v5", "europe-west4-b", "mine")
    assert calls == [found, ("connect",), ("initialise",), ("strategy",)]
    assert strategy.replicas == 2
    assert socket.getdefaulttimeout() is None


@pytest.mark.task
def test_another_number_of_cores() -> None:
    from dtrain.errors import UsageError
    from dtrain.task.strategies import TPU

    calls = pretend(4, mirrored(1))
    with pytest.raises(UsageError, match="this TPU has 4 cores") as error:
        TPU(named(8), "local", None, None)
    assert str(error.value).startswith("hardware.devices=8")
    assert str(error.value).endswith("accepted: 4; type: hardware.devices=4")
    assert ("strategy",) not in calls


@pytest.mark.task
@pytest.mark.parametrize("config", ["cnn", "resnet"])
def test_what_a_core_runs_has_known_shapes_and_no_float64(config: str) -> None:
    """By TensorFlow's own TPUStrategy, which builds its graphs without a TPU as well."""
    import tensorflow as tf
    from tensorflow.python.framework.func_graph import FuncGraph

    from dtrain.task.strategies import TPU

    pretend(2, tf.distribute.TPUStrategy)
    strategy = TPU(named(2), "local", None, None)
    assert type(strategy.engine).__name__ == "TPUStrategyV2"
    resnet = {"_target_": "dtrain.models.resnet", "filters": [4, 8]}
    # Of the second one normalisation meets in a sum over the replicas.
    given = settings(**CNN) if config == "cnn" else settings(**{**CNN, "model": resnet})
    _, _, steps, _ = prepare("", 2, given, strategy=strategy)

    found: list[Any] = []
    inside, run, create = False, strategy.run, FuncGraph._create_op_internal

    def watched(step: Any, data: Any) -> Any:
        def replica(part: Any) -> Any:
            nonlocal inside
            inside = True
            try:
                return step(part)
            finally:
                inside = False

        return run(replica, data)

    def created(*given: Any, **more: Any) -> Any:
        op = create(*given, **more)
        if inside:
            found.append(op)
        return op

    strategy.run, FuncGraph._create_op_internal = watched, created
    traces = [
        lambda: steps._train.get_concrete_function(),
        lambda: steps._traced_evaluation().get_concrete_function(tf.constant(2, tf.int64)),
        *(lambda end=end: steps._evaluate_end.get_concrete_function(end) for end in (0, 1)),
    ]
    for trace in traces:
        found.clear()
        graph = trace().graph.as_graph_def()
        bodies = [graph.node, *(function.node_def for function in graph.library.function)]
        assert any(node.op == "TPUReplicateMetadata" for body in bodies for node in body)
        kinds = {op.type for op in found}
        assert {"MatMul", "AssignVariableOp"} <= kinds
        for op in found:
            for tensor in op.outputs:
                assert tensor.dtype != tf.float64, op
                known = tensor.shape.is_fully_defined()
                assert known or tensor.dtype in (tf.resource, tf.variant), op
    assert "If" in kinds, "of the last examples, one for each replica"


def reason(tpu: str | None, *given: str | None) -> str:
    """Return why TensorFlow finds no such TPU, as it is told."""
    from dtrain.errors import UsageError
    from dtrain.task.strategies import TPU

    with pytest.raises(UsageError) as error:
        TPU(named(8), tpu, *(given or (None, None)))
    assert socket.getdefaulttimeout() is None
    text = str(error.value)
    begin = f"strategy.tpu={tpu or 'null'}: TensorFlow finds no such TPU ("
    assert text.startswith(begin)
    assert text.endswith("or grpc://HOST:PORT; type: strategy=mirrored")
    return text.removeprefix(begin).partition("); accepted: ")[0]


@pytest.mark.task
def test_no_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow itself is asked."""
    from dtrain.task.backends.tensorflow import tpu as tpu

    monkeypatch.delenv("TPU_NAME", raising=False)
    assert reason("local").startswith("NotFoundError: TPUs not found in the cluster")
    assert reason(None) == "ValueError: Please provide a TPU Name to connect to."
    assert "pip install cloud-tpu-client" in reason("mine", "a-zone", "a-project")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        # The cloud's metadata server, which takes the question and never answers.
        monkeypatch.setattr(tpu, "ANSWER_SECONDS", 0.2)
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        assert reason("mine") == "TimeoutError: timed out"
    assert reason(f"grpc://{address}") == f"OSError: {address}: Connection refused"
