from typing import Any

from dtrain.api.calls import Run as Run
from dtrain.api.calls import Sweep as Sweep
from dtrain.api.calls import evaluate as evaluate
from dtrain.api.calls import export as export
from dtrain.api.calls import predict as predict
from dtrain.api.calls import sweep as sweep
from dtrain.api.calls import train as train
from dtrain.task.process.own_logs import log_artifact as log_artifact
from dtrain.task.process.own_logs import log_figure as log_figure
from dtrain.task.process.own_logs import log_image as log_image
from dtrain.task.process.own_logs import log_metric as log_metric
from dtrain.task.process.own_logs import log_table as log_table
from dtrain.task.process.own_logs import set_tag as set_tag

__version__: str

def __getattr__(name: str) -> Any: ...
