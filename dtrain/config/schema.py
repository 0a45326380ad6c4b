"""Types of every configuration key. ``conf/`` gives the values; a key that is not here is refused.

Those of models, datasets, optimizers and schedules are in :mod:`dtrain.config.presets`, those of
strategies in :mod:`dtrain.config.strategies`; :mod:`dtrain.config.groups` gives them to Hydra.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from omegaconf import MISSING

from dtrain.config import forms, objective
from dtrain.config.forms import FILE_NAME, NODE, PATH, PATTERNS, target, text
from dtrain.config.objective import Mode
from dtrain.config.ranges import LARGE, MANY, SEED, YEAR, Each, Form, Range, formed, short, within
from dtrain.config.section import Open, Section

#: Rules, and patterns of one epoch, that a list may have.
_RULES = 1000
_RANK = Range(1, 2**16, whole=True)
_FACTOR = Range(0, LARGE, above=True)
_EPOCH = Range(2, MANY, whole=True)


def _rule(name: str, why: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    """Return what says why a node is not ``{path: REGEX, NAME: VALUE}``."""

    def problem(value: Any) -> str | None:
        if not isinstance(value, dict) or set(value) != {"path", name}:
            return f"is no rule {{path: REGEX, {name}: ...}}"
        if (wrong := PATTERNS.rule.problem(value["path"])) is not None:
            return f"has a path that {wrong}"
        found = why(value[name])
        return None if found is None else f"has a {name} that {found}"

    return problem


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and len(value) <= 1000 else "is no text"


def _initial(value: Any) -> str | None:
    """Say why ``value`` is no rule of ``init.rules``."""
    skips = isinstance(value, dict) and "skip" in value
    if skips and not isinstance(value["skip"], bool):
        return "has a skip that is neither true nor false"
    return _rule("skip" if skips else "as", (lambda _: None) if skips else _text)(value)


def _unfreeze(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "is no mapping from epochs to patterns"
    for epoch, patterns in value.items():
        if _EPOCH.problem(epoch):
            return f"{short(epoch)} is no epoch after the first"
        problem = PATTERNS.problem(patterns)
        if problem is None and not patterns:
            problem = "has no pattern"
        if problem is not None:
            return f"epoch {epoch}: {short(patterns)} {problem}"
    return None


INIT_RULES = Each(
    Form("{path: REGEX, as: TEXT} or {path: REGEX, skip: true}", _initial), 0, _RULES,
    '[{path: "^head/", skip: true}]',
)  # fmt: skip
UNFREEZE = Form(
    "null, or {EPOCH: [REGEX]}, epochs from 2 on", _unfreeze, '{3: ["^block_4/"]}'
)  # fmt: skip
FACTORS = Each(
    Form("{path: REGEX, factor: NUMBER above 0}", _rule("factor", _FACTOR.problem)), 0, _RULES,
    '[{path: "^backbone/", factor: 0.1}]',
)  # fmt: skip
LORA = Each(
    Form("{path: REGEX, rank: NUMBER}", _rule("rank", _RANK.problem)), 0, _RULES,
    '[{path: "query", rank: 4}]',
)  # fmt: skip


@dataclasses.dataclass
class Init(Section):
    """Weights that a new run begins with.

    Attributes:
        weights: run folder, checkpoint, or file (.keras, .h5, .safetensors, .pt) to read them from.
        rules: [{path: REGEX, as: TEXT}, {path: REGEX, skip: true}] for names that differ.
    """

    weights: str | None = formed(None, PATH)
    rules: list[Any] = formed([], INIT_RULES)


@dataclasses.dataclass
class FineTuning(Section):
    """Frozen weights, unfreezing, learning rates by layer, LoRA.

    Attributes:
        freeze: patterns of paths of weights that are not trained, such as ['^backbone/'].
        unfreeze: {EPOCH: [REGEX]}, frozen weights that are trained from the start of an epoch.
        learning_rates: [{path: REGEX, factor: 0.1}], factors of the learning rate by path.
        lora: [{path: REGEX, rank: 4}], layers of which a product of two thin matrices is trained.
    """

    freeze: list[str] = formed([], PATTERNS)
    unfreeze: Any | None = formed(None, UNFREEZE)
    learning_rates: list[Any] = formed([], FACTORS)
    lora: list[Any] = formed([], LORA)


class Backend(enum.Enum):
    """Frameworks that Keras computes with; ``auto`` is the first that has the strategy."""

    tensorflow = 1
    jax = 2
    torch = 3
    auto = 4


class Precision(enum.Enum):
    """Numeric policies of Keras."""

    float32 = 1
    mixed_bfloat16 = 2
    mixed_float16 = 3


class Kind(enum.Enum):
    """Kinds of device; ``auto`` is the machine's GPUs, else its CPU; with strategy=tpu a TPU."""

    auto = 1
    cpu = 2
    gpu = 3
    tpu = 4


@dataclasses.dataclass
class Hardware(Section):
    """Devices, their memory, and the arithmetic on them.

    Attributes:
        kind: kind of device; auto: the machine's GPUs, else its CPU, with strategy=tpu a TPU.
        devices: devices per host; null: all GPUs, on the CPU 2 for data parallel and else 1.
        hosts: hosts of strategy=multiworker and fsdp; null: 2, of fsdp 1.
        intra_op_threads: threads of an operation; null: 1 where each core has a replica, else all.
        inter_op_threads: operations that run at once; null: the framework's own choice.
        onednn: use Intel's CPU kernels (oneDNN).
        memory_growth: take GPU memory as it is needed, not all at once.
        precision: Keras' numeric policy; mixed_float16 comes with loss scaling.
        jit_compile: compile steps by XLA (one replica).
        remat: patterns of layer names; their activations are computed again for the gradients.
    """

    kind: Kind = Kind.auto
    devices: int | None = within(None, 1, 10_000)  # this machine has less: resources/devices.py
    hosts: int | None = within(None, 1, 10_000)
    intra_op_threads: int | None = within(None, 1, 100_000)
    inter_op_threads: int | None = within(None, 1, 100_000)
    onednn: bool = True
    memory_growth: bool = True
    precision: Precision = Precision.float32
    jit_compile: bool = False
    remat: list[str] = formed([], PATTERNS)


#: What the losses of replicas are: means over their examples, or parts of one sum.
Reduction = enum.Enum("Reduction", ["mean", "sum"])


@dataclasses.dataclass
class Trainer(Section):
    """How long is trained, on what batches, to which end.

    Attributes:
        batch_size: examples of a step, over all replicas.
        epochs: epochs in all.
        steps_per_epoch: steps of an epoch; null: examples // batch_size.
        validation_freq: epochs between two evaluations.
        validation_batch_size: examples of a batch of the evaluation; null: batch_size.
        validation_steps: batches of an evaluation, the first ones; null: all.
        loss: of keras.losses, node with _target_, or {output: loss}; auto: by classes or numbers.
        loss_weights: factors of the losses of several outputs, a list or {name: 0.5}; null: 1.
        gradient_reduction: sum: the model's own code divides its losses by the global batch.
        class_weight: weights of examples by class, {0: 1.0, 1: 3.0}; a class not named weighs 1.
        metrics: names (accuracy, f1_macro), nodes, a list, {output: [...]}; auto: accuracy or mae.
        callbacks: Keras callbacks, such as {_target_: keras.callbacks.EarlyStopping, patience: 3}.
        early_stopping: epochs without a better objective after which training ends, or a mapping,
            such as {patience: 3, monitor: val_loss, restore_best: true}; null: never.
        max_time: end after 2h, 90m, 1h30m or so many seconds of this command; null: never.
        terminate_on_nan: end the run with an error when the loss is NaN or infinite.
        deterministic: deterministic operations, which a GPU needs for bit-identical results.
        compile: compile the model by torch.compile (backend=torch).
        log_every_steps: steps between two log entries; null: about 200 entries a run.
        log: gradient_norm, weight_norm, update_ratio: L2 norms that each step computes.
    """

    batch_size: int = within(64, 1, MANY)
    epochs: int = within(25, 1, MANY)
    steps_per_epoch: int | None = within(None, 1, MANY)
    validation_freq: int = within(1, 1, MANY)
    validation_batch_size: int | None = within(None, 1, MANY)
    validation_steps: int | None = within(None, 1, MANY)
    loss: Any = formed("auto", forms.LOSS)
    loss_weights: Any | None = formed(None, forms.LOSS_WEIGHTS)
    gradient_reduction: Reduction = Reduction.mean
    class_weight: Any = formed(None, forms.CLASS_WEIGHT)
    metrics: Any = formed("auto", forms.METRICS)
    callbacks: list[Any] = formed([], forms.CALLBACKS)
    early_stopping: Any | None = formed(None, objective.STOPPING)
    max_time: Any | None = formed(None, forms.DURATION)
    terminate_on_nan: bool = True
    deterministic: bool = False
    compile: bool = False
    log_every_steps: int | None = within(None, 1, MANY)
    log: list[str] = formed([], forms.LOG)


#: Which model of a run is logged where the run is recorded.
Logged = enum.Enum("Logged", ["none", "best", "final"])


@dataclasses.dataclass
class Tracking:
    """Where a run is recorded besides its folder.

    Attributes:
        _target_: class of the tracker.
        uri: address of the place where the tracker records runs.
        experiment: experiment that the run belongs to.
        histograms: TensorBoard: the distribution of every weight, each epoch.
        profile_steps: TensorBoard: [first, last] step of a profiler trace.
    """

    _target_: str = target()
    uri: str | None = formed(None, text(4096))
    experiment: str = formed("dtrain", text(250))
    histograms: bool = False
    profile_steps: list[int] | None = formed(None, forms.TRACE)


@dataclasses.dataclass
class MLflow(Tracking):
    """A store of MLflow's.

    Attributes:
        uri: address of the tracking store; null: SQLite under output_dir.
        model: which checkpoint of a finished run is exported and logged as a model.
        register: registered model that gets the logged model as a version; null: none.
    """

    _target_: str = target("dtrain.tracking.mlflow.tracker.MLflow")
    uri: str | None = formed(None, forms.STORE)
    model: Logged = Logged.none
    register: str | None = formed(None, forms.REGISTERED)


@dataclasses.dataclass
class Checkpointing(Section):
    """When checkpoints are saved, and which are kept.

    Attributes:
        every_epochs: epochs between two checkpoints; null: none of this kind.
        every_steps: steps between two checkpoints; null: none of this kind.
        every_seconds: seconds between two checkpoints; null: none of this kind.
        keep: how many of the newest are kept, beside the best one.
        best: keep the checkpoint with the best objective.
    """

    every_epochs: int | None = within(1, 1, MANY)
    every_steps: int | None = within(None, 1, MANY)
    every_seconds: float | None = within(None, 0, YEAR)
    keep: int = within(3, 1, MANY)
    best: bool = True


@dataclasses.dataclass
class Sweep(Section):
    """Many jobs by one command (-m).

    Attributes:
        parallel: how many jobs run at once; null: as many as cores and GPUs allow.
        fail_fast: the first job that fails stops the others.
        resume: folder of a sweep to resume.
        baseline: job that the others are compared with, such as strategy=one_device.
    """

    parallel: int | None = within(None, 1, 10_000)
    fail_fast: bool = False
    resume: str | None = formed(None, PATH)
    baseline: str | None = formed(None, text())


@dataclasses.dataclass
class Launcher:
    """What starts the tasks, and how long it waits for them.

    Attributes:
        _target_: class of the launcher.
        grace_seconds: seconds from the request to stop to SIGKILL.
        start_timeout: seconds until every task has joined the cluster; null: 60, on hosts 600.
        stall_timeout: seconds without a step after which the job is ended; null: never.
        max_restarts: restarts after a task's death, each from the last checkpoint.
        peer_timeout: seconds of silence after which another host is lost.
    """

    _target_: str = target()
    grace_seconds: float = within(30.0, 0, YEAR)
    start_timeout: float | None = within(60.0, 1, YEAR)
    stall_timeout: float | None = within(1800.0, 1, YEAR)
    max_restarts: int = within(0, 0, 10_000)
    peer_timeout: float = within(45.0, 5, YEAR)


@dataclasses.dataclass
class Action:
    """What a run does.

    Attributes:
        _target_: class of the action.
    """

    _target_: str = target()


#: Which weights of a checkpoint are used: those that were trained, or their moving averages.
Weights = enum.Enum("Weights", ["raw", "ema"])


@dataclasses.dataclass
class Evaluate(Action):
    """Evaluates checkpoints of a run.

    Attributes:
        run: the run folder; the command sets it.
        checkpoint: best, latest, all or a step; null: the best, or the latest if none is known.
        weights: raw: the trained weights; ema: the optimizer's moving averages.
        prefix: prefix of the metrics; null: test, for averages test_ema.
        by: label, a column of the data or an input: metrics of each of its values.
        follow: each checkpoint as it is saved, until the run ends.
    """

    _target_: str = target("dtrain.after.evaluate.Evaluate")
    run: str | None = formed(None, PATH)
    checkpoint: str | None = formed(None, forms.CHECKPOINT)
    weights: Weights = Weights.raw
    prefix: str | None = formed(None, forms.PREFIX)
    by: str | None = formed(None, text())
    follow: bool = False


#: The formats of predictions (:mod:`dtrain.run.predictions`).
Format = enum.Enum("Format", ["parquet", "npy", "jsonl", "csv"])


@dataclasses.dataclass
class Predict(Action):
    """Predicts rows with a checkpoint of a run.

    Attributes:
        run: the run folder; the command sets it.
        checkpoint: best, latest or a step; null: the best, or the latest if none is known.
        weights: raw: the trained weights; ema: the optimizer's moving averages.
        to: folder of the predictions; null: one inside the run folder.
        workers: processes of this command, each with a strategy of its own.
        shard: K/N: which of N commands that share the folder this is; null: the only one.
        split: train or validation; null: the validation if there is one.
        function: of the outputs: argmax, top_k, or a node with _target_; null: as they are.
        include: parts of the data that become columns: inputs, labels.
        format: of the files.
        piece_rows: rows of a file; null: one file of a small result, else by how many there are.
        batch: rows of a batch; null: that of the validation.
    """

    _target_: str = target("dtrain.after.predict.Predict")
    run: str | None = formed(None, PATH)
    checkpoint: str | None = formed(None, forms.CHECKPOINT)
    weights: Weights = Weights.raw
    to: str | None = formed(None, PATH)
    workers: int = within(1, 1, 10_000)
    shard: str | None = formed(None, forms.SHARD)
    split: str | None = formed(None, forms.SPLIT)
    function: Any | None = formed(None, forms.PREDICTED)
    include: list[str] = formed([], forms.PARTS)
    format: Format = Format.parquet
    piece_rows: int | None = within(None, 1, MANY)
    batch: int | None = within(None, 1, MANY)


@dataclasses.dataclass
class Config(Section):
    """The whole configuration. Groups for which users bring YAML files of their own are open.

    Attributes:
        model: the model: a function that returns a keras.Model.
        dataset: the data: a function that returns dtrain.datasets.Splits.
        strategy: how the training is distributed over devices and hosts.
        optimizer: a Keras optimizer, and its learning-rate schedule.
        action: train; python -m dtrain evaluate and predict set the others.
        debug: a check instead of the training: what is wrong.
        launcher: what starts the tasks of a run.
        hardware: devices, their memory, and the arithmetic on them.
        trainer: batch size, epochs, loss, metrics and callbacks.
        tracking: where a run is recorded besides its folder.
        init: weights that a new run begins with.
        finetune: frozen weights, unfreezing, learning rates by layer, LoRA.
        checkpoint: when checkpoints are saved, and which are kept.
        sweep: many jobs by one command (-m).
        name: name of the run; by default the chosen model and strategy.
        backend: framework on which Keras computes; auto: TensorFlow, if it has the strategy.
        seed: seed of weights, of the order of examples, and of all that is random.
        output_dir: folder of the run folders and of the embedded tracking store; or s3://BUCKET/DIR.
        objective: metric that the job returns, and by which the best checkpoint is chosen; auto:
            the first of val_accuracy, val_loss, accuracy and loss that the run has.
        objective_mode: is a larger one better (max) or not (min); auto: min for losses and errors.
        resume: run folder to resume; latest: the newest; auto: the unfinished one of this command.
        fork: run folder (latest: the newest) or its checkpoint, whose weights begin a new run.
        record_code: record commit, changes and untracked files for replay.
        dry_run: print the plan and stop.
        project: keys of your own, for references such as ${project.paths.data}.
    """

    model: Open = formed(MISSING, NODE)
    dataset: Open = formed(MISSING, NODE)
    strategy: Open = formed(MISSING, NODE)
    optimizer: Open = formed(MISSING, NODE)
    action: Open = formed(MISSING, NODE)
    debug: Open = formed(MISSING, NODE)
    launcher: Open = formed(MISSING, NODE)
    hardware: Hardware = dataclasses.field(default_factory=Hardware)
    trainer: Trainer = dataclasses.field(default_factory=Trainer)
    tracking: Open = formed(MISSING, NODE)
    init: Init = dataclasses.field(default_factory=Init)
    finetune: FineTuning = dataclasses.field(default_factory=FineTuning)
    checkpoint: Checkpointing = dataclasses.field(default_factory=Checkpointing)
    sweep: Sweep = dataclasses.field(default_factory=Sweep)
    name: str = formed(MISSING, FILE_NAME)
    backend: Backend = Backend.auto
    seed: int = within(0, 0, SEED)
    output_dir: str = formed("outputs", PATH)
    objective: str = formed("auto", forms.METRIC)
    objective_mode: Mode = Mode.auto
    resume: str | None = formed(None, PATH)
    fork: str | None = formed(None, PATH)
    record_code: bool = True
    dry_run: bool = False
    project: dict[str, Any] = formed({}, forms.OWN)
