"""Learning-rate schedules whose horizon is the run's own: nothing to count by hand.

They return ``keras.optimizers.schedules.CosineDecay``, whose warm-up is linear (Loshchilov and
Hutter 2016, arXiv 1608.03983; Goyal et al. 2017, arXiv 1706.02677, section 2.2).
"""

from __future__ import annotations

import keras


def cosine(
    learning_rate: float, total_steps: int, alpha: float = 0.0
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Fall from ``learning_rate`` to ``alpha * learning_rate`` over the whole run."""
    return keras.optimizers.schedules.CosineDecay(learning_rate, total_steps, alpha=alpha)


def warmup(
    learning_rate: float,
    total_steps: int,
    steps_per_epoch: int,
    warmup_epochs: float = 1.0,
    alpha: float = 1.0,
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Rise linearly from 0 over ``warmup_epochs``, then fall along a cosine.

    Args:
        learning_rate: the highest rate.
        total_steps: of the run.
        steps_per_epoch: turns epochs into steps.
        warmup_epochs: length of the rise, in epochs.
        alpha: last rate as a fraction of the highest; 1 keeps it constant after the rise.
    """
    rise = max(1, round(warmup_epochs * steps_per_epoch))
    return keras.optimizers.schedules.CosineDecay(
        0.0, max(1, total_steps - rise), alpha=alpha, warmup_target=learning_rate, warmup_steps=rise
    )
