"""Many jobs by one command (``-m``): composed, given their cores and GPUs, run, recorded."""
