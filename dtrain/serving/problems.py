"""What is wrong with a request, and the status of the answer that says so."""

from __future__ import annotations

from dtrain.errors import DtrainError, printable


class Refused(DtrainError):
    """A request is not answered as it was asked.

    Args:
        status: of HTTP.
        text: one sentence.
        headers: of the answer.
    """

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None):
        super().__init__(printable(text))
        self.status, self.headers = status, headers or {}


def wrong(text: str) -> Refused:
    """Return the refusal of a request that is wrong in itself."""
    return Refused(400, text)


def busy(text: str) -> Refused:
    """Return the refusal of a request that may be sent again in a second."""
    return Refused(503, text, {"retry-after": "1"})


class Unusable(DtrainError):
    """A version of a model cannot serve; the sentence says why."""
