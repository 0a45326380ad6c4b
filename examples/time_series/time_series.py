"""Two days of a made-up demand for electricity, and the day that follows them."""

import keras
import numpy as np
from keras import layers

PAST, FUTURE = 48, 24


def demand(hours):
    """Return the demand of each hour: days, working days that are steeper, weather, noise."""
    draw, hour = np.random.default_rng(0), np.arange(hours)
    day = np.sin(2 * np.pi * hour / 24) + 0.5 * np.sin(4 * np.pi * hour / 24 + 1)
    works = hour // 24 % 7 < 5
    weather = np.convolve(draw.normal(0, 0.03, hours + 99), np.exp(-np.arange(100) / 30), "valid")
    return day * (1 + 0.5 * works) + works + weather + draw.normal(0, 0.05, hours)


def load(hours=8760, held=1440):
    """Return windows of it. Those of the validation are later than all of the training."""
    series, week = demand(hours), 2 * np.pi * np.arange(hours) / 168
    known = np.stack([series, np.sin(week), np.cos(week)], axis=1).astype("float32")
    first = np.arange(hours - PAST - FUTURE)[:, None]
    x, y = known[first + np.arange(PAST)], known[first + PAST + np.arange(FUTURE), 0]
    end = len(first) - held
    return (x[: end - FUTURE], y[: end - FUTURE]), (x[end:], y[end:])


def build(input_shape, units=32):
    """Return a network that begins with yesterday as its forecast, and learns what differs."""
    past = keras.Input(input_shape)
    change = layers.Dense(FUTURE, kernel_initializer="zeros")(layers.GRU(units)(past))
    return keras.Model(past, past[:, -FUTURE:, 0] + change)
