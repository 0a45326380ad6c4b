"""``columns.json``: how the columns of a table became the inputs of a run's model."""

from __future__ import annotations

from dtrain.data.encoding import Encoding
from dtrain.errors import DamagedFile
from dtrain.run.folder import RunDir, read_json, write_json


def write_encoding(rundir: RunDir, encoding: Encoding | None) -> None:
    """Write the encoding of a run; of one without a table nothing.

    Raises:
        OSError: it cannot be written.
    """
    if encoding is not None:
        write_json(rundir.columns, encoding.to_json(), lasting=True)


def read_encoding(rundir: RunDir) -> Encoding | None:
    """Return the encoding of a run; None of one that has none.

    Raises:
        DamagedFile: the file is not one that :func:`write_encoding` has written.
    """
    value = read_json(rundir.columns)
    if value is None:
        return None
    try:
        return Encoding.from_json(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(rundir.columns, f"is no encoding of columns ({error})") from None
