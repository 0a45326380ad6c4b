"""One pass over the validation examples, in calls of about a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import keras

from dtrain.errors import refuse
from dtrain.task.backends.base import Backend, Steps
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.train.step_schedule import Schedule

#: The host is back from TensorFlow at least this often, in seconds.
CALL_SECONDS = 1.0
#: Why there is nothing to evaluate by. Keras' fit is then given no validation data.
WITHOUT_LOSS = "the model has neither a test_step nor a loss"


def check_validation(schedule: Schedule, dataset: str) -> None:
    """Refuse data without a validation, and models without anything to evaluate by.

    Args:
        schedule: of the run.
        dataset: target of the data that is evaluated.

    Raises:
        UsageError: there is nothing to evaluate.
    """
    if schedule.validation_examples:
        return
    refuse("dataset", f"has no validation to evaluate on, or {WITHOUT_LOSS}", dataset,
           accepted="a dataset with a validation", hint="dataset.validation=FILE")  # fmt: skip


def evaluate(
    strategy: Backend, steps: Steps, schedule: Schedule, is_chief: bool,
    stopping: Callable[[], bool], report: Callable[[Sums], None],
    hooks: keras.callbacks.CallbackList | None = None,
) -> Sums | None:  # fmt: skip
    """Evaluate every validation example once.

    Args:
        strategy: agrees with the other tasks, before each call.
        steps: the compiled functions.
        schedule: says how many examples there are.
        is_chief: whether this task says how many steps a call has.
        stopping: says whether this task was asked to stop.
        report: called with what was evaluated so far.
        hooks: of callbacks that are called for each step, with the numbers of its first and last
            batch as Keras' ``steps_per_execution`` has it; None where none is.

    Returns:
        The sums; None where any task was asked to stop before the last call.
    """
    full, rest = divmod(schedule.validation_examples, steps.evaluation_examples)
    batches = -(-schedule.validation_examples // steps.evaluation_batch)
    a_step = steps.evaluation_examples // steps.evaluation_batch
    sums, done, count = Sums(), 0, 1
    while done < full + bool(rest):
        agreed, stop = strategy.tasks.sum([count if is_chief else 0, stopping()])
        if stop:
            return None
        now = min(int(agreed), full - done)  # 0: only the rest is left
        if hooks is not None:
            hooks.on_test_batch_begin(done * a_step)
        begin = time.perf_counter()
        sums.add(steps.evaluate(now, 0 if now else rest))
        seconds = (time.perf_counter() - begin) / max(1, now)
        done += max(1, now)
        if hooks is None:
            count = min(max(1, int(CALL_SECONDS / max(seconds, 1e-3))), steps.max_steps)
        else:
            results = steps.results(sums, training=False)
            hooks.on_test_batch_end(min(done * a_step, batches) - 1, results)
        if now:
            report(sums)
    return sums
