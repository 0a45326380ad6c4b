"""Customers as columns of numbers and words, and a model with an input for each column."""

import keras
import numpy as np
from keras import layers

PLANS = ["basic", "family", "business"]
RISK = {"basic": 1.0, "family": 0.0, "business": -1.0}


def load(customers=6000):
    """Return the columns, and whether a customer has left."""
    draw = np.random.default_rng(0)
    columns = {
        "age": draw.uniform(18, 80, customers).astype("float32"),
        "months": draw.exponential(24, customers).astype("float32"),
        "complaints": draw.poisson(1.0, customers).astype("float32"),
        "plan": draw.choice(PLANS, customers),
    }
    risk = np.vectorize(RISK.get)(columns["plan"]) + 1.5 * columns["complaints"]
    risk += np.abs(columns["age"] - 45) / 10 - columns["months"] / 12 - 1
    left = (risk + draw.logistic(0, 0.3, customers) > 0).astype("float32")[:, None]
    training = {name: column[1000:] for name, column in columns.items()}
    return (training, left[1000:]), ({name: c[:1000] for name, c in columns.items()}, left[:1000])


def build():
    """Return the model: numbers on a common scale, words as one-hot vectors, then dense layers."""
    numbers = {name: keras.Input((1,), name=name) for name in ("age", "months", "complaints")}
    plan = keras.Input((1,), name="plan", dtype="string")
    scale = {"age": (49, 320), "months": (24, 576), "complaints": (1, 1)}  # mean and variance
    parts = [layers.Normalization(mean=m, variance=v)(numbers[n]) for n, (m, v) in scale.items()]
    parts.append(layers.StringLookup(vocabulary=PLANS, output_mode="one_hot")(plan))
    x = layers.Dense(32, activation="relu")(layers.Concatenate()(parts))
    x = layers.Dense(32, activation="relu")(x)
    return keras.Model({**numbers, "plan": plan}, layers.Dense(1, activation="sigmoid")(x))
