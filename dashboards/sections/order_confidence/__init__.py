"""Confidence in the order of methods: rivals, warnings, ranks and hypervolumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unlearnbench.analysis.order_confidence import RankedMethod
from unlearnbench.api.benchmark import HeadlineMetric
from unlearnbench.stats.t_interval import LEVEL

from ...formatting import signed, split_cell
from ...html_table import Column, HtmlTable, in_brackets
from ...report_section import PageContext, ReportSection
from .data import RankLine, digits_needed, rank_lines


def _values(context: PageContext) -> Mapping[str, Any] | None:
    claims = context.claims
    if not claims.panels:
        return None
    lines, headline = rank_lines(claims), context.report.headline
    several = len(claims.panels) > 1
    columns: list[Column[RankLine]] = [Column("Method", lambda one: one.method, align="")]
    if several:
        columns.append(
            Column(
                "Mean rank",
                _mean_rank,
                lambda one: one.rank.mean if one.rank else None,
                "num strong",
            )
        )
    for i, panel in enumerate(claims.panels):
        where = f", {panel.model} {split_cell(panel.forget_fraction)}" if several else ""
        columns += _of_panel(i, where, lines, headline.forgotten)
    table = HtmlTable(
        id="ranks",
        label="Ranks and hypervolumes",
        columns=tuple(columns),
        lines=lines,
        family=lambda one: one.method,
    )
    level = round(100 * LEVEL)
    return {"claims": claims, "level": level, "table": table, "headline": headline}


def _mean_rank(line: RankLine) -> str:
    rank = line.rank
    return "" if rank is None else in_brackets(rank.mean, (rank.low, rank.high), 1, "")


def _of_panel(
    panel: int, where: str, lines: Sequence[RankLine], forgotten: HeadlineMetric
) -> list[Column[RankLine]]:
    """Make the columns of one panel."""

    def place(line: RankLine) -> float | None:
        return line.rank.places[panel] if line.rank else None

    def number(title: str, of: Callable[[RankedMethod], float | None]) -> Column[RankLine]:
        def value(line: RankLine) -> float | None:
            standing = line.standings[panel]
            return of(standing) if standing else None

        digits = digits_needed(map(value, lines))
        return Column(title + where, lambda line: signed(value(line), digits), value)

    return [
        Column(f"Rank{where}", lambda line: f"{place(line):g}" if line.rank else "", place),
        number(forgotten.short, lambda one: one.forgotten),
        number("Hypervolume", lambda one: one.hypervolume),
    ]


SECTION = ReportSection(
    folder="order_confidence",
    id="claims",
    title="How sure",
    values=_values,
)
