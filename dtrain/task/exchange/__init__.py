"""Sums of vectors over the tasks of a job by shared memory and sockets (``communication=host``)."""
