"""Data: sources, formats, splits, and the order of examples."""
