"""The configuration: what may be said, and what may be named."""
