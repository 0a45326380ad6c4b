"""The model of a run in the caller's own process, which imports the framework for it."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

from dtrain.api.objects import Trust
from dtrain.config import private, tree, trust
from dtrain.config.tree import Config
from dtrain.errors import refuse
from dtrain.host import pickles, python_path, variables
from dtrain.host.frameworks import FRAMEWORKS, VARIABLE
from dtrain.job.early_import import task_environment
from dtrain.job.folders import read_command
from dtrain.run import checkpoint as checkpoints
from dtrain.run.folder import RunDir


def load_model(rundir: RunDir, checkpoint: str | int, weights: str, trusted: Trust) -> Any:
    """Build the model of a run, and give it the weights of a checkpoint.

    A plain module of PyTorch's is returned as what it is.

    Args:
        rundir, checkpoint, weights: which.
        trusted: what the caller has given to the run.

    Raises:
        UsageError: there is no such checkpoint, or no such weights, or the run's code is not
            trusted, or Keras runs on another backend here.
        CheckpointError: it is damaged, or of another model.
    """
    if weights not in ("raw", "ema"):
        refuse("weights", "are no weights", weights, accepted="raw or ema", typed="weights=raw")
    config = tree.read(rundir.config)
    word = None if checkpoint == "best" else checkpoint
    if word == "all":
        refuse("checkpoint", "a model has one", "all", accepted="best, latest or a step",
               typed="checkpoint=best")  # fmt: skip
    [path] = checkpoints.choose(rundir.checkpoints, word, config.objective_mode)
    with _variables(rundir, _settings(config), trusted):
        import numpy as np

        from dtrain.task import keras_internals
        from dtrain.task.backends.runtime import runtime
        from dtrain.task.data import dataset
        from dtrain.task.model import train_state
        from dtrain.task.strategies import Default
        from dtrain.task.train.session import untrained

        restored = checkpoints.load(path)
        before = random.getstate(), np.random.get_state()
        try:
            splits = dataset.load(config).splits
            strategy = Default([])
            with keras_internals.fresh_names():  # the caller has models of its own, or this twice
                made = untrained(config, splits, strategy)
        finally:  # what the caller draws does not depend on whether a model was loaded
            random.setstate(before[0])
            np.random.set_state(before[1])
        train_state.restore_weights(made, strategy, restored.arrays, weights == "ema")
        plain = runtime().PLAIN
        return made if plain is None else plain.unwrapped(made)


@contextlib.contextmanager
def _variables(rundir: RunDir, settings: dict[str, str], trusted: Trust) -> Iterator[None]:
    """Trust the code that the user has given to this run, and set variables, inside the block."""
    names = dict.fromkeys([*python_path.trusted(), *trusted.names])
    files = [os.environ.get(pickles.FILES, ""), *trusted.files]
    changes = {python_path.TRUST: ",".join(names), pickles.FILES: os.pathsep.join(files)}
    with variables.changed({**changes, **settings}), trust.begun():
        command = read_command(rundir) or {}
        own = private.grant_own(command)
        private.offer_given(rundir.path, command.get("overrides", []), own)
        yield


def _settings(config: Config) -> dict[str, str]:
    """Return what has to be set where the framework is imported: any has the weights of a run.

    Raises:
        UsageError: Keras has another backend in this process.
    """
    backend = os.environ.get(VARIABLE, config.backend)
    if "keras" in sys.modules:  # it may have its backend from a file of its own
        backend = sys.modules["keras"].config.backend()
    if backend not in FRAMEWORKS:
        refuse(VARIABLE, "is what Keras runs on in this process", backend,
               accepted=" or ".join(FRAMEWORKS),
               hint=f"{VARIABLE}=tensorflow before Keras is imported")  # fmt: skip
    usual = task_environment(backend=backend)
    usual.pop("JAX_PLATFORMS", None)  # which devices the caller has is no matter of ours
    return {**{name: os.environ.get(name, usual[name]) for name in usual}, VARIABLE: backend}
