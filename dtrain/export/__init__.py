"""Exports of a model: written by Keras, run by their own runtimes, and compared with Keras.

``model``    a model with names for its inputs and outputs
``sample``   examples with the outputs of Keras, and how far other outputs are from them
``formats``  the files of each format, and what runs them
``main``     the processes of ``python -m dtrain export``
"""
