"""MLflow: the journal, shipped. Training never waits for it."""

from dtrain.controller.tracking.courier import Courier, Tracker, reason
from dtrain.controller.tracking.shipper import Shipper, flatten, ship_folder, tags
from dtrain.controller.tracking.store import Store, import_mlflow, place, uri

__all__ = [
    "Courier", "Shipper", "Store", "Tracker", "flatten", "import_mlflow", "place", "reason",
    "ship_folder", "tags", "uri",
]  # fmt: skip
