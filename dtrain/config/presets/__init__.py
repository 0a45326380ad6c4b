"""Types of the keys of models, datasets, optimizers and schedules: one class for each preset.

The fields are the parameters of the function that the preset names; a test holds the two together.
"""
