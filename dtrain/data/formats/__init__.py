"""Formats of files: each a table, or a source of its own."""
