"""Exports of a model: written, then run by what will run them, and compared with Keras.

``model``     a model with names for its inputs and outputs, and as one function of tensors
``sample``    examples with the outputs of Keras, and how far other outputs are from them
``write``     the files of each format
``runtimes``  each format as a function of arrays, run by its own runtime
``main``      the processes of ``python -m dtrain export``
"""
