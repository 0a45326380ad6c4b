"""The keys of optimizers and of learning-rate schedules."""

from typing import Annotated

from dtrain.config.fields import (
    MANY,
    Amount,
    Count,
    Fraction,
    Group,
    Index,
    Node,
    Patterns,
    Positive,
    Share,
    Target,
    target,
    within,
)  # fmt: skip


class Optimizer(Group, scope="numbers"):
    """What every Keras optimizer takes (``keras.optimizers.Optimizer``), and the schedule."""

    target_: Target = target()
    """Class of the optimizer."""
    schedule: Node | None = None
    """Node of a learning-rate schedule; null: the rate is constant."""
    learning_rate: Annotated[float, within(0, 1000000.0, above=True)] | None = 0.001
    """Learning rate, with a schedule its highest; null: as the class has it."""
    weight_decay: Annotated[float, within(0, 1000000.0)] | None = None
    """Decoupled weight decay; null: none."""
    clipnorm: Positive | None = None
    """Largest norm of each gradient; null: no limit."""
    clipvalue: Positive | None = None
    """Largest absolute value in a gradient; null: no limit."""
    global_clipnorm: Positive | None = None
    """Largest norm of all gradients together; null: no limit."""
    use_ema: bool = False
    """Keep an exponential moving average of the weights."""
    ema_momentum: Annotated[float, within(0, 1)] = 0.99
    """Momentum of that average."""
    ema_overwrite_frequency: Count | None = None
    """Steps after which it replaces the weights; null: at the end."""
    loss_scale_factor: Positive | None = None
    """Factor of the loss while gradients are computed; null: none."""
    gradient_accumulation_steps: Annotated[int, within(2, MANY)] | None = None
    """Steps whose gradients make one update; null: one."""


class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012)."""

    target_: Target = target("keras.optimizers.Adadelta")
    rho: Fraction = 0.95
    """Decay of the means of squared gradients and of squared updates."""
    epsilon: Share = 1e-07
    """Added to both."""


class Adafactor(Optimizer):
    """Adafactor (Shazeer and Stern 2018): of a matrix it keeps means of rows and columns alone."""

    target_: Target = target("keras.optimizers.Adafactor")
    beta_2_decay: Annotated[float, within(-10, 0, below=True)] = -0.8
    """Exponent of the decay of the mean of squared gradients."""
    epsilon_1: Share = 1e-16
    """Added to squared gradients; by Keras' 1e-30 a weight becomes NaN whose row and column have no
    gradient."""
    epsilon_2: Share = 0.001
    """Smallest root mean square of a weight that the update is scaled by."""
    clip_threshold: Positive = 1.0
    """Largest root mean square of an update."""
    relative_step: bool = True
    """The learning rate is at most 1 / sqrt(step)."""


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011)."""

    target_: Target = target("keras.optimizers.Adagrad")
    initial_accumulator_value: Amount = 0.1
    """What the sums of squared gradients begin with."""
    epsilon: Share = 1e-07
    """Added to the denominator."""


class OfMoments(Optimizer):
    """What optimizers take that keep means of gradients and of their squares."""

    beta_1: Fraction = 0.9
    """Decay of the mean of gradients."""
    beta_2: Fraction = 0.999
    """Decay of the mean of their squares."""
    epsilon: Share = 1e-07
    """Added to the denominator."""


class Adam(OfMoments):
    """Adam (Kingma and Ba 2014)."""

    target_: Target = target("keras.optimizers.Adam")
    amsgrad: bool = False
    """Use the AMSGrad variant."""


class Adamax(Optimizer):
    """Adam by the infinity norm (Kingma and Ba 2014, section 7)."""

    target_: Target = target("keras.optimizers.Adamax")
    beta_1: Fraction = 0.9
    """Decay of the mean of gradients."""
    beta_2: Fraction = 0.999
    """Decay of the largest gradient."""
    epsilon: Share = 1e-07
    """Added to the denominator."""


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017)."""

    target_: Target = target("keras.optimizers.AdamW")
    weight_decay: Annotated[float, within(0, 1000000.0)] | None = 0.004
    """Decoupled weight decay; null: none."""


class Ftrl(Optimizer):
    """FTRL-Proximal (McMahan et al. 2013), for sparse linear models."""

    target_: Target = target("keras.optimizers.Ftrl")
    learning_rate_power: Annotated[float, within(-10, 0)] = -0.5
    """Exponent of the sum of squared gradients; 0: a constant rate."""
    initial_accumulator_value: Amount = 0.1
    """What the sums of squared gradients begin with."""
    l1_regularization_strength: Amount = 0.0
    """L1 penalty."""
    l2_regularization_strength: Amount = 0.0
    """L2 penalty, which makes weights stable."""
    l2_shrinkage_regularization_strength: Amount = 0.0
    """L2 penalty on the size of weights."""
    beta: Amount = 0.0
    """Of the paper."""


class Lamb(OfMoments):
    """LAMB (You et al. 2019): Adam with a trust ratio for each layer, for large batches."""

    target_: Target = target("keras.optimizers.Lamb")


class Lion(Optimizer):
    """Lion (Chen et al. 2023): by signs of gradients, at a rate 3 to 10 times below Adam's."""

    target_: Target = target("keras.optimizers.Lion")
    beta_1: Share = 0.9
    """Share of the mean of gradients in an update."""
    beta_2: Fraction = 0.99
    """Decay of that mean."""


class Muon(Optimizer):
    """Muon (Jordan et al. 2024) for matrices, and AdamW for all other weights."""

    target_: Target = target("keras.optimizers.Muon")
    weight_decay: Annotated[float, within(0, 1000000.0)] | None = 0.004
    """Decoupled weight decay of matrices; null: none."""
    adam_beta_1: Fraction = 0.9
    """AdamW: decay of the mean of gradients."""
    adam_beta_2: Fraction = 0.999
    """AdamW: decay of the mean of their squares."""
    adam_weight_decay: Annotated[float, within(0, 1000000.0)] | None = 0.004
    """AdamW: decoupled weight decay; null: none."""
    adam_lr_ratio: Positive = 1.0
    """AdamW: its learning rate, as a multiple of learning_rate."""
    epsilon: Share = 1e-07
    """AdamW: added to the denominator."""
    exclude_layers: Patterns | None = None
    """Patterns of weights' paths that AdamW updates; null: none."""
    exclude_embeddings: bool = True
    """AdamW updates embeddings."""
    muon_a: Annotated[float, within(-100, 100)] = 3.4445
    """First coefficient of the Newton-Schulz iteration."""
    muon_b: Annotated[float, within(-100, 100)] = -4.775
    """Second coefficient."""
    muon_c: Annotated[float, within(-100, 100)] = 2.0315
    """Third coefficient."""
    ns_steps: Annotated[int, within(1, 100)] = 5
    """Steps of that iteration."""
    momentum: Annotated[float, within(0, 1)] = 0.95
    """Decay of the mean of gradients."""
    nesterov: bool = True
    """Use Nesterov's momentum."""
    rms_rate: Positive | None = 0.2
    """Root mean square of an update, as of AdamW; null: updates are not scaled."""


class Nadam(OfMoments):
    """Adam with Nesterov's momentum (Dozat 2015)."""

    target_: Target = target("keras.optimizers.Nadam")


class RmsProp(Optimizer):
    """RMSprop (Tieleman and Hinton 2012)."""

    target_: Target = target("keras.optimizers.RMSprop")
    rho: Fraction = 0.9
    """Decay of the mean of squared gradients."""
    momentum: Annotated[float, within(0, 1)] = 0.0
    """Share of the last update that is added to the next."""
    epsilon: Share = 1e-07
    """Added to the denominator."""
    centered: bool = False
    """Gradients are normalised by their variance, and not by their square."""


class ScheduleFreeAdamW(Optimizer):
    """AdamW whose average of weights stands in for a schedule (Defazio et al. 2024)."""

    target_: Target = target("keras.optimizers.ScheduleFreeAdamW")
    learning_rate: Annotated[float, within(0, 1000000.0, above=True)] | None = 0.0025
    """Learning rate, with a schedule its highest; null: as the class has it."""
    beta_1: Share = 0.9
    """Share of the average in the weights that gradients are taken at."""
    beta_2: Fraction = 0.999
    """Decay of the mean of squared gradients."""
    epsilon: Share = 1e-08
    """Added to the denominator."""
    warmup_steps: Index = 0
    """Steps over which the rate rises from 0."""


class Sgd(Optimizer):
    """Stochastic gradient descent, with momentum."""

    target_: Target = target("keras.optimizers.SGD")
    learning_rate: Annotated[float, within(0, 1000000.0, above=True)] | None = 0.01
    """Learning rate, with a schedule its highest; null: as the class has it."""
    momentum: Annotated[float, within(0, 1)] = 0.9
    """Share of the last update that is added to the next."""
    nesterov: bool = False
    """Use Nesterov's momentum."""


class Schedule(Group, scope="numbers"):
    """Keys of every schedule."""

    target_: Target = target()
    """Function that makes the schedule."""


class Cosine(Schedule):
    """From learning_rate down along a cosine, over the whole run."""

    target_: Target = target("dtrain.schedules.cosine")
    alpha: Annotated[float, within(0, 1)] = 0.0
    """Last rate, as a share of learning_rate."""


class Warmup(Schedule):
    """A linear rise, then constant or a cosine."""

    target_: Target = target("dtrain.schedules.warmup")
    warmup_epochs: Annotated[float, within(0, MANY)] = 1.0
    """Epochs of the rise."""
    alpha: Annotated[float, within(0, 1)] = 1.0
    """Last rate, as a share of learning_rate; 1: constant after the rise."""
