"""The seam for frameworks: protocols (:mod:`base`), and a package for each framework."""
