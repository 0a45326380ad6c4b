"""The task side: TensorFlow and Keras; never Hydra, never MLflow."""
