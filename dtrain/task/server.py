"""The first thing that the warm server imports: from here on it ends with its controller.

By itself it would wait for the last of its tasks, and one that is stopped never ends.
"""

from dtrain.task.lifeline import end_with_the_parent

end_with_the_parent()
