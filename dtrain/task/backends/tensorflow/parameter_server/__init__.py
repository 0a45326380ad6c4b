"""Training by a coordinator: the chief hands steps out to workers, variables are on servers.

A step is a pure function from (variables, examples) to (gradients, new values of what a layer
keeps, metric sums): Keras' own ``train_step`` is traced with its optimizer's ``apply`` and all its
assignments caught. So no count and no metric can be lost to a race, and a step that a worker took
with it when it died can be run again by another. Each step knows by its number which examples
are its own (:mod:`dtrain.task.backends.tensorflow.input_pipeline`).
"""
