"""This machine and this process: Python's path, memory, versions, the terminal."""
