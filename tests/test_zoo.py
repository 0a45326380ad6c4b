"""The zoo: models as users have them, on one device and on several, beside Keras' own ``fit``."""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.run.cluster import Task
from tests import warm
from tests.conftest import need
from tests.sampled import sampled
from tests.test_parameter_server import servers
from tests.test_strategies import together

ZOO = Path(__file__).parent / "zoo"
NAMES = sorted({path.stem for path in ZOO.glob("*.py")} - {"__init__", "__main__", "data", "parts"})


def declared(name: str, what: str, otherwise: Any) -> Any:
    """Return a constant of a model's file. Read as text: to import it is for other processes."""
    for node in ast.parse((ZOO / f"{name}.py").read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [what]:
            return ast.literal_eval(node.value)
    return otherwise


def stands_for(name: str) -> str:
    """Return the line on what a model stands for."""
    text = ast.get_docstring(ast.parse((ZOO / f"{name}.py").read_text()))
    assert text and "\n" not in text and "|" not in text, name
    return text


#: Those of which Keras' fit is no referee.
ALONE = [name for name in NAMES if not declared(name, "FIT", True)]
#: Of different kinds: two optimizers and weights that are moved, and tokens that are masked.
#: `make test-faults` trains all.
FEW = ["gan", "masked_tokens"]
#: Strategy and its devices, beside one_device. TensorFlow allows one such group in a process.
SEVERAL = {"mirrored 4": ("Mirrored", 4), "central 2": ("CentralStorage", 2)}
STEPS = 40
#: Of a number of a step, relative to its size and to 1.
CLOSE = 1e-5


def configured(name: str, **trainer: Any) -> Any:
    from tests.test_steps import BATCH, settings

    of = importlib.import_module(f"tests.zoo.{name}")
    given = getattr(of, "TRAINER", {"loss": "mse", "metrics": []})
    return settings(
        model={"_target_": f"tests.zoo.{name}.model"},
        dataset={"_target_": f"tests.zoo.data.{getattr(of, 'DATA', 'points')}"},
        optimizer={"_target_": "keras.optimizers.SGD", "learning_rate": 0.05, "momentum": 0.9},
        trainer={"batch_size": BATCH, **given, **trainer},
    )


def trained(
    name: str, kind: str, devices: int, strategy: Any = None, **trainer: Any
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return the numbers of each step, and those of a validation after them, with the weights'.

    Of a weight its mean size: a step may return nothing that tells of it.
    """
    import keras

    from dtrain.task.backends.step_logs import evaluates
    from tests.test_steps import prepare

    keras.utils.clear_session()
    config = configured(name, **trainer)
    model, _, steps, splits = prepare(kind, devices, config, strategy=strategy)
    found = [steps.results(steps.train(1)) for _ in range(STEPS)]
    sizes = {
        f"size of {v.path} ({index})": float(np.mean(np.abs(keras.ops.convert_to_numpy(v.value))))
        for index, v in enumerate(model.trainable_variables)
    }
    if not evaluates(model):
        return found, sizes
    full, rest = divmod(len(splits.validation), steps.evaluation_examples)
    sums = steps.evaluate(full, rest)
    return found, {**sizes, **steps.results(sums, training=False)}


def worst(found: dict[str, float], expected: dict[str, float]) -> tuple[float, str]:
    assert found.keys() == expected.keys()
    # Not so where a loss has become NaN: of that no difference is larger than another.
    assert np.isfinite([*found.values(), *expected.values()]).all(), (found, expected)
    return max(
        ((abs(found[k] - v) / max(1.0, abs(v)), k) for k, v in expected.items()), default=(0.0, "")
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
    """Return by which sentence a strategy refuses a model. Steps on JAX take a state."""
    found: dict[str, str] = declared(name, "REFUSED", {})
    if re.search(r"def train_step\(self, \w+\):", (ZOO / f"{name}.py").read_text()):
        found["hybrid"] = "as on another backend of Keras"
    return found


def needs_tensorflow(name: str) -> bool:
    """Whether a model's file, or one that it is made of, has operations of TensorFlow's."""
    text = (ZOO / f"{name}.py").read_text()
    parts = re.findall(r"from tests\.zoo import (\w+)", text)
    return "import tensorflow" in text or any(map(needs_tensorflow, parts))


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


def test_the_table_has_the_zoo() -> None:
    """``python -m tests.zoo`` writes it; here is said that nothing has changed since."""
    from tests import zoo_table

    rows = zoo_table.rows()
    assert sorted(rows) == NAMES, "python -m tests.zoo"
    wrong = [each for name in NAMES for each in zoo_table.problems(name, rows[name])]
    assert not wrong, "\n".join(wrong)
    text = zoo_table.TABLE.read_text()
    assert all(f"| {stands_for(name)} |" in text for name in NAMES)


@pytest.mark.parametrize(
    ("cells", "wrong"),
    [
        (
            {
                "fit": "1e-06",
                "mirrored 4": "0",
                "hybrid": "refused: takes (real), as on another backend of Keras",
            },
            [],
        ),
        ({"mirrored 4": "1e-04"}, ["mirrored 4"]),
        ({"mirrored 4": "FAILED: ValueError: of 1e-9"}, ["mirrored 4"]),
        ({"mirrored 4": "refused: more than one optimizer"}, ["mirrored 4"]),
        ({"hybrid": "1e-07", "ps": "refused: something else"}, ["hybrid", "ps"]),
        ({"fit": "no referee"}, ["fit"]),
    ],
)
def test_a_row_of_the_table_is_held_to_its_file(cells: dict[str, str], wrong: list[str]) -> None:
    from tests import zoo_table

    found = zoo_table.problems("gan", cells)
    assert [each.partition(",")[2].partition(":")[0].strip() for each in found] == wrong


@pytest.mark.parametrize(
    ("difference", "text"),
    [(0.0, "0"), (1e-7, "1e-07"), (1.1e-7, "1e-06"), (0.5, "1e+00"), (3.0, "1e+01")],
)
def test_differences_are_rounded_up(difference: float, text: str) -> None:
    from tests import zoo_table

    assert zoo_table.rounded(difference) == text
    assert float(text) >= difference


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("name", sampled(NAMES, *FEW))
def test_replicas_agree(name: str) -> None:
    one = trained(name, "OneDevice", 1)
    differ = []
    for what, (kind, devices) in SEVERAL.items():
        differ += outcome(name, what, one, kind, devices, None)
    assert not differ, "\n".join(map(str, differ))


#: Whose losses Keras reduces, as means, as sums, or not at all: it knows how to divide them.
REDUCED = [
    "added_loss", "guide_basic", "guide_trackers", "loss_scaled", "masked_sequence",
    "masked_tokens", "nested_logs", "reduction_none", "reduction_sum", "regularized",
    "weighted_mean",
]  # fmt: skip


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("name", sampled(REDUCED, "regularized"))
def test_losses_of_keras_agree_where_they_are_added_up(name: str) -> None:
    one = trained(name, "OneDevice", 1)
    for kind, devices in SEVERAL.values():
        found = trained(name, kind, devices, gradient_reduction="sum")
        differ = differences(name, kind, one, found)
        assert not differ, "\n".join(map(str, differ))


@pytest.mark.task(devices=4, backend="jax")
@pytest.mark.parametrize("name", sampled(NAMES, "masked_tokens", "running_mean"))
def test_a_mesh_agrees(name: str) -> None:
    from tests.test_meshes import mesh, one_device

    warnings.filterwarnings("ignore", "Explicitly requested dtype int64")  # of a user's counter
    one = None if "hybrid" in refusals(name) else trained(name, "", 1, one_device())
    differ = outcome(name, "hybrid", one, "", 1, mesh())
    assert not differ, "\n".join(map(str, differ))


def _cluster(cluster: Any, task: Any, devices: list[str], what: str, names: list[str]) -> Any:
    """Train all of them on one cluster, in each of its tasks; the chief says what is wrong."""
    from dtrain.task.strategies import MultiWorker
    from tests.test_parameter_server import strategy_of

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
PARTS = {"few": ["gan", "masked_tokens"], **{str(part): NAMES[part::4] for part in range(4)}}


@pytest.mark.parametrize("part", sampled(PARTS, "few"))
def test_hosts_agree(part: str) -> None:
    tasks = [Task("chief", 0, 1), Task("worker", 0, 1)]
    found = together(_cluster, tasks, 2, what="multiworker", names=PARTS[part])
    assert not any(found), "\n".join(map(str, found[0]))


#: Those whose numbers two processes of PyTorch have, too: each draws its own.
ON_TORCH = [n for n in NAMES if not needs_tensorflow(n) and not declared(n, "DRAWS", False)]
TORCH_PARTS = {"few": ["masked_tokens"],
               **{str(part): ON_TORCH[part::3] for part in range(3)}}  # fmt: skip


def on_one(names: list[str]) -> dict[str, Any]:
    warnings.filterwarnings("ignore", "Explicitly requested dtype int64")
    return {n: None if "torch" in refusals(n) else trained(n, "OneDevice", 1) for n in names}


def _processes(cluster: Any, task: Any, devices: list[str], ones: dict[str, Any]) -> Any:
    from dtrain.task.strategies import MultiWorker

    warnings.filterwarnings("ignore", "Explicitly requested dtype int64")
    wrong = []
    for name, one in ones.items():
        wrong += outcome(name, "torch", one, "", 1, MultiWorker(devices))
    return wrong


@pytest.mark.parametrize("part", sampled(TORCH_PARTS, "few"))
def test_processes_of_pytorch_agree(part: str) -> None:
    need("torch")
    ones = warm.call(on_one, 1, {"names": TORCH_PARTS[part]}, 300, "torch")
    tasks = [Task("chief", 0, 1), Task("worker", 0, 1)]
    problems = together(_processes, tasks, 2, "torch", ones=ones)
    assert not any(problems), "\n".join(map(str, problems[0]))


@pytest.mark.parametrize("part", sampled(PARTS, "few"))
def test_parameter_servers_agree(part: str) -> None:
    [found] = together(_cluster, servers(2, 1), 2, what="ps", names=PARTS[part])
    assert not found, "\n".join(map(str, found))


@pytest.mark.task
@pytest.mark.parametrize("name", sampled([n for n in NAMES if n not in ALONE], FEW[0]))
def test_one_device_is_as_fit(name: str) -> None:
    """The same batches in the same order, four epochs of them; the referee is Keras alone."""
    far = {key: of for key, of in differences_from_fit(name).items() if not of[0] <= CLOSE}
    assert not far, far


def differences_from_fit(name: str) -> dict[str, tuple[Any, ...]]:
    """Return by name how far the values of its epochs are from fit's, and both."""
    import keras
    import tensorflow as tf

    from dtrain.task.backends.metric_sums import Sums
    from dtrain.task.backends.step_logs import evaluates
    from tests.test_steps import BATCH, in_order, prepare

    epochs, per_epoch = 4, 10
    keras.utils.clear_session()
    model, _, steps, splits = prepare("OneDevice", 1, configured(name))
    parts = in_order(splits.train, epochs * per_epoch)
    held = splits.validation[np.arange(len(splits.validation))]
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
        given = {key: of.TRAINER[key] for key in ("loss", "metrics")}
        other.compile(keras.optimizers.SGD(0.05, momentum=0.9), **given)
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
        differ[key] = (float(min(far)), values, expected, seen.means(key))
    return differ


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
                from tests.test_steps import BATCH

                name, batches = key, self.train
                sizes = [BATCH] * len(self.train[0])
                if key.startswith("val_"):
                    name, batches = key[4:], self.test
                    sizes = [BATCH] * (held // BATCH) + [held % BATCH] * bool(held % BATCH)
                rows = [[np.ravel(logs[name])[0] for logs in epoch] for epoch in batches]
                return np.average(np.asarray(rows, float), axis=1, weights=sizes)

        return Callback()
