"""Noisy pictures of discs and a bar, and a small U-Net that marks the discs."""

import keras
import numpy as np
from keras import layers

SIZE = 24


def load(pictures=800):
    """Return pictures, and for each pixel whether it belongs to a disc."""
    draw = np.random.default_rng(0)
    row, column = np.mgrid[:SIZE, :SIZE]
    images = draw.normal(0, 0.3, (pictures, SIZE, SIZE, 1)).astype("float32")
    masks = np.zeros((pictures, SIZE, SIZE, 1), "int64")
    for image, mask in zip(images, masks, strict=True):
        for x, y in draw.integers(4, SIZE - 4, (2, 2)):
            mask[(row - y) ** 2 + (column - x) ** 2 < draw.integers(3, 6) ** 2] = 1
        image[mask == 1] += 1
        image[abs(row - draw.integers(SIZE)) < 2] += 1  # the bar is as bright
    return (images[160:], masks[160:]), (images[:160], masks[:160])


def convolved(x, filters):
    """Return two convolutions of a picture."""
    x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    return layers.Conv2D(filters, 3, padding="same", activation="relu")(x)


def build(input_shape):
    """Return the network: down and up twice, with a way across at each level."""
    inputs = keras.Input(input_shape)
    first = convolved(inputs, 8)
    second = convolved(layers.MaxPooling2D()(first), 16)
    x = convolved(layers.MaxPooling2D()(second), 32)
    x = convolved(layers.Concatenate()([layers.UpSampling2D()(x), second]), 16)
    x = convolved(layers.Concatenate()([layers.UpSampling2D()(x), first]), 8)
    return keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
