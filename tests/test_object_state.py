"""What is no variable is kept over a stop: the run ends with the bits of one that was not stopped.

The states are in ``tests.kept_state`` and ``tests.kept_callbacks``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.conftest import need
from tests.sampled import sampled
from tests.test_loop import looped
from tests.test_steps import prepare, settings

HERE, TORCH = "tests.kept_state", "torch.optim"
EPOCHS, PER_EPOCH = 3, 5


def trained(folder: Path, config: Any, group: str, stop: int | None, epochs: int = EPOCHS) -> Any:
    """Train to the end, or to ``stop``, from a checkpoint where there is one."""
    import keras
    import numpy as np

    from dtrain.errors import Interrupted
    from dtrain.run import checkpoint
    from dtrain.run.folder import RunDir
    from dtrain.task.train import restore
    from tests import kept_callbacks

    keras.utils.clear_session()
    past, _ = checkpoint.newest(folder / "checkpoints")
    start = past.step if past else 0
    model, strategy, steps, _ = prepare("OneDevice", 1, settings(**config), start=start)
    run = looped(
        folder, steps, model, strategy, kept_callbacks.made(group), lambda: run.loop.step == stop,
        epochs=epochs, steps_per_epoch=PER_EPOCH, log_every=1, validation_examples=21,
    )  # fmt: skip
    if past is not None:
        restore.restore(past, model, strategy, RunDir(folder), run.loop._schedule)
    try:
        run.loop.run(past)
    except Interrupted:
        return None
    weights = [np.array(keras.ops.convert_to_numpy(v.value)) for v in model.weights]
    arrays = {n: a for n, a in run.newest.arrays.items() if "objects" not in n}
    return run.points("loss"), run.points("val_loss"), weights, arrays, run.loop.step


def check(folder: Path, config: Any, group: str, *stops: int, first: int = EPOCHS) -> None:
    """Compare a run that is stopped at some steps with one that is not.

    Args:
        first: how many epochs the one that is stopped has at first.
    """
    import numpy as np

    expected = trained(folder / "whole", config, group, None)
    if first < EPOCHS:
        trained(folder / "stopped", config, group, None, first)
    for stop in (*stops, None):
        found = trained(folder / "stopped", config, group, stop)
    assert (found[:2], found[4]) == (expected[:2], expected[4])
    assert found[3].keys() == expected[3].keys()
    for name, array in expected[3].items():
        np.testing.assert_array_equal(found[3][name], array, err_msg=name)
    for pair in zip(found[2], expected[2], strict=True):
        np.testing.assert_array_equal(*pair)


def optimizer(name: str, schedule: str | None = None, **options: Any) -> Any:
    node = {"_target_": name, "learning_rate": 0.01, **options}
    return node if schedule is None else {**node, "schedule": {"_target_": schedule}}


#: Models, losses and optimizers with their schedules.
KINDS: dict[str, tuple[str, str, Any]] = {
    "modules": ("Everything", f"{HERE}.Centers", optimizer(f"{HERE}.Counting", f"{HERE}.Falling")),
    "step": ("Stepping", "torch.nn.CrossEntropyLoss",
             optimizer(f"{HERE}.Ahead", f"{TORCH}.lr_scheduler.CosineAnnealingLR")),
    "lazy": ("Lazy", "torch.nn.CrossEntropyLoss",
             optimizer(f"{HERE}.groups", f"{TORCH}.lr_scheduler.OneCycleLR")),
    "layers": ("layered", "keras.losses.SparseCategoricalCrossentropy",
               optimizer(f"{HERE}.OwnSGD")),
}  # fmt: skip


@pytest.mark.task(backend="torch")
@pytest.mark.parametrize("kind", KINDS)
def test_what_modules_and_optimizers_hold(kind: str, tmp_path: Path) -> None:
    model, loss, chosen = KINDS[kind]
    config = {
        "model": {"_target_": f"{HERE}.{model}"},
        "trainer": {"loss": {"_target_": loss}, "metrics": []},
        "optimizer": chosen,
    }
    check(tmp_path, config, "rate" if kind == "step" else "steps", 4, 12)


CASES = [(group, backend) for group in ("all", "swap", "stopping")
         for backend in ("tensorflow", "torch", "jax")]  # fmt: skip


@pytest.mark.parametrize(
    ("group", "backend"), sampled(CASES, *CASES[:3], ("swap", "tensorflow"), ("swap", "torch"),
                                  ("stopping", "torch"))
)  # fmt: skip
def test_what_callbacks_hold(group: str, backend: str, tmp_path: Path) -> None:
    need(backend)
    chosen = optimizer("keras.optimizers.SGD", use_ema=group == "swap")
    first, stops = {"all": (3, (4, 10)), "swap": (2, (12,)), "stopping": (3, (10,))}[group]
    arguments = {"folder": tmp_path, "config": {"optimizer": chosen}, "group": group}
    warm.call(check_stops, 1, {**arguments, "stops": stops, "first": first}, backend=backend)


def check_stops(stops: Any, **options: Any) -> None:
    check(*(options.pop(name) for name in ("folder", "config", "group")), *stops, **options)


@pytest.mark.task(backend="torch")
def test_what_a_checkpoint_from_elsewhere_may_not_do(tmp_path: Path) -> None:
    import json

    import numpy as np

    from dtrain.errors import CheckpointError
    from dtrain.task.model.object_state import Kept, owner
    from tests.kept_callbacks import Writes

    def made(name: str, *args: Any, is_new: bool = False) -> Any:
        return {"as": "made", "of": [[name, is_new, list(args)], [False, None], None, None]}

    writes, place = Writes("mine"), tmp_path / "evil"
    kept = Kept("p", lambda: {"0": owner(writes)}, dict)
    tree = {
        "_path": "/b", "on_epoch_end": 5, "__class__": 5, "api_key": "x", "phase": "second",
        "run": made("os:system", f"touch {place}"), "exec": made("builtins:exec", "1"),
        "inside": made("collections:_sys.exit"), "open": made("io:FileIO", str(place), "w"),
        "type": made("builtins:type", "a", [], {}), "other": made("pathlib:Path", is_new=True),
    }  # fmt: skip
    text = json.dumps({f"0 Writes.{name}": node for name, node in tree.items()})
    before = dict(vars(writes))
    kept.restore({"p": np.frombuffer(text.encode(), np.uint8)})
    assert vars(writes) == {**before, "phase": "second"} and not place.exists()
    for wrong in ("{", '{"0 Writes.phase": {"as": "array", "of": 7}}', '{"0 Writes.x": {"as": 1}}'):
        with pytest.raises(CheckpointError, match="is damaged"):
            kept.restore({"p": np.frombuffer(wrong.encode(), np.uint8)})


@pytest.mark.task(backend="torch")
def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    from dtrain.task.model.object_state import Kept, owner
    from tests.kept_callbacks import Writes

    writes = Writes("mine")
    writes.draws = (each for each in [1])
    kept = Kept("p", lambda: {"0": owner(writes)}, dict)
    kept.begin()
    assert kept.lost == {"Writes.draws"}  # before anything is trained
    writes.file = (tmp_path / "a").open("w")
    kept.arrays()
    assert kept.lost == {"Writes.draws", "Writes.file"}
    writes.file.close()


@pytest.mark.task(backend="torch")
def test_a_callback_that_has_the_module_saves_it_once(tmp_path: Path) -> None:
    from tests.kept_callbacks import Writes

    config = {"model": {"_target_": f"{HERE}.Everything"}, "trainer": {
        "loss": {"_target_": "torch.nn.CrossEntropyLoss"}, "metrics": []}}  # fmt: skip
    model, strategy, steps, _ = prepare("OneDevice", 1, settings(**config))
    writes = Writes("mine")
    writes.module = model.module
    run = looped(tmp_path, steps, model, strategy, [writes], epochs=1, steps_per_epoch=5,
                 validation_examples=21)  # fmt: skip
    run.loop.run(None)
    assert not [name for name in run.newest.arrays if "Writes.module" in name]


@pytest.mark.task(backend="torch")
def test_objects_that_refer_to_each_other(tmp_path: Path) -> None:
    from collections import defaultdict, namedtuple

    import numpy as np

    from dtrain.run.checkpoint import arrays
    from dtrain.task.model.object_state import Kept, owner
    from tests.kept_callbacks import Phase, Record, Writes

    def kept(**attributes: Any) -> tuple[Any, Kept]:
        writes = Writes("mine")
        vars(writes).update(attributes)
        kept = Kept("p", lambda: {"0": owner(writes)}, dict)
        kept.begin()
        return writes, kept

    nodes = [Record(number) for number in range(20)]
    for node in nodes:  # as many ways through as there are orders of them
        node.before = [each for each in nodes if each is not node]
    attributes = {"phase_of": Phase.FIRST, "late": None, "rows": [], "masked": None}
    old, saved = kept(nodes=nodes, **attributes)
    both, pair = [1], [2]
    old.child = Record(1.0, Record(2.0))
    old.child.before.before = old.child
    old.phase_of, old.both = Phase.LAST, [both, pair, both, pair]
    old.rows = [namedtuple("Pair", "a")(1)]
    old.late, old.parts = defaultdict(lambda: 0, {1: 2}), np.zeros(2, [("a", "f4")])
    old.masked, old.extended = np.ma.masked_array([1, 2], [0, 1]), np.zeros(2, np.longdouble)
    state = saved.arrays()
    arrays.digest(state)
    assert saved.lost == {
        f"Writes.{name}" for name in ("late", "masked", "parts", "extended", "rows")
    }
    new, again = kept(nodes=nodes, **attributes)
    again.restore(state)
    assert (new.phase_of, new.late) == (Phase.LAST, None)
    assert new.both == old.both and new.both[0] is new.both[2]
    assert new.child.before.before is new.child and new.child.before.loss == 2.0


@pytest.mark.task(backend="torch")
def test_a_state_is_not_taken_for_what_stood_there_before() -> None:
    from dtrain.task.model.object_state import Kept, owner

    class Source:
        rows = 0

        def state_dict(self) -> dict[str, int]:
            return {"rows": self.rows}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.rows = state["rows"]

    class Holder:
        pass

    def saved() -> dict[int, Any]:
        made = [{"rows": number} for number in range(100)]  # gone, unless the caller holds them
        return {id(each): each for each in made}

    holder = Holder()
    vars(holder)["source"] = Source()
    kept = Kept("p", lambda: {"0": owner(holder)}, saved)
    kept.begin()
    holder.source.rows = 3
    arrays = kept.arrays()
    holder.source.rows = 0
    kept.restore(arrays)
    assert holder.source.rows == 3
