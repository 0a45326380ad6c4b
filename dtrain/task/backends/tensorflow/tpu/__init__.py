"""Training on TPUs. Not yet run on hardware."""
