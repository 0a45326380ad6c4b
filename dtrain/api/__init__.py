"""The Python API: ``dtrain.train(...)`` and what follows it, over the command line's processes.

``calls``        the functions
``keywords``     their short words for keys
``objects``      functions and classes that a caller gives, ``source`` their text
``arrays``       arrays that a caller gives
``command``      one command in a process of its own; ``child`` is where that begins
``run``          what a run, a sweep or a comparison has left
``local_model``  a run's model in the caller's process
"""
