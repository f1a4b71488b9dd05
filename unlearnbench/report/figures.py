"""Figures in one line each, as Plotly figures; the first one imports Plotly.

    from unlearnbench.report.figures import dataframe, pareto, trajectories, truth_ratios
    from unlearnbench.report.figures import lasting, pairs

    pareto("runs/quickstart")
    pareto("runs/quickstart", methods=["ce-u", "npo"], rate=1e-4, width="column")
    trajectories("runs/quickstart", fraction=0.1)
    truth_ratios("runs/quickstart", "5f0c")
    lasting("runs/quickstart", width="column")
    pairs("runs/quickstart", width="text")
    dataframe("runs/quickstart")  # all numbers, as a data frame of pandas

A table is a sweep's folder, records, or rows. Rows may be a part of a sweep, or come from several
sweeps that were evaluated by the same rules. `width` is the width in print: `column` (3.25 inches),
`text` (6.75) or a number of inches. By default, figures are for a screen. `figure.update_layout`
changes title and legend.
"""

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unlearnbench.analysis.best_settings import Choice
from unlearnbench.analysis.ended_early import EarlyEnd
from unlearnbench.analysis.meta_evaluation import MetaEvaluation
from unlearnbench.analysis.named_contender import with_retain_term
from unlearnbench.analysis.recovery import PanelRecovery, panel_recovery
from unlearnbench.analysis.results import Results
from unlearnbench.api import registry
from unlearnbench.api.benchmark import SplitKey, split_label
from unlearnbench.base.errors import RecordError, did_you_mean
from unlearnbench.base.number_text import float_text
from unlearnbench.results.records import Record, evaluated_epoch
from unlearnbench.results.table import TableRow, to_csv

__all__ = [
    "Table",
    "dataframe",
    "lasting",
    "meta_evaluation",
    "pairs",
    "paper",
    "pareto",
    "rows_of",
    "save",
    "trajectories",
    "truth_ratios",
]

Table = str | Path | Iterable[TableRow] | Iterable[Record]
"""Sources of rows."""
Width = str | float | None
"""`column`, `text`, or inches in print; None for a screen."""


def rows_of(table: Table) -> tuple[TableRow, ...]:
    """Read the rows of a sweep's folder, or of records."""
    return _drawn(table).rows


@dataclass(frozen=True)
class _Drawn:
    """The rows of a figure, and what is known of them only from records."""

    rows: tuple[TableRow, ...]
    choices: tuple[Choice, ...] = ()
    """Settings that `select` or `tune` has chosen."""
    ends: tuple[EarlyEnd, ...] = ()
    """Runs that ended early. Their settings have no mean after later epochs."""


def _drawn(table: Table) -> _Drawn:
    """Read a sweep's folder, records or rows."""
    if isinstance(table, str | Path):
        results = Results.read(table)
    else:
        entries: tuple[Any, ...] = tuple(table)
        is_of_records = bool(entries) and isinstance(entries[0], Record)
        if not is_of_records:
            return _Drawn(entries)
        results = Results.of(entries, name="")
    return _Drawn(results.rows, results.choices, results.ends)


def dataframe(table: Table) -> Any:
    """Make a pandas data frame with the columns of `results.csv`, and a line per run and epoch."""
    import pandas

    return pandas.read_csv(io.StringIO(to_csv(rows_of(table))))


def select(
    rows: Sequence[TableRow],
    methods: Iterable[str] | str | None = None,
    fraction: SplitKey | None = None,
    rate: float | None = None,
) -> tuple[TableRow, ...]:
    """Select the runs of some methods, of one split and of one learning rate.

    Args:
        rows: Rows of a table.
        methods: Names as in the tables, with or without hyperparameters. `npo` also means `npo+nll`
            if the method ran only in that form. Defaults to all.
        fraction: A split. Defaults to all.
        rate: A learning rate. Runs without a rate stay. Defaults to all.

    Returns:
        The rows of these runs, and of the start and retain models.

    Raises:
        RecordError: For a method, a rate or a split that the table does not have.
    """
    runs = [row for row in rows if row.kind == "run"]
    if methods is not None:
        runs = _of_methods(runs, [methods] if isinstance(methods, str) else methods)
    if rate is not None:
        runs = _of_rate(runs, rate)
    if fraction is not None and not any(row.forget_fraction == fraction for row in rows):
        splits = dict.fromkeys(str(row.forget_fraction) for row in rows)
        raise RecordError(f"no split {fraction!r} in this table; splits: {', '.join(splits)}")

    selected_runs = {(row.run_id, row.epoch) for row in runs}
    selected: list[TableRow] = []
    for row in rows:
        is_selected = row.kind != "run" or (row.run_id, row.epoch) in selected_runs
        if is_selected and fraction in (None, row.forget_fraction):
            selected.append(row)
    return tuple(selected)


def _of_methods(runs: Sequence[TableRow], names: Iterable[str]) -> list[TableRow]:
    """Select the runs of methods or of labels with hyperparameters.

    Raises:
        RecordError: For a name that no run has.
    """
    families = sorted({row.family for row in runs})
    wanted = {with_retain_term(name, families) for name in names}
    known = {row.method for row in runs}.union(families)
    for name in sorted(wanted - known):
        raise RecordError(
            f"no method {name!r} in this table{did_you_mean(name, families) or ';'} it has "
            f"{', '.join(families)}"
        )
    return [row for row in runs if row.family in wanted or row.method in wanted]


def _of_rate(runs: Sequence[TableRow], rate: float) -> list[TableRow]:
    """Select the runs with a learning rate, and those without any.

    Raises:
        RecordError: If no run has the rate.
    """
    rates = sorted({row.learning_rate for row in runs if row.learning_rate is not None})
    # A rate that was computed, such as 3 · 1e-5, may differ in its last digit.
    near = [known for known in rates if math.isclose(known, rate, rel_tol=1e-6)]
    if rate in near:
        near = [rate]
    if not near:
        listed = ", ".join(float_text(known) for known in rates)
        raise RecordError(f"no learning rate {float_text(rate)} in this table; rates: {listed}")
    return [row for row in runs if row.learning_rate is None or row.learning_rate in near]


def pareto(
    table: Table,
    *,
    methods: Iterable[str] | None = None,
    fraction: SplitKey | None = None,
    rate: float | None = None,
    width: Width = None,
) -> Any:
    """Draw what is kept against what is forgotten, as a `plotly` Figure.

    Models are rows of panels and splits are columns. A figure as wide as a column of a paper has
    all panels below each other.

    Each method's best setting is ringed. If `table` is the folder of a sweep with `select` or
    `tune`, the ring is around its choice. Records and rows do not say what was chosen.

    Args:
        table: See the module.
        methods: Methods to draw, see `select`.
        fraction: Split to draw, see `select`.
        rate: Learning rate to draw, see `select`.
        width: See the module.
    """
    drawn = _drawn(table)
    draw = registry.load("dashboards", "pareto")
    return draw(
        select(drawn.rows, methods, fraction, rate),
        every=drawn.rows,
        width=width,
        choices=drawn.choices,
        ends=drawn.ends,
    )


def trajectories(
    table: Table,
    metrics: Sequence[str] | None = None,
    *,
    methods: Iterable[str] | None = None,
    fraction: SplitKey | None = None,
    rate: float | None = None,
    width: Width = None,
) -> Any:
    """Draw metrics by epoch, as a `plotly` Figure: a row per model and split, a column per metric.

    Args:
        table: See the module.
        metrics: Columns of `results.csv`. Defaults to the two of the headline, and two of the
            forget set.
        methods: Methods to draw, see `select`.
        fraction: Split to draw, see `select`.
        rate: Learning rate to draw, see `select`.
        width: See the module.
    """
    drawn = _drawn(table)
    draw = registry.load("dashboards", "trajectories")
    return draw(
        select(drawn.rows, methods, fraction, rate),
        metrics,
        every=drawn.rows,
        width=width,
        ends=drawn.ends,
    )


def truth_ratios(
    folder: str | Path, run: str, epoch: int | None = None, *, width: Width = None
) -> Any:
    """Draw the two distributions that Forget Quality compares, as a `plotly` Figure.

    Their largest gap D is marked.

    Args:
        folder: A sweep's folder.
        run: Beginning of the id of a run, as in `results.csv`.
        epoch: Epoch of the run, or step in a sweep by steps. Defaults to its last.
        width: See the module.

    Raises:
        RecordError: If the run, the epoch or the retain model's record does not exist.
    """
    results = Results.read(folder)
    runs = [
        record for record in results.records if record.kind == "run" and record.id.startswith(run)
    ]
    if len(runs) != 1:
        raise RecordError(
            f"{folder}: {len(runs) or 'no'} runs have an id that begins with {run!r}; "
            "results.csv has the ids"
        )
    record = runs[0]
    chosen = evaluated_epoch(record, epoch)
    # The models that the table compares the run with.
    panel = next(panel for panel in results.panels if panel.panel == record.panel)
    records = {known.id: known for known in results.records}
    retain_row = panel.row("retain")
    start_row = panel.row("fine-tuned")
    retain = None if retain_row is None else records[retain_row.run_id]
    start = None if start_row is None else records[start_row.run_id]
    if retain is None or not retain.evaluations:
        raise RecordError(
            f"{folder}: no evaluated retain model of {record.model}, "
            f"{split_label(record.forget_fraction)}"
        )
    if start is not None and not start.evaluations:
        start = None
    draw = registry.load("dashboards", "truth-ratios")
    return draw(record, chosen, retain, start, every=results.rows, width=width)


def lasting(
    table: str | Path | Iterable[Record],
    *,
    methods: Iterable[str] | str | None = None,
    fraction: SplitKey | None = None,
    width: Width = None,
) -> Any:
    """Draw what attacks bring back of each method's best setting, as a `plotly` Figure.

    There is a plot for each model and split, and a line for each method. The line goes from before
    to after the strongest attack. Start and retain model are drawn, too.

    Args:
        table: A sweep's folder, or its records.
        methods: Methods to draw. Defaults to all.
        fraction: Split to draw. Defaults to all.
        width: See the module.

    Raises:
        RecordError: If nothing was attacked, or for a method or split that the table does not have.
    """
    results = _results(table)
    families = _families(results, methods, fraction)
    panels: list[PanelRecovery] = []
    for attacked_panel in results.lasting:
        recovery = panel_recovery(attacked_panel)
        lines = tuple(line for line in recovery.methods if line.family in families)
        if lines and fraction in (None, attacked_panel.forget_fraction):
            panels.append(replace(recovery, methods=lines))
    if not panels:
        raise RecordError(
            "no run of these was attacked, so there is no figure of what lasts; name attacks in "
            "the configuration (`attacks:`), and start the sweep again"
        )
    return registry.load("dashboards", "lasting")(panels, every=results.rows, width=width)


def pairs(
    table: str | Path | Iterable[Record],
    *,
    fraction: SplitKey | None = None,
    width: Width = None,
) -> Any:
    """Draw best settings with intervals, and which of two methods is better, as a `plotly` Figure.

    Args:
        table: A sweep's folder, or its records. Rows are not enough, because a comparison reads the
            answers to each question.
        fraction: Split to draw. Defaults to all.
        width: See the module.

    Raises:
        RecordError: If no method has a best setting, or for a split that the table does not have.
    """
    results = _results(table)
    _check_split(results, fraction)
    panel_of_key = {panel.panel: panel for panel in results.panels}
    tables = [
        pair_table
        for pair_table in results.pairs
        if pair_table.methods and fraction in (None, pair_table.forget_fraction)
    ]
    if not tables:
        raise RecordError("no method has a best setting, so there is nothing to compare")
    panels = [panel_of_key[pair_table.panel] for pair_table in tables]
    return registry.load("dashboards", "pairs")(panels, tables, every=results.rows, width=width)


def _results(table: str | Path | Iterable[Record]) -> Results:
    """Read a sweep's folder or records."""
    if isinstance(table, str | Path):
        return Results.read(table)
    return Results.of(table, name="")


def _families(
    results: Results, methods: Iterable[str] | str | None, fraction: SplitKey | None
) -> set[str]:
    """Return the methods to draw.

    Raises:
        RecordError: For a method or a split that the table does not have.
    """
    rows = select(results.rows, methods, fraction)
    return {row.family for row in rows if row.kind == "run"}


def _check_split(results: Results, fraction: SplitKey | None) -> None:
    """Check that the table has a split.

    Raises:
        RecordError: If it does not.
    """
    select(results.rows, fraction=fraction)


def paper() -> Any:
    """Draw the six panels of the CE-U paper from its published points, as a `plotly` Figure."""
    return registry.load("dashboards", "paper")()


def meta_evaluation(evaluations: Sequence[MetaEvaluation]) -> Any:
    """Draw metrics as detectors of knowledge, as a `plotly` Figure: a row of panels per split.

    Args:
        evaluations: Made by `unlearnbench.analysis.meta_evaluation.meta_evaluation`.
    """
    return registry.load("dashboards", "meta-evaluation")(evaluations)


def save(figure: Any, path: str | Path) -> None:
    """Write a figure as .svg, .png or .pdf (extra `figures`, and a browser), or as .html."""
    registry.load("dashboards", "save")(figure, Path(path))
