"""The Python API: ``dtrain.train(...)`` and what follows it, over the command line's processes.

``calls``        the functions
``keywords``     their short words for keys, and values as overrides
``objects``      functions, classes and arrays that a caller gives; ``pickler`` pickles
``command``      one command in a process of its own; ``child`` is where that begins
``training``     begins and resumes runs and sweeps
``run``          what a run, a sweep or a comparison has left
``local_model``  a run's model in the caller's process
"""
