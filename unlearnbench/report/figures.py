"""Figures in one line each, as Plotly figures; the first one imports Plotly.

    from unlearnbench.report.figures import dataframe, pareto, trajectories, truth_ratios

    pareto("runs/quickstart")
    pareto("runs/quickstart", methods=["ce-u", "npo"], rate=1e-4, width="column")
    trajectories("runs/quickstart", fraction=0.1)
    truth_ratios("runs/quickstart", method="npo")
    dataframe("runs/quickstart")  # all numbers, as a data frame of pandas

A table is a sweep's folder, its `results.csv` (the file, or as a data frame), records, or rows. It
may be a part of a sweep, or of several sweeps that were evaluated by the same rules.
"""

import csv
import io
import math
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, Unpack, cast

from unlearnbench.analysis.best_settings import average_seeds, best_per_method
from unlearnbench.analysis.equal_utility import with_retain_term
from unlearnbench.analysis.meta_evaluation import MetaEvaluation
from unlearnbench.analysis.results import Results
from unlearnbench.api import registry
from unlearnbench.api.benchmark import SplitKey, split_label
from unlearnbench.base.errors import RecordError, did_you_mean
from unlearnbench.config.plan import PLAN_FILE
from unlearnbench.evaluation.benchmark_schema import StoredBenchmark
from unlearnbench.results.records import Record, StoredEvaluations, evaluated_epoch, read_records
from unlearnbench.results.table import TableRow, from_csv, to_csv
from unlearnbench.results.table import table as make_table

__all__ = [
    "Look",
    "Table",
    "dataframe",
    "meta_evaluation",
    "paper",
    "pareto",
    "rows_of",
    "save",
    "trajectories",
    "truth_ratios",
]


class Look(TypedDict, total=False):
    """How a figure is drawn."""

    width: Literal["column", "text"] | float | None
    """In print: of a paper's column (3.25 inches), of its text (6.75), or inches; default: for a
    screen."""
    font_size: float | None
    """Points; default: 8 in a column, 9 elsewhere."""
    legend: bool
    title: str | None
    """Default: the numbers drawn; none at a width in print, which a caption names."""


class DataFrame(Protocol):
    """Data frame of pandas, polars and others."""

    def to_dict(self, orient: Literal["records"]) -> list[dict[Hashable, Any]]:
        """One mapping of column to value per line."""
        ...


Table = str | Path | Iterable[TableRow] | Iterable[Record] | DataFrame
"""Sources of rows."""


def rows_of(table: Table) -> tuple[TableRow, ...]:
    """Read the rows of a sweep's folder, of a `results.csv` or its data frame, or of records.

    Raises: RecordError for anything else.
    """
    if isinstance(table, str | Path):
        path = Path(table)
        if path.is_dir():
            return Results.read(path).rows
        if not path.is_file():
            raise RecordError(f"{path}: no such folder of a sweep, and no results.csv")
        with path.open(encoding="utf-8", newline="") as lines:
            stored = StoredBenchmark.read(path.with_name(PLAN_FILE))
            return from_csv(csv.DictReader(lines), stored)
    if hasattr(table, "to_dict"):
        return from_csv(cast(Any, table).to_dict("records"))
    result: tuple[Any, ...] = tuple(cast(Iterable[Any], table))
    if all(isinstance(item, TableRow) for item in result):
        return result
    if all(isinstance(item, Record) for item in result):
        return make_table(result)
    raise RecordError(
        f"a table of {type(result[0]).__name__}: give a sweep's folder, its results.csv or data "
        "frame, records, or the rows of a sweep's results"
    )


def dataframe(table: Table) -> Any:
    """Make a data frame of pandas, the columns of `results.csv` and a line per run and epoch."""
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
                f"no method {name!r} in this table{did_you_mean(name, families)}; methods: "
                f"{', '.join(families)}"
            )
        runs = [row for row in runs if wanted & {row.family, row.method}]
    if rate is not None:
        rates = sorted({row.learning_rate for row in runs if row.learning_rate is not None})
        near = [None, *(item for item in rates if math.isclose(item, rate, rel_tol=1e-6))]
        if len(near) == 1:
            listed = ", ".join(f"{item:g}" for item in rates)
            raise RecordError(f"no learning rate {rate:g} in this table; rates: {listed}")
        runs = [row for row in runs if row.learning_rate in near]
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
    **look: Unpack[Look],
) -> Any:
    """Trade-off of what is kept against what is forgotten, as a `plotly` Figure.

    One figure: a row of panels per model, a column per split; below each other in a column.

    methods, fraction, rate  what of the table is drawn, see `select`
    """
    whole = rows_of(table)
    draw = registry.load("dashboards", "pareto")
    return draw(select(whole, methods, fraction, rate), every=whole, **look)


def trajectories(
    table: Table,
    metrics: Sequence[str] | None = None,
    *,
    methods: Iterable[str] | None = None,
    fraction: SplitKey | None = None,
    rate: float | None = None,
    **look: Unpack[Look],
) -> Any:
    """Metrics by epoch, as a `plotly` Figure: a row per model and fraction, a column per metric.

    metrics  columns of `results.csv` (default: the headline's two, and two of the forget set)

    The other options are those of `pareto`.
    """
    whole = rows_of(table)
    draw = registry.load("dashboards", "trajectories")
    return draw(select(whole, methods, fraction, rate), metrics, every=whole, **look)


def truth_ratios(
    record: Record | str | Path,
    retain: Record | None = None,
    epoch: int | None = None,
    *,
    method: str | None = None,
    fraction: SplitKey | None = None,
    rate: float | None = None,
    **look: Unpack[Look],
) -> Any:
    """The two distributions that Forget Quality compares, with D marked, as a `plotly` Figure.

    record  a run, or a sweep's folder, of which `method`, `fraction` and `rate` choose one: its
            best setting (first seed), if one keeps enough utility
    retain  the retain model's record (default: the one in the same folder as the run's)
    epoch   of the run (default: its last; of a folder's run its best)

    The other options are those of `pareto`.

    Raises: RecordError if the epoch or the retain model's record does not exist.
    """
    if not isinstance(record, Record):
        record, best = _chosen_run(record, method, fraction, rate)
        epoch = best if epoch is None else epoch
    chosen = evaluated_epoch(record, epoch)
    siblings: list[Record] = []
    if isinstance(record.evaluations, StoredEvaluations):
        read = read_records(record.evaluations.folder.parent)
        siblings = [r for r in read if (r.panel, r.profile) == (record.panel, record.profile)]
    goal = retain or next((r for r in siblings if r.kind == "retain"), None)
    if goal is None or not goal.evaluations:
        raise RecordError(
            f"record {record.id}: no retain model of {record.model}, "
            f"{split_label(record.forget_fraction)}, in its folder; give its record as `retain`"
        )
    start = next((r for r in siblings if r.kind == "fine-tuned" and r.evaluations), None)
    draw = registry.load("dashboards", "truth-ratios")
    return draw(record, chosen, goal, start, every=make_table(siblings or [record]), **look)


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


def _chosen_run(
    folder: str | Path, method: str | None, fraction: SplitKey | None, rate: float | None
) -> tuple[Record, int]:
    """A run of a sweep's folder and its epoch, see `truth_ratios`."""
    results = Results.read(folder)
    rows = select(results.rows, method, fraction, rate)
    best = [item.setting for item in best_per_method(rows) if item.setting is not None]
    settings = best or [seed for seed in average_seeds(rows) if seed.epoch > 0][-1:]
    if not settings:
        raise RecordError(f"{folder}: no run that was evaluated, of what is asked for")
    if len({(setting.panel, setting.family) for setting in settings}) > 1:
        listed = dict.fromkeys(
            f"{setting.family} ({split_label(setting.forget_fraction)})" for setting in settings
        )
        raise RecordError(f"{folder}: name one `method` and `fraction` of {', '.join(listed)}")
    row = settings[0].rows[0]
    return next(record for record in results.records if record.id == row.run_id), row.epoch
