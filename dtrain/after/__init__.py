"""Predictions of a task: the columns, the functions that make them, and the work on pieces."""
