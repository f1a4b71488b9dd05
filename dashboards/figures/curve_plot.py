"""Curves by epoch and by optimiser step: metrics, losses and gradient norms."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.settings import Setting
from unlearnbench.config.unit import Unit
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.t_interval import Interval
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
"""Figures that are shown together: kind of group → group → column → title of its figure.

For example `by metric` → `ROUGE-L` → `rouge_forget` → `Forget set`.
"""
MAX_STEPS = 100
"""Most steps that are drawn of a run. Longer runs are thinned evenly."""


def groups(columns: PageColumns) -> Groups:
    """Group the columns that have a number: summaries, and metrics by metric and by set."""
    by_metric: dict[str, dict[str, str]] = {}
    by_set: dict[str, dict[str, str]] = {}
    filled = {column.name for column in columns.all}
    measures = columns.schema.measures
    for set_name, title in columns.sets.items():
        set_title = title[:1].upper() + title[1:]
        for column, (measure, set_of_column) in measures.items():
            if column not in filled or set_of_column != set_name:
                continue
            metric_label = measure.metric.label
            by_metric.setdefault(metric_label, {})[column] = set_title
            by_set.setdefault(set_title, {})[column] = metric_label
    kinds = {"": _summaries(columns), "by metric": by_metric, "by set": by_set}
    return {kind: _without_empty(named) for kind, named in kinds.items()}


def _summaries(columns: PageColumns) -> dict[str, dict[str, str]]:
    """Group the columns that belong to no single evaluation set, by what they are for."""
    summaries: dict[str, dict[str, str]] = {"Summary": {}, "Scores": {}, "Attacks": {}}
    for column in (*columns.compared, *columns.further):
        if column.name in columns.schema.measures:
            continue
        if column in columns.compared:
            group = "Summary"
        elif column.name in columns.attacks:
            group = "Attacks"
        else:
            group = "Scores"
        summaries[group][column.name] = column.label
    return summaries


def _without_empty(named: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Leave groups without a column out."""
    return {group: titles for group, titles in named.items() if titles}


def curves(panel: Panel, metric: str, style: Style) -> Figure:
    """Draw one metric by epoch on one model and split: a line per setting, averaged over seeds.

    Lines start at the start model. The dotted level is the retain model's number. With several
    seeds, bars are t intervals. Best settings are strong and on top of the others.
    """
    column = panel.rows[0].schema.column(metric)
    start = panel.at_start(metric)
    retain_row = panel.row("retain")
    retain = None if retain_row is None else retain_row.metrics[metric]
    lines = _lines_of_settings(panel, metric, start, style)

    ticks = {"dtick": 1} if panel.unit is Unit.EPOCH else {}
    layout = small_layout("", panel.unit, **ticks)
    if column.set and column.bounds == (0.0, 1.0):
        # All scores of a set have the same scale, so that figures can be compared.
        layout["yaxis"]["range"] = SHARE_RANGE
    else:
        levels = [value for value in (start, retain) if value is not None]
        values = [y for line in lines for y in line["y"]]
        layout["yaxis"] |= value_axis(values, levels=levels)
    if retain is not None:
        layout["shapes"] = [level("retain", retain, "dot")]
        low, high = layout["yaxis"].get("range", (retain, retain))
        # The text stands on the side of the level that has more room.
        side = "top" if retain > (low + high) / 2 else "bottom"
        text = f"retain {signed(retain, 2)}"
        layout["annotations"] = [
            note("retain", text, 1, retain, yref="y", xanchor="right", yanchor=side)
        ]
    return {"data": lines, "layout": layout}


def _lines_of_settings(
    panel: Panel, metric: str, start: float | None, style: Style
) -> list[Figure]:
    """Draw a line for each setting. Best settings come last, so that they are on top."""
    best = {entry.setting.trajectory for entry in panel.best if entry.setting is not None}
    best_lines: list[Figure] = []
    other_lines: list[Figure] = []
    # A panel lists its settings by trajectory, so the epochs of one trajectory are adjacent.
    for trajectory, epochs in groupby(panel.settings, key=attrgetter("trajectory")):
        is_best = trajectory in best if best else None
        line = _curve(tuple(epochs), metric, start, style, is_best=is_best)
        if is_best:
            best_lines.append(line)
        else:
            other_lines.append(line)
    return other_lines + best_lines


NAME_LINE = 13.0
"""Least pixels between the names of two lines."""
_NAME_SIZE = 11
"""Font size of names in pixels."""
_LETTER = 0.56
"""Mean width of a letter, as a fraction of the font size."""
_PAD = 0.04
"""Fraction of an axis that stays free at either end."""
_PALE = 0.25
"""Opacity of lines without a name."""


def name_margin(names: Iterable[str], width: float) -> float:
    """Return the pixels that names take beside a plot, at most 40 % of the figure."""
    # The retain model's level has a name, too.
    longest = max([len("retain 0.00"), *map(len, names)])
    return min(0.4 * width, 24 + _LETTER * _NAME_SIZE * longest)


class _EpochAxis(NamedTuple):
    """The horizontal axis of a figure."""

    first: float
    last: float
    pad: float
    """Length that stays free at either end."""

    @property
    def end(self) -> float:
        """Right end."""
        return self.last + self.pad

    @property
    def length(self) -> float:
        """Length with both free ends."""
        return self.last - self.first + 2 * self.pad


class _LineName(NamedTuple):
    """A name at the end of a line or of a level."""

    text: str
    colour: str
    x: float
    y: float


def name_lines(drawn: Figure, panel: Panel, style: Style, frame: tuple[float, float]) -> None:
    """Name each method at the end of its best setting's line, in place of a legend.

    Lines of other settings become pale. A method without a best setting is named at its first line.

    Args:
        drawn: Figure by `curves`, which is changed.
        panel: Its data.
        style: Colours and shapes.
        frame: Width and height of the plot in pixels.
    """
    layout = drawn["layout"]
    named_lines = _named_lines(drawn, panel)
    # The only note of such a figure names the retain model's level.
    level_notes: list[Figure] = layout.pop("annotations", [])
    values = [y for line in drawn["data"] for y in line["y"] if y is not None]
    values += [note["y"] for note in level_notes]
    if not values:
        return

    span = max(values) - min(values) or 1.0
    default_range = [min(values) - _PAD * span, max(values) + _PAD * span]
    y_range = layout["yaxis"].setdefault("range", default_range)
    epochs = [x for line in drawn["data"] for x in line["x"]]
    first, last = min(epochs), max(epochs)
    axis = _EpochAxis(first, last, pad=_PAD * (last - first) or 0.5)
    layout["xaxis"]["range"] = [first - axis.pad, axis.end]

    names: list[_LineName] = []
    for line in drawn["data"]:
        # Equal lines of two methods are two lines, so they are compared by identity.
        if any(line is named for named in named_lines):
            names.append(_name_of_line(line, style))
            _strengthen(line, style)
        else:
            _fade(line, style)
    names += [_LineName(note["text"], MUTED, axis.end, note["y"]) for note in level_notes]
    layout["annotations"] = _name_notes(names, axis, y_range, frame)


def _name_notes(
    names: Sequence[_LineName],
    axis: _EpochAxis,
    y_range: Sequence[float],
    frame: tuple[float, float],
) -> list[Figure]:
    """Write names beside the plot, with a thin line to the end of the line that each one names.

    Args:
        names: Names at their places on both axes.
        axis: Horizontal axis.
        y_range: Range of the vertical axis.
        frame: Width and height of the plot in pixels.
    """
    width, height = frame
    low, high = y_range
    # Heights in pixels from the top. A value beyond the axis has its name at the end of the axis.
    wishes = [height * (high - min(max(name.y, low), high)) / (high - low) for name in names]
    places = spread(wishes, NAME_LINE, 0.0, height)
    notes: list[Figure] = []
    for name, wish, place in zip(names, wishes, places, strict=True):
        pixels_to_edge = width * (axis.end - name.x) / axis.length
        notes.append(
            {
                "name": "method",
                "text": escape(name.text),
                "x": name.x,
                "y": high - wish * (high - low) / height,
                "ax": pixels_to_edge + 14,
                "ay": place - wish,
                "xanchor": "left",
                "font": {"size": _NAME_SIZE, "color": name.colour},
                "showarrow": True,
                "arrowhead": 0,
                "arrowwidth": 0.8,
                "arrowcolor": name.colour,
                "standoff": 4,
            }
        )
    return notes


def _name_of_line(line: Figure, style: Style) -> _LineName:
    """Return the name of a line, at its last value."""
    x, y = [(x, y) for x, y in zip(line["x"], line["y"], strict=True) if y is not None][-1]
    tags = line["meta"]
    return _LineName(tags["method"], style.colour(tags["family"]), x, y)


def _strengthen(line: Figure, style: Style) -> None:
    """Make a named line strong, unless it is strong as the line of a best setting."""
    if line["meta"].get("best"):
        return
    colour = style.colour(line["meta"]["family"])
    line["line"] = {**line["line"], "color": faded(colour, 0.85), "width": 1.6}
    line["marker"] = {**line["marker"], "color": colour, "opacity": 1.0}


def _fade(line: Figure, style: Style) -> None:
    """Make a line without a name pale."""
    pale = faded(style.colour(line["meta"]["family"]), _PALE)
    line["line"] = {**line["line"], "color": pale}
    line["marker"] = {**line["marker"], "color": pale}
    line["error_y"] = None


def _named_lines(drawn: Figure, panel: Panel) -> list[Figure]:
    """Return a line for each method: that of its best setting, or its first one."""
    best_of_family: dict[str, tuple[str, str]] = {}
    for best in panel.best:
        if best.setting is not None:
            key = best.setting.method, rate_text(best.setting.learning_rate)
            best_of_family.setdefault(best.family, key)

    line_of_family: dict[str, Figure] = {}
    for line in drawn["data"]:
        if all(y is None for y in line["y"]):
            continue
        tags = line["meta"]
        family = tags["family"]
        is_best = best_of_family.get(family) == (tags["method"], tags["rate"])
        if is_best or family not in line_of_family:
            line_of_family[family] = line
    return [*line_of_family.values()]


def _curve(
    settings: Sequence[Setting],
    metric: str,
    start: float | None,
    style: Style,
    *,
    is_best: bool | None,
) -> Figure:
    """Draw a metric of one setting by epoch.

    Args:
        settings: The setting after each of its epochs.
        metric: Column of the table.
        start: The start model's number, at which the line begins. None if it is not known.
        style: Colours, dashes and shapes.
        is_best: See `marks.emphasis`.
    """
    first = settings[0]
    epochs: list[int] = []
    values: list[float | None] = []
    intervals: list[Interval | None] = []
    seeds: list[str] = []
    if start is not None and first.epoch != 0:
        epochs.append(0)
        values.append(start)
        intervals.append(None)
        seeds.append("")
    for setting in settings:
        epochs.append(setting.epoch)
        values.append(setting.metrics[metric])
        intervals.append(setting.interval(metric))
        seeds.append(seeds_of(setting))
    bars = error_bars(
        intervals, color=faded(style.colour(first.family), 0.45), width=2, thickness=1
    )
    return trace(
        epochs,
        values,
        f"{first.method}, learning rate {rate_text(first.learning_rate)}",
        f"%{{fullData.name}}<br>{first.unit} %{{x}}: %{{y:.4g}}%{{customdata}}",
        customdata=seeds,
        error_y=bars,
        **emphasis(style, first.family, first.learning_rate, is_best=is_best, method=first.method),
    )


_FIRST_QUANTITIES = ("Loss", "Gradient norm")
"""Quantities whose figures come before all others."""


def steps(
    records: Sequence[Record],
    rows: Sequence[TableRow],
    style: Style,
    best: Collection[str] = (),
) -> dict[str, Figure]:
    """Draw what was reported at each optimiser step: a figure for each quantity.

    Quantities are the loss, the gradient norm, each term of a loss that has several terms, and the
    numbers that a method reports itself.

    Args:
        records: All records of a panel.
        rows: Rows of the records, for the labels of the runs.
        style: Colours, dashes and shapes.
        best: Ids of the runs of best settings, which are strong and on top of the others. If it is
            empty, all lines are alike.
    """
    label_of_run = {row.run_id: row.method for row in rows}
    runs = [record for record in records if record.kind == "run" and record.steps]

    def order(run: Record) -> tuple[bool, str, float, int, str]:
        # Plotly draws later lines on top of earlier ones.
        return run.id in best, run.method, run.learning_rate or 0.0, run.seed, run.id

    lines_of_quantity: dict[str, list[Figure]] = defaultdict(list)
    for run in sorted(runs, key=order):
        label = label_of_run.get(run.id, run.method)
        is_best = run.id in best if best else None
        for quantity, points in _quantities(run.steps).items():
            lines_of_quantity[quantity].append(_step_line(run, label, points, style, is_best))

    def position(quantity: str) -> tuple[int, str]:
        if quantity in _FIRST_QUANTITIES:
            return _FIRST_QUANTITIES.index(quantity), quantity
        return len(_FIRST_QUANTITIES), quantity

    figures: dict[str, Figure] = {}
    for quantity in sorted(lines_of_quantity, key=position):
        lines = lines_of_quantity[quantity]
        layout = small_layout(quantity, "step")
        values = [y for line in lines for y in line["y"]]
        layout["yaxis"] |= value_axis(values, log=True)
        figures[quantity] = {"data": lines, "layout": layout}
    return figures


def _step_line(
    run: Record,
    label: str,
    points: Sequence[tuple[int, float]],
    style: Style,
    is_best: bool | None,
) -> Figure:
    """Draw one quantity of a run.

    Args:
        run: Record of the run.
        label: Label of its setting, with hyperparameters.
        points: Steps and values.
        style: Colours, dashes and shapes.
        is_best: See `marks.emphasis`.
    """
    return trace(
        [step for step, _ in points],
        [value for _, value in points],
        f"{label}, rate {rate_text(run.learning_rate)}, seed {run.seed}",
        "%{fullData.name}<br>step %{x}: %{y:.4g}",
        **emphasis(style, run.method, run.learning_rate, is_best=is_best, method=label),
    )


def _quantities(results: Sequence[StepResult]) -> dict[str, list[tuple[int, float]]]:
    """Collect the values of each quantity, with their steps."""
    # Rounded up, so that at most MAX_STEPS steps are left.
    stride = math.ceil(len(results) / MAX_STEPS)
    drawn = results[::stride]
    quantities = {"Loss": [(result.step, result.loss) for result in drawn]}

    terms = sorted({name for result in drawn for name in result.terms})
    # A single term is the loss itself.
    if len(terms) > 1:
        for name in terms:
            quantities[f"Loss term: {name}"] = [
                (result.step, result.terms[name]) for result in drawn if name in result.terms
            ]
    reported = {name for result in drawn for name in result.reported}
    for name in sorted(reported.difference(TOKENS)):
        quantities[f"Reported: {name}"] = [
            (result.step, result.reported[name]) for result in drawn if name in result.reported
        ]
    quantities["Gradient norm"] = [(result.step, result.grad_norm) for result in drawn]
    return quantities
