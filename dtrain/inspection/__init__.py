"""What a dataset gives, for ``python -m dtrain data``: read and reported, nothing is trained."""
