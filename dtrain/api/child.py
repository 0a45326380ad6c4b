"""``python -m dtrain.api.child``: the command line, for as long as the caller's process lives."""

from __future__ import annotations

import os
import signal
import sys
import threading

from dtrain.__main__ import main


def _end_with_the_caller() -> None:
    """Ask for a stop when the other end of standard input is gone: it saves, as on SIGTERM."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    sys.exit(main())
