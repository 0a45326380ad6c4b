"""What the user sees: progress while a job runs, and the report of it."""
