"""Curves by epoch and by optimiser step: metrics, losses and gradient norms."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from unlearnbench.analysis.best_settings import Panel, Setting
from unlearnbench.config.unit import Unit
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.training.step_result import TOKENS, StepResult

from ..formatting import rate_text, signed
from ..metric_columns import PageColumns
from .marks import (
    SHARE_RANGE,
    Figure,
    emphasis,
    error_bars,
    level,
    note,
    seeds_of,
    small_layout,
    trace,
    value_axis,
)
from .palette import Style, faded

Groups = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Figures shown together: kind of group → group → column → title."""
MAX_STEPS = 100
"""Steps drawn per run; longer runs are thinned evenly."""


def groups(columns: PageColumns) -> Groups:
    """Group the columns that have a number: summaries, and metrics by set, by metric and by set."""
    measures = columns.schema.measures
    titles = {name: title[:1].upper() + title[1:] for name, title in columns.sets.items()}
    filled = {item.name for item in columns.all}
    by_metric: dict[str, dict[str, str]] = {}
    by_set: dict[str, dict[str, str]] = {title: {} for title in titles.values()}
    for name, title in titles.items():
        for column, (measure, on) in measures.items():
            if column in filled and on == name:
                by_metric.setdefault(measure.metric.label, {})[column] = title
                by_set[title][column] = measure.metric.label
    summaries: dict[str, dict[str, str]] = {"Summary": {}, "Scores": {}, "Attacks": {}}
    for item in (*columns.compared, *columns.further):
        if item.name not in measures:
            kind = "Attacks" if item.name in columns.attacks else "Scores"
            summaries["Summary" if item in columns.compared else kind][item.name] = item.label
    result = {"": summaries, "by metric": by_metric, "by set": by_set}
    return {
        kind: {group: names for group, names in named.items() if names}
        for kind, named in result.items()
    }


def curves(panel: Panel, metric: str, style: Style) -> Figure:
    """Draw one metric by epoch on one model and split: a line per setting, averaged over seeds.

    Lines start at the start model. The dotted level is the retain model's number. With several
    seeds, bars are t intervals. Best settings are strong and on top of the others.
    """
    column = panel.rows[0].schema.column(metric)
    start = panel.at_start(metric)
    retain = panel.row("retain")
    goal = None if retain is None else retain.metrics[metric]
    best = {item.setting.trajectory for item in panel.best if item.setting is not None}
    others: list[Figure] = []
    leading: list[Figure] = []
    for trajectory, group in groupby(panel.settings, key=attrgetter("trajectory")):
        is_best = trajectory in best if best else None
        line = _curve(tuple(group), metric, start, style, is_best=is_best)
        (leading if is_best else others).append(line)
    lines = [*others, *leading]
    layout = small_layout("", panel.unit, **({"dtick": 1} if panel.unit is Unit.EPOCH else {}))
    if column.set and column.bounds == (0.0, 1.0):  # these have all the same scale
        layout["yaxis"]["range"] = SHARE_RANGE
    else:
        levels = [v for v in (start, goal) if v is not None]
        layout["yaxis"] |= value_axis((y for line in lines for y in line["y"]), levels=levels)
    if goal is not None:
        layout["shapes"] = [level("retain", goal, "dot")]
        text = f"retain {signed(goal, 2)}"
        low, high = layout["yaxis"].get("range", (goal, goal))
        side = "top" if goal > (low + high) / 2 else "bottom"  # inside the frame
        location = {"yref": "y", "xanchor": "right", "yanchor": side}
        layout["annotations"] = [note("retain", text, 1, goal, **location)]
    return {"data": lines, "layout": layout}


def _curve(
    settings: Sequence[Setting],
    metric: str,
    start: float | None,
    style: Style,
    *,
    is_best: bool | None,
) -> Figure:
    first = settings[0]
    lead = [] if start is None or first.epoch == 0 else [(0, start)]
    points = lead + [(s.epoch, s.metrics[metric]) for s in settings]
    intervals = [*[None] * len(lead), *(s.interval(metric) for s in settings)]
    colour = faded(style.colour(first.family), 0.45)
    seeds = [""] * len(lead) + [seeds_of(s) for s in settings]
    return trace(
        [x for x, _ in points],
        [y for _, y in points],
        f"{first.method}, learning rate {rate_text(first.learning_rate)}",
        "%{fullData.name}<br>" + f"{first.unit}" + " %{x}: %{y:.4g}%{customdata}",
        customdata=seeds,
        error_y=error_bars(intervals, color=colour, width=2, thickness=1),
        **emphasis(style, first.family, first.learning_rate, is_best=is_best, method=first.method),
    )


def steps(
    records: Sequence[Record],
    rows: Sequence[TableRow],
    style: Style,
    best: Collection[str] = (),
) -> dict[str, Figure]:
    """Draw loss, gradient norm, and each term of a loss that has several, by optimiser step.

    Args:
        records: All records of a panel.
        rows: Rows of the records, for the labels of the runs.
        style: Colours, dashes and shapes.
        best: Ids of the runs of best settings, which are strong and on top of the others. If it is
            empty, all lines are alike.
    """
    names = {row.run_id: row.method for row in rows}
    runs = [r for r in records if r.kind == "run" and r.steps]
    lines: dict[str, list[Figure]] = defaultdict(list)

    def order(run: Record) -> tuple[bool, str, float, int, str]:
        return run.id in best, run.method, run.learning_rate or 0.0, run.seed, run.id

    for run in sorted(runs, key=order):
        method = names.get(run.id, run.method)
        for quantity, values in _quantities(run.steps).items():
            line = trace(
                [x for x, _ in values],
                [y for _, y in values],
                f"{method}, rate {rate_text(run.learning_rate)}, seed {run.seed}",
                "%{fullData.name}<br>step %{x}: %{y:.4g}",
                **emphasis(
                    style,
                    run.method,
                    run.learning_rate,
                    is_best=run.id in best if best else None,
                    method=method,
                ),
            )
            lines[quantity].append(line)
    figures: dict[str, Figure] = {}
    first = ("Loss", "Gradient norm")
    for quantity in sorted(lines, key=lambda q: (q not in first, first[0] != q, q)):
        drawn = lines[quantity]
        layout = small_layout(quantity, "step")
        layout["yaxis"] |= value_axis((y for line in drawn for y in line["y"]), log=True)
        figures[quantity] = {"data": drawn, "layout": layout}
    return figures


def _quantities(results: Sequence[StepResult]) -> dict[str, list[tuple[int, float]]]:
    """Values by step of each quantity."""
    drawn = results[:: -(-len(results) // MAX_STEPS)]
    lines = {"Loss": [(s.step, s.loss) for s in drawn]}
    terms = sorted({name for s in drawn for name in s.terms})
    for name in terms if len(terms) > 1 else ():
        lines[f"Loss term: {name}"] = [(s.step, s.terms[name]) for s in drawn if name in s.terms]
    for name in sorted({name for s in drawn for name in s.reported} - {*TOKENS}):
        values = [(s.step, s.reported[name]) for s in drawn if name in s.reported]
        lines[f"Reported: {name}"] = values
    return lines | {"Gradient norm": [(s.step, s.grad_norm) for s in drawn]}
