"""Layers of one model on several devices."""
