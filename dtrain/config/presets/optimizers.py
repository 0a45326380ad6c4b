"""Types of the keys of optimizers and of learning-rate schedules."""

from __future__ import annotations

import dataclasses
from typing import Any

from dtrain.config.forms import NODE, PATTERNS, target
from dtrain.config.ranges import LARGE, MANY, formed, within


@dataclasses.dataclass
class Optimizer:
    """What every Keras optimizer takes (``keras.optimizers.Optimizer``), and the schedule.

    Attributes:
        _target_: class of the optimizer.
        schedule: node of a learning-rate schedule; null: the rate is constant.
        learning_rate: learning rate, with a schedule its highest; null: as the class has it.
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
    learning_rate: float | None = within(0.001, 0, 1e6, above=True)
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
class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012).

    Attributes:
        rho: decay of the means of squared gradients and of squared updates.
        epsilon: added to both.
    """

    _target_: str = target("keras.optimizers.Adadelta")
    rho: float = within(0.95, 0, 1, below=True)
    epsilon: float = within(1e-7, 0, 1, above=True)


@dataclasses.dataclass
class Adafactor(Optimizer):
    """Adafactor (Shazeer and Stern 2018): of a matrix it keeps means of rows and columns alone.

    Attributes:
        beta_2_decay: exponent of the decay of the mean of squared gradients.
        epsilon_1: added to squared gradients; by Keras' 1e-30 a weight becomes NaN whose row and
            column have no gradient.
        epsilon_2: smallest root mean square of a weight that the update is scaled by.
        clip_threshold: largest root mean square of an update.
        relative_step: the learning rate is at most 1 / sqrt(step).
    """

    _target_: str = target("keras.optimizers.Adafactor")
    beta_2_decay: float = within(-0.8, -10, 0, below=True)
    epsilon_1: float = within(1e-16, 0, 1, above=True)
    epsilon_2: float = within(1e-3, 0, 1, above=True)
    clip_threshold: float = within(1.0, 0, LARGE, above=True)
    relative_step: bool = True


@dataclasses.dataclass
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011).

    Attributes:
        initial_accumulator_value: what the sums of squared gradients begin with.
        epsilon: added to the denominator.
    """

    _target_: str = target("keras.optimizers.Adagrad")
    initial_accumulator_value: float = within(0.1, 0, LARGE)
    epsilon: float = within(1e-7, 0, 1, above=True)


@dataclasses.dataclass
class OfMoments(Optimizer):
    """What optimizers take that keep means of gradients and of their squares.

    Attributes:
        beta_1: decay of the mean of gradients.
        beta_2: decay of the mean of their squares.
        epsilon: added to the denominator.
    """

    beta_1: float = within(0.9, 0, 1, below=True)
    beta_2: float = within(0.999, 0, 1, below=True)
    epsilon: float = within(1e-7, 0, 1, above=True)


@dataclasses.dataclass
class Adam(OfMoments):
    """Adam (Kingma and Ba 2014).

    Attributes:
        amsgrad: use the AMSGrad variant.
    """

    _target_: str = target("keras.optimizers.Adam")
    amsgrad: bool = False


@dataclasses.dataclass
class Adamax(Optimizer):
    """Adam by the infinity norm (Kingma and Ba 2014, section 7).

    Attributes:
        beta_1: decay of the mean of gradients.
        beta_2: decay of the largest gradient.
        epsilon: added to the denominator.
    """

    _target_: str = target("keras.optimizers.Adamax")
    beta_1: float = within(0.9, 0, 1, below=True)
    beta_2: float = within(0.999, 0, 1, below=True)
    epsilon: float = within(1e-7, 0, 1, above=True)


@dataclasses.dataclass
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017).

    Attributes:
        weight_decay: decoupled weight decay; null: none.
    """

    _target_: str = target("keras.optimizers.AdamW")
    weight_decay: float | None = within(0.004, 0, 1e6)


@dataclasses.dataclass
class Ftrl(Optimizer):
    """FTRL-Proximal (McMahan et al. 2013), for sparse linear models.

    Attributes:
        learning_rate_power: exponent of the sum of squared gradients; 0: a constant rate.
        initial_accumulator_value: what the sums of squared gradients begin with.
        l1_regularization_strength: L1 penalty.
        l2_regularization_strength: L2 penalty, which makes weights stable.
        l2_shrinkage_regularization_strength: L2 penalty on the size of weights.
        beta: of the paper.
    """

    _target_: str = target("keras.optimizers.Ftrl")
    learning_rate_power: float = within(-0.5, -10, 0)
    initial_accumulator_value: float = within(0.1, 0, LARGE)
    l1_regularization_strength: float = within(0.0, 0, LARGE)
    l2_regularization_strength: float = within(0.0, 0, LARGE)
    l2_shrinkage_regularization_strength: float = within(0.0, 0, LARGE)
    beta: float = within(0.0, 0, LARGE)


@dataclasses.dataclass
class Lamb(OfMoments):
    """LAMB (You et al. 2019): Adam with a trust ratio for each layer, for large batches."""

    _target_: str = target("keras.optimizers.Lamb")


@dataclasses.dataclass
class Lion(Optimizer):
    """Lion (Chen et al. 2023): by the signs of gradients; its rate is 3 to 10 times below Adam's.

    Attributes:
        beta_1: share of the mean of gradients in an update.
        beta_2: decay of that mean.
    """

    _target_: str = target("keras.optimizers.Lion")
    beta_1: float = within(0.9, 0, 1, above=True)
    beta_2: float = within(0.99, 0, 1, below=True)


@dataclasses.dataclass
class Muon(Optimizer):
    """Muon (Jordan et al. 2024) for matrices, and AdamW for all other weights.

    Attributes:
        weight_decay: decoupled weight decay of matrices; null: none.
        adam_beta_1: AdamW: decay of the mean of gradients.
        adam_beta_2: AdamW: decay of the mean of their squares.
        adam_weight_decay: AdamW: decoupled weight decay; null: none.
        adam_lr_ratio: AdamW: its learning rate, as a multiple of learning_rate.
        epsilon: AdamW: added to the denominator.
        exclude_layers: patterns of weights' paths that AdamW updates; null: none.
        exclude_embeddings: AdamW updates embeddings.
        muon_a: first coefficient of the Newton-Schulz iteration.
        muon_b: second coefficient.
        muon_c: third coefficient.
        ns_steps: steps of that iteration.
        momentum: decay of the mean of gradients.
        nesterov: use Nesterov's momentum.
        rms_rate: root mean square of an update, as of AdamW; null: updates are not scaled.
    """

    _target_: str = target("keras.optimizers.Muon")
    weight_decay: float | None = within(0.004, 0, 1e6)
    adam_beta_1: float = within(0.9, 0, 1, below=True)
    adam_beta_2: float = within(0.999, 0, 1, below=True)
    adam_weight_decay: float | None = within(0.004, 0, 1e6)
    adam_lr_ratio: float = within(1.0, 0, LARGE, above=True)
    epsilon: float = within(1e-7, 0, 1, above=True)
    exclude_layers: list[str] | None = formed(None, PATTERNS)
    exclude_embeddings: bool = True
    muon_a: float = within(3.4445, -100, 100)
    muon_b: float = within(-4.775, -100, 100)
    muon_c: float = within(2.0315, -100, 100)
    ns_steps: int = within(5, 1, 100)
    momentum: float = within(0.95, 0, 1)
    nesterov: bool = True
    rms_rate: float | None = within(0.2, 0, LARGE, above=True)


@dataclasses.dataclass
class Nadam(OfMoments):
    """Adam with Nesterov's momentum (Dozat 2015)."""

    _target_: str = target("keras.optimizers.Nadam")


@dataclasses.dataclass
class RmsProp(Optimizer):
    """RMSprop (Tieleman and Hinton 2012).

    Attributes:
        rho: decay of the mean of squared gradients.
        momentum: share of the last update that is added to the next.
        epsilon: added to the denominator.
        centered: gradients are normalised by their variance, and not by their square.
    """

    _target_: str = target("keras.optimizers.RMSprop")
    rho: float = within(0.9, 0, 1, below=True)
    momentum: float = within(0.0, 0, 1)
    epsilon: float = within(1e-7, 0, 1, above=True)
    centered: bool = False


@dataclasses.dataclass
class ScheduleFreeAdamW(Optimizer):
    """AdamW whose average of weights stands in for a schedule (Defazio et al. 2024).

    Attributes:
        learning_rate: learning rate, with a schedule its highest; null: as the class has it.
        beta_1: share of the average in the weights that gradients are taken at.
        beta_2: decay of the mean of squared gradients.
        epsilon: added to the denominator.
        warmup_steps: steps over which the rate rises from 0.
    """

    _target_: str = target("keras.optimizers.ScheduleFreeAdamW")
    learning_rate: float | None = within(0.0025, 0, 1e6, above=True)
    beta_1: float = within(0.9, 0, 1, above=True)
    beta_2: float = within(0.999, 0, 1, below=True)
    epsilon: float = within(1e-8, 0, 1, above=True)
    warmup_steps: int = within(0, 0, MANY)


@dataclasses.dataclass
class Sgd(Optimizer):
    """Stochastic gradient descent, with momentum.

    Attributes:
        learning_rate: learning rate, with a schedule its highest; null: as the class has it.
        momentum: share of the last update that is added to the next.
        nesterov: use Nesterov's momentum.
    """

    _target_: str = target("keras.optimizers.SGD")
    learning_rate: float | None = within(0.01, 0, 1e6, above=True)
    momentum: float = within(0.9, 0, 1)
    nesterov: bool = False


@dataclasses.dataclass
class Schedule:
    """Keys of every schedule.

    Attributes:
        _target_: function that makes the schedule.
    """

    _target_: str = target()


@dataclasses.dataclass
class Cosine(Schedule):
    """From learning_rate down along a cosine, over the whole run.

    Attributes:
        alpha: last rate, as a share of learning_rate.
    """

    _target_: str = target("dtrain.schedules.cosine")
    alpha: float = within(0.0, 0, 1)


@dataclasses.dataclass
class Warmup(Schedule):
    """A linear rise, then constant or a cosine.

    Attributes:
        warmup_epochs: epochs of the rise.
        alpha: last rate, as a share of learning_rate; 1: constant after the rise.
    """

    _target_: str = target("dtrain.schedules.warmup")
    warmup_epochs: float = within(1.0, 0, MANY)
    alpha: float = within(1.0, 0, 1)
