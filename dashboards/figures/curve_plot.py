"""Curves by epoch and by optimiser step: metrics, losses and gradient norms."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from operator import attrgetter

from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.settings import Setting
from unlearnbench.config.unit import Unit
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.training.step_result import TOKENS, StepResult

from ..formatting import rate_text, signed
from ..metric_columns import PageColumns
from .mark_names import spread
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
from .palette import MUTED, Style, faded

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
    # A panel lists its settings by trajectory, so the epochs of one trajectory are adjacent.
    for trajectory, group in groupby(panel.settings, key=attrgetter("trajectory")):
        is_best = trajectory in best if best else None
        line = _curve(tuple(group), metric, start, style, is_best=is_best)
        (leading if is_best else others).append(line)
    lines = [*others, *leading]
    layout = small_layout("", panel.unit, **({"dtick": 1} if panel.unit is Unit.EPOCH else {}))
    if column.set and column.bounds == (0.0, 1.0):  # all shares of a set have the same scale
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


NAME_LINE = 13.0
"""Least pixels between the names of two lines."""
_NAME_SIZE, _PAD = 11, 0.04
_PALE = 0.25


def name_margin(names: Iterable[str], width: float) -> float:
    """Return the pixels that names take beside a plot, at most 40 % of the figure."""
    longest = max((len(name) for name in names), default=0)
    return min(0.4 * width, 24 + 0.56 * _NAME_SIZE * max(longest, len("retain 0.00")))


def name_lines(drawn: Figure, panel: Panel, style: Style, frame: tuple[float, float]) -> None:
    """Name each method at the end of its best setting's line, in place of a legend.

    Lines of other settings become pale. A method without a best setting is named at its first line.

    Args:
        drawn: Figure by `curves`, which is changed.
        panel: Its data.
        style: Colours and shapes.
        frame: Width and height of the plot in pixels.
    """
    width, height = frame
    layout = drawn["layout"]
    named = _named_lines(drawn, panel)
    values = [y for line in drawn["data"] for y in line["y"] if y is not None]
    goals = [(note["text"], note["y"]) for note in layout.pop("annotations", [])]
    values += [y for _, y in goals]
    if not values:
        return
    span = max(values) - min(values) or 1.0
    low, high = layout["yaxis"].setdefault(
        "range", [min(values) - _PAD * span, max(values) + _PAD * span]
    )
    moments = [x for line in drawn["data"] for x in line["x"]]
    first, last = min(moments), max(moments)
    pad = _PAD * (last - first) or 0.5
    layout["xaxis"]["range"] = [first - pad, last + pad]
    entries: list[tuple[str, str, float, float]] = []
    for line in drawn["data"]:
        if any(line is other for other in named):
            x, y = [(x, y) for x, y in zip(line["x"], line["y"], strict=True) if y is not None][-1]
            colour = style.colour(line["meta"]["family"])
            entries.append((line["meta"]["method"], colour, x, y))
            if not line["meta"].get("best"):  # no other line of the method is strong
                line["line"] = {**line["line"], "color": faded(colour, 0.85), "width": 1.6}
                line["marker"] = {**line["marker"], "color": colour, "opacity": 1.0}
        else:
            line["line"] = {**line["line"], "color": _paler(style, line)}
            line["marker"] = {**line["marker"], "color": _paler(style, line)}
            line["error_y"] = None
    entries += [(text, MUTED, last + pad, y) for text, y in goals]
    # A value beyond the axis has its name at the end of the axis.
    wanted = [height * (high - min(max(y, low), high)) / (high - low) for _, _, _, y in entries]
    places = spread(wanted, NAME_LINE, 0.0, height)
    notes: list[Figure] = []
    for (text, colour, x, _), wish, place in zip(entries, wanted, places, strict=True):
        to_edge = width * (last + pad - x) / (last - first + 2 * pad)
        notes.append(
            {
                "name": "method",
                "text": escape(text),
                "x": x,
                "y": high - wish * (high - low) / height,
                "ax": to_edge + 14,
                "ay": place - wish,
                "xanchor": "left",
                "font": {"size": _NAME_SIZE, "color": colour},
                "showarrow": True,
                "arrowhead": 0,
                "arrowwidth": 0.8,
                "arrowcolor": colour,
                "standoff": 4,
            }
        )
    layout["annotations"] = notes


def _named_lines(drawn: Figure, panel: Panel) -> list[Figure]:
    """Return the lines that are named: of each method's best setting, else its first one."""
    best_of_family: dict[str, tuple[str, str]] = {}
    for best in panel.best:
        if best.setting is not None:
            key = best.setting.method, rate_text(best.setting.learning_rate)
            best_of_family.setdefault(best.family, key)
    lines: dict[str, Figure] = {}
    for line in drawn["data"]:
        tags = line["meta"]
        is_empty = all(y is None for y in line["y"])
        is_best = best_of_family.get(tags["family"]) == (tags["method"], tags["rate"])
        if not is_empty and (is_best or tags["family"] not in lines):
            lines[tags["family"]] = line
    return [*lines.values()]


def _paler(style: Style, line: Figure) -> str:
    return faded(style.colour(line["meta"]["family"]), _PALE)


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
