"""What users see, kept as files: the numbers of trainings, and what commands print."""
