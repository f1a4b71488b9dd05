"""`unlearnbench metrics …`: metrics with formulas and columns; check one, write one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unlearnbench.cli.plugin_commands import Details, PluginCommands, plugin_group

if TYPE_CHECKING:
    from unlearnbench.api.metric import Metric, MetricColumn, Summary
    from unlearnbench.testing import Result


def _row(name: str, metric: type[Metric | Summary]) -> dict[str, Any]:
    from unlearnbench.api.metric import Metric

    read: list[str]
    if issubclass(metric, Metric):
        read = [*sorted(metric.reads)] or ["losses"]
    else:
        read = [*sorted(metric.reads)]
        read += [f"{one} model" for one in sorted(metric.relative_to)]
        read += [f"columns of {one}" for one in sorted(metric.after)]
        read = read or ["sets, columns"]
    return {
        "reads": read,
        "sets": [*map(str, sorted(metric.roles))] or ["where it is named"],
        "better": [*dict.fromkeys(c.better or "neither" for c in _columns(name, metric))],
    }


def _details(name: str, metric: type[Metric | Summary], row: Mapping[str, Any]) -> Details:
    columns = _columns(name, metric)
    keys = ("name", "label", "better", "bounds")
    values = {
        "version": metric.version,
        "columns": [{key: getattr(one, key) for key in keys} for one in columns],
    }
    read = f"reads: {', '.join(row['reads'])}\nsets:  {', '.join(row['sets'])}"
    cells = [
        (one.name, one.label, one.better or "neither", "{:g} to {:g}".format(*one.bounds))
        for one in columns
    ]
    table = (("column", "label", "better", "bounds"), cells)
    return Details(values, [f"version {metric.version}\n{read}", table])


def _columns(name: str, metric: type[Metric | Summary]) -> tuple[MetricColumn, ...]:
    """The columns that it has on sets called like their roles."""
    from unlearnbench.api.metric import Measure, Metric, Role
    from unlearnbench.config.plugin_settings import example

    made = example(metric, {}, name)
    if not isinstance(made, Metric):
        return made.columns()
    roles: list[Role] = [*sorted(made.roles)] or ["forget"]
    measure = Measure(name.replace("-", "_"), made, ())
    return tuple(measure.column(role, role) for role in roles)


def _check(name: str, values: Mapping[str, Any], only: Sequence[str]) -> Sequence[Result]:
    from unlearnbench.testing import check_metric

    return check_metric(name, values, only)


app = plugin_group(
    PluginCommands(
        kind="metrics",
        headings={"reads": "reads", "sets": "sets", "better": "better"},
        row=_row,
        details=_details,
        check=_check,
        show_help="Show a metric's formula, what it reads, its columns and settings.",
        check_help="""\
Check a metric for mistakes that are easily made, on made-up observations; takes seconds.

Exit code 1 where there is a fault.

Examples:
  unlearnbench metrics check extraction-strength
  unlearnbench metrics check my_metric.py
  unlearnbench metrics check mia-min-k --set share=0.2 --only nan
  unlearnbench metrics check --all --json""",
    )
)
