"""The test of a run: examples that no training sees, evaluated once with its best checkpoint."""

from __future__ import annotations

import copy
import dataclasses

from dtrain.config.tree import Config
from dtrain.data.prepare import renumbered
from dtrain.data.sources import Splits
from dtrain.data.streams import examples_in
from dtrain.errors import Interrupted, UsageError, refuse
from dtrain.run import checkpoint, evaluations
from dtrain.run.other_data import settle_data
from dtrain.task.data import data_identity, dataset
from dtrain.task.data.dataset import Data
from dtrain.task.model import train_state
from dtrain.task.train import restore, tensorboard
from dtrain.task.train.session import Session
from dtrain.task.train.validation import evaluate

#: What begins the names of its metrics.
PREFIX = "test"


@dataclasses.dataclass(frozen=True)
class Test:
    """Test examples, as the validation of a configuration of their own."""

    config: Config
    data: Data


def load_test(config: Config, data: Data) -> Test | None:
    """Return the test of ``dataset.test``, or of the dataset itself; None where there is none.

    Args:
        config: of the run.
        data: of the run.

    Raises:
        UsageError: the examples cannot be read, or are other ones than those of the run.
    """
    splits = data.splits
    columns, typed = data.identity["train"].get("columns"), {"dataset.test"}
    own = copy.copy(config)
    own.dataset = settle_data(config.dataset, config.dataset, columns, typed, labels=True)
    of_files = config.dataset.get("test") is not None
    if not of_files and splits.test is None:
        return None
    encoding = None if splits.encoding is None else splits.encoding()
    try:
        made = dataset.load(own, trains=False, encoding=encoding, test=not of_files)
    except UsageError as error:
        raise (error.of_key("dataset.test") if error.key == "dataset.path" else error) from None
    held, identity = made.splits.validation, made.identity
    if held is None:
        held, identity = made.splits.train, {**identity, "validation": identity["train"]}
    if examples_in(held) is None:
        refuse("dataset.test", "is a stream whose length is not known", own.dataset["_target_"],
               accepted="a dataset with a length")  # fmt: skip
    names = list(splits.train.info.class_names())
    others = Splits(splits.train, renumbered(held, names))
    return Test(own, dataclasses.replace(made, splits=others, identity=identity))


def run_test(session: Session, test: Test) -> dict[str, float]:
    """Evaluate, in all tasks, and record it with the run; the model then has other weights.

    Returns:
        The metrics by name, such as ``test/accuracy``.

    Raises:
        Interrupted: it was asked to stop.
    """
    process, strategy = session.process, session.strategy
    restored = None
    if process.is_chief:
        mode = session.config.objective_mode
        path = checkpoint.choose(process.rundir.checkpoints, None, mode)[0]
        restored = checkpoint.load(path)
    restored = restore.of_chief(strategy, restored)
    assert restored is not None, "the chief has it"
    train_state.restore_chosen(session.model, strategy, restored, "raw")
    process.ending.enter_context(test.data.pool)
    test.data.pool.ready()
    inputs = dataclasses.replace(
        session.inputs, train=None, validation=test.data.splits.validation, validation_steps=None
    )
    examples = inputs.evaluation_examples
    schedule = dataclasses.replace(session.schedule, validation_examples=examples)
    steps = strategy.steps(session.model, inputs, False)
    steps.enter(restored.meta.get("trained_epoch", 1))
    sums = evaluate(strategy, steps, schedule, process.is_chief, process.stop, lambda done: None)
    if sums is None:
        raise Interrupted("stopped")
    metrics = steps.results(sums, training=False)
    if process.is_chief:
        fields = {
            "step": restored.step,
            "digest": checkpoint.digest(restored.arrays),
            "weights": "raw",
            "data": data_identity.evaluated(test.config, test.data.identity),
            "examples": examples,
            "declared": data_identity.declared(test.config),
            "prefix": PREFIX,
            "metrics": metrics,
            "strategy": session.config.strategy.name,
            "replicas": strategy.replicas,
        }
        evaluations.append(process.rundir, **fields)
        tensorboard.write_evaluations(process.rundir.tensorboard, [fields])
    return {f"{PREFIX}/{name}": value for name, value in metrics.items()}
