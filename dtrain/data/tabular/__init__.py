"""Tables in files that pyarrow reads."""
