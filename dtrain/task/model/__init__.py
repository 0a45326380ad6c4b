"""The model: built from its configuration, checked, restored, fine-tuned."""
