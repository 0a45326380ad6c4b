"""Plain modules under ``backend=torch``: numbers of processes, of loops by hand; what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.run.cluster import Cluster, Task
from tests import warm
from tests.conftest import need
from tests.sampled import sampled
from tests.test_steps import BATCH, in_order, prepare, settings
from tests.test_strategies import together

CLOSE = 1e-5
STEPS = 10


def config(
    name: str, kind: str = "rows", loss: Any = None, optimizer: Any = None, **model: Any
) -> Any:
    target = "tests.torch_modules"
    loss = loss or {"_target_": "torch.nn.CrossEntropyLoss"}
    return settings(
        model={"_target_": f"{target}.{name}", **model},
        dataset={"_target_": f"{target}.data", "kind": kind},
        trainer={"loss": loss, "metrics": ["accuracy"] if name != "Routed" else []},
        optimizer=optimizer or {
            "_target_": "torch.optim.AdamW", "learning_rate": 0.01, "weight_decay": 0.1,
        },
    )  # fmt: skip


def cases() -> dict[str, Any]:
    return {
        "whole": config("Net"),
        "uneven": config("Net", loss={"_target_": "tests.torch_modules.uneven"}),
        "several": config("Two", "several"),
        "named": config("Two", "named"),
        "tokens": config("Tokens", "tokens"),
        "routed": config("Routed"),
        "unused": config("Routed", seldom=False),
    }


def numbers(case: str, strategy: Any = None) -> Any:
    """Return what each step and a validation return, and the state_dict afterwards."""
    import keras

    from dtrain.task.backends.torch import plain

    keras.utils.clear_session()
    model, strategy, steps, splits = prepare("OneDevice", 1, cases()[case], strategy=strategy)
    each = [steps.results(steps.train(1)) for _ in range(STEPS)]
    full, rest = divmod(len(splits.validation), steps.evaluation_examples)
    held = steps.results(steps.evaluate(full, rest), training=False)
    if type(strategy).__name__ == "FullySharded":
        return each, held, strategy.read(model.names)
    return each, held, plain.state_dict(model)


def alone(names: list[str]) -> Any:
    return {case: numbers(case) for case in names}


def shared(cluster: Cluster, task: Task, devices: list[str], kind: str, names: list[str]) -> Any:
    from dtrain.task import strategies

    return {case: numbers(case, getattr(strategies, kind)(devices)) for case in names}


@pytest.mark.parametrize(
    ("kind", "count"), sampled([("MultiWorker", 2), ("MultiWorker", 4), ("FullySharded", 2)],
                               ("MultiWorker", 2), ("FullySharded", 2))
)  # fmt: skip
def test_processes_have_the_numbers_of_one(kind: str, count: int) -> None:
    need("torch")
    # Fully sharded modules are gathered by all replicas, or by none.
    names = [case for case in cases() if (kind, case) != ("FullySharded", "routed")]
    tasks = [Task("chief", 0, 1), *(Task("worker", index, 1) for index in range(count - 1))]
    expected = warm.call(alone, 1, {"names": names}, backend="torch")
    for made in together(shared, tasks, count, "torch", kind=kind, names=names):
        for case, (each, held, arrays) in made.items():
            for step, pair in enumerate(zip(each, expected[case][0], strict=True)):
                assert pair[0] == pytest.approx(pair[1], abs=CLOSE, rel=CLOSE), (case, step)
            assert held == pytest.approx(expected[case][1], abs=CLOSE, rel=CLOSE), case
            for name, array in expected[case][2].items():
                assert arrays[name] == pytest.approx(array, abs=10 * CLOSE), (case, name)
