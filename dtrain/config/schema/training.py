"""The keys of what is trained, on what devices, from which weights, and what is kept of it."""

import math
import re
from typing import Annotated, Literal, Self

from annotated_types import MinLen
from pydantic import BeforeValidator, Field, model_validator

from dtrain.config import fields as f
from dtrain.config.node import seconds

_METRICS = 1000  # of one output
Epoch = Annotated[int, f.within(2, f.MANY)]


def _named(value: f.Plain) -> str | None:
    """Say why Keras has no loss or metric of such a name, as far as its form goes."""
    if isinstance(value, str):
        fits = re.fullmatch(r"(torch(\.[A-Za-z]\w{0,99}){2,3}|[A-Za-z][A-Za-z0-9_]{0,99})", value)
        return None if fits else "is not a name that Keras can have"
    return f.node_problem(value)


def _loss(value: f.Plain) -> str | None:
    if isinstance(value, dict) and "_target_" not in value:
        return f.mapping_problem(value, _named)
    if not isinstance(value, list):
        return _named(value)
    if not value:
        return "is empty"
    losses = (each for each in value if each is not None)  # an output without a loss
    return next((problem for each in losses if (problem := _named(each))), None)


def _metrics(value: f.Plain) -> str | None:
    if isinstance(value, dict) and "_target_" not in value:
        return f.mapping_problem(value, _metrics_of)
    return _metrics_of(value)


def _metrics_of(value: f.Plain) -> str | None:
    """Say why ``value`` cannot be the metrics of one output: one, or a list of them."""
    if not isinstance(value, list):
        return _named(value)
    if len(value) > _METRICS:
        return f"names {len(value):,} metrics"
    for each in value:
        problem = _metrics_of(each) if isinstance(each, list) else _named(each)
        if problem is not None:
            return f"{f.short(each)} {problem}"
    return None


def _duration(value: f.Plain) -> str | None:
    duration = seconds(value)
    if duration is None or math.isnan(duration):
        return "is no length of time"
    if duration <= 0:
        return "must be above 0"
    return None if duration <= f.YEAR else f"must be at most {f.YEAR}"


Loss = Annotated[
    f.Plain,
    f.Form("a name of keras.losses, or a node with _target_ (or a list or mapping of them, one for "
         "each output)", _loss, "{_target_: keras.losses.Huber}"),
]  # fmt: skip
Metrics = Annotated[
    f.Plain,
    f.Form("a name of keras.metrics or a node with _target_, a list of them, or such by output",
         _metrics, "[accuracy]"),
]  # fmt: skip
_Factor = Annotated[float, f.within(-f.LARGE, f.LARGE)]
LossWeights = (
    Annotated[list[_Factor], f.items(1, 1000)] | Annotated[dict[f.Line, _Factor | None], MinLen(1)]
)
ClassWeight = Annotated[dict[f.Index, Annotated[float, f.within(0, f.MANY)]], f.items(1, 100_000)]
Duration = Annotated[
    f.Plain, f.Form("a time: 2h, 90m, 1h30m, or seconds up to a year", _duration, "2h")
]


class Renaming(f.Group, scope="numbers"):
    """A rule for names of weights that differ."""

    path: f.Regex
    """Pattern of paths of the model's weights."""
    as_: Annotated[str, Field(max_length=1000)] | None = Field(None, alias="as")
    """Their names where they are read from, with the groups of the pattern."""
    skip: bool | None = None
    """Leave them as they are."""

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.as_ is None) == (self.skip is None):
            raise ValueError("is no rule {path: REGEX, as: TEXT} or {path: REGEX, skip: true}")
        return self


class Factor(f.Group, scope="numbers"):
    """A factor of the learning rate."""

    path: f.Regex
    """Pattern of paths of weights."""
    factor: f.Positive
    """What their learning rate is multiplied by."""


class LowRank(f.Group, scope="numbers"):
    """Layers that are trained by LoRA (Hu et al. 2021)."""

    path: f.Regex
    """Pattern of paths of layers."""
    rank: Annotated[int, f.within(1, 2**16)]
    """Width of the two thin matrices."""


class EarlyStopping(f.Group, scope="numbers"):
    """When training ends before its last epoch."""

    patience: f.Count
    """Epochs without a better value, after which training ends."""
    monitor: f.Line | None = None
    """Metric that is looked at; null: the objective."""
    restore_best: bool = False
    """Put the weights of the best epoch back."""
    min_delta: f.Amount = 0.0
    """Least change that counts."""
    mode: Literal["max", "min"] | None = None
    """Which value is better; null: by the metric's name."""


def _in_full(value: f.Plain) -> f.Plain:
    return {"patience": value} if type(value) is int else value


#: Keras' callback in short, or its patience alone.
Stopping = Annotated[EarlyStopping, BeforeValidator(_in_full)]
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
Norms = Annotated[list[Literal["gradient_norm", "weight_norm", "update_ratio"]], f.items(0, 3)]


class Init(f.Group, scope=f.Scope("numbers", ("training",))):
    """Weights that a new run begins with."""

    weights: f.Path | None = None
    """Run folder, checkpoint, or file (.keras, .h5, .safetensors, .pt) to read them from."""
    rules: Annotated[list[Renaming], f.items(0, 1000)] = []
    """[{path: REGEX, as: TEXT}, {path: REGEX, skip: true}] for names that differ."""


class FineTuning(f.Group, scope="numbers"):
    """Frozen weights, unfreezing, learning rates by layer, LoRA."""

    freeze: f.Patterns = []
    """Patterns of paths of weights that are not trained, such as ['^backbone/']."""
    unfreeze: dict[Epoch, Annotated[list[f.Regex], f.items(1, 1000)]] | None = None
    """{EPOCH: [REGEX]}, frozen weights that are trained from the start of an epoch."""
    learning_rates: Annotated[list[Factor], f.items(0, 1000)] = []
    """[{path: REGEX, factor: 0.1}], factors of the learning rate by path."""
    lora: Annotated[list[LowRank], f.items(0, 1000)] = []
    """[{path: REGEX, rank: 4}], layers of which a product of two thin matrices is trained."""


class Hardware(f.Group, scope="host"):
    """Devices, their memory, and the arithmetic on them."""

    kind: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    """Kind of device; auto: the machine's GPUs, else its CPU, with strategy=tpu a TPU."""
    devices: Annotated[f.Number | None, f.scope("host", "strategy")] = None
    """Devices per host; null: all GPUs, on the CPU 2 for data parallel and else 1."""
    hosts: Annotated[f.Number | None, f.scope("host", "strategy")] = None
    """Hosts of strategy=multiworker and fsdp; null: 2, of fsdp 1."""
    intra_op_threads: Annotated[int, f.within(1, 100_000)] | None = None
    """Threads of an operation; null: 1 where each core has a replica, else all."""
    inter_op_threads: Annotated[int, f.within(1, 100_000)] | None = None
    """Operations that run at once; null: the framework's own choice."""
    onednn: bool = True
    """Use Intel's CPU kernels (oneDNN)."""
    memory_growth: bool = True
    """Take GPU memory as it is needed, not all at once."""
    precision: Annotated[Precision, f.scope("numbers")] = "float32"
    """Keras' numeric policy; mixed_float16 comes with loss scaling."""
    jit_compile: bool = False
    """Compile steps by XLA (one replica)."""
    remat: f.Patterns = []
    """Patterns of layer names; their activations are computed again for the gradients."""


class Trainer(f.Group, scope="length"):
    """How long is trained, on what batches, to which end."""

    batch_size: Annotated[f.Count, f.scope("data")] = 64
    """Examples of a step, over all replicas."""
    epochs: f.Count = 25
    """Epochs in all."""
    steps_per_epoch: Annotated[f.Count | None, f.scope("data")] = None
    """Steps of an epoch; null: examples // batch_size."""
    validation_freq: f.Count = 1
    """Epochs between two evaluations."""
    validation_batch_size: f.Count | None = None
    """Examples of a batch of the evaluation; null: batch_size."""
    validation_steps: Annotated[f.Count | None, f.scope("numbers")] = None
    """Batches of an evaluation, the first ones; null: all."""
    loss: Annotated[Loss, f.scope("numbers")] = "auto"
    """Of keras.losses, node with _target_, or {output: loss}; auto: by classes or numbers."""
    loss_weights: Annotated[LossWeights | None, f.scope("numbers")] = None
    """Factors of the losses of several outputs, a list or {name: 0.5}; null: 1."""
    gradient_reduction: Annotated[Literal["mean", "sum"], f.scope("numbers")] = "mean"
    """sum: the model's own code divides its losses by the global batch."""
    class_weight: Annotated[ClassWeight | None, f.scope("numbers")] = None
    """Weights of examples by class, {0: 1.0, 1: 3.0}; a class not named weighs 1."""
    metrics: Annotated[Metrics, f.scope("numbers")] = "auto"
    """Names (accuracy, f1_macro), nodes, a list, {output: [...]}; auto: accuracy or mae."""
    callbacks: Annotated[Annotated[list[f.Node], f.items(0, 1000)], f.scope("numbers")] = []
    """Keras callbacks, such as {_target_: keras.callbacks.EarlyStopping, patience: 3}."""
    early_stopping: Annotated[Stopping | None, f.scope("numbers")] = None
    """Epochs without a better objective after which training ends, or a mapping, such as {patience:
    3, monitor: val_loss, restore_best: true}; null: never."""
    max_time: Duration | None = None
    """End after 2h, 90m, 1h30m or so many seconds of this command; null: never."""
    terminate_on_nan: bool = True
    """End the run with an error when the loss is NaN or infinite."""
    deterministic: bool = False
    """Deterministic operations, which a GPU needs for bit-identical results."""
    compile: bool = False
    """Compile the model by torch.compile (backend=torch)."""
    log_every_steps: f.Count | None = None
    """Steps between two log entries; null: about 200 entries a run."""
    progress: Annotated[Literal["bar", "epochs", "none"], f.scope("command", "once")] = "bar"
    """What is shown: a line for each epoch, and below it one that moves; epochs: the former."""
    log: Annotated[Norms, f.scope("numbers")] = []
    """gradient_norm, weight_norm, update_ratio: L2 norms that each step computes."""


class Checkpointing(f.Group, scope="length"):
    """When checkpoints are saved, and which are kept."""

    every_epochs: f.Count | None = 1
    """Epochs between two checkpoints; null: none of this kind."""
    every_steps: f.Count | None = None
    """Steps between two checkpoints; null: none of this kind."""
    every_seconds: f.Seconds | None = None
    """Seconds between two checkpoints; null: none of this kind."""
    keep: f.Count = 3
    """How many of the newest are kept, beside the best one."""
    best: bool = True
    """Keep the checkpoint with the best objective."""
