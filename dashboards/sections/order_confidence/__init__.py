"""Confidence in the order of methods: rivals, warnings, ranks and hypervolumes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.analysis.order_confidence import OrderConfidence, Rank, RankedMethod
from unlearnbench.api.benchmark import HeadlineMetric
from unlearnbench.stats.t_interval import LEVEL

from ...formatting import signed, split_cell
from ...html_table import Column, HtmlTable, in_brackets, number_column
from ...report_section import PageContext, ReportSection


@dataclass(frozen=True)
class RankLine:
    """A method over all panels."""

    method: str
    rank: Rank | None
    """None where it did not run on every panel."""
    standings: tuple[RankedMethod | None, ...]
    """Its best setting on each panel; None where it did not run."""


def rank_lines(claims: OrderConfidence) -> tuple[RankLine, ...]:
    """Sort the methods by mean rank; methods without one come last."""
    ranks = {one.method: one for one in claims.ranks.ranks}
    standings = [{one.method: one for one in panel.methods} for panel in claims.panels]
    names = [*ranks, *sorted({name for panel in standings for name in panel} - ranks.keys())]
    return tuple(
        RankLine(name, ranks.get(name), tuple(panel.get(name) for panel in standings))
        for name in names
    )


def digits_needed(values: Iterable[float | None], least: int = 2, most: int = 8) -> int:
    """Count the decimals that a column needs, so that different numbers do not look equal."""
    rounded = {round(value, most) for value in values if value is not None}
    return next(
        (d for d in range(least, most) if len({round(v, d) for v in rounded}) == len(rounded)), most
    )


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
    if rank is None:
        return ""
    return in_brackets(rank.mean, f"[{signed(rank.low, 1)}, {signed(rank.high, 1)}]", 1)


def _of_panel(
    panel: int, where: str, lines: Sequence[RankLine], forgotten: HeadlineMetric
) -> list[Column[RankLine]]:
    """Make the columns of one panel."""

    def number(
        title: str, of: Callable[[RankedMethod], float | None], least: int = 2
    ) -> Column[RankLine]:
        def value(line: RankLine) -> float | None:
            standing = line.standings[panel]
            return of(standing) if standing else None

        return number_column(title + where, value, digits_needed(map(value, lines), least))

    return [
        number("Place", lambda one: one.place, least=0),
        number(forgotten.short, lambda one: one.forgotten),
        number("Hypervolume", lambda one: one.hypervolume),
    ]


SECTION = ReportSection("order_confidence", "claims", "How sure", _values)
