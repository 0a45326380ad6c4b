"""Where the tasks of a cluster are, and which of them this command is."""
