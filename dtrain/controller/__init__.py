"""The controller side: Hydra, MLflow and the terminal; never TensorFlow, never Keras."""
