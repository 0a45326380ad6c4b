"""dtrain: one declared Keras experiment, trained and recorded on any TensorFlow strategy."""

from dtrain import here

# ORDER: before anything else is imported.
here.settle()

__version__ = "0.1.0"
