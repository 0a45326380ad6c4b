"""Folders of runs and sweeps that have a place at an address: ``output_dir=s3://BUCKET/FOLDER``.

The run is made in a folder of this machine (:mod:`dtrain.files.addresses`), and copied while it
goes on; a command that names a run at an address has it fetched first.
"""

from dtrain.controller.remote.fetching import arguments, fetched, find
from dtrain.controller.remote.output import Output, output_of, push

__all__ = ["Output", "arguments", "fetched", "find", "output_of", "push"]
