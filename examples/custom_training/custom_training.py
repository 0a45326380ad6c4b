"""A model with a training step of its own: its loss, its gradients, its metrics."""

import keras
import tensorflow as tf
from keras import layers, ops


class Classifier(keras.Model):
    """Cross-entropy, and a penalty on logits that grow; gradients are clipped by hand."""

    def __init__(self, classes, **options):
        super().__init__(**options)
        self.hidden = layers.Dense(64, activation="relu")
        self.drop = layers.Dropout(0.2)
        self.logits = layers.Dense(classes)

    def call(self, images, training=False):
        """Return the logits."""
        flat = ops.reshape(images, (-1, 64))
        return self.logits(self.drop(self.hidden(flat), training=training))

    def train_step(self, data):
        """Update the weights once. This runs on each replica, with its part of the batch."""
        images, labels = data
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            loss = self.compute_loss(images, labels, logits)
            loss = loss + 1e-3 * ops.mean(ops.square(logits))
        gradients = tape.gradient(loss, self.trainable_weights)
        gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
        self.optimizer.apply(gradients, self.trainable_weights)
        return {**self.compute_metrics(images, labels, logits), "loss": loss, "gradient": norm}


def build(classes):
    """Return the model of the handwritten digits."""
    return Classifier(classes)
