"""Types of the keys of optimizers and of learning-rate schedules."""

from __future__ import annotations

import dataclasses
from typing import Any

from dtrain.config.forms import (
    NODE,
    target,
)
from dtrain.config.ranges import LARGE, MANY, formed, within


@dataclasses.dataclass
class Optimizer:
    """What every Keras optimizer takes (``keras.optimizers.Optimizer``), and the schedule.

    Attributes:
        _target_: class of the optimizer.
        schedule: node of a learning-rate schedule; null: the rate is constant.
        learning_rate: learning rate; with a schedule its highest.
        weight_decay: decoupled weight decay; null: none.
        clipnorm: largest norm of each gradient; null: no limit.
        clipvalue: largest absolute value in a gradient; null: no limit.
        global_clipnorm: largest norm of all gradients together; null: no limit.
        use_ema: keep an exponential moving average of the weights.
        ema_momentum: momentum of that average.
        ema_overwrite_frequency: steps after which it replaces the weights; null: at the end.
        loss_scale_factor: factor of the loss while gradients are computed; null: none.
        gradient_accumulation_steps: steps whose gradients make one update; null: one.
    """

    _target_: str = target()
    schedule: Any = formed(None, NODE)
    learning_rate: float = within(0.001, 0, 1e6, above=True)
    weight_decay: float | None = within(None, 0, 1e6)
    clipnorm: float | None = within(None, 0, LARGE, above=True)
    clipvalue: float | None = within(None, 0, LARGE, above=True)
    global_clipnorm: float | None = within(None, 0, LARGE, above=True)
    use_ema: bool = False
    ema_momentum: float = within(0.99, 0, 1)
    ema_overwrite_frequency: int | None = within(None, 1, MANY)
    loss_scale_factor: float | None = within(None, 0, LARGE, above=True)
    gradient_accumulation_steps: int | None = within(None, 2, MANY)


@dataclasses.dataclass
class Adam(Optimizer):
    """Adam (Kingma and Ba 2014).

    Attributes:
        beta_1: decay of the mean of gradients.
        beta_2: decay of the mean of their squares.
        epsilon: added to the denominator.
        amsgrad: use the AMSGrad variant.
    """

    _target_: str = target("keras.optimizers.Adam")
    beta_1: float = within(0.9, 0, 1, below=True)
    beta_2: float = within(0.999, 0, 1, below=True)
    epsilon: float = within(1e-7, 0, 1, above=True)
    amsgrad: bool = False


@dataclasses.dataclass
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017).

    Attributes:
        weight_decay: decoupled weight decay; null: none.
    """

    _target_: str = target("keras.optimizers.AdamW")
    weight_decay: float | None = within(0.004, 0, 1e6)


@dataclasses.dataclass
class Sgd(Optimizer):
    """Stochastic gradient descent, with momentum.

    Attributes:
        learning_rate: learning rate; with a schedule its highest.
        momentum: share of the last update that is added to the next.
        nesterov: use Nesterov's momentum.
    """

    _target_: str = target("keras.optimizers.SGD")
    learning_rate: float = within(0.01, 0, 1e6, above=True)
    momentum: float = within(0.9, 0, 1)
    nesterov: bool = False


@dataclasses.dataclass
class Cosine:
    """From learning_rate down along a cosine, over the whole run.

    Attributes:
        _target_: function that makes the schedule.
        alpha: last rate, as a share of learning_rate.
    """

    _target_: str = target("dtrain.schedules.cosine")
    alpha: float = within(0.0, 0, 1)


@dataclasses.dataclass
class Warmup:
    """A linear rise, then constant or a cosine.

    Attributes:
        _target_: function that makes the schedule.
        warmup_epochs: epochs of the rise.
        alpha: last rate, as a share of learning_rate; 1: constant after the rise.
    """

    _target_: str = target("dtrain.schedules.warmup")
    warmup_epochs: float = within(1.0, 0, MANY)
    alpha: float = within(1.0, 0, 1)
