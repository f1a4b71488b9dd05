"""The views of a sweep's runs that MLflow's page opens with: columns, order, charts, groups.

A view is the state of MLflow's page of runs as JSON. MLflow keeps it as a tag of the experiment,
and a link names it. The keys of the state are those of MLflow 3.9 to 3.17. A version that does not
know a key ignores it.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from unlearnbench.report.tracked_runs import AT_A_GLANCE

PARAMETERS = ("learning_rate", "method", "seed", "model", "forget_fraction")
"""Parameters with a column in the table of runs."""
_FIRST_METRICS = 2
"""Number of metrics to the left of the parameters: the forgotten and the kept one."""
_RUN_NAME = "attributes.`Run Name`"
_WIDTHS = {_RUN_NAME: 270, "params.`method`": 160, "tags.`recommended`": 190}
"""Pixels of columns that MLflow makes too narrow for their texts. The longest run name is the name
of the sweep's own run: `sweep quickstart (mean of 3 seeds)`."""
_METRIC_WIDTH = 190
"""Pixels of the columns of the first metrics."""
_SECTION = "at-a-glance"
"""Id of the section of charts that the page opens with."""


class Best(NamedTuple):
    """Metrics of a run's best epoch, which are columns of the table."""

    metrics: Sequence[str]
    """The forgotten metric, by which runs are ordered, then the kept one, then others."""
    ascending: bool
    """Whether the best run has the lowest value of the first metric."""


def flat_view(sweep_id: str, best: Best) -> str:
    """Return the view that a sweep's link opens: all runs, best first, answers side by side."""
    return json.dumps(_state(sweep_id, best))


def grouped_view(sweep_name: str, sweep_id: str, best: Best, created: int) -> str:
    """Return the view by method, which MLflow offers in its menu *Views*.

    It is not the view of the link, because MLflow compares no answers while runs are grouped.

    Args:
        sweep_name: Name of the sweep, for the menu.
        sweep_id: Value of the tag `unlearnbench.sweep_id` of the runs to show.
        best: Metrics of the best epochs.
        created: Milliseconds since 1970, by which the menu is sorted.
    """
    by_method = {
        "aggregateFunction": "average",
        "groupByKeys": [{"mode": "param", "groupByData": "method"}],
    }
    state = _state(sweep_id, best) | {"groupBy": by_method, "groupsExpanded": {}}
    view = {"name": f"{sweep_name} by method", "createdAt": created, "state": json.dumps(state)}
    return json.dumps(view)


def _state(sweep_id: str, best: Best) -> dict[str, Any]:
    """Return the state of MLflow's page that shows the runs of a sweep in one list."""
    metrics = [f"metrics.`{name}`" for name in best.metrics]
    columns = _columns(metrics)
    widths = _WIDTHS | dict.fromkeys(metrics[:_FIRST_METRICS], _METRIC_WIDTH)
    section = {
        "uuid": _SECTION,
        "name": "Utility, forgetting, loss",
        "display": True,
        "isReordered": True,
        "isGenerated": False,
        "deleted": False,
    }
    return {
        # MLflow hides child runs unless there is a condition. The sweep's own run fulfils this one
        # too, and only its name distinguishes it, because a shared view cannot pin a run.
        "searchFilter": f"tags.`unlearnbench.sweep_id` = '{sweep_id}'",
        "orderByKey": metrics[0] if metrics else "attributes.`start_time`",
        "orderByAsc": best.ascending,
        "selectedColumns": columns,
        # MLflow applies widths only to columns that are named here.
        "columnOrder": [_RUN_NAME, *columns],
        "columnWidths": widths,
        "compareRunCharts": _charts(best),
        "compareRunSections": [section],
        # Without this key, MLflow sorts the sections by their names.
        "isAccordionReordered": True,
        # MLflow 3.9 has no defaults for keys that a stored view leaves out.
        "runsPinned": [],
        "runsHidden": [],
        "runsExpanded": {},
    }


def _columns(metrics: Sequence[str]) -> list[str]:
    """List the columns of the table of runs from left to right.

    Args:
        metrics: Columns of the best metrics, such as "metrics.`best/utility_kept`".
    """
    parameters = [f"params.`{name}`" for name in PARAMETERS]
    attributes = [f"attributes.`{name}`" for name in ("User", "Version", "Dataset")]
    return [
        *metrics[:_FIRST_METRICS],
        "tags.`recommended`",
        *parameters,
        *metrics[_FIRST_METRICS:],
        "tags.`status`",
        *attributes,
    ]


def _charts(best: Best) -> list[dict[str, Any]]:
    """Return the charts of the first section: the trade-off of the best epochs, then curves."""
    curves = [_curve(name) for name in ("utility", "forgetting", "loss")]
    if len(best.metrics) < 2:
        return curves
    forgotten, kept = best.metrics[:2]
    return [_tradeoff(forgotten, kept), *curves]


def _tradeoff(forgotten: str, kept: str) -> dict[str, Any]:
    return _chart("SCATTER", "tradeoff") | {
        "runsCountToCompare": 100,
        "xaxis": {"key": kept, "type": "METRIC"},
        "yaxis": {"key": forgotten, "type": "METRIC"},
    }


def _curve(name: str) -> dict[str, Any]:
    """Return the chart of a metric by step, such as `utility`."""
    return _chart("LINE", name) | {
        "metricKey": f"{AT_A_GLANCE}/{name}",
        "runsCountToCompare": 10,
        "lineSmoothness": 0,
        "scaleType": "linear",
        "xAxisScaleType": "linear",
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _chart(kind: str, name: str) -> dict[str, Any]:
    """Return the keys that charts of all kinds have."""
    return {
        "type": kind,
        "uuid": f"{_SECTION}-{name}",
        "metricSectionId": _SECTION,
        "isGenerated": False,
        "deleted": False,
    }
