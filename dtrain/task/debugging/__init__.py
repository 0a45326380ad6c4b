"""What the checks of ``debug=NAME`` look at a model with."""
