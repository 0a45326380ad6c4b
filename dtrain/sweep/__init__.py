"""Many jobs by one command (``-m``): composed, given their cores and GPUs, run, recorded."""

from dtrain.host import packages

packages.make_callable(__name__)
