"""What a task reads: the dataset, its order, its readers and its identity."""
