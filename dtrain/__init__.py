"""dtrain: one declared Keras experiment, trained and recorded on any TensorFlow strategy."""

import sys

# ORDER: before anything else is imported. `python -m dtrain` has put the current directory first,
# and a folder called keras in it would be imported in the place of Keras.
_first = sys.path.pop(0) if sys.argv[:1] == ["-m"] and not sys.flags.safe_path else None

from dtrain.host import python_path  # noqa: E402

python_path.settle(_first is not None)

__version__ = "0.1.0"
