"""Private names of JAX: the address at which gloo listens, for which JAX has no option.

Of Keras this backend uses none beside those of all backends. No other module uses any, as a test
verifies.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

from dtrain.task.aliases import Foreign

#: Where JAX takes gloo's collectives from.
LIBRARY, GLOO = "jax._src.lib", "make_gloo_tcp_collectives"


@contextlib.contextmanager
def listening_at(host: str) -> Iterator[None]:
    """Let gloo listen at the address by which the other tasks know this one.

    It would ask for the address of the machine's own name, which on many a machine is that of the
    loopback, and JAX has no option for it. A version of JAX without this name listens there.
    """
    library: Foreign = getattr(importlib.import_module(LIBRARY), "_jax", None)
    made = getattr(library, GLOO, None)
    if made is None:
        yield
        return

    def gloo(distributed_client: object) -> object:
        return made(distributed_client=distributed_client, hostname=host)

    setattr(library, GLOO, gloo)
    try:
        yield
    finally:
        setattr(library, GLOO, made)
