"""Training: the session, the loop, what it records and where it begins again."""
