"""A tf.data pipeline of one's own: made, mapped and shuffled as on one device."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def prepare(image, label):
    """Return an image with one channel and numbers from 0 to 1, and its label."""
    return tf.cast(image, tf.float32)[..., None] / 16.0, label


def load(held=360):
    """Return two pipelines of single examples. dtrain makes the batches, and shares them."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order].reshape(-1, 8, 8), labels[order].astype("int64")
    training = tf.data.Dataset.from_tensor_slices((images[held:], labels[held:]))
    training = training.shuffle(2000, seed=1, reshuffle_each_iteration=False).map(prepare)
    validation = tf.data.Dataset.from_tensor_slices((images[:held], labels[:held])).map(prepare)
    return training, validation
