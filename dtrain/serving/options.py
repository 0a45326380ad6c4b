"""What ``python -m dtrain serve`` takes: words with a type, a range and a default each."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Options(BaseModel):
    """The options of the command.

    Attributes:
        follow: newer versions are loaded as they appear.
        host: address to listen at.
        port: to listen at; 0 for a free one.
        name: of the model, in addresses.
        checkpoint: of a run: best, latest or a step.
        weights: of a run: raw or ema.
        max_batch: rows of a batch that requests share.
        max_delay_ms: milliseconds that a request waits for others to share its batch.
        max_queue: rows that wait, and rows of a request, at most.
        max_body_mb: megabytes of the body of a request, at most.
        timeout: seconds of a request.
        threads: of one batch; 0 for one on each core.
        uri: ``tracking.uri``, the store of a registered model.
    """

    follow: bool = False
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    name: str | None = None
    checkpoint: str | None = None
    weights: str = "raw"
    max_batch: int = Field(64, ge=1, le=65536)
    max_delay_ms: float = Field(0.0, ge=0, le=10_000)
    max_queue: int = Field(4096, ge=1, le=10_000_000)
    max_body_mb: float = Field(16.0, ge=0.001, le=4096)
    timeout: float = Field(30.0, ge=0.1, le=86_400)
    threads: int = Field(0, ge=0, le=1024)
    uri: str | None = Field(None, alias="tracking.uri")
