"""Training on a DTensor mesh: variables, steps, and what DTensor needs to be helped with."""
