from typing import Any

from dtrain.api.calls import Run as Run
from dtrain.api.calls import Sweep as Sweep
from dtrain.api.calls import evaluate as evaluate
from dtrain.api.calls import export as export
from dtrain.api.calls import predict as predict
from dtrain.api.calls import sweep as sweep
from dtrain.api.calls import train as train

__version__: str

def __getattr__(name: str) -> Any: ...
