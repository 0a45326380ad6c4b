"""Sinks: where a run is recorded beside MLflow, each a class of seven methods."""
