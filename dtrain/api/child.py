"""``python -m dtrain.api.child FILE DRAWN ...``: the command line, as long as its caller lives.

What it leaves is in FILE in the end (:mod:`dtrain.host.answer`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from dtrain.__main__ import main
from dtrain.host import answer
from dtrain.run.folder import write_json


def _end_with_the_caller() -> None:
    """Ask for a stop when the other end of standard input is gone: it saves, as on SIGTERM."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    file, drawn = sys.argv.pop(1), sys.argv.pop(1)
    with answer.asked(drawn == "drawn") as found:
        try:
            code = main()
        finally:  # argparse exits by an exception
            write_json(Path(file), found)
    sys.exit(code)
