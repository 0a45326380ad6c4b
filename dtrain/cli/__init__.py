"""The command line: Hydra's application, the registry of commands, and the commands."""
