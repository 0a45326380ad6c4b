"""The zoo: models as users have them, on one device and on several, beside Keras' own ``fit``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from dtrain.cluster import Task
from tests.sampled import sampled
from tests.test_coordinated import servers
from tests.test_strategies import together

ZOO = Path(__file__).parent / "zoo"
NAMES = sorted({path.stem for path in ZOO.glob("*.py")} - {"__init__", "data", "parts"})
#: Those of which Keras' fit is no referee. Read as text: to import them is for other processes.
ALONE = [name for name in NAMES if "\nFIT = False" in (ZOO / f"{name}.py").read_text()]
#: Of different kinds: means of its own and noise, two optimizers, weights that are moved, tokens
#: that are masked, metrics with curves. `make test-faults` trains all.
FEW = ["binary_metrics", "gan", "masked_tokens", "sam", "vae"]
#: Strategy and its devices, beside one_device. TensorFlow allows one such group in a process.
SEVERAL = {"mirrored 4": ("Mirrored", 4), "central 2": ("CentralStorage", 2)}
STEPS = 40
#: Of a number of a step, relative to its size and to 1.
CLOSE = 1e-5


def configured(name: str) -> Any:
    from tests.test_steps import BATCH, settings

    of = importlib.import_module(f"tests.zoo.{name}")
    return settings(
        model={"_target_": f"tests.zoo.{name}.model"},
        dataset={"_target_": f"tests.zoo.data.{getattr(of, 'DATA', 'points')}"},
        optimizer={"_target_": "keras.optimizers.SGD", "learning_rate": 0.05, "momentum": 0.9},
        trainer={"batch_size": BATCH, **getattr(of, "TRAINER", {"loss": "mse", "metrics": []})},
    )


def trained(
    name: str, kind: str, devices: int, strategy: Any = None
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return the numbers of each step, and those of a validation after them."""
    import keras

    from dtrain.task.logs import evaluates
    from tests.test_steps import prepare

    keras.utils.clear_session()
    model, _, steps, splits = prepare(kind, devices, configured(name), strategy=strategy)
    found = [steps.results(steps.train(1)) for _ in range(STEPS)]
    if not evaluates(model):
        return found, {}
    full, rest = divmod(len(splits.validation), steps.evaluation_examples)
    sums = steps.evaluate(full, rest)
    return found, steps.results(sums)


def worst(found: dict[str, float], expected: dict[str, float]) -> tuple[float, str]:
    assert found.keys() == expected.keys()
    return max(
        ((abs(found[k] - v) / max(1.0, abs(v)), k) for k, v in expected.items()),
        default=(0.0, ""),
    )


def differences(name: str, what: str, one: Any, found: Any) -> list[Any]:
    """Return the first step at which two trainings differ, and whether their validations do."""
    differ: list[Any] = []
    for step, (a, b) in enumerate(zip(found[0], one[0], strict=True)):
        if (of := worst(a, b))[0] > CLOSE:
            differ.append((name, what, f"step {step}", *of, a, b))
            break
    if (of := worst(found[1], one[1]))[0] > CLOSE:
        differ.append((name, what, "validation", *of, found[1], one[1]))
    return differ


def refusals(name: str) -> dict[str, str]:
    found: dict[str, str] = getattr(importlib.import_module(f"tests.zoo.{name}"), "REFUSED", {})
    return found


def outcome(name: str, what: str, one: Any, kind: str, devices: int, strategy: Any) -> list[Any]:
    """Train a model and return what is wrong with its numbers, or with how it was refused."""
    from dtrain.errors import behind

    expected = refusals(name).get(what)
    try:
        found = trained(name, kind, devices, strategy)
    except Exception as error:
        refused = behind(error)
        said = str(refused or repr(error))
        if refused is not None and expected is not None and expected in said:
            return []
        return [(name, what, said[:600])]
    if expected is not None:
        return [(name, what, "was not refused", *differences(name, what, one, found))]
    return differences(name, what, one, found)


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("name", sampled(NAMES, *FEW))
def test_replicas_agree(name: str) -> None:
    one = trained(name, "OneDevice", 1)
    differ = []
    for what, (kind, devices) in SEVERAL.items():
        differ += outcome(name, what, one, kind, devices, None)
    assert not differ, "\n".join(map(str, differ))


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("name", sampled(NAMES, *FEW))
def test_a_mesh_agrees(name: str) -> None:
    from tests.test_dtensor import mesh

    one = trained(name, "OneDevice", 1)
    differ = outcome(name, "hybrid", one, "Default", 1, mesh())
    assert not differ, "\n".join(map(str, differ))


def _cluster(cluster: Any, task: Any, devices: list[str], what: str, names: list[str]) -> Any:
    """Train all of them on one cluster, in each of its tasks; the chief says what is wrong."""
    from dtrain.task.strategies import MultiWorker
    from tests.test_coordinated import strategy_of

    strategy = (
        strategy_of(cluster, task, "sync")
        if what == "ps"
        else MultiWorker(devices, cluster, task, "auto")
    )
    wrong = []
    for name in names:
        one = trained(name, "OneDevice", 1)
        wrong += outcome(name, what, one, "Default", 1, strategy)
    return wrong


#: One cluster trains several models, one after the other.
PARTS = {"few": FEW, **{str(part): NAMES[part::4] for part in range(4)}}


@pytest.mark.parametrize("part", sampled(PARTS, "few"))
def test_hosts_agree(part: str) -> None:
    tasks = [Task("chief", 0, 1), Task("worker", 0, 1)]
    found = together(_cluster, tasks, 2, what="multiworker", names=PARTS[part])
    assert not any(found), "\n".join(map(str, found[0]))


@pytest.mark.parametrize("part", sampled(PARTS, "few"))
def test_parameter_servers_agree(part: str) -> None:
    [found] = together(_cluster, servers(2, 1), 2, what="ps", names=PARTS[part])
    assert not found, "\n".join(map(str, found))


@pytest.mark.task
@pytest.mark.parametrize("name", sampled([n for n in NAMES if n not in ALONE], *FEW))
def test_one_device_is_as_fit(name: str) -> None:
    """The same batches in the same order, four epochs of them; the referee is Keras alone."""
    import keras
    import numpy as np
    import tensorflow as tf

    from dtrain.task.logs import evaluates
    from dtrain.task.sums import Sums
    from tests.test_steps import BATCH, in_order, prepare

    epochs, per_epoch = 4, 10
    keras.utils.clear_session()
    model, _, steps, splits = prepare("OneDevice", 1, configured(name))
    parts = in_order(splits.train, epochs * per_epoch)
    held = splits.validation.take(np.arange(len(splits.validation)))
    found: dict[str, list[float]] = {}
    for _ in range(epochs):
        sums = Sums()
        for _ in range(per_epoch):
            sums.add(steps.train(1))
        logs = steps.results(sums)
        if evaluates(model):
            validated = steps.results(steps.evaluate(*divmod(len(held[0]), BATCH)))
            logs |= {f"val_{key}": value for key, value in validated.items()}
        for key, value in logs.items():
            found.setdefault(key, []).append(value)

    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    of = importlib.import_module(f"tests.zoo.{name}")
    other = of.model(input_shape=tuple(parts[0].shape[1:]), classes=splits.classes)
    if not other.compiled:
        other.compile(keras.optimizers.SGD(0.05, momentum=0.9), **of.TRAINER)
    seen = Seen(epochs, len(held[0]))
    data, validation = (
        tf.data.Dataset.from_tensor_slices(some if len(some) > 1 else some[0]).batch(BATCH)
        for some in (parts, held)
    )
    history = other.fit(
        data.repeat(), epochs=epochs, steps_per_epoch=per_epoch, verbose=0, shuffle=False,
        validation_data=validation if evaluates(other) else None, callbacks=[seen],
    ).history  # fmt: skip
    assert found.keys() >= history.keys(), "and those of metrics that a step does not return"
    differ = {}
    for key in history:
        values = found[key]
        expected = np.asarray(history[key], float).reshape(epochs, -1)[:, 0]
        # Of a plain tensor fit keeps that of the last batch; dtrain has the mean.
        far = [
            np.max(np.abs(values - each) / np.maximum(1.0, np.abs(each)))
            for each in (expected, seen.means(key))
        ]
        if not min(far) <= CLOSE:
            differ[key] = (far, values, expected, seen.means(key))
    assert not differ, differ


class Seen:
    """A callback of Keras that keeps what it is given after each batch."""

    def __new__(cls, epochs: int, held: int) -> Any:
        import keras

        class Callback(keras.callbacks.Callback):
            def __init__(self) -> None:
                super().__init__()
                self.train: list[list[dict[str, Any]]] = [[] for _ in range(epochs)]
                self.test: list[list[dict[str, Any]]] = [[] for _ in range(epochs)]
                self.epoch = 0

            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.epoch = epoch

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.train[self.epoch].append(dict(logs or {}))

            def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
                self.test[self.epoch].append(dict(logs or {}))

            def means(self, key: str) -> Any:
                import numpy as np

                from tests.test_steps import BATCH

                name, batches = key, self.train
                sizes = [BATCH] * len(self.train[0])
                if key.startswith("val_"):
                    name, batches = key[4:], self.test
                    sizes = [BATCH] * (held // BATCH) + [held % BATCH] * bool(held % BATCH)
                rows = [[np.ravel(logs[name])[0] for logs in epoch] for epoch in batches]
                return np.average(np.asarray(rows, float), axis=1, weights=sizes)

        return Callback()
