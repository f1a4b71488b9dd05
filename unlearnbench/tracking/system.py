"""What the machine does that a sweep was started on, by MLflow's own monitor, on the parent run.

Runs are elsewhere: in Ray's workers, maybe on other machines. What is known of those is in their
records, and logged from there.
"""

from __future__ import annotations

import os
from typing import Any

SECONDS = 15.0
"""Between two samples; MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL says otherwise."""


def monitor(uri: str, run: str) -> Any:
    """MLflow's monitor at work, to be ended with `finish()`; None where it cannot be or shall not.

    It needs psutil, and for GPUs pynvml; MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=false switches it
    off. It has a thread of its own, and gives up by itself where the server does not answer.
    """
    if os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "").lower() == "false":
        return None
    try:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
    except ImportError:
        return None
    make: Any = SystemMetricsMonitor
    begun = make(run, sampling_interval=SECONDS, resume_logging=True, tracking_uri=uri)
    begun.start()
    return begun
