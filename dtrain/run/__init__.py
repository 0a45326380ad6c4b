"""A run as both halves know it: its folder, journal, cluster, identity and checkpoints."""
