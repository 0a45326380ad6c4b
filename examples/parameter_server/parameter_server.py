"""Ratings that users gave to films, and a model that has learned a vector for each of both."""

import keras
import numpy as np
from keras import layers

USERS, FILMS = 400, 120


def load(ratings=20000, seed=0):
    """Return ratings for training and for validation: tastes times traits, and noise."""
    draw = np.random.default_rng(seed)
    tastes, traits = draw.normal(size=(USERS, 4)), draw.normal(size=(FILMS, 4))
    user, film = draw.integers(USERS, size=ratings), draw.integers(FILMS, size=ratings)
    rating = (tastes[user] * traits[film]).sum(axis=1) + draw.normal(0, 0.1, ratings)
    inputs, rating = {"user": user, "film": film}, rating[:, None].astype("float32")
    held = ratings // 5
    training = {name: column[held:] for name, column in inputs.items()}, rating[held:]
    return training, ({name: column[:held] for name, column in inputs.items()}, rating[:held])


def build(width=8):
    """Return a model that multiplies the vector of a user with that of a film."""
    user = keras.Input((), dtype="int64", name="user")
    film = keras.Input((), dtype="int64", name="film")
    taste = layers.Embedding(USERS, width, name="tastes")(user)
    trait = layers.Embedding(FILMS, width, name="traits")(film)
    return keras.Model({"user": user, "film": film}, layers.Dot(axes=1)([taste, trait]))
