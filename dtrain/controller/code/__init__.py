"""The code of a run: recorded when it starts, and built again by ``python -m dtrain replay``.

``capture``   one working tree: its commit, its changes, its untracked files
``recorder``  all that a run was made of, written into its folder beside the start
``state``     finds a record, and decides whether its code may be run
``checkout``  builds a working tree again
``changes``   what of a record is another thing by now: packages, variables, the machine
``rerun``     makes the run again in a process of its own
"""
