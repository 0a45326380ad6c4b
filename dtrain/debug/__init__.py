"""What ``debug=NAME`` does in the place of a training: one module for each check."""
