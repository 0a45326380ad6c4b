"""A sweep: many jobs of one command, and what is recorded of them together."""
