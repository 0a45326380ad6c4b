"""The process of a task: devices, signals, its parent, and the pipe to its launcher."""
