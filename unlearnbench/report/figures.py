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

A table is a sweep's folder, records, or rows: of a sweep, a part of one, or several sweeps that
were evaluated by the same rules. `width` is that in print: `column` (3.25 inches), `text` (6.75)
or inches; by default figures are for a screen. `figure.update_layout` changes title and legend.
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
    """What a figure is drawn from."""

    rows: tuple[TableRow, ...]
    choices: tuple[Choice, ...] = ()
    """What `select` or `tune` has chosen. Rows do not say it."""
    ends: tuple[EarlyEnd, ...] = ()
    """Runs that ended early, which leave their settings without a mean. Rows do not say it."""


def _drawn(table: Table) -> _Drawn:
    """Read a sweep's folder, records or rows."""
    if isinstance(table, str | Path):
        results = Results.read(table)
    else:
        items: tuple[Any, ...] = tuple(table)
        if not items or not isinstance(items[0], Record):
            return _Drawn(items)
        results = Results.of(items, name="")
    return _Drawn(results.rows, results.choices, results.ends)


def dataframe(table: Table) -> Any:
    """Make a data frame of pandas: the columns of `results.csv`, a line per run and epoch."""
    import pandas

    return pandas.read_csv(io.StringIO(to_csv(rows_of(table))))


def select(
    rows: Sequence[TableRow],
    methods: Iterable[str] | str | None = None,
    fraction: SplitKey | None = None,
    rate: float | None = None,
) -> tuple[TableRow, ...]:
    """Select the runs of some methods, of one split and of one learning rate.

    methods  as in the tables, with or without hyper-parameters; `npo` is also `npo+nll`, where it
             ran in that form alone. Start and retain models stay, and runs without a rate.

    Raises: RecordError for what the table does not have.
    """
    runs = [row for row in rows if row.kind == "run"]
    if methods is not None:
        families = sorted({row.family for row in runs})
        names = [methods] if isinstance(methods, str) else methods
        wanted = {with_retain_term(name, families) for name in names}
        for name in sorted(wanted - {name for row in runs for name in (row.family, row.method)}):
            raise RecordError(
                f"no method {name!r} in this table{did_you_mean(name, families) or ';'} it has "
                f"{', '.join(families)}"
            )
        runs = [row for row in runs if wanted & {row.family, row.method}]
    if rate is not None:
        rates = sorted({row.learning_rate for row in runs if row.learning_rate is not None})
        near = [item for item in rates if math.isclose(item, rate, rel_tol=1e-6)]
        if rate in near:  # another rate may look like it
            near = [rate]
        if not near:
            listed = ", ".join(map(float_text, rates))
            raise RecordError(f"no learning rate {float_text(rate)} in this table; rates: {listed}")
        runs = [row for row in runs if row.learning_rate in (None, *near)]
    if fraction is not None and not any(row.forget_fraction == fraction for row in rows):
        splits = dict.fromkeys(str(row.forget_fraction) for row in rows)
        raise RecordError(f"no split {fraction!r} in this table; splits: {', '.join(splits)}")
    kept = {(row.run_id, row.epoch) for row in runs}
    return tuple(
        row
        for row in rows
        if (row.kind != "run" or (row.run_id, row.epoch) in kept)
        and fraction in (None, row.forget_fraction)
    )


def pareto(
    table: Table,
    *,
    methods: Iterable[str] | None = None,
    fraction: SplitKey | None = None,
    rate: float | None = None,
    width: Width = None,
) -> Any:
    """Trade-off of what is kept against what is forgotten, as a `plotly` Figure.

    One figure: a row of panels per model, a column per split; below each other in a column.

    Each method's best setting is ringed. Of a folder it is the choice of `select` or `tune` if the
    sweep has such a rule. Its records and rows do not say what was chosen.

    methods, fraction, rate  what of the table is drawn, see `select`
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
    """Metrics by epoch, as a `plotly` Figure: a row per model and fraction, a column per metric.

    metrics  columns of `results.csv` (default: the headline's two, and two of the forget set)

    The other options are those of `pareto`.
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
    """The two distributions that Forget Quality compares, with D marked, as a `plotly` Figure.

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
    records = {other.id: other for other in results.records}
    retain, start = (
        None if row is None else records[row.run_id]
        for row in (panel.row("retain"), panel.row("fine-tuned"))
    )
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
    """What attacks bring back of each method's best setting, as a `plotly` Figure.

    A line for each method, from before to after the strongest attack, with the start and the retain
    model, and a plot for each model and split.

    Args:
        table: A sweep's folder, or its records.
        methods: Methods to draw. Defaults to all.
        fraction: Split to draw. Defaults to all.
        width: See the module.

    Raises:
        RecordError: If nothing was attacked, or for a method or split that the table does not have.
    """
    results = _results(table)
    chosen = _families(results, methods, fraction)
    panels: list[PanelRecovery] = []
    for panel in results.lasting:
        found = panel_recovery(panel)
        lines = tuple(line for line in found.methods if line.family in chosen)
        if lines and fraction in (None, panel.forget_fraction):
            panels.append(replace(found, methods=lines))
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
    """Best settings with intervals, and which of every two methods is better, as a `plotly` Figure.

    Args:
        table: A sweep's folder, or its records. Comparisons read evaluations.
        fraction: Split to draw. Defaults to all.
        width: See the module.

    Raises:
        RecordError: If no method has a best setting, or for a split that the table does not have.
    """
    results = _results(table)
    _families(results, None, fraction)
    by_place = {panel.panel: panel for panel in results.panels}
    tables = [
        pair_table
        for pair_table in results.pairs
        if pair_table.methods and fraction in (None, pair_table.forget_fraction)
    ]
    if not tables:
        raise RecordError("no method has a best setting, so there is nothing to compare")
    panels = [by_place[pair_table.panel] for pair_table in tables]
    return registry.load("dashboards", "pairs")(panels, tables, every=results.rows, width=width)


def _results(table: str | Path | Iterable[Record]) -> Results:
    """Read a sweep's folder or records."""
    if isinstance(table, str | Path):
        return Results.read(table)
    return Results.of(table, name="")


def _families(
    results: Results, methods: Iterable[str] | str | None, fraction: SplitKey | None
) -> set[str]:
    """List the methods to draw; names and the split are checked as by `select`."""
    rows = select(results.rows, methods, fraction)
    return {row.family for row in rows if row.kind == "run"}


def paper() -> Any:
    """The CE-U paper's figure of six panels, from its published points, as a `plotly` Figure."""
    return registry.load("dashboards", "paper")()


def meta_evaluation(evaluations: Sequence[MetaEvaluation]) -> Any:
    """Metrics as detectors of knowledge, as a `plotly` Figure: a row of panels per split.

    evaluations  of `unlearnbench.analysis.meta_evaluation.meta_evaluation`
    """
    return registry.load("dashboards", "meta-evaluation")(evaluations)


def save(figure: Any, path: str | Path) -> None:
    """Write a figure as .svg, .png or .pdf (extra `figures`, and a browser), or as .html."""
    registry.load("dashboards", "save")(figure, Path(path))
