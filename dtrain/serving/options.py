"""What ``python -m dtrain serve`` takes: words with a type, a range and a default each."""

from typing import Annotated, Literal

from pydantic import Field

from dtrain.config.fields import FileName, Line, Options, within
from dtrain.config.schema.running import Checkpoint


class ServeOptions(Options):
    """Options of ``serve``."""

    follow: bool = False
    """Load newer versions as they appear."""
    host: Line = "127.0.0.1"
    """Address to listen at."""
    port: Annotated[int, within(0, 65535)] = 8080
    """Port to listen at; 0: a free one."""
    name: FileName | None = None
    """Name of the model, in addresses; null: its own."""
    checkpoint: Checkpoint | None = None
    """Of a run: best, latest or a step; null: the best, or the latest if none is known."""
    weights: Literal["raw", "ema"] = "raw"
    """Of a run: raw, or ema for the optimizer's moving averages."""
    max_batch: Annotated[int, within(1, 65536)] = 64
    """Rows of a batch that requests share."""
    max_delay_ms: Annotated[float, within(0, 10_000)] = 0.0
    """Milliseconds that a request waits for others to share its batch."""
    max_queue: Annotated[int, within(1, 10_000_000)] = 4096
    """Rows that wait, and rows of a request, at most."""
    max_body_mb: Annotated[float, within(0.001, 4096)] = 16.0
    """Megabytes of the body of a request, at most."""
    timeout: Annotated[float, within(0.1, 86_400)] = 30.0
    """Seconds of a request."""
    threads: Annotated[int, within(0, 1024)] = 0
    """Threads of one batch; 0: one on each core."""
    uri: Line | None = Field(None, alias="tracking.uri")
    """Store of a registered model; null: the embedded one."""
