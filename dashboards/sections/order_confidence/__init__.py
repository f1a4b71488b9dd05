"""How sure the order of the methods is: intervals, pairs of methods, ranks and hypervolumes.

A picture is what a panel shows at first sight: a strip with the interval of each best setting,
beside a table that compares every two methods. The ranks over all panels are a table below.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.analysis.across import Standing
from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.method_order import OrderConfidence, RankedMethod
from unlearnbench.analysis.pairs import PairTable
from unlearnbench.api.benchmark import Headline, HeadlineMetric
from unlearnbench.report.best_table import Column
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, LEVEL

from ...formatting import split_cell
from ...html_table import HtmlTable, number_column
from ...report_section import PageContext, Section
from ...strip import SYMBOLS, Scale, Unmarked, by_reason


@dataclass(frozen=True)
class Strips:
    """A headline metric of the best settings, and the axis that it is drawn on."""

    metric: HeadlineMetric
    scale: Scale
    start: float | None
    """The start model's number."""
    retain: float | None
    """The retain model's number."""

    @classmethod
    def of(cls, panel: Panel, metric: HeadlineMetric) -> "Strips":
        """Choose an axis that contains all intervals, the start model and the retain model."""
        retain_row = panel.row("retain")
        retain = None if retain_row is None else retain_row.metrics.get(metric.column)
        start = panel.at_start(metric.column)
        values = [start, retain]
        for best in panel.best:
            if best.setting is not None:
                values.append(best.setting.metrics.get(metric.column))
                interval = best.setting.interval(metric.column)
                if interval is not None:
                    values += [interval.low, interval.high]
        return cls(metric, Scale.around(values), start, retain)


@dataclass(frozen=True)
class Picture:
    """The methods of a panel with their intervals, and the comparison of every two of them."""

    panel: Panel
    table: PairTable
    strips: tuple[Strips, ...]
    """The forgotten and the kept headline metric, in this order."""

    @property
    def unmarked(self) -> Unmarked:
        """Methods without a best setting, which have no line."""
        methods: list[tuple[str, str, str, str]] = []
        for best in self.panel.best:
            if best.setting is None:
                has_nothing_to_judge = best.choice or best.lost
                reason = (
                    "no setting to judge" if has_nothing_to_judge else "keeps too little utility"
                )
                methods.append((best.name, best.family, reason, best.why_not))
        return by_reason(methods)

    @classmethod
    def of(cls, panel: Panel, table: PairTable) -> "Picture":
        """Choose the axes."""
        headline = panel.headline
        metrics = (headline.forgotten, headline.kept)
        return cls(panel, table, tuple(Strips.of(panel, metric) for metric in metrics))


@dataclass(frozen=True)
class RankLine:
    """A method over all panels."""

    rank: Standing
    """The method's mean rank."""
    standings: tuple[RankedMethod | None, ...]
    """The method's best setting on each panel. None on a panel on which it did not run."""


class HowSure(Section):
    """How sure the order of the methods is. Absent if no panel has an order."""

    name, title, order, folder = "claims", "How sure", 50, "order_confidence"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Collect the pictures of the panels, and make the table of ranks."""
        report = context.report
        claims = report.claims
        if not claims.panels:
            return None
        panel_by_key = {panel.panel: panel for panel in report.panels}
        panels = [panel_by_key[order.panel] for order in claims.panels]
        pictures = [
            Picture.of(panel, pairs) for panel, pairs in zip(panels, report.pairs, strict=True)
        ]
        methods = [method for panel in claims.panels for method in panel.methods]
        return {
            "claims": claims,
            "pictures": pictures,
            "symbols": SYMBOLS,
            "few": _has_few_seeds(panels),
            "level": round(100 * LEVEL),
            "table": _rank_table(claims, report.headline),
            "headline": report.headline,
            "chooses": any(method.chosen_on for method in methods),
        }


def _has_few_seeds(panels: Iterable[Panel]) -> bool:
    """Whether a method in the order has fewer seeds than an interval needs."""
    for panel in panels:
        for best in panel.best:
            if best.ranked and len(best.ranked.rows) < ENOUGH_SEEDS:
                return True
    return False


def _rank_table(claims: OrderConfidence, headline: Headline) -> HtmlTable:
    """Make the table of places, hypervolumes and, with several panels, mean ranks."""
    lines = rank_lines(claims)
    has_several_panels = len(claims.panels) > 1
    columns = [Column("Method", lambda line: line.rank.method, align="")]
    if has_several_panels:
        columns.append(Column("Mean rank", _mean_rank, lambda line: line.rank.mean, "num strong"))
    for index, panel in enumerate(claims.panels):
        location = ""
        if has_several_panels:
            location = f", {panel.model} {split_cell(panel.forget_fraction)}"
        forgotten = f"{headline.forgotten.short}{location}"
        columns += [
            _standing_column(index, f"Place{location}", "place", lines, least_digits=0),
            _standing_column(index, forgotten, "forgotten", lines, least_digits=2),
            _standing_column(index, f"Hypervolume{location}", "hypervolume", lines, least_digits=2),
        ]
    return HtmlTable(
        id="ranks",
        label="Ranks and hypervolumes",
        columns=columns,
        lines=lines,
        family=lambda line: line.rank.family,
    )


def rank_lines(claims: OrderConfidence) -> tuple[RankLine, ...]:
    """Make a line of each method, sorted by mean rank. Methods without a mean rank come last."""
    standings_by_panel = [
        {method.method: method for method in panel.methods} for panel in claims.panels
    ]
    lines: list[RankLine] = []
    for rank in claims.ranks:
        standings = tuple(standing.get(rank.method) for standing in standings_by_panel)
        lines.append(RankLine(rank, standings))
    return tuple(lines)


def digits_needed(values: Iterable[float | None], least: int = 2, most: int = 8) -> int:
    """Count the decimals that a column needs, so that different numbers do not look equal.

    Args:
        values: Numbers of the column. None is a missing number.
        least: Fewest decimals.
        most: Most decimals. Numbers that are equal with so many decimals count as equal.
    """
    numbers = {round(value, most) for value in values if value is not None}
    for digits in range(least, most):
        texts = {round(number, digits) for number in numbers}
        if len(texts) == len(numbers):
            return digits
    return most


def _mean_rank(line: RankLine) -> str:
    """Return a text such as `1.5 [1.0, 2.0]`, or an empty one without an interval."""
    mean = line.rank.mean
    interval = line.rank.interval
    if mean is None or interval is None:
        return ""
    return f"{mean:.1f} [{interval.low:.1f}, {interval.high:.1f}]"


def _standing_column(
    panel: int, title: str, attribute: str, lines: Sequence[RankLine], *, least_digits: int
) -> Column:
    """Make a column with an attribute of the methods' standings on one panel.

    Args:
        panel: Index of the panel.
        title: Head of the column.
        attribute: Name of a number in `RankedMethod`, such as `hypervolume`.
        lines: All lines, which decide on the number of decimals.
        least_digits: Fewest decimals.
    """

    def value(line: RankLine) -> float | None:
        standing = line.standings[panel]
        return None if standing is None else getattr(standing, attribute)

    digits = digits_needed((value(line) for line in lines), least_digits)
    return number_column(title, value, digits)
