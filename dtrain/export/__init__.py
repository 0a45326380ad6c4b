"""Exports of a model: written by Keras, run by their own runtimes, and compared with Keras.

``main``     the processes of ``python -m dtrain export``, and what all frameworks share
``sample``   examples with the outputs of Keras, how far others are, and a version that serves
``formats``  a model of Keras' with names for its inputs and outputs, and its files
``modules``  a plain module of PyTorch's, likewise
"""
