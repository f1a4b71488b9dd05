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
"""Columns of the table of runs, beside the best metrics."""
_FIRST_METRICS = 2
"""Metrics in front of the parameters: what is forgotten and what is kept."""
_RUN_NAME = "attributes.`Run Name`"
_WIDTHS = {_RUN_NAME: 270, "params.`method`": 160, "tags.`recommended`": 190}
"""Pixels of columns that MLflow makes narrower than what they contain. The longest name of a run is
that of the sweep's own: `sweep quickstart (mean of 3 seeds)`."""
_METRIC_WIDTH = 190
_SECTION = "at-a-glance"
"""Id of the section of charts that the page opens with."""


class Best(NamedTuple):
    """Metrics of a run's best epoch, which are columns of the table."""

    metrics: Sequence[str]
    """What is forgotten, by which runs are ordered, then what is kept, then others."""
    ascending: bool
    """Whether the best run has the lowest value of the first."""


def flat_view(sweep_id: str, best: Best) -> str:
    """Return the view that a sweep's link opens: all runs, best first, answers side by side."""
    return json.dumps(_state(sweep_id, best))


def grouped_view(sweep_name: str, sweep_id: str, best: Best, created: int) -> str:
    """Return the view by method, which MLflow offers in its menu *Views*.

    It is not the view of the link, because MLflow compares no answers while runs are grouped.

    Args:
        sweep_name: Of the sweep, for the menu.
        sweep_id: Of the sweep.
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
    metrics = [f"metrics.`{name}`" for name in best.metrics]
    parameters = [f"params.`{name}`" for name in PARAMETERS]
    attributes = [f"attributes.`{name}`" for name in ("User", "Version", "Dataset")]
    columns = [
        *metrics[:_FIRST_METRICS],
        "tags.`recommended`",
        *parameters,
        *metrics[_FIRST_METRICS:],
        "tags.`status`",
        *attributes,
    ]
    return {
        # The sweep's own run is among them, and only its name tells it from single runs: a shared
        # view cannot pin a run. MLflow would hide child runs without a condition.
        "searchFilter": f"tags.`unlearnbench.sweep_id` = '{sweep_id}'",
        "orderByKey": metrics[0] if metrics else "attributes.`start_time`",
        "orderByAsc": best.ascending,
        "selectedColumns": columns,
        # MLflow sets the widths of the columns that are named here.
        "columnOrder": [_RUN_NAME, *columns],
        "columnWidths": _WIDTHS | dict.fromkeys(metrics[:_FIRST_METRICS], _METRIC_WIDTH),
        "compareRunCharts": _charts(best),
        "compareRunSections": [
            {
                "uuid": _SECTION,
                "name": "Utility, forgetting, loss",
                "display": True,
                "isReordered": True,
                "isGenerated": False,
                "deleted": False,
            }
        ],
        # Without it, MLflow sorts the sections by their names.
        "isAccordionReordered": True,
        # MLflow 3.9 puts nothing in place of what a stored view leaves out.
        "runsPinned": [],
        "runsHidden": [],
        "runsExpanded": {},
    }


def _charts(best: Best) -> list[dict[str, Any]]:
    """Return the charts of the first section: the trade-off of the best epochs, then curves."""
    charts: list[dict[str, Any]] = []
    if len(best.metrics) > 1:
        forgotten, kept = best.metrics[:2]
        charts.append(
            _chart("SCATTER", "tradeoff")
            | {
                "runsCountToCompare": 100,
                "xaxis": {"key": kept, "type": "METRIC"},
                "yaxis": {"key": forgotten, "type": "METRIC"},
            }
        )
    charts += [
        _chart("LINE", name)
        | {
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
        for name in ("utility", "forgetting", "loss")
    ]
    return charts


def _chart(kind: str, name: str) -> dict[str, Any]:
    return {
        "type": kind,
        "uuid": f"{_SECTION}-{name}",
        "metricSectionId": _SECTION,
        "isGenerated": False,
        "deleted": False,
    }
