"""dtrain: one declared Keras experiment, trained and recorded on any TensorFlow strategy."""

__version__ = "0.1.0"
