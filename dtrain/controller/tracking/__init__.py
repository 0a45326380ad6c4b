"""MLflow: the journal, shipped. Training never waits for it."""

from dtrain.controller.tracking.courier import Courier, Tracker, reason
from dtrain.controller.tracking.parent import Parent
from dtrain.controller.tracking.shipper import Shipper, flatten, ship_folder, tags
from dtrain.controller.tracking.store import Store, import_mlflow, uri

__all__ = [
    "Courier", "Parent", "Shipper", "Store", "Tracker", "flatten", "import_mlflow", "reason",
    "ship_folder", "tags", "uri",
]  # fmt: skip
