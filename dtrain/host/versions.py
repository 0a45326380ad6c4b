"""Versions of packages, whichever distribution they were installed from."""

from __future__ import annotations

import importlib.metadata
import sys


def version(package: str) -> str | None:
    """Return the version of ``package``, None where there is none.

    Where it has been imported, that of what was imported. Elsewhere that of the distribution of its
    name, or of one that has a package of its name: TensorFlow is also installed from
    ``tensorflow-cpu``, ``tensorflow-tpu`` and ``tf-nightly``.
    """
    found = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(found, str):
        return found
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # ORDER: only now, for it reads the files of all distributions.
        for distribution in importlib.metadata.packages_distributions().get(package, ()):
            return importlib.metadata.version(distribution)
    return None
