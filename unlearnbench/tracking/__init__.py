"""Tracking in MLflow: a parent run per sweep, a child run per record.

Only this package imports mlflow. It logs in a background thread, so that a slow server does not
delay training, and a failure costs a warning, never a run: `replay` logs the records later. Runs
are found by their record's id, so nothing is logged twice.
"""

from unlearnbench.tracking.mlflow.ui import open_ui, ui_command
from unlearnbench.tracking.replay import ReplayResult, replay
from unlearnbench.tracking.sweep_tracker import SweepTracker

__all__ = ["ReplayResult", "SweepTracker", "open_ui", "replay", "ui_command"]
