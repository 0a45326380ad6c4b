"""What a machine and its environment offer, as ``python -m dtrain doctor`` reports it."""
