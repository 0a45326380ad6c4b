"""Keys, options, values and commands of earlier versions: each is refused, with what to type."""

from __future__ import annotations

from collections.abc import Iterable

from dtrain.config.overrides import parse
from dtrain.errors import ALONE, UsageError

#: Where the classes of cluster environments are, and those of them whose module was another.
_PLACE = "launcher.environment._target_=dtrain.controller.launchers.cluster_env"
_MOVED = (
    "kubernetes.KubernetesPod", "open_mpi.OpenMPI", "sagemaker.SageMaker", "torchrun.Torchrun",
    "torchrun.TorchVariables", "torchrun.of_variables", "vertex.Vertex",
)  # fmt: skip
#: What stands in the place of each, and what to type. A name is a command (``tune``), one with an
#: option of it (``export --x``), a key, which stands for all keys below it too, or a key with a
#: value (``hardware=tuned``). RUN_DIR and VALUE stand for the value that was typed.
REMOVED: dict[str, tuple[str, str]] = {
    # -- measurements of a machine
    "tune": ("a sweep whose objective is the speed", "python -m dtrain -m experiment=speed"),
    "hardware=tuned": (
        "the settings themselves, which python -m dtrain -m experiment=speed compares",
        "hardware=auto",
    ),
    "hardware.jit_compile=auto": ("true or false", "hardware.jit_compile=true"),
    "hardware.onednn=auto": ("true or false", "hardware.onednn=true"),
    # -- replay
    "replay --strict": (
        "the lines that a replay prints about packages and files that differ",
        "python -m dtrain replay outputs/DATE/TIME_NAME",
    ),
    "replay --tolerance": (
        "the largest difference of each metric, which a replay prints",
        "python -m dtrain compare --bits ONE OTHER",
    ),
    "replay --keep": (
        "git worktree add at the commit, and git apply of code/1/changes.patch, of the run folder",
        "git worktree add --detach ../then COMMIT",
    ),
    "replay --uri": (
        "the folder of a run, or what MLflow holds of it",
        "mlflow artifacts download --run-id ID --dst-path FOLDER; then replay FOLDER",
    ),
    # -- Kubernetes
    # -- SLURM
    "jobs": ("squeue and scancel, SLURM's own commands", "squeue --me"),
    "launcher.allocation": (
        "launcher=slurm without it, an array of jobs; or launcher=local in an allocation (salloc)",
        "-m launcher=local sweep.parallel=2",
    ),
    # -- platforms of clusters
    **{
        f"{_PLACE}.{old}": (
            "the module of all platforms", f"{_PLACE}.platforms.{old.partition('.')[2]}"
        )
        for old in _MOVED
    },
    # -- evaluations and exports beside a training
    "sidecar": (
        "from another shell: python -m dtrain evaluate RUN follow=true",
        "python -m dtrain evaluate outputs/DATE/TIME_NAME follow=true",
    ),
    "sidecar.export": (
        "from another shell: python -m dtrain export RUN follow=true",
        "python -m dtrain export outputs/DATE/TIME_NAME follow=true",
    ),
    "hardware.evaluator_cores": (
        "from another shell: python -m dtrain evaluate RUN follow=true",
        "python -m dtrain evaluate outputs/DATE/TIME_NAME follow=true hardware.intra_op_threads=1",
    ),
    # -- exchange of gradients
    "strategy.sync_every": (
        "gradients that are averaged in each step, or strategy=ps, which is asynchronous",
        "strategy=multiworker",
    ),
    "strategy.compress": ("gradients in their own type", "strategy=multiworker"),
    "strategy.bytes_per_pack": ("one vector for each type of gradients", "strategy=multiworker"),
    # -- datasets
    "dataset=webdataset": ("dataset=huggingface, which reads tar files", "dataset=huggingface"),
    "dataset.decode=example": ("the only kind of record", "dataset=array_record"),
    "dataset.decode=npy": ("a function of yours (docs/data.md, ArrayRecord)", "dataset=custom"),
    "dataset.decode=bytes": ("a function of yours (docs/data.md, ArrayRecord)", "dataset=custom"),
    "dataset.identity": ("a sample of the data, always", "the command without it"),
    # -- predictions
    "predict.function._target_=dtrain.after.functions.top_k": (
        "the module of columns", "predict.function._target_=dtrain.after.columns.top_k"
    ),
    "predict.function._target_=dtrain.after.functions.argmax": (
        "the module of columns", "predict.function._target_=dtrain.after.columns.argmax"
    ),
    # -- remote output
    # -- debug
    **{
        f"debug._target_=dtrain.debug.{old}": (
            "the module of all checks", f"debug._target_=dtrain.debug.{old.partition('.')[2]}"
        )
        for old in ("nan.Nan", "one_batch.OneBatch", "overfit.Overfit")
    },
    "debug=shapes": (
        "a table of the model's layers with the data", "python -m dtrain data --layers"
    ),
    "debug=slow": (
        "every run records the shares of its time (result.json, its last lines)",
        "'tracking.profile_steps=[20,29]'",
    ),
    "debug.seconds": (
        "every run records the shares of its time", "the command without debug=slow and without it"
    ),
    # -- commands
}  # fmt: skip


def check(words: Iterable[str], command: str | None = None) -> None:
    """Refuse the first word that has such a name.

    Args:
        words: of a command line, as they were typed.
        command: whose words they are; None for a training's.

    Raises:
        UsageError: with what stands in its place.
    """
    for word in words:
        name = f"{command} {word.partition('=')[0]}"
        if word.startswith("-") and name in REMOVED:
            raise _error(word, ALONE, *REMOVED[name])
        override = parse(word)
        if override.sign == "~" and override.value is None and override.key in REMOVED:
            raise _error(word, ALONE, *REMOVED[override.key])
        for value in [] if override.value is None else override.value.split(","):  # of a sweep
            if (error := refusal(override.key, value)) is not None:
                raise error


def check_command(name: str) -> None:
    """Refuse a command of an earlier version.

    Raises:
        UsageError: with what stands in its place.
    """
    if name in REMOVED:
        raise _error(name, ALONE, *REMOVED[name])


def refusal(key: str, value: object, where: str | None = None) -> UsageError | None:
    """Return what to raise where a user writes ``key``; None where it is one of today's.

    Args:
        key: dotted.
        value: of it.
        where: file and line, if it is not an override.
    """
    parts = key.split(".")
    above = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    name = next((each for each in (f"{key}={value}", *above) if each in REMOVED), None)
    return None if name is None else _error(key, value, *REMOVED[name], where)


def _error(
    key: str, value: object, instead: str, hint: str, where: str | None = None
) -> UsageError:
    place = f" ({where})" if where else ""
    if value is not ALONE:
        hint = hint.replace("RUN_DIR", str(value)).replace("VALUE", str(value))
    return UsageError(key, value, f"is not in this version any more{place}", instead, hint)
