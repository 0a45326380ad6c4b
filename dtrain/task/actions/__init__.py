"""What a task does with its session: one module for each action."""
