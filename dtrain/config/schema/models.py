"""The keys of models, of optimizers and of learning-rate schedules.

They are the parameters of the function or class that each option names.
"""

from typing import Annotated

from dtrain.config import fields as f

Decay = Annotated[float, f.within(0, 1000000.0)] | None
Rate = Annotated[float, f.within(0, 1000000.0, above=True)] | None
Momentum = Annotated[float, f.within(0, 1)]


class Model(f.Group, scope="numbers"):
    """Keys of every shipped model beside those of its function."""

    target_: f.Target
    """Function that builds the model."""
    input_shape: f.Shape | None = None
    """Shape of one example; null: the dataset's."""
    classes: f.Width | None = None
    """Outputs of the last layer; null: the dataset's classes."""


class Predictor(Model):
    """A model of classes or of numbers."""

    outputs: f.Width | None = None
    """Outputs of a regression; null: as many as the dataset has targets."""


class Mlp(Predictor, target="dtrain.models.mlp"):
    """A multilayer perceptron."""

    units: Annotated[list[f.Width], f.items(0, 1000)] = [128, 64]
    """Width of each hidden layer."""
    dropout: f.Fraction = 0.0
    """Share of activations that is dropped after each hidden layer."""
    l2: f.Amount = 0.0
    """Strength of the L2 penalty on kernels."""


class WideDeep(Mlp, target="dtrain.models.wide_deep"):
    """A linear model and a multilayer perceptron, added up."""


class Cnn(Predictor, target="dtrain.models.cnn"):
    """A convolutional network for small images."""

    filters: Annotated[list[f.Width], f.items(0, 1000)] = [32, 64]
    """Filters of each convolution."""
    units: f.Width = 64
    """Width of the dense layer."""
    dropout: f.Fraction = 0.25
    """Share of activations that is dropped before the last layer."""
    l2: f.Amount = 0.0
    """Strength of the L2 penalty on kernels."""


class Resnet(Predictor, target="dtrain.models.resnet"):
    """A residual network for small images."""

    filters: Annotated[list[f.Width], f.items(1, 1000)] = [16, 32, 64]
    """Filters of each stage."""
    blocks: Annotated[int, f.within(1, 1000)] = 1
    """Residual blocks of each stage."""


class Transformer(Model, target="dtrain.models.transformer"):
    """A decoder that predicts the next token."""

    classes: f.Width | None = None
    """Size of the vocabulary; null: the dataset's."""
    width: f.Width = 64
    """Width of the embedding."""
    blocks: Annotated[int, f.within(1, 1000)] = 2
    """Number of blocks."""
    heads: f.Width = 4
    """Attention heads of each block."""
    dropout: f.Fraction = 0.0
    """Share of activations that is dropped."""


# -- optimizers ------------------------------------------------------------------------------------


class Optimizer(f.Group, scope="numbers"):
    """What every Keras optimizer takes (``keras.optimizers.Optimizer``), and the schedule."""

    target_: f.Target
    """Class of the optimizer."""
    schedule: f.Node | None = None
    """Node of a learning-rate schedule; null: the rate is constant."""
    learning_rate: Rate = 0.001
    """Learning rate, with a schedule its highest; null: as the class has it."""
    weight_decay: Decay = None
    """Decoupled weight decay; null: none."""
    clipnorm: f.Positive | None = None
    """Largest norm of each gradient; null: no limit."""
    clipvalue: f.Positive | None = None
    """Largest absolute value in a gradient; null: no limit."""
    global_clipnorm: f.Positive | None = None
    """Largest norm of all gradients together; null: no limit."""
    use_ema: bool = False
    """Keep an exponential moving average of the weights."""
    ema_momentum: Momentum = 0.99
    """Momentum of that average."""
    ema_overwrite_frequency: f.Count | None = None
    """Steps after which it replaces the weights; null: at the end."""
    loss_scale_factor: f.Positive | None = None
    """Factor of the loss while gradients are computed; null: none."""
    gradient_accumulation_steps: Annotated[int, f.within(2, f.MANY)] | None = None
    """Steps whose gradients make one update; null: one."""


class Adadelta(Optimizer, target="keras.optimizers.Adadelta"):
    """Adadelta (Zeiler 2012)."""

    rho: f.Fraction = 0.95
    """Decay of the means of squared gradients and of squared updates."""
    epsilon: f.Share = 1e-07
    """Added to both."""


class Adafactor(Optimizer, target="keras.optimizers.Adafactor"):
    """Adafactor (Shazeer and Stern 2018): of a matrix it keeps means of rows and columns alone."""

    beta_2_decay: Annotated[float, f.within(-10, 0, below=True)] = -0.8
    """Exponent of the decay of the mean of squared gradients."""
    epsilon_1: f.Share = 1e-16
    """Added to squared gradients; by Keras' 1e-30 a weight becomes NaN whose row and column have no
    gradient."""
    epsilon_2: f.Share = 0.001
    """Smallest root mean square of a weight that the update is scaled by."""
    clip_threshold: f.Positive = 1.0
    """Largest root mean square of an update."""
    relative_step: bool = True
    """The learning rate is at most 1 / sqrt(step)."""


class Adagrad(Optimizer, target="keras.optimizers.Adagrad"):
    """Adagrad (Duchi et al. 2011)."""

    initial_accumulator_value: f.Amount = 0.1
    """What the sums of squared gradients begin with."""
    epsilon: f.Share = 1e-07
    """Added to the denominator."""


class OfMoments(Optimizer):
    """What optimizers take that keep means of gradients and of their squares."""

    beta_1: f.Fraction = 0.9
    """Decay of the mean of gradients."""
    beta_2: f.Fraction = 0.999
    """Decay of the mean of their squares."""
    epsilon: f.Share = 1e-07
    """Added to the denominator."""


class Adam(OfMoments, target="keras.optimizers.Adam"):
    """Adam (Kingma and Ba 2014)."""

    amsgrad: bool = False
    """Use the AMSGrad variant."""


class Adamax(OfMoments, target="keras.optimizers.Adamax"):
    """Adam by the infinity norm (Kingma and Ba 2014, section 7)."""

    beta_2: f.Fraction = 0.999
    """Decay of the largest gradient."""


class AdamW(Adam, target="keras.optimizers.AdamW"):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017)."""

    weight_decay: Decay = 0.004
    """Decoupled weight decay; null: none."""


class Ftrl(Optimizer, target="keras.optimizers.Ftrl"):
    """FTRL-Proximal (McMahan et al. 2013), for sparse linear models."""

    learning_rate_power: Annotated[float, f.within(-10, 0)] = -0.5
    """Exponent of the sum of squared gradients; 0: a constant rate."""
    initial_accumulator_value: f.Amount = 0.1
    """What the sums of squared gradients begin with."""
    l1_regularization_strength: f.Amount = 0.0
    """L1 penalty."""
    l2_regularization_strength: f.Amount = 0.0
    """L2 penalty, which makes weights stable."""
    l2_shrinkage_regularization_strength: f.Amount = 0.0
    """L2 penalty on the size of weights."""
    beta: f.Amount = 0.0
    """Of the paper."""


class Lamb(OfMoments, target="keras.optimizers.Lamb"):
    """LAMB (You et al. 2019): Adam with a trust ratio for each layer, for large batches."""


class Lion(Optimizer, target="keras.optimizers.Lion"):
    """Lion (Chen et al. 2023): by signs of gradients, at a rate 3 to 10 times below Adam's."""

    beta_1: f.Share = 0.9
    """Share of the mean of gradients in an update."""
    beta_2: f.Fraction = 0.99
    """Decay of that mean."""


class Muon(Optimizer, target="keras.optimizers.Muon"):
    """Muon (Jordan et al. 2024) for matrices, and AdamW for all other weights."""

    weight_decay: Decay = 0.004
    """Decoupled weight decay of matrices; null: none."""
    adam_beta_1: f.Fraction = 0.9
    """AdamW: decay of the mean of gradients."""
    adam_beta_2: f.Fraction = 0.999
    """AdamW: decay of the mean of their squares."""
    adam_weight_decay: Decay = 0.004
    """AdamW: decoupled weight decay; null: none."""
    adam_lr_ratio: f.Positive = 1.0
    """AdamW: its learning rate, as a multiple of learning_rate."""
    epsilon: f.Share = 1e-07
    """AdamW: added to the denominator."""
    exclude_layers: f.Patterns | None = None
    """Patterns of weights' paths that AdamW updates; null: none."""
    exclude_embeddings: bool = True
    """AdamW updates embeddings."""
    muon_a: Annotated[float, f.within(-100, 100)] = 3.4445
    """First coefficient of the Newton-Schulz iteration."""
    muon_b: Annotated[float, f.within(-100, 100)] = -4.775
    """Second coefficient."""
    muon_c: Annotated[float, f.within(-100, 100)] = 2.0315
    """Third coefficient."""
    ns_steps: Annotated[int, f.within(1, 100)] = 5
    """Steps of that iteration."""
    momentum: Momentum = 0.95
    """Decay of the mean of gradients."""
    nesterov: bool = True
    """Use Nesterov's momentum."""
    rms_rate: f.Positive | None = 0.2
    """Root mean square of an update, as of AdamW; null: updates are not scaled."""


class Nadam(OfMoments, target="keras.optimizers.Nadam"):
    """Adam with Nesterov's momentum (Dozat 2015)."""


class RmsProp(Optimizer, target="keras.optimizers.RMSprop"):
    """RMSprop (Tieleman and Hinton 2012)."""

    rho: f.Fraction = 0.9
    """Decay of the mean of squared gradients."""
    momentum: Momentum = 0.0
    """Share of the last update that is added to the next."""
    epsilon: f.Share = 1e-07
    """Added to the denominator."""
    centered: bool = False
    """Gradients are normalised by their variance, and not by their square."""


class ScheduleFreeAdamW(Optimizer, target="keras.optimizers.ScheduleFreeAdamW"):
    """AdamW whose average of weights stands in for a schedule (Defazio et al. 2024)."""

    learning_rate: Rate = 0.0025
    """Learning rate, with a schedule its highest; null: as the class has it."""
    beta_1: f.Share = 0.9
    """Share of the average in the weights that gradients are taken at."""
    beta_2: f.Fraction = 0.999
    """Decay of the mean of squared gradients."""
    epsilon: f.Share = 1e-08
    """Added to the denominator."""
    warmup_steps: f.Index = 0
    """Steps over which the rate rises from 0."""


class Sgd(Optimizer, target="keras.optimizers.SGD"):
    """Stochastic gradient descent, with momentum."""

    learning_rate: Rate = 0.01
    """Learning rate, with a schedule its highest; null: as the class has it."""
    momentum: Momentum = 0.9
    """Share of the last update that is added to the next."""
    nesterov: bool = False
    """Use Nesterov's momentum."""


class Schedule(f.Group, scope="numbers"):
    """Keys of every schedule."""

    target_: f.Target
    """Function that makes the schedule."""


class Cosine(Schedule, target="dtrain.schedules.cosine"):
    """From learning_rate down along a cosine, over the whole run."""

    alpha: Momentum = 0.0
    """Last rate, as a share of learning_rate."""


class Warmup(Schedule, target="dtrain.schedules.warmup"):
    """A linear rise, then constant or a cosine."""

    warmup_epochs: Annotated[float, f.within(0, f.MANY)] = 1.0
    """Epochs of the rise."""
    alpha: Momentum = 1.0
    """Last rate, as a share of learning_rate; 1: constant after the rise."""
