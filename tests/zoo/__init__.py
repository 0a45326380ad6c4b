"""Models as Keras users have them, one a file; ``tests/test_zoo.py`` trains each of them.

A file has ``model(input_shape, classes)``. It may say of itself:

    DATA      the dataset that it is for, of ``tests.zoo.data``; ``points`` otherwise
    TRAINER   ``loss`` and ``metrics`` of a model that its file does not compile, and
              ``gradient_reduction`` where that is no mean
    FIT       False where Keras' ``fit`` is no referee: it refuses the model, or draws otherwise
    DRAWS     True where it draws random numbers: on PyTorch each process draws its own
    REFUSED   by strategy, the beginning of the sentence by which dtrain refuses it
"""
