"""Confidence in the order of methods: rivals, warnings, ranks and hypervolumes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.analysis.across import Standing
from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.method_order import OrderConfidence, RankedMethod
from unlearnbench.analysis.pairs import PairTable
from unlearnbench.api.benchmark import HeadlineMetric
from unlearnbench.report.best_table import Column
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, LEVEL

from ...formatting import split_cell
from ...html_table import HtmlTable, number_column
from ...report_section import PageContext, Section
from ...strip import SYMBOLS, Scale, Unmarked, by_reason


@dataclass(frozen=True)
class Strips:
    """One number of the best settings, and the axis that it is drawn on."""

    metric: HeadlineMetric
    scale: Scale
    start: float | None
    retain: float | None

    @classmethod
    def of(cls, panel: Panel, metric: HeadlineMetric) -> "Strips":
        """Choose an axis with all intervals and both other models on it."""
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
    """The methods of a panel with their intervals, and every two of them."""

    panel: Panel
    table: PairTable
    strips: tuple[Strips, ...]
    """Of what is forgotten and of what is kept."""

    @property
    def unmarked(self) -> Unmarked:
        """Methods without a best setting, which have no line."""
        return by_reason(
            (
                best.name,
                best.family,
                "no setting to judge" if best.choice or best.lost else "keeps too little utility",
                best.why_not,
            )
            for best in self.panel.best
            if best.setting is None
        )

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
    standings: tuple[RankedMethod | None, ...]
    """Its best setting on each panel; None where it did not run."""


class HowSure(Section):
    """How sure the order of the methods is; absent without a panel to order."""

    name, title, order, folder = "claims", "How sure", 50, "order_confidence"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Make the table of ranks."""
        claims, headline = context.report.claims, context.report.headline
        if not claims.panels:
            return None
        by_place = {panel.panel: panel for panel in context.report.panels}
        panels = [by_place[order.panel] for order in claims.panels]
        lines, several = rank_lines(claims), len(claims.panels) > 1
        columns = [Column("Method", lambda item: item.rank.method, align="")]
        if several:
            columns.append(
                Column("Mean rank", _mean_rank, lambda item: item.rank.mean, "num strong")
            )
        for i, panel in enumerate(claims.panels):
            where = f", {panel.model} {split_cell(panel.forget_fraction)}" if several else ""
            for title, name, least in (
                ("Place", "place", 0),
                (headline.forgotten.short, "forgotten", 2),
                ("Hypervolume", "hypervolume", 2),
            ):
                columns.append(_number(i, f"{title}{where}", name, lines, least))
        table = HtmlTable(
            id="ranks",
            label="Ranks and hypervolumes",
            columns=columns,
            lines=lines,
            family=lambda item: item.rank.family,
        )
        pictures = [
            Picture.of(panel, table)
            for panel, table in zip(panels, context.report.pairs, strict=True)
        ]
        level = round(100 * LEVEL)
        methods = [method for panel in claims.panels for method in panel.methods]
        return {
            "claims": claims,
            "pictures": pictures,
            "symbols": SYMBOLS,
            "few": any(
                len(best.ranked.rows) < ENOUGH_SEEDS
                for panel in panels
                for best in panel.best
                if best.ranked
            ),
            "level": level,
            "table": table,
            "headline": headline,
            "chooses": any(method.chosen_on for method in methods),
        }


def rank_lines(claims: OrderConfidence) -> tuple[RankLine, ...]:
    """Sort the methods by mean rank; methods without one come last."""
    standings = [{method.method: method for method in panel.methods} for panel in claims.panels]
    return tuple(
        RankLine(rank, tuple(panel.get(rank.method) for panel in standings))
        for rank in claims.ranks
    )


def digits_needed(values: Iterable[float | None], least: int = 2, most: int = 8) -> int:
    """Count the decimals that a column needs, so that different numbers do not look equal."""
    rounded = {round(value, most) for value in values if value is not None}
    return next(
        (d for d in range(least, most) if len({round(v, d) for v in rounded}) == len(rounded)), most
    )


def _mean_rank(line: RankLine) -> str:
    mean, ends = line.rank.mean, line.rank.interval
    return "" if mean is None or ends is None else f"{mean:.1f} [{ends.low:.1f}, {ends.high:.1f}]"


def _number(panel: int, title: str, name: str, lines: Sequence[RankLine], least: int) -> Column:
    """Make a column of one panel: of an attribute of a method's standing."""

    def value(line: RankLine) -> float | None:
        standing = line.standings[panel]
        return getattr(standing, name) if standing else None

    return number_column(title, value, digits_needed(map(value, lines), least))
