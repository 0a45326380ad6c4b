"""What a configuration may name without being trusted: at each place, things of one kind.

Names are checked first, importing nothing (the controller imports no Keras); what a name stands for
is checked once it is imported, before it is called.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from operator import attrgetter
from typing import Any


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of function or class.

    Attributes:
        what: it is, for messages.
        accepted: names, for messages.
        names: pattern of the whole name.
        bases: Keras' classes, of one of which a class of Keras' must be.
        first: names of the first parameters of a function of Keras'; None: no function is taken.
        home: module that a function of Keras' is from, or below.
        package: whose classes and functions they are, in the place of Keras'.
    """

    what: str
    accepted: str
    names: str
    bases: tuple[str, ...] = ()
    first: tuple[str, ...] | None = None
    home: str = ""
    package: str = "keras"


#: dtrain, Keras, PyTorch and its metrics, of which some names may be given without trust, and all
#: only one by one. Their functions check their arguments, or fail over them.
KNOWN = ("dtrain", "keras", "torch", "torchmetrics")
#: Keras' layers that run code which a file or an argument brings.
_CODE = r"Lambda|TFSMLayer|TorchModuleWrapper|FlaxLayer|JaxLayer"
_CLASS = r"[A-Z]\w*"
#: Keras' callbacks that neither send anything nor run code of an argument.
CALLBACKS = (
    "EarlyStopping", "History", "LearningRateScheduler", "ProgbarLogger", "ReduceLROnPlateau",
    "SwapEMAWeights", "TerminateOnNaN", "BackupAndRestore", "CSVLogger", "ModelCheckpoint",
    "TensorBoard")  # fmt: skip
#: Callbacks that write: the argument that says where, and Keras' default of it.
WRITES = {"BackupAndRestore": ("backup_dir", None), "CSVLogger": ("filename", None),
          "ModelCheckpoint": ("filepath", None), "TensorBoard": ("log_dir", "logs")}  # fmt: skip

MODEL = Kind(
    "model", "dtrain.models.*, keras.applications.*, keras.Model, keras.Sequential",
    r"dtrain\.models\.(cnn|mlp|resnet|transformer|wide_deep)|keras\.(models\.)?(Model|Sequential)"
    rf"|keras\.applications\.([a-z]\w*\.)?{_CLASS}", ("Model",), (), "keras.src.applications",
)  # fmt: skip
DATASET = Kind(
    "dataset", "dtrain.datasets.*",
    r"dtrain\.datasets\.(array_record|digits|huggingface|image_folder|mixture|npy|npz|synthetic"
    r"|table|text|tfds|tfrecord)",
)  # fmt: skip
AUGMENT = Kind(
    "augmentation", "dtrain.augment.*, keras.layers.*",
    rf"dtrain\.augment\.shift_flip|keras\.layers\.(?!({_CODE})$){_CLASS}", ("layers.Layer",),
)  # fmt: skip
STRATEGY = Kind("strategy", "dtrain.task.strategies.*", rf"dtrain\.task\.strategies\.{_CLASS}")
PLAN = Kind("plan of a strategy", "dtrain.task.strategies.plans.*",
            rf"dtrain\.task\.strategies\.plans\.{_CLASS}")  # fmt: skip
LAUNCHER = Kind(
    "launcher", "dtrain.controller.launchers.*",
    r"dtrain\.controller\.launchers\.(auto|Env|Inline|Kubernetes|Local|Ray|Ssh|slurm\.choose)",
)  # fmt: skip
ENVIRONMENT = Kind(
    "cluster environment", "dtrain.controller.launchers.cluster_env.*",
    r"dtrain\.controller\.launchers\.cluster_env\.(tf_config\.TFConfig|slurm\.Slurm"
    r"|platforms\.(of_variables|KubernetesPod|OpenMPI|SageMaker|Torchrun|TorchVariables|Vertex))",
)  # fmt: skip
ACTION = Kind(
    "action", "dtrain.task.train.*, dtrain.after.*, dtrain.debug.*",
    r"dtrain\.(task\.train\.train\.Train|after\.(evaluate\.Evaluate|predict\.Predict)"
    r"|debug\.(Nan|Overfit|OneBatch))",
)  # fmt: skip
PREDICTED = Kind("function of predictions", "dtrain.after.columns.{argmax,top_k}",
                 r"dtrain\.after\.columns\.(argmax|top_k)", (), ("outputs",))  # fmt: skip
TRACKER = Kind("tracker", "dtrain.tracking.mlflow.tracker.MLflow, dtrain.tracking.none.NoTracker",
               r"dtrain\.tracking\.(mlflow\.tracker\.MLflow|none\.NoTracker)")  # fmt: skip
OPTIMIZER = Kind("optimizer", "keras.optimizers.*", rf"keras\.optimizers\.{_CLASS}",
                 ("optimizers.Optimizer",))  # fmt: skip
SCHEDULE = Kind(
    "learning-rate schedule", "dtrain.schedules.*, keras.optimizers.schedules.*",
    rf"dtrain\.schedules\.(cosine|warmup)|keras\.optimizers\.schedules\.{_CLASS}",
    ("optimizers.schedules.LearningRateSchedule",),
)  # fmt: skip
LOSS = Kind("loss", "keras.losses.*", r"keras\.losses\.[a-zA-Z]\w*", ("losses.Loss",),
            ("y_true", "y_pred"), "keras.src.losses")  # fmt: skip
METRIC = Kind("metric", "keras.metrics.*", rf"keras\.metrics\.{_CLASS}", ("metrics.Metric",))
CALLBACK = Kind(
    "callback that keeps to the run folder", "those of keras.callbacks that neither send nor run",
    rf"keras\.callbacks\.({'|'.join(CALLBACKS)})", ("callbacks.Callback",),
)  # fmt: skip
LAYER = Kind(
    "layer", "keras.layers.*", rf"keras\.layers\.(?!({_CODE})$){_CLASS}|keras\.Input",
    ("layers.Layer",), ("shape",), "keras.src.layers.core.input_layer",
)  # fmt: skip
PART = Kind(
    "part of a layer", "keras.initializers.*, keras.regularizers.*, keras.constraints.*",
    r"keras\.(initializers|regularizers|constraints)\.[a-zA-Z]\w*"
    rf"|keras\.dtype_policies\.{_CLASS}|keras\.random\.SeedGenerator",
    ("initializers.Initializer", "regularizers.Regularizer", "constraints.Constraint",
     "dtype_policies.DTypePolicy", "random.SeedGenerator"),
)  # fmt: skip
ACTIVATION = Kind("activation", "keras.activations.*", r"keras\.activations\.[a-z]\w*", (), ("x",),
                  "keras.src.activations")  # fmt: skip
TORCH_OPTIMIZER = Kind("optimizer", "torch.optim.*", rf"torch\.optim\.{_CLASS}",
                       ("optim.Optimizer",), package="torch")  # fmt: skip
TORCH_SCHEDULE = Kind(
    "learning-rate schedule", "torch.optim.lr_scheduler.*",
    rf"torch\.optim\.lr_scheduler\.{_CLASS}", ("optim.lr_scheduler.LRScheduler",), package="torch",
)  # fmt: skip
TORCH_LOSS = Kind(
    "loss", "torch.nn.*Loss, torch.nn.functional.*",
    r"torch\.nn\.[A-Z]\w*Loss|torch\.nn\.functional\.[a-z]\w*", ("nn.modules.loss._Loss",),
    ("input", "target"), "torch.nn.functional", "torch",
)  # fmt: skip
TORCH_METRIC = Kind("metric", "torchmetrics.*", rf"torchmetrics\.([a-z]\w*\.)?{_CLASS}",
                    ("Metric",), package="torchmetrics")  # fmt: skip

#: What is called at each key.
PLACES: dict[str, tuple[Kind, ...]] = {
    "model": (MODEL,), "dataset": (DATASET,), "dataset.augment": (AUGMENT,),
    "strategy": (STRATEGY,), "strategy.plan": (PLAN,), "debug": (ACTION,),
    "action": (ACTION,), "action.function": (PREDICTED,), "tracking": (TRACKER,),
    "launcher": (LAUNCHER,), "launcher.environment": (ENVIRONMENT,),
    "optimizer": (OPTIMIZER, TORCH_OPTIMIZER), "optimizer.schedule": (SCHEDULE, TORCH_SCHEDULE),
    "trainer.loss": (LOSS, TORCH_LOSS), "trainer.metrics": (METRIC, TORCH_METRIC),
    "trainer.callbacks": (CALLBACK,),
}  # fmt: skip
#: Groups, and keys, below which a function or class of the user's own project is called.
OWN = ("model", "dataset", "optimizer", "trainer", "action.function")
#: What may be an argument of what is called.
ARGUMENTS = (MODEL, LAYER, PART, ACTIVATION, OPTIMIZER, SCHEDULE, LOSS, METRIC)
EVERY = tuple(dict.fromkeys([*sum(PLACES.values(), ()), LAYER, PART, ACTIVATION]))


def at(key: str, argument: bool = False) -> tuple[Kind, ...]:
    """Return the kinds of what may stand at ``key``.

    Args:
        key: of the node that has ``_target_``.
        argument: it is an argument of another such node.

    Returns:
        None at all where nothing is called.
    """
    parts = re.sub(r"\[\d+\]", "", key).split(".")
    if parts[:2] == ["dataset", "members"]:  # of a mixture
        return (DATASET,)
    if argument and ".".join(parts) not in PLACES:  # `dataset.augment` is both
        return ARGUMENTS
    return PLACES.get(".".join(parts[:2]), ())


def takes_own(key: str) -> bool:
    """Say whether what is called at ``key``, or below it, may be of the user's own project."""
    return any(f"{key}.".replace("[", ".").startswith(f"{each}.") for each in OWN)


def named(target: str, kinds: tuple[Kind, ...]) -> list[Kind]:
    """Return those of ``kinds`` that a thing called ``target`` may be of."""
    return [kind for kind in kinds or EVERY if re.fullmatch(kind.names, target)]


def fits(value: Any, target: str, kinds: list[Kind]) -> bool:
    """Say whether what was imported by the name ``target`` is of one of ``kinds``.

    dtrain's own names are written out above, and need no look.
    """
    return target.startswith("dtrain.") or any(_is(value, kind) for kind in kinds)


def _is(value: Any, kind: Kind) -> bool:
    if inspect.isclass(value):
        package = sys.modules[kind.package]
        return issubclass(value, tuple(attrgetter(base)(package) for base in kind.bases))
    if kind.first is None or not inspect.isfunction(value):
        return False
    first = tuple(inspect.signature(value).parameters)[: len(kind.first)]
    return first == kind.first and f"{value.__module__}.".startswith(f"{kind.home}.")
