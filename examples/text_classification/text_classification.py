"""Made-up reviews as text, and a model that takes text: its first layer makes numbers of it."""

import keras
import numpy as np
from keras import layers

GOOD = ["great", "lovely", "clever", "moving", "funny", "brilliant"]
BAD = ["dull", "awful", "clumsy", "boring", "shallow", "terrible"]
ABOUT = ["plot", "cast", "music", "ending", "script", "hero"]
WORDS = [*GOOD, *BAD, *ABOUT, "i", "think", "that", "the", "was", "not", "really"]


def review(draw):
    """Return a sentence of three judgements, and whether most of them are good."""
    said, good = [], 0
    for _ in range(3):
        praise, negation = draw.random() < 0.5, draw.choice(["", "not", "not really"])
        word = draw.choice(GOOD if praise else BAD)
        said.append(f"the {draw.choice(ABOUT)} was {negation} {word}")
        good += praise == (negation == "")
    return f"I think that {', '.join(said)}.", good > 1


def load(reviews=3000):
    """Return reviews and whether they are good, for training and for validation."""
    draw = np.random.default_rng(0)
    texts, good = zip(*[review(draw) for _ in range(reviews)], strict=True)
    texts, good = np.array(texts)[:, None], np.array(good, "int64")
    return (texts[600:], good[600:]), (texts[:600], good[:600])


def build():
    """Return the model. Windows of three words are what it takes to see a negation."""
    text = keras.Input((1,), dtype="string")
    x = layers.TextVectorization(vocabulary=WORDS, output_sequence_length=24)(text)
    x = layers.Embedding(len(WORDS) + 2, 16)(x)
    x = layers.Conv1D(32, 3, activation="relu")(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(text, layers.Dense(2, activation="softmax")(x))
