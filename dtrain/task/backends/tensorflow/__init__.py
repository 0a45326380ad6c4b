"""All that imports TensorFlow to train: strategies, steps, gradients, draws, devices."""
