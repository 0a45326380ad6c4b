"""A model that is trained, continued on other devices, exported, and loaded by Keras alone."""

import sys

import keras
from keras import layers


def build(input_shape, classes):
    """Return the model of the handwritten digits."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(classes, activation="softmax"),
        ]
    )


if __name__ == "__main__":
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    model = keras.models.load_model(sys.argv[1])
    found = model.predict(images.reshape(-1, 8, 8, 1) / 16, verbose=0).argmax(axis=1)
    print(
        f"{type(model).__name__}: {(found == labels).mean():.4f} of {len(labels)} digits are right"
    )
