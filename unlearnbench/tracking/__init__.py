"""Tracking: each record becomes a run of a tracker, of which MLflow is the built-in one.

Only `mlflow.py` imports mlflow. Runs are logged in a background thread, so that a slow server does
not delay training, and a failure costs a warning, never a run: `replay` logs the records later.
Runs are found by their record's id, so nothing is logged twice.
"""

from unlearnbench.tracking.links import show_in_mlflow, ui_command
from unlearnbench.tracking.sweep_tracker import ReplayResult, SweepTracker, replay, sweep_config

__all__ = ["ReplayResult", "SweepTracker", "replay", "show_in_mlflow", "sweep_config", "ui_command"]
