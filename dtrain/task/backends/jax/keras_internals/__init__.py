"""Private names of JAX: which, why, and what happens where one is gone.

Of Keras this backend uses none beside those of all backends. No other module uses any, as a test
verifies.

``gloo``   at which address the collectives of CPUs listen
"""
