"""MLflow's table of a sweep's runs, as its links open it: order and columns.

MLflow stores a shared view of an experiment's runs as a tag of the experiment, and a link names it.
Ours lists the sweep's child runs, which are otherwise hidden in their parent, the best first.
"""

from __future__ import annotations

import json
from typing import Any

from unlearnbench.api.benchmark import Headline

TAG = "mlflow.sharedViewState."
"""MLflow's prefix of the tag, before the name of the view."""


def share_view(client: Any, experiment: str, sweep: str, headline: Headline) -> str:
    """Store the view of a sweep's runs; returns its name.

    client      of MLflow
    experiment  MLflow's id of the experiment
    sweep       MLflow's id of the parent run
    """
    name, state = f"unlearnbench-{sweep[:12]}", json.dumps(view_of(sweep, headline))
    tags = client.get_experiment(experiment).tags
    if tags.get(TAG + name) != state:
        client.set_experiment_tag(experiment, TAG + name, state)
    return name


def view_of(sweep: str, headline: Headline) -> dict[str, Any]:
    """The state of MLflow's table: the child runs of `sweep`, by what their best epoch forgot."""
    kept, forgotten = headline.kept.column, headline.forgotten
    best = [forgotten.column, kept, "utility_kept", "epoch"]
    parameters = ("method", "model", "forget_fraction", "learning_rate", "seed")
    columns = [
        *(f"metrics.`best/{name}`" for name in best),
        *(f"params.`{name}`" for name in parameters),
        "tags.`status`",
    ]
    return {
        "searchFilter": f"tags.`mlflow.parentRunId` = '{sweep}'",
        "orderByKey": f"metrics.`best/{forgotten.column}`",
        "orderByAsc": forgotten.better == "lower",
        "selectedColumns": columns,
        # MLflow 3.9 puts nothing in place of what a stored view leaves out.
        "runsPinned": [],
        "runsHidden": [],
        "runsExpanded": {},
    }
