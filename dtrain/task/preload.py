"""What the warm server imports, once, before tasks are forked from it."""

import gc

from dtrain.task.late import late
from dtrain.task.process.parent_death import end_with_the_parent

# ORDER: from here on it ends with its controller, even while it imports. By itself it would wait
# for the last of its tasks, and one that is stopped never ends.
end_with_the_parent()

# Looking for garbage among what is only being made takes a quarter of the time of the import.
gc.disable()
# ORDER: before Keras, which imports scikit-learn for these alone, a fifth of its time.
late("keras.wrappers")
# Late, because of the lines above; unused here, because forked tasks find them imported.
import keras  # noqa: E402, F401
import tensorflow  # noqa: E402, F401

import dtrain.task.entry  # noqa: E402
import dtrain.task.main  # noqa: E402, F401

gc.enable()
# What is there now stays: tasks need not look through it, and keep sharing its memory.
gc.freeze()
