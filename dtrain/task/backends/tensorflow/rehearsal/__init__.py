"""What is tried on a few examples before training; nothing of it stays."""
