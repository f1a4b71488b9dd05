"""MLflow as a view of the records: a parent run per sweep, a child per record.

Only this package and `mlflow_store` import mlflow. Tracking happens in a thread of its own, so
that a slow server holds up no training, and whatever goes wrong there costs a warning, never a
run: `replay` logs the records later. A record is found again by its id, so nothing is logged twice.
"""

from unlearnbench.tracking.pages import open_ui, ui_command
from unlearnbench.tracking.replaying import Replayed, replay
from unlearnbench.tracking.tracker import Tracker

__all__ = ["Replayed", "Tracker", "open_ui", "replay", "ui_command"]
