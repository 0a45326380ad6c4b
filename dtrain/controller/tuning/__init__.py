"""``python -m dtrain tune``: which settings make a model fast on this machine, as measured."""
