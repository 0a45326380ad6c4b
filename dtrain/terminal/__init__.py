"""What the user sees while something runs: progress, and pictures."""
