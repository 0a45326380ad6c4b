"""Plain modules under ``backend=torch``: beside one process and loops by hand; what is refused."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import pytest

from dtrain.run.cluster import Cluster, Task
from tests import warm
from tests.conftest import QUICK, need
from tests.sampled import sampled
from tests.test_steps import BATCH, in_order, prepare, settings
from tests.test_strategies import together

CLOSE = 1e-5
STEPS = 6


def torch_optimizer(name: str, schedule: Any = None, **options: Any) -> Any:
    node = {"_target_": f"torch.optim.{name}", "learning_rate": 0.01, **options}
    if schedule is None:
        return node
    return {
        **node,
        "schedule": {**schedule, "_target_": f"torch.optim.lr_scheduler.{schedule['_target_']}"},
    }


OF_KERAS = {
    "_target_": "keras.optimizers.AdamW", "learning_rate": 0.01, "use_ema": True,
    "gradient_accumulation_steps": 2,
}  # fmt: skip
ACCUMULATING = {
    "_target_": "keras.optimizers.SGD", "learning_rate": 1.0, "gradient_accumulation_steps": 3,
}  # fmt: skip
LOGGED = ["gradient_norm", "weight_norm", "update_ratio"]


def config(
    name: str, kind: str = "rows", loss: Any = None, optimizer: Any = None,
    reduction: str = "mean", **model: Any
) -> Any:  # fmt: skip
    target = "tests.torch_modules"
    bare = name in ("Routed", "OfExamples") or kind == "labelled"
    metrics = ["accuracy", *([{"_target_": F1, "num_classes": 3}] if SCORED else [])]
    loss = loss or {"_target_": "torch.nn.CrossEntropyLoss"}
    return settings(
        model={"_target_": f"{target}.{name}", **model},
        dataset={"_target_": f"{target}.data", "kind": kind},
        trainer={"log": LOGGED, "loss": loss, "metrics": [] if bare else metrics,
                 "gradient_reduction": reduction},
        optimizer=optimizer or torch_optimizer("AdamW", weight_decay=0.1),
    )  # fmt: skip


#: In the extra `test`, as its users have it beside PyTorch.
SCORED = find_spec("torchmetrics") is not None
F1, MATRIX = (
    f"torchmetrics.classification.Multiclass{name}" for name in ("F1Score", "ConfusionMatrix")
)


def cases() -> dict[str, Any]:
    return {
        "whole": config("Net"),
        "uneven": config("Net", loss={"_target_": "tests.torch_modules.uneven"}),
        "summed": config(
            "Net",
            loss={"_target_": "tests.torch_modules.share"},
            reduction="sum",
            optimizer=torch_optimizer("SGD"),
        ),
        "loss": config("Two", "several", loss={"_target_": "tests.torch_modules.Weighed"}),
        "hidden": config("Hidden"),
        "adapted": config("Adapted"),
        "of examples": config("OfExamples"),
        "several": config("Two", "several"),
        "named": config("Two", "named"),
        "tokens": config("Tokens", "tokens"),
        "sparse": config("Tokens", "tokens", optimizer=torch_optimizer("SGD"), sparse=True),
        "of keras": config("Net", optimizer=OF_KERAS),
        "accumulated": config("Tagged", "labelled", optimizer=ACCUMULATING),
        "routed": config("Routed"),
        "unused": config("Routed", seldom=False),
        "clipped": config("Two", "several", optimizer=torch_optimizer("SGD", global_clipnorm=0.1)),
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
    loss = {v.name: v for v in model.variables if v.name.startswith("trainer.loss")}
    assert all(array.all() for array in strategy.read(loss).values())  # all began with 0
    if type(strategy).__name__ == "FullySharded":
        return each, held, strategy.read({**model.names, **loss})
    return each, held, {**plain.state_dict(model), **strategy.read(loss)}


def alone(names: list[str]) -> Any:
    return {case: numbers(case) for case in names}


def shared(cluster: Cluster, task: Task, devices: list[str], kind: str, names: list[str]) -> Any:
    from dtrain.errors import UsageError
    from dtrain.task import strategies

    if kind == "FullySharded":
        with pytest.raises(UsageError, match="model=frozen: is assigned in a step, where FSDP"):
            numbers("hidden", strategies.FullySharded(devices))
    return {case: numbers(case, getattr(strategies, kind)(devices)) for case in names}


@pytest.mark.parametrize(
    ("kind", "count"), sampled([("MultiWorker", 2), ("MultiWorker", 4), ("FullySharded", 2)],
                               ("MultiWorker", 2), ("FullySharded", 2))
)  # fmt: skip
def test_processes_have_the_numbers_of_one(kind: str, count: int) -> None:
    need("torch")
    # Fully sharded modules are gathered by all replicas, or by none, and have PyTorch's optimizers.
    names = ["whole", "uneven", "summed", "adapted", "loss", "unused", "clipped"]
    names = names if kind == "FullySharded" else list(cases())
    tasks = [Task("chief", 0, 1), *(Task("worker", index, 1) for index in range(count - 1))]
    expected = warm.call(alone, 1, {"names": names}, backend="torch")
    for made in together(shared, tasks, count, "torch", kind=kind, names=names):
        for case, (each, held, arrays) in made.items():
            for step, pair in enumerate(zip(each, expected[case][0], strict=True)):
                assert pair[0] == pytest.approx(pair[1], abs=CLOSE, rel=CLOSE), (case, step)
            assert held == pytest.approx(expected[case][1], abs=CLOSE, rel=CLOSE), case
            for name, array in expected[case][2].items():
                assert arrays[name] == pytest.approx(array, abs=10 * CLOSE), (case, name)


@pytest.mark.task(backend="torch")
def test_a_module_is_trained_as_by_a_loop_by_hand() -> None:
    """With what moves more than the rate, and what clips."""
    import copy

    import torch
    from torch.optim import lr_scheduler

    clip = torch.nn.utils
    of_hand = {
        "AdamW": (
            torch_optimizer("AdamW", {"_target_": "OneCycleLR"}, weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
            lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.01, total_steps=16),
            lambda p: None,
        ),
        "SGD": (
            torch_optimizer("SGD", {"_target_": "StepLR", "step_size": 3}, momentum=0.9,
                            nesterov=True, global_clipnorm=0.5),
            lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
            lambda o: lr_scheduler.StepLR(o, 3),
            lambda p: clip.clip_grad_norm_(p, 0.5),
        ),
        "RMSprop": (
            torch_optimizer("RMSprop", clipvalue=0.01),
            lambda p: torch.optim.RMSprop(p, lr=0.01),
            lambda o: lr_scheduler.ConstantLR(o, 1.0),
            lambda p: clip.clip_grad_value_(p, 0.01),
        ),
    }  # fmt: skip
    for name, (node, make, schedule, limit) in of_hand.items():
        model, _, steps, splits = prepare("OneDevice", 1, config("Net", optimizer=node))
        module = copy.deepcopy(model.module).train()
        optimizer = make(module.parameters())
        scheduler = schedule(optimizer)
        x, y = map(torch.as_tensor, in_order(splits.train, STEPS))
        for step in range(STEPS):
            rows = slice(step * BATCH, (step + 1) * BATCH)
            loss = torch.nn.functional.cross_entropy(module(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            limit(module.parameters())
            optimizer.step()
            scheduler.step()
            made = steps.results(steps.train(1))["loss"]
            assert made == pytest.approx(loss.item(), abs=1e-6), (name, step)
        for one, other in zip(
            model.module.state_dict().values(), module.state_dict().values(), strict=True
        ):
            assert torch.allclose(one, other, atol=1e-6), name


@pytest.mark.task(backend="torch")
def test_a_program_runs_no_code_when_it_is_loaded() -> None:
    """Of archives with pickles, with a compiled library, and with texts that are evaluated."""
    import io
    import json
    import pickle
    import tempfile
    import zipfile
    from pathlib import Path

    import numpy as np
    import torch

    from dtrain.errors import TrainingError
    from dtrain.task.backends.torch import exported
    from dtrain.task.backends.torch.plain import PlainModel

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int = 2) -> torch.Tensor:
            return x * torch.ones(3) + x.shape[0]

    folder = Path(tempfile.mkdtemp())
    mark, path = folder / "executed", folder / "model.pt2"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    exported.write(PlainModel(Net(), "net"), "pt2", path, np.ones((2, 3), "f4"), ["x"], ["y"])
    with zipfile.ZipFile(path) as file:
        records = {name.partition("/")[2]: file.read(name) for name in file.namelist()}
    module, inputs = exported.program(path)
    assert module(torch.ones(4, 3)).tolist() == [[5.0] * 3] * 4 and len(inputs) == 1

    class Evil:
        def __reduce__(self) -> Any:
            return eval, (code,)

    pickled = io.BytesIO()
    torch.save(((Evil(),), {}), pickled)

    def config(name: str) -> bytes:
        entry = {"path_name": name, "is_param": False, "use_pickle": True, "tensor_meta": None}
        return json.dumps({"config": {"w": entry}}).encode()

    texts = records["models/model.json"].decode()

    def replaced(old: str, new: str) -> dict[str, bytes]:
        assert old in texts
        return {"models/model.json": texts.replace(old, new).encode()}

    argument = json.dumps("x=" + code.replace("'", '"'))
    conditions = replaced('"guards_code": []', f'"guards_code": [{json.dumps(code)}]')
    for hostile in (
        {"data/sample_inputs/model.pt": pickled.getvalue()},
        {"data/weights/model_weights_config.json": config("weight_0"),
         "data/weights/weight_0": pickled.getvalue()},
        {"data/constants/model_constants_config.json": config("opaque_obj_0"),
         "data/constants/opaque_obj_0": pickle.dumps(Evil())},
        {"data/aotinductor/model/model.so": b"x"},
        replaced('"x"', argument),
        replaced("Symbol('s", f"{code}+Symbol('s"),
        replaced("Symbol('s", "eval(chr(49))+Symbol('s"),
        replaced("torch.ops.aten.mul.Tensor", "torch.hub.load"),
        conditions,
    ):  # fmt: skip
        with zipfile.ZipFile(path, "w") as file:
            for name, data in {**records, **hostile}.items():
                file.writestr(f"model/{name}", data)
        try:
            exported.program(path)[0](torch.ones(4, 3))
        except (TrainingError, pickle.UnpicklingError):
            assert hostile is not conditions
        else:
            assert hostile is conditions, "they are passed over"
        assert not mark.exists(), list(hostile)


@pytest.mark.task(backend="torch")
def test_a_validation_is_the_mean_over_all_targets_that_count() -> None:
    import numpy as np
    import torch

    says = config("Tagging", "labelled", says=True)
    both = config("Tagged", "labelled"), config("Tagging", "labelled")
    for each, factor in (*((each, 1) for each in both), (says, 2)):
        for size in (None, 5, 1):
            each.trainer.validation_batch_size = size
            model, _, steps, splits = prepare("OneDevice", 1, each)
            x, y = map(torch.as_tensor, splits.validation[np.arange(len(splits.validation))])
            model.eval()
            with torch.no_grad():
                whole = torch.nn.functional.cross_entropy(model.module(x), y).item()
            sums = steps.evaluate(*divmod(len(x), steps.evaluation_examples))
            held = steps.results(sums, training=False)
            assert held == {"loss": pytest.approx(factor * whole, rel=1e-5)}, size


@pytest.mark.task(backend="torch")
@pytest.mark.parametrize("says", [None, False, True])
def test_what_is_accumulated_is_the_gradient_of_all_batches(says: bool | None) -> None:
    import torch

    model = ("Tagged", {}) if says is None else ("Tagging", {"says": says})
    each = config(model[0], "labelled", optimizer=ACCUMULATING, **model[1])
    model, _, steps, splits = prepare("OneDevice", 1, each)
    x, y = map(torch.as_tensor, in_order(splits.train, 6))
    for part in (slice(0, 24), slice(24, 48)):
        model.zero_grad()
        whole = torch.nn.functional.cross_entropy(model.module(x[part]), y[part])
        expected = torch.autograd.grad(whole * (2 if says else 1), model.module.parameters())
        before = [weight.detach().clone() for weight in model.module.parameters()]
        steps.train(3)
        for old, new, gradient in zip(before, model.module.parameters(), expected, strict=True):
            assert torch.allclose(old - new, gradient, atol=1e-6)


#: Functions of a module ``mine``, keys of a run with it, and what it ends with.
WRONG = {
    "shape": ("", ["trainer.loss={_target_: torch.nn.MSELoss}", "+model.classes=1"],
              r"trainer.loss=MSELoss: outputs have the shape \(1, 1\), and targets \(1,\)"),
    "scalar": ("def rows(outputs, targets): return (outputs.mean(1) - targets) ** 2",
               ["trainer.loss={_target_: mine.rows}"], "rows: has the shape .*reduction"),
    "order": ("def either(a, b): return (a - b).mean()", ["trainer.loss={_target_: mine.either}"],
              "'a' as its first parameter, which says neither outputs nor targets"),
    "none": ("Net.training_step = lambda self, batch: None", [], "returns NoneType.*return loss"),
    "lightning": ("Net.training_step = lambda self, batch, batch_idx: 0", [],
                  r"takes \(batch, batch_idx\).*def training_step\(self, batch\)"),
    "loader": (
        "def data(): return torch.utils.data.DataLoader(torch.utils.data.TensorDataset("
        "torch.zeros(64, 8), torch.zeros(64).long()))",
        ["dataset=custom", "dataset._target_=mine.data"],
        "batches in an order of its own.*return loader.dataset"),
    "items": (
        "class Items(torch.utils.data.Dataset):\n    __len__ = lambda self: 64\n"
        "    __getitem__ = lambda self, i: {'image': torch.zeros(8), 'label': 1}\n"
        "def data(): return Items()",
        ["dataset=custom", "dataset._target_=mine.data", "+model.classes=2"],
        r"forward\(x\): the dataset gives inputs by name: image, label;.*training_step"),
    "outputs": ("Net.forward = lambda self, x: (self.b(x), x)",
                ["trainer.loss=torch.nn.CrossEntropyLoss"],
                "targets are one array, and the model returns .*training_step"),
    "lbfgs": ("", ["optimizer._target_=torch.optim.LBFGS"], "LBFGS: calls the loss several times"),
    **({"matrix": ("", [f"trainer.metrics={{_target_: {MATRIX}, num_classes: 4}}"], "several"),
        "no sums": ("", ["trainer.metrics={_target_: torchmetrics.PearsonCorrCoef}"], "no sums")}
       if SCORED else {}),
    "limit": ("", ["+optimizer.clipnorm=-1"], "is no limit of gradients"),
    "optimizer elsewhere": ("", ["backend=tensorflow"], "is PyTorch's.*type: backend=torch"),
    "module elsewhere": ("", ["backend=jax", "optimizer._target_=keras.optimizers.SGD"],
                         "returned Net.*type: backend=torch"),
    "sparse parts": (
        "Net.__init__ = lambda self, classes: [nn.Module.__init__(self), setattr(self, 'a', "
        "nn.Embedding(2, 8, sparse=True)), setattr(self, 'b', nn.Linear(8, classes))] and None\n"
        "Net.forward = lambda self, x: self.b(self.a((x > 0).long()).mean(1))",
        ["strategy=fsdp", "hardware.hosts=1", "hardware.devices=2"], "a.sparse: gives sparse"),
    "plateau": ("", ["+optimizer.schedule._target_=torch.optim.lr_scheduler.ReduceLROnPlateau"],
                "waits for what an epoch has measured.*keras.callbacks.ReduceLROnPlateau"),
    "takes model": ("def of(model, lr): ...", ["optimizer._target_=mine.of"],
                r"takes the model.*def of\(named_parameters"),
    "lazy": ("Net.__init__ = lambda self, classes: [nn.Module.__init__(self), setattr(self, 'a', "
             "nn.LazyLinear(3))] and None\nNet.forward = lambda self, x: x",
             [], "a.weight is lazy|Net.a.weight: is lazy"),
    "keras schedule": ("", ["optimizer/schedule=cosine"], "is for an optimizer of Keras'"),
}  # fmt: skip
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, classes)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.b(self.drop(self.norm(torch.tanh(self.a(x)))))

"""
MODULE = (
    "backend=torch", "model=custom", "model._target_=mine.Net", "optimizer=custom",
    "optimizer._target_=torch.optim.AdamW", "optimizer.learning_rate=0.01",
)  # fmt: skip


@pytest.mark.parametrize(
    "case", sampled(WRONG, "shape", "none", "plateau", "takes model", "lazy", "optimizer elsewhere")
)
def test_what_is_wrong_is_said_in_a_sentence(case: str, on_torch, user_code) -> None:
    code, keys, problem = WRONG[case]
    user_code(NET + code)
    keys = [*QUICK[3:], *keys] if case not in ("loader", "items") else keys
    run = on_torch("tracking=none", *MODULE, *keys)
    assert run.code and re.search(problem, run.output.replace("\n", " ")), run.output


@pytest.mark.task(backend="torch")
@pytest.mark.parametrize("replaced", [True, False, None])
def test_a_weight_that_a_step_replaces_unfreezes_or_makes_is_refused(replaced: bool | None) -> None:
    from dtrain.errors import UsageError

    steps = prepare("OneDevice", 1, config("Changed", replaced=replaced))[2]
    name = "made" if replaced is None else "shift"
    with pytest.raises(UsageError, match=f"model={name}: is replaced, or begins to be trained"):
        steps.train(1)


@pytest.mark.task(backend="torch")
def test_a_teacher_of_a_loss_only_evaluates() -> None:
    import keras

    calls = []
    for metrics in ([], ["auc"]):
        chosen = config("Net", loss={"_target_": "tests.torch_modules.Distilled"})
        chosen.trainer.metrics = metrics
        model, _, steps, _ = prepare("OneDevice", 1, chosen)
        loss = model.loss.function
        before = keras.ops.convert_to_numpy(loss.teacher[1].running_mean).copy()
        calls.append(loss.calls)
        steps.train(2)
        assert loss.dropout.training and not any(each.training for each in loss.teacher.modules())
        steps.evaluate(1, 0)
        assert not loss.dropout.training
        assert (keras.ops.convert_to_numpy(loss.teacher[1].running_mean) == before).all()
    assert calls[0] == calls[1]  # what is tried for a metric changes nothing


def test_a_function_makes_the_optimizer(on_torch, user_code) -> None:
    user_code(NET + """
def of(named_parameters, lr):
    rates = [(lr if name.startswith("a") else lr / 2, each) for name, each in named_parameters]
    return torch.optim.SGD([{"params": [each], "lr": rate} for rate, each in rates])
""")  # fmt: skip
    run = on_torch("tracking=none", *MODULE, "optimizer._target_=mine.of", *QUICK[3:])
    assert run.code == 0 and run.points("learning_rate")[8] == 0.01, run.output


def frozen(cluster: Cluster, task: Task, devices: list[str]) -> Any:
    """Train what has frozen weights; return how they differ afterwards, and what was sent."""
    from torch import distributed

    from dtrain.task import strategies

    model, strategy, steps, _ = prepare(
        "", 1, config("Adapted"), strategy=strategies.MultiWorker(devices)
    )
    before = strategy.read({v.path: v for v in model.non_trainable_variables})
    sent, reduce = [], distributed.all_reduce

    def counted(tensor: Any, *args: Any, **options: Any) -> Any:
        sent.append(tensor.numel())
        return reduce(tensor, *args, **options)

    steps.train(1)  # afterwards the copies are compared
    distributed.all_reduce = counted
    steps.train(5)
    after = strategy.read({v.path: v for v in model.non_trainable_variables})
    trained = sum(v.value.numel() for v in model.trainable_variables)
    return {name: (after[name] != before[name]).sum() for name in before}, trained, sum(sent) / 5


def test_frozen_weights_are_not_sent_and_keep_their_bits() -> None:
    need("torch")
    tasks = [Task("chief", 0, 1), Task("worker", 0, 1), Task("worker", 1, 1)]
    for changed, trained, sent in together(frozen, tasks, 3, "torch"):
        assert len(changed) == 2 and not any(changed.values())
        assert sent < trained + 100  # and what is logged
