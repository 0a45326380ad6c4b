"""Streams before training: how many examples they have, and whether they can be read again."""

from __future__ import annotations

from collections.abc import Callable

from dtrain.config.schema import Config
from dtrain.data.sources import Splits
from dtrain.data.streams import Stream
from dtrain.errors import UsageError

NOTICE = (
    "the data is a stream of {}: it is read in its own order, by every host, and a resumed run "
    "reads it from its beginning up to its position"
)


def counted(splits: Splits, config: Config) -> tuple[str, ...]:
    """Count what a validation is to evaluate, where a stream does not say.

    Returns:
        What is to be reported.

    Raises:
        UsageError: how many steps an epoch has is not known, or the validation has no end.
    """
    train, held, trainer = splits.train, splits.validation, config.trainer
    if isinstance(held, Stream):
        most = None
        if trainer.validation_steps is not None:
            batch = trainer.validation_batch_size or trainer.batch_size
            most = trainer.validation_steps * batch
        held.count(most)
    if not isinstance(train, Stream):
        return ()
    if trainer.steps_per_epoch is None and train.length_of_a_small_one() is None:
        about = train.estimate()
        problem = "how many examples the stream has is not known"
        if about is not None:
            problem = f"how many examples the {about[0]:,} batches of the stream have is not known"
        steps = 100 if about is None else max(1, about[0] * about[1] // trainer.batch_size)
        raise UsageError(
            "trainer.steps_per_epoch", "null", problem,
            "the steps of an epoch", f"trainer.steps_per_epoch={steps}",
        )  # fmt: skip
    return (NOTICE.format("batches" if train.is_batched() else "single examples"),)


def settled(splits: Splits, make: Callable[[], Splits]) -> None:
    """Find out whether streams give the same examples whenever they are made.

    A ``tf.data.Dataset`` that shuffles has another order each time that it is read; what counts is
    that it begins with the same one in another process. So it is made anew where two readings
    differ, and where it is like that it is read from one that was not read before.

    Args:
        splits: as they were made.
        make: makes them once more.
    """
    streams = {
        name: part
        for name in ("train", "validation")
        if isinstance(part := getattr(splits, name), Stream)
    }
    for stream in streams.values():
        stream.steady = stream.repeats()
        stream.reshuffles = not stream.steady
    counting = {name: each for name, each in streams.items() if each.single and each.reshuffles}
    other = make() if counting else splits
    for name, stream in counting.items():
        stream.steady = stream.begins_as(getattr(other, name))
        # Made for this split alone: where both are of one shuffle, the order of training would
        # depend on when a validation began.
        stream.read_from(getattr(make(), name))
