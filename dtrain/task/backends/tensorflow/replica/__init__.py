"""What a step on one replica computes as one of several: gradients and random draws."""
