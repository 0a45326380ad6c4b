"""keras.io's knowledge distillation: a teacher that is not trained, a student, two losses."""

from __future__ import annotations

import keras
from keras import ops

from tests.zoo.parts import mlp

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.teacher.trainable = False
        self.distillation_loss_fn = keras.losses.KLDivergence()

    def call(self, x, training=False):
        return self.student(x, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        soft = ops.softmax(self.teacher(x, training=False) / 3.0)
        distilled = self.distillation_loss_fn(soft, ops.softmax(ops.log(y_pred + 1e-7) / 3.0))
        student = super().compute_loss(x, y, y_pred, sample_weight)
        return 0.1 * student + 0.9 * distilled


def model(input_shape, classes):
    return Distiller(mlp(input_shape, classes), mlp(input_shape, classes, None))
