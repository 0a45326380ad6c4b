"""What the warm server imports, once, before tasks are forked from it."""

import gc
import os
import sys
from typing import Any

from dtrain.host.frameworks import VARIABLE
from dtrain.task.late import late
from dtrain.task.process.signals import end_with_the_parent

# ORDER: from here on it ends with its controller, even while it imports. By itself it would wait
# for the last of its tasks, and one that is stopped never ends.
end_with_the_parent()

# Looking for garbage among what is only being made takes a quarter of the time of the import.
gc.disable()
# Keras imports these for what no task does before a user asks for it: a fifth of its time.
_LATE = ("keras.wrappers", "matplotlib", "matplotlib.pyplot", "matplotlib.patches")
# And JAX, where it is installed, on any backend: for now it is none.
_needed = os.environ.get(VARIABLE) == "jax" or "jax" in sys.modules
_modules: dict[str, Any] = sys.modules
_modules.update({} if _needed else {"jax": None})
with late(*_LATE):
    try:
        # Unused here, because forked tasks find it imported, and its framework.
        import keras  # noqa: F401
    except Exception as error:  # which would end the server; a task says it in its log
        raise ImportError(str(error)) from error
if not _needed:
    del _modules["jax"]

# What almost every task needs, too; imported here (E402) for what it shares with tasks (F401).
import dtrain.datasets  # noqa: E402
import dtrain.models  # noqa: E402
import dtrain.task.entry  # noqa: E402
import dtrain.task.main  # noqa: E402
import dtrain.task.train.train  # noqa: E402, F401
from dtrain.task import backends  # noqa: E402

for name in ("runtime", backends.module().STRATEGIES["OneDevice"]):
    backends.module(name)

gc.enable()
# What is there now stays: tasks need not look through it, and keep sharing its memory.
gc.freeze()
