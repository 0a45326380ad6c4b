"""A variational autoencoder of the handwritten digits."""

import keras
from keras import layers, ops
from sklearn.datasets import load_digits


def load():
    """Return images of 64 numbers from 0 to 1. Each is its own target."""
    images = (load_digits().data / 16).astype("float32")
    return (images[360:], images[360:]), (images[:360], images[:360])


@keras.saving.register_keras_serializable("vae")
class Sample(layers.Layer):
    """Draws a code in training, and adds to the loss how far it is from the normal distribution."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, inputs, training=False):
        """Return a code for each mean and logarithm of a variance."""
        mean, log_variance = inputs
        divergence = ops.square(mean) + ops.exp(log_variance) - 1 - log_variance
        self.add_loss(ops.mean(ops.sum(divergence, axis=-1)) / 2 / 64)  # a pixel's share
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        return mean if not training else mean + ops.exp(log_variance / 2) * noise


def build(latent=8, units=128):
    """Return encoder, code and decoder as one model."""
    images = keras.Input((64,))
    hidden = layers.Dense(units, activation="relu")(images)
    code = Sample()([layers.Dense(latent)(hidden), layers.Dense(latent)(hidden)])
    hidden = layers.Dense(units, activation="relu")(code)
    return keras.Model(images, layers.Dense(64, activation="sigmoid")(hidden))
